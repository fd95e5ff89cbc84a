"""Scan planning and reading: from a predicate to the files, row groups and rows that match.

Rule: three passes, each on what the previous one kept: manifests by partition summaries, files by partition tuples and
column bounds, row groups by Parquet footers. Reading then applies deletes and evaluates each file's residual.
Fail-safe: what cannot be proven absent is read. A footer that cannot be used keeps its file whole, with a warning.

Reading order:

- ``plan``: ``plan_scan`` runs the passes.
- ``footers``: the third pass.
- ``model``: options, ``PlannedFiles`` (the kept files as columns) and ``ScanPlanSummary``; ``planned_scan`` and
  ``scan_plan`` are the result, with its numbers in total and per partition spec.
- ``read``: reads the rows of a plan; ``file_rows`` one file, ``delete_files`` its deletes, ``projection`` its columns.
- ``explain``: the pruning pyramid and advice as text.
- ``incremental``: appends and row changes between two snapshots.
- ``report``: Iceberg scan reports; ``expression_json`` is their filter format.

May be imported by ``write`` and every package above it; imports ``snapshot``, ``parquet`` and below.
"""
