"""Building new Parquet files from the pages of old ones.

Why it exists: compaction mostly moves values that do not change. Decoding and encoding them is nearly all of its CPU
time, and with a general-purpose engine most of its memory. Parquet makes that unnecessary in three cases:

- A row group is independent of its file. ``new_file.stitch`` copies row groups byte for byte and shifts the offsets in
  footer and offset indexes.
- A page without a dictionary is independent of its row group. ``column_chunk`` concatenates the pages of small row
  groups into the column chunks of a large one, with their statistics.
- Plain values and dictionary indexes can be filtered without decoding them. ``filtered_pages`` removes deleted rows,
  merges dictionaries and combines small pages.

What it saves, against Iceberg's ``rewrite_data_files`` on Spark (``docs/benchmarks.md``, suite ``rewrite``): binpack
takes 1.11 CPU s instead of 13.8 and 326 MB instead of 2.24 GB per task, with 5 % deleted rows 3.76 instead of 16.3, and
stitch 0.979 instead of 12.4, where copying the bytes alone takes 0.757.

Rule: a copied or filtered column has the same values, types, levels and statistics as a newly encoded one, and is never
larger than the table's page and dictionary sizes allow. This is decided per row group and column.

Fail-safe: a column that is not fully described by its metadata, or has an unsupported page, is decoded and encoded by
pyarrow; the other columns of the row group are not affected.

Modules in reading order:

- ``new_file``: a file of copied row groups, or written column chunk by column chunk.
- ``column_chunk``: column chunks of pages; which pages can be copied.
- ``filtered_pages``: column chunks without deleted rows.

``rewrite.run`` imports it; it imports ``parquet``, ``scan`` and ``write``.
"""
