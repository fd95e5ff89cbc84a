"""The algebra every pruning level shares: one IR, one tri-state evaluator, statistics adapters elsewhere."""
