"""The commands, grouped as in the documentation: planning, changes, rewriting, maintenance, auditing, explorer."""
