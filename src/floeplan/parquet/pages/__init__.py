"""Encoded Parquet pages: decompress, filter, combine and compress them without decoding single values.

``rewrite.pages`` builds new files from the pages of old ones with this package, and ``parquet.read`` reads plain INT64
columns with it. ``rewrite.pages`` explains why that exists and what it saves.

Rule: a page is processed only if it is exactly what its headers and the footer state: flat column, data page v1 or v2,
plain or dictionary encoding, supported codec. Fail-safe: anything else raises one of ``data_pages.UNSUPPORTED_PAGE``,
and the caller decodes the column with pyarrow.

Modules in reading order:

- ``data_pages``: page headers, definition levels, compression, and the pages of a column chunk.
- ``value_encodings``: plain values and dictionary indexes, filtered and concatenated, with their bounds.
- ``zstd``: Zstandard functions that no public API offers.

Kernels: ``_page_values.pyx`` (bit packing, filtering, bounds), ``_neighbours.pyx`` (matches between consecutive values)
and ``_flat_columns.pyx`` (column chunks to Arrow's buffers); ``hybrid.pxd`` is what they share. Without them
``data_pages.kernel`` is ``None`` and callers decode columns with pyarrow instead.

``parquet.read`` and ``rewrite.pages`` may import it; it imports ``parquet.footer`` and ``vectors``.
"""
