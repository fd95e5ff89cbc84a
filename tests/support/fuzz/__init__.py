"""Damaged input: random edits by seed, and every operation on damaged tables and files."""
