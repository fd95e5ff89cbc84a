"""Row-level changes: append, delete, update, merge, overwrite and cherry-pick, each committed as one snapshot.

Rule: a command plans the files that may hold matching rows with the scan planner, removes files of which every row
matches by metadata alone, and changes the rows of the others in tasks, by copy-on-write or merge-on-read. New rows are
written under the default spec, deletes under the spec and partition of their data file. Arrow evaluates expressions;
what only Spark can evaluate is evaluated by Spark, and the rows it finds are changed the same way.

Fail-safe: an expression that Arrow cannot evaluate exactly is an error without a Spark session, never an approximation.
When a command fails before its commit, the files it wrote are deleted.

Modules in reading order:

- ``delete_update``: ``delete`` and ``update``; planning and running, which other commands share.
- ``append``, ``overwrite``: ``append``, and ``overwrite`` by predicate or by partition.
- ``merge``: ``merge``, in a sub-package.
- ``cherry_pick``: the changes of a snapshot committed to another branch.
- ``target``: the table, branch, mode and isolation level of a command.
- ``row_task``: which rows of a file change, and the task that changes them.
- ``assign``: SET and VALUES, the statement timestamp, and conditions with subqueries.
- ``spark_rows``: rows and values that Spark computes.
- ``sources``: rows from Arrow data, DataFrames, Parquet files and tables.
- ``commit``: ``ChangeBuilder``, the commit of a command and its ``DmlResult``.

May be imported by maintenance, datasource, sql_text, audit, explorer and cli, not by rewrite; imports spark, tasks,
transaction and below.
"""
