"""Parquet files below the level of a decoder: metadata, pruning, selective reads and single pages.

Purpose: read as few bytes of a file as a query needs, and rewrite files without decoding what does not change. pyarrow
decodes and encodes values; this package decides which bytes it gets.

Rule: rows are dropped only when metadata proves that they cannot match (``prune``), and reads return exactly the
selected rows. Fail-safe: metadata is verified before it is used; what is missing or contradictory reads more, never
less, and a file that cannot be read is a ``CorruptFileError`` that names the file.

Modules in reading order:

- ``source``: byte sources with coalesced, concurrent range reads.
- ``footer``: metadata: footer, schema, statistics, page index, Bloom filters.
- ``prune``: which row groups and rows can match a predicate.
- ``read``: reading selected rows.
- ``pages``: encoded pages without decoding values, for ``rewrite.pages``.

Packages above may import it; it imports ``predicate`` and the modules below (``errors``, ``vectors``). It does not
import ``metadata``: nothing here knows Iceberg's manifests.
"""
