"""The rows package."""
