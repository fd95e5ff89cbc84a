"""The commit package."""
