"""The source package."""
