"""The root package."""
