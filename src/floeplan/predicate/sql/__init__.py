"""The sql package."""
