"""The strategies package."""
