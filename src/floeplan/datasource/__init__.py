"""``format("floeplan")``: the Python data source, for SQL and for pipelines that are configured by format.

Rule: tasks read and write files, the driver plans and commits. Fail-safe: only reported files are committed, a failed
job removes its files, and a stream commits each batch exactly once.

Modules in reading order:

- ``source``: the entry point that Spark finds through ``pyspark_floeplan``.
- ``io``: options, batch reads and writes, streams of appended rows, and streams into a table.

A separate package, because it commits through ``dml``, which is above ``spark``. Only the top-level package imports it,
for ``fp.register``.
"""
