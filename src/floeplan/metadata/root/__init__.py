"""The columnar root manifest: all live entries of a snapshot in one Parquet file with the union partition tuple.

Rule: a row group is a manifest, so plans are made from it as from a manifest list. Fail-safe: a root manifest of
another table, snapshot or spec set is refused.

- ``layout``: the columns and the header.
- ``writer``: from manifests to a root manifest, and back.
- ``reader``: ``RootManifest``, which ``floeplan.snapshot.reader`` opens for ``ScanOptions.root``.
"""
