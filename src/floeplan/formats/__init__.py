"""Data and delete files of every format of Iceberg, behind one interface: rows by field id and position.

Purpose: scans, changes and rewrites read Parquet, ORC and Avro files alike. Parquet keeps what only it has (pages,
bloom filters, encoded column chunks) in ``parquet``.

Rule: a file is opened once and states its rows and the groups they are stored in: row groups of Parquet, stripes of
ORC, runs of blocks of Avro. ``read`` returns exactly the selected rows, with field ids in the metadata of the columns.
Columns of files without field ids come by their names alone; ``scan`` assigns ids by the table's name mapping.
New files have the format that the table's properties name (``write``).

Fail-safe: a file that does not decode to the number of rows it states is a ``CorruptFileError`` that names it, and what
a decoder cannot represent exactly is refused.

Modules in reading order:

- ``stored``: ``StoredFile``, the interface. ``files``: ``open_stored``, and Parquet files.
- ``orc``: ORC files, decoded by pyarrow. ``orc_footer``: their stripes, field ids and statistics.
  ``orc_times``: timestamps that pyarrow does not return.
- ``avro``: Avro files, decoded by the programs of ``metadata.avro``. ``avro_rows``: Arrow rows as Avro records.

May be imported by ``scan`` and packages above it; imports ``metadata``, ``parquet`` and below.
"""
