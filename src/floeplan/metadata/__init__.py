"""Iceberg metadata files as columns: manifest lists, manifests, the local cache of them, and the delete index.

Rule: a manifest costs a few Python calls and an entry none. Avro blocks, and the Parquet manifests of format 4, are
decoded into typed vectors, and everything above (pruning, delete matching, commits) works on these vectors.
Fail-safe: metadata that is damaged, truncated or contradicts itself is an error that names the file. A plan or a commit
made without part of it would lose rows or bring deleted ones back.

Reading order:

- ``files``: read and write metadata files; which files belong to a table and may be deleted with it.
- ``avro``: Avro containers, and the compiled and pure-Python column decoder and encoder.
- ``manifests``: manifest lists and manifest entries as tables, their statistics, completeness checks, and writers.
- ``cache``: decoded manifest entries kept on local disk. Used by ``floeplan.snapshot.reader`` and incremental scans.
- ``held``: decoded entries of whole snapshots in memory, in front of the cache. Used by ``floeplan.rest``.
- ``delete_index``: which delete files apply to which data files.
- ``v4``: the metadata tree of the Iceberg v4 draft.
- ``root``, ``root_writer``: a snapshot as one columnar root manifest in Floeplan's own layout, which
  ``floeplan.snapshot.reader`` opens for ``ScanOptions.root`` until the next release; and manifests written from it.

May be imported by every package above it; imports ``partition``, ``predicate`` and the modules below these.
"""
