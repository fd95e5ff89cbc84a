"""Spark: reading tables as DataFrames, writing DataFrames, and metadata as DataFrames.

Classic sessions and Spark Connect are supported, so only the DataFrame API is used; what needs the JVM is in ``jvm``
and falls back. Importing ``floeplan`` does not import PySpark.

Rule: rows are those that Floeplan reads without Spark. Fail-safe: where Spark's own reader or planner is in doubt,
Python tasks read as ``scan`` does.

Modules in reading order:

- ``session``: opens sessions, on demand; translates Spark's errors.
- ``types``: Iceberg types and predicates in Spark's terms; store assignment.
- ``read``: tables as DataFrames, in a sub-package.
- ``pushdown``: the predicates and columns that a query needs of each table, from Spark's optimizer.
- ``join_keys``: the joins of a query by which a table can be pruned.
- ``write``: DataFrames as data files, in the tasks that compute them.
- ``distribution``: rows over tasks (``write.distribution-mode``), with Iceberg's bucket hash in Spark SQL.
- ``exchange``: Python tasks that move Arrow tables through a shuffle.
- ``planning``: evaluates manifests in Spark tasks.
- ``incremental``: appended rows and changelogs between snapshots.
- ``changelog``: the views of Iceberg's procedure ``create_changelog_view``, with updates and net changes.
- ``metadata_tables``: snapshots, manifests, entries, files and partitions as DataFrames.
- ``jvm``: Spark's internal APIs, wrapped; which DataFrames are small.

Imported by ``dml``, ``rewrite`` and everything above; must not import ``dml``. ``format("floeplan")`` is in
``floeplan.datasource``, above ``dml``.
"""
