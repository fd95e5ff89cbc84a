"""Scan planning and reading: from a predicate to the files, row groups and rows that match.

Rule: three passes, each on what the previous one kept: manifests by partition summaries, files by partition tuples and
column bounds, row groups by Parquet footers. Reading then applies deletes and evaluates each file's residual.
Fail-safe: what cannot be proven absent is read. A footer that cannot be used keeps its file whole, with a warning.

Reading order:

- ``plan``: ``plan_scan`` runs the passes and returns a ``ScanPlan``. ``footers``: the third pass.
- ``model``: ``ScanOptions``; ``PlannedFiles``, the kept files as columns, each a ``FileScan`` when accessed.
- ``planned_scan``: the data of a plan and its numbers, in total, per pass and per partition spec.
- ``read``: reads the rows of a plan; ``file_rows`` one file, ``delete_files`` its deletes, ``projection`` its columns,
  ``variants`` those of shredded variants.
- ``metadata_columns``: ``_file``, ``_pos`` and others, in the columns and predicates of a scan.
- ``stream``: the same as a stream of batches, for limits and for other engines.
- ``explain``: the pruning pyramid and advice as text; ``why``: what keeps or drops one file.
- ``incremental``: appends and row changes between two snapshots.
- ``report``: Iceberg scan reports, with the predicate as Iceberg expression JSON.

May be imported by ``write`` and every package above it; imports ``snapshot``, ``parquet`` and below.
"""
