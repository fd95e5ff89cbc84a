"""Statements that change tables, as SQL text in Spark's dialect."""
