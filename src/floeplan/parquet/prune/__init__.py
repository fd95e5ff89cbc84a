"""Metadata pruning of one Parquet file: which row groups and rows can match a predicate.

Input: a predicate (SQL text, a PyIceberg expression, tuples, IR) and a file. Output: a ``PruneResult`` with the row
groups to read, a ``RowSelection``, and the compile result, which lists the parts of the predicate that pruning could
not use. Three passes, each over the row groups that the one before left undecided::

    row-group statistics (footer)  ->  Bloom filters (equality, IN)  ->  page index (page statistics)

Rule: a row is dropped only when metadata proves that it cannot match. The evaluator is tri-state: FALSE drops, UNKNOWN
keeps, TRUE keeps and marks the rows as proven, so that a reader applies no residual to them.

Fail-safe: missing or untrustworthy metadata keeps the rows, and ``PruneResult.notes`` names it.

Modules in reading order:

- ``options``: ``PruneOptions``, what pruning may use.
- ``request``: ``PruneRequest``, the one-shot builder.
- ``pruner``: ``Pruner``, which compiles a predicate once for many files, and ``FilePruning``, its state on one file.
- ``provider``: Bloom filters that come from the caller (a cache, for example) instead of the file.
- ``result``: ``PruneResult``, and the row ranges that were evaluated.
- ``selection``: ``RowSelection``, runs of row numbers, and its Roaring bitmap.

``floeplan.prune`` is the public facade. ``parquet.read``, ``scan`` and packages above may import this package; it
imports ``parquet.footer``, ``parquet.source`` and ``predicate``.
"""
