"""The plan package."""
