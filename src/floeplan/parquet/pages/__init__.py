"""The pages package."""
