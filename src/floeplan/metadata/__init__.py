"""Iceberg's metadata files as columns: manifest lists, manifests, their statistics and a cache of them."""
