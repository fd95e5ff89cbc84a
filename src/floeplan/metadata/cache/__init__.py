"""The cache package."""
