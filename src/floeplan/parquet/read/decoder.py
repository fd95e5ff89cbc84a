"""Decodes whole row groups: the one place that chooses the Parquet decoder for bulk reads.

Rule: a decoder gets row groups, leaf columns and the rows to keep, and evaluates nothing. Predicates, deletes, defaults
and casts are Iceberg's and Spark's, and no decoder has the same semantics for NaN, -0.0, decimals or time zones.

There are two decoders. ``flat_columns`` has the one for numbers, decimals and text in flat columns, which decompresses
pages to where their values belong and leaves out rows that are not kept. pyarrow decodes everything else. The suite
``local`` measures pyarrow's and Polars' decoders beside it, and decompression alone, which is most of the time.

From an object store the columns are fetched in one round trip. The footer is not read again.

Fail-safe: a page that is not as expected leaves its column to pyarrow. Row groups that decode to another number of rows
than the footer states are an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import RawIOBase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.read.flat_columns import FlatColumns, is_dictionary_text
from floeplan.parquet.read.pages import WORTH_THREADS
from floeplan.parquet.source import ByteSource, LocalSource, Range, corrupt, missing_file
from floeplan.vectors import Ints, Mask

_thread = threading.local()


def decode_alone() -> None:
    """Decode in this thread alone from now on: as many other threads as there are cores decode other files."""
    _thread.decodes_alone = True


def decode_row_groups(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[int],
    groups: Ints,
    *,
    keep_dictionaries: bool = False,
    kept: Mask | None = None,
) -> pa.Table:
    """Rows of row groups, in the top-level fields of some leaves; fields are in the order of the file.

    ``kept`` has one flag for each row of the row groups; all rows by default.
    """
    chunks = [footer.chunks(leaf) for leaf in leaves]
    size = sum(int(chunk.total_compressed_size[groups].sum()) for chunk in chunks)
    threads = size >= WORTH_THREADS and not getattr(_thread, "decodes_alone", False)
    pieces: dict[Range, memoryview] = {}
    if not isinstance(source, LocalSource):
        ranges = [(int(one.start[at]), int(one.total_compressed_size[at])) for at in groups for one in chunks]
        pieces = dict(zip(ranges, source.read_ranges(ranges), strict=True))
    flat = FlatColumns(source, footer, groups, pieces, kept)
    decode = partial(flat.decode, keep_dictionaries=keep_dictionaries)
    if threads and len(leaves) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            decoded = list(pool.map(decode, leaves))
    else:
        decoded = list(map(decode, leaves))
    fields = {leaf: at for at, node in enumerate(footer.columns.root.children) for leaf in node.leaf_indexes}
    columns = {fields[leaf]: column for leaf, column in zip(leaves, decoded, strict=True) if column is not None}
    others = [leaf for leaf in leaves if fields[leaf] not in columns]
    if others:
        tables = _decode_with_pyarrow(source, footer, others, groups, pieces, threads=threads)
        for table, table_leaves in tables:
            rows = table if kept is None else table.filter(pa.array(kept))
            if not keep_dictionaries:
                rows = _expanded(rows)
            names = sorted({fields[leaf] for leaf in table_leaves})
            columns |= dict(zip(names, zip(rows.schema, rows.columns, strict=True), strict=True))
    if not columns:
        expected = int(footer.row_group_rows[groups].sum()) if kept is None else int(np.count_nonzero(kept))
        return pa.table({"rows": pa.nulls(expected)}).select([])
    found = [columns[at] for at in sorted(columns)]
    return pa.Table.from_arrays([array for _, array in found], schema=pa.schema([field for field, _ in found]))


def _decode_with_pyarrow(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[int],
    groups: Ints,
    pieces: Mapping[Range, memoryview],
    *,
    threads: bool,
) -> list[tuple[pa.Table, list[int]]]:
    """All rows of row groups, and which leaves a table holds; one of them has the text that keeps its dictionary."""
    encoded = [leaf for leaf in leaves if is_dictionary_text(footer, leaf, groups)]
    others = [leaf for leaf in leaves if leaf not in encoded]
    # ``read_dictionary`` and large text exclude each other, so that there are two readers of one file.
    names = [footer.leaves[leaf].path[0] for leaf in encoded]
    readers: list[tuple[list[int], dict[str, Any]]] = [
        (others, {"binary_type": pa.large_binary()}),
        (encoded, {"read_dictionary": names}),
    ]
    found = []
    try:
        if isinstance(source, LocalSource):
            opened: pa.NativeFile = pa.OSFile(source.name)
        else:
            opened = pa.PythonFile(_PrefetchedFile(source, pieces), mode="r")
        known = pq.read_metadata(pa.BufferReader(footer.as_file()))
        for some, options in readers:
            if some:
                file = pq.ParquetFile(
                    opened, metadata=known, coerce_int96_timestamp_unit="us", pre_buffer=False, **options
                )
                table = file.reader.read_row_groups(groups.tolist(), column_indices=some, use_threads=threads)
                found.append((table, some))
    except FileNotFoundError:
        raise missing_file(source) from None
    except (OSError, pa.ArrowException) as error:
        raise corrupt(footer.file, f"its row groups cannot be decoded: {error}") from None
    expected = int(footer.row_group_rows[groups].sum())
    for table, _ in found:
        if table.num_rows != expected:
            raise corrupt(footer.file, f"row groups hold {table.num_rows} rows instead of {expected}")
    return found


def _expanded(table: pa.Table) -> pa.Table:
    """Text by its indexes; ``take`` is faster than a cast of the dictionary array."""
    for at, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_dictionary(field.type):
            chunks = [chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in column.chunks]
            text = pa.chunked_array(chunks, type=pa.large_string())
            table = table.set_column(at, field.with_type(pa.large_string()), text)
    return table


class _PrefetchedFile(RawIOBase):
    """A seekable file for pyarrow that serves prefetched ranges, and fetches all other reads on demand."""

    def __init__(self, source: ByteSource, pieces: Mapping[Range, memoryview]) -> None:
        self._source, self._pieces, self._at = source, pieces, 0

    def read(self, length: int = -1) -> Any:
        """Read from the current position."""
        left = self._source.size - self._at
        span = (self._at, left if length < 0 else min(length, left))
        self._at += span[1]
        found = self._pieces.get(span)
        return self._source.read_ranges([span])[0] if found is None else found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def seekable(self) -> bool:
        """Always true."""
        return True

    def readable(self) -> bool:
        """Always true."""
        return True
