"""Rewriting: which files to rewrite into which, and how the new files are made."""
