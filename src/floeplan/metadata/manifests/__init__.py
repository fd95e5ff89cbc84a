"""The manifests package."""
