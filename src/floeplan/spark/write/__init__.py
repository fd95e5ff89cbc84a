"""The write package."""
