"""The prune package."""
