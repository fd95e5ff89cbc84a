"""Read tables as Spark DataFrames: Spark's own Parquet reader where it is right, Python tasks elsewhere.

Spark's reader is 3 times cheaper than Python tasks, but on an Iceberg table it silently returns wrong rows in several
cases: it matches pushed filters by name, loses NaN, skips files named ``_x``, and knows no deletes. Each case is either
avoided (substitute names, ``nanvl``, bitmaps of deletes) or a reason to read the file in Python tasks.

Rule: both readers return the same rows. Fail-safe: in doubt a file is read in Python tasks.

Modules in reading order:

- ``reader``: ``fp.read`` and ``fp.plan_read``; Python tasks for files that Spark's reader cannot read.
- ``reader_choice``: the reader of each file, and why.
- ``native``: DataFrames over Spark's reader, one branch per treatment of files.
- ``columns``: columns by field id, under names that no pushed filter mistakes.
- ``deletes``: position deletes as a bitmap in a scalar subquery.
- ``file_log``: hands Spark a list of files without listing them.

Imported by the other modules of ``spark``, and by ``dml``, ``sql_text``, ``audit`` and ``cli``.
"""
