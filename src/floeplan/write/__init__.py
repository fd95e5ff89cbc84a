"""Writing data files and delete files of a table, and describing them as manifest entries.

Rule: a file belongs to one partition of one spec, which may be any spec of the table; its entry records that spec, the
partition tuple and the column metrics that the table's properties ask for. Nothing here commits: the result is an
``EntriesTable`` with status ADDED, and sequence numbers are inherited from the commit (``transaction``).

Fail-safe: options and format version are checked before anything is written; every attempt has its own file names; a
failed attempt removes its files, and what cannot be removed is an orphan, never part of the table.

Modules in reading order:

- ``target``: ``WriteTarget``, the picklable description of the table that tasks write to; write options and metrics
  modes from table properties.
- ``conform``: input rows to the table's schema.
- ``partitioning``: splitting rows by partition, and sorting them.
- ``data_files``: rows to data files within memory limits.
- ``parquet_file``: one Parquet file, and the metrics that its footer lacks. ``other_files``: one ORC or Avro file.
- ``metrics``: written files as manifest entries, with their column metrics; ``variant_bounds``: those of variants.
- ``position_deletes``: position delete files and deletion vectors.
- ``existing_files``: registering existing Parquet files, whose partitions are proven.

``transaction``, ``tasks``, ``spark``, ``dml``, ``rewrite`` and packages above may import it; it imports ``scan``,
``metadata``, ``parquet``, ``partition`` and ``predicate``.
"""
