"""Parquet metadata: footer, schema, statistics, page index and Bloom filters.

Purpose: decode only the metadata that a predicate and a projection need, into columns of numbers over row groups and
pages, without building an object per column chunk.

Rule: metadata is used only if Parquet's specification gives it a meaning: bounds need a known column order, INT96 has
none, NaN is never counted, null pages have no bounds. Known writer bugs are excluded by ``created_by``.

Fail-safe: metadata that is missing, contradictory or outside the file counts as absent, and the rows are kept. A footer
that cannot be decoded is a ``CorruptFileError`` with file and offset.

Modules in reading order:

- ``thrift``: Thrift's compact protocol (``_thrift.pyx`` is a kernel of its decoder).
- ``logical_types``: physical and logical types, and the Iceberg type of a leaf.
- ``schema``: schema tree, leaf columns, field index, Iceberg schema.
- ``footer``: ``ParquetFooter``, ``read_footer``, and the column chunks of one leaf over all row groups.
- ``statistics``: which statistics can be trusted, as typed bounds and as the evaluator's ``StatsTable``.
- ``page_index``: offset index and column index, read and written.
- ``bloom``: split-block Bloom filters.

Any package above ``predicate`` may import it; it imports ``predicate``, ``parquet.source``, ``errors`` and ``vectors``.
"""
