"""Write DataFrames as data files of a table, in Spark tasks or, when they are small, in this process.

Rule: the driver commits what the tasks report; nothing here commits. Fail-safe: when a job fails, the files that its
tasks reported are removed.

Modules in reading order:

- ``appending``: writes the rows of a DataFrame.
- ``distribution``: distributes rows over tasks (``write.distribution-mode``), with Iceberg's bucket hash in Spark SQL.
- ``arrow_batches``: the size of the Arrow batches on the way to tasks.
- ``small_frames``: which DataFrames are collected instead.
- ``store_assignment``: casts the columns of a query to the table's types, as Spark's INSERT does.

Imported by ``dml``, ``datasource`` and ``sql_text``; must not import ``dml`` or ``rewrite``.
"""
