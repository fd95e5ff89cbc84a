"""Manifest lists and manifest entries as columnar tables, for format versions 1 to 4.

Rule: what a format version does not have is filled in as the Iceberg specification says (sequence number 0, content
data, inherited snapshot ids and sequence numbers); above this package all versions look the same.
Fail-safe: a manifest is accepted only when its length or its counts in the manifest list prove it complete, and
nothing that an entry holds is lost when it is written again.

Reading order:

- ``manifest_list``: one row per manifest.
- ``entries``: one row per manifest entry, which columns to read, and entries that are made rather than read.
- ``reader``: reads the entries of many manifests; detects truncated manifests and manifest lists.
- ``parquet_reader``: the same columns from the Parquet manifests of format 4.
- ``assemble``: decoded columns to entry columns, with inheritance applied.
- ``values``: Iceberg's single-value bytes, physical vectors and logical Arrow types, converted into each other.
- ``stats``: summaries, partition tuples and bounds in the form predicates are evaluated on.
- ``schemas``, ``writer``, ``parquet_writer``, ``list_writer``: writing manifests and manifest lists.

Snapshots are read through ``floeplan.snapshot.reader``; only commits use this package directly.
"""
