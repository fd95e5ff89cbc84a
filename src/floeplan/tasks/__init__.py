"""The tasks package."""
