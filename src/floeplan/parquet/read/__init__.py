"""Reading selected rows of a Parquet file with as few bytes as possible.

Rule: the result is exactly the selected rows, in file order, in one round trip where possible. When pages can be
skipped, only the pages with selected rows are fetched and decoded; otherwise whole row groups are. A predicate's
columns are read first when that saves more bytes than a round trip costs (late materialization).

Fail-safe: page headers are checked against the offset index, and decoded rows against the footer. A page that does not
match its location leads to a read of the whole column chunk; a wrong number of rows is a ``CorruptFileError``.

Modules in reading order:

- ``reader``: ``read`` (prune, read, filter), ``read_selected``, and ``read_row_groups`` for whole row groups.
- ``projection``: columns by name, path or field id, as leaves; merging of nested columns from their leaves.
- ``pages``: fetching single pages, and decoding them as in-memory Parquet files.
- ``buffers``: memory of decoded columns, which later reads use again.
- ``decoder``: decoding whole row groups: flat columns with a kernel of ``pages``, all others with pyarrow.

``scan``, ``write`` and packages above may import it; it imports ``prune``, ``footer`` and ``pages`` of
``parquet``, and ``predicate``.
"""
