"""The footer package."""
