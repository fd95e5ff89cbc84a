"""The merge package."""
