"""One snapshot of a table: which one, its metadata, and which of its files can hold matching rows.

Rule: every other package loads a snapshot through ``SnapshotReader``, so that scans, rewrites, DML and maintenance see
the same files and run the same completeness checks.
Fail-safe: what cannot be proven absent is kept; a delete file that may apply is applied; a manifest list that may be
truncated is reported, and refused by operations that delete files or write rows.

Reading order:

- ``reader``: resolves a snapshot id, timestamp, branch or tag; ``SnapshotReader`` loads manifest list, manifest
  entries and delete files.
- ``effects``: what each conjunct of a predicate decides in a pass, from which statistic, and why not more.
- ``passes``: evaluates a predicate on manifests (pass 1) and on manifest entries (pass 2); classifies delete
  files and matches them with data files.

May be imported by ``scan`` and every package above it; imports ``metadata`` and below.
"""
