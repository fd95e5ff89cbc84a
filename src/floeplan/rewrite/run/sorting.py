"""Sorting the rows of one group within a memory budget.

A group that fits is buffered in memory and written through a permutation (``BufferedRows``). A larger one spills to
disk (``sort_on_disk``): a sample of the key columns chooses ranges that fit into memory; rows are streamed and appended
to the file of their range; then each range is read back and sorted. Every row is written to local disk once and read
once. The steps overlap, each one piece ahead of the next.

Fail-safe: range files are in a temporary directory that is removed however the rewrite ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from floeplan.rewrite.strategies.base import RowOrder
from floeplan.tasks.threads import parallel_map, prefetch
from floeplan.vectors import Ints
from floeplan.write.row_order import RowNumbers

COPIES = 4
"""Copies of a range in memory: its rows, the sorted rows, the encoded ones, and the previous range being written."""
ORDER_BYTES = 24
"""Bytes per row that computing the permutation takes."""


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of a group as they were read, and the permutation that sorts them.

    Rows are never sorted as a whole: a writer takes those of one row group at a time. Each column is one chunk, because
    ``take`` from many chunks takes twice the time.

    Memory: the rows, four bytes per row for the permutation, and a second copy of one column while its chunks are
    combined.
    """

    rows: pa.Table
    permutation: RowNumbers

    @classmethod
    def of(cls, pieces: list[pa.Table], order: RowOrder, threads: int) -> BufferedRows:
        """Combine pieces; empties the list, so that each piece is freed as soon as it is copied."""
        schema = pieces[0].schema
        columns = [list(column) for column in zip(*(piece.columns for piece in pieces), strict=True)]
        pieces.clear()

        def combine(at: int) -> pa.ChunkedArray:
            chunks = [chunk for column in columns[at] for chunk in column.chunks]
            columns[at].clear()
            one = pa.chunked_array(chunks, schema.field(at).type)
            return pa.table([one], schema=pa.schema([schema.field(at)])).combine_chunks().column(0)

        keys = [schema.get_field_index(field.name) for field in order.key_schema.fields]
        others = [at for at in range(len(schema)) if at not in keys]
        combined = dict(zip(keys, parallel_map(combine, keys, threads), strict=True))
        key_rows = pa.table([combined[at] for at in keys], schema=pa.schema([schema.field(at) for at in keys]))
        # The permutation needs the keys only: with several threads it is computed while other columns are combined.
        with ThreadPoolExecutor(1, "floeplan-order") as beside:
            permutation = beside.submit(order.permutation, key_rows)
            if threads <= 1:
                permutation.result()
            combined |= dict(zip(others, parallel_map(combine, others, threads - 1), strict=True))
            return cls(pa.table([combined[at] for at in range(len(schema))], schema=schema), permutation.result())

    def __len__(self) -> int:
        return len(self.permutation)

    def sorted_column(self, column: str, first: int, count: int) -> pa.Table:
        """One column of ``count`` sorted rows."""
        return self.rows.select([column]).take(pa.array(self.permutation[first : first + count]))

    def sorted_rows(self, first: int, count: int) -> pa.Table:
        """``count`` sorted rows."""
        return self.rows.take(pa.array(self.permutation[first : first + count]))


def sort_on_disk(
    order: RowOrder, rows: Iterable[pa.Table], sample: pa.Table, ranges: int, total_rows: int
) -> Iterator[pa.Table]:
    """Sort rows in ranges on local disk; ``sample`` has the columns of ``order.key_schema``."""
    chosen = order.ranges(sample, ranges, total_rows)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floeplan-rewrite-")))
        files: dict[int, _RangeFile] = {}
        filled = (table for table in rows if table.num_rows)
        for parts in prefetch(list(_by_range(*chosen.assign(table))) for table in prefetch(filled)):
            for number, part in parts:
                if number not in files:
                    files[number] = _RangeFile(folder / f"{number}.arrow", part.schema)
                    stack.callback(files[number].close)
                files[number].write(part)
        for number in sorted(files):
            pieces = files[number].read()
            # Keys of an odd range are all equal: its rows are streamed in the order they have.
            yield from map(chosen.plain, pieces) if number % 2 else [chosen.sorted(pa.concat_tables(pieces))]


def _by_range(rows: pa.Table, range_of: Ints) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each range, in the order they have."""
    narrow = range_of.astype(np.min_scalar_type(int(range_of.max(initial=0))))  # 16 bits are sorted by counting
    order = np.argsort(narrow, kind="stable")
    sorted_rows, found = rows.take(pa.array(order)), range_of[order]
    starts = np.flatnonzero(np.diff(found, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(found)], strict=True):
        yield int(found[start]), sorted_rows.slice(start, end - start)


class _RangeFile:
    """The rows of one range on local disk."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._sink = pa.OSFile(str(path), "wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        """Nothing can be written after; may be called again."""
        if not self._sink.closed:
            self._writer.close()
            self._sink.close()

    def read(self) -> Iterator[pa.Table]:
        """All rows, piece by piece as they were written."""
        self.close()
        with pa.OSFile(str(self._path), "rb") as source:
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])
        self._path.unlink()
