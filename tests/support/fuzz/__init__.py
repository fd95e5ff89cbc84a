"""Damaged input: edits drawn from a seed, and everything that is read from damaged tables and files."""
