"""The spec_upgrade package."""
