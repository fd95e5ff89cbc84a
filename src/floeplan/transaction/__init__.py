"""Changing tables: what a snapshot adds and removes, whether that is still allowed, and how it is committed."""
