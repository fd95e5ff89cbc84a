"""The snapshot package."""
