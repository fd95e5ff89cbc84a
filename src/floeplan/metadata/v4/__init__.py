"""The metadata tree of the Iceberg v4 draft, profile ``v4-draft-1.12.0``: a root manifest and leaves, as Parquet files.

Experimental: the draft still moves, and no released engine writes such a tree. Floeplan converts snapshots to it and
back, plans from it, and commits to trees of its own in a scratch folder; it never writes one into a table.

Rule: fields and types are those that Iceberg Java 1.12.0 derives. Its reader, which is not wired to scans yet, reads
every root and leaf that Floeplan writes. A tree is read into the same columns as manifests, so the same code prunes.
Fail-safe: what a later draft may mean differently is an error; statistics that are missing or of another type are
unknown and keep the file.

Reading order:

- ``fields``: every field id, and the profile.
- ``schemas``: the schema of manifests: tracked files, the union partition tuple, content statistics.
- ``mumbling``: the bitmaps of positions that a root removes from a leaf.
- ``stats``: typed bounds as single values and back, maps of statistics, aggregation for leaves.
- ``manifest_file``: columns of a manifest by field id.
- ``row_entries``: rows of manifests as manifest entries.
- ``listing``: a root as a manifest list: its own files, and the manifests it refers to.
- ``tree``: a root and its leaves as ``floeplan.snapshot.reader`` reads a snapshot.
- ``writer``: rows of data files, written as Parquet.
- ``references``: rows of a root that refer to manifests.
- ``convert``: a snapshot as a tree.
- ``to_manifests``: manifests of format 1 to 3 from a tree.
- ``commits``: appends and deletes as new roots of a scratch tree.

May be imported by every package above ``metadata``; imports ``metadata.manifests`` and below.
"""
