"""The read package."""
