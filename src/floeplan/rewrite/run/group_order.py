"""Putting the rows of one group in order, within a memory budget.

A group whose rows fit is ordered in memory. A larger one takes the way over local disk: a sample of the key columns
tells the ranges, each small enough to be held; rows stream by and each is put with its range; then range by range is
read back and ordered. Every row is written to local disk once and read once. Steps go on at the same time, each one
piece ahead of the next.

Rule: rows with equal keys are in one range, so that ranges one after the other are in order. A key that many rows have
is a range of its own, told by an odd number: its rows need no sorting and stream through, however many there are.

Fail-safe: the files of ranges are in a folder of their own that goes with the work, whatever becomes of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from floeplan.predicate.rows.arrow_columns import columns_of, decoded
from floeplan.rewrite.plan.options import CLUSTERING
from floeplan.rewrite.strategies.curves import along_curve, cell_bits, curve_rows, curve_words, order_words
from floeplan.rewrite.strategies.order_bytes import comparable
from floeplan.schemas import fields_by_id
from floeplan.tasks.threads import parallel_map, prefetch
from floeplan.vectors import valid_mask
from floeplan.write.partitioning import sort_row_numbers, sort_rows, take_rows
from floeplan.write.row_order import RowNumbers

COPIES = 4
"""Rows, their sorted copy, what writing them takes, and the rows before, which may still be written."""

_PLACE = "floeplan.place"
_WORD = "floeplan.curve"


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """What rows are sorted or clustered by."""

    schema: Schema
    order: SortOrder
    strategy: str

    @property
    def clusters(self) -> bool:
        """Whether rows follow a curve instead of a sort order."""
        return self.strategy in CLUSTERING

    @property
    def key_schema(self) -> Schema:
        """The columns the order looks at."""
        sources = {field.source_id for field in self.order.fields}
        return Schema(*(top for top in self.schema.fields if not sources.isdisjoint(fields_by_id(Schema(top)))))

    def keys(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The values of each key column."""
        column = columns_of(rows, self.schema)
        return [decoded(column(field.source_id)) for field in self.order.fields]

    def numbers(self, rows: pa.Table) -> RowNumbers:
        """The numbers of rows in order; of their columns those of ``key_schema`` are enough."""
        if self.clusters:
            return curve_rows(self.keys(rows), self.strategy)
        return sort_row_numbers(rows, self.schema, self.order)

    def ordered(self, rows: pa.Table) -> pa.Table:
        """Rows in order, in memory."""
        return take_rows(rows, pa.array(self.numbers(rows)))

    def ordered_on_disk(
        self, rows: Iterable[pa.Table], sample: pa.Table, ranges: int, total: int
    ) -> Iterator[pa.Table]:
        """So many rows of a group in order, range by range; ``sample`` has the columns of ``key_schema``."""
        known = _curve_ranges(self, sample, ranges, total) if self.clusters else _sorted_ranges(self, sample, ranges)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floeplan-rewrite-")))
            files: dict[int, _RangeFile] = {}
            filled = (table for table in rows if table.num_rows)
            for parts in prefetch(list(_by_range(*known.place(table))) for table in prefetch(filled)):
                for number, part in parts:
                    if number not in files:
                        files[number] = _RangeFile(folder / f"{number}.arrow", part.schema)
                        stack.callback(files[number].close)
                    files[number].write(part)
            for number in sorted(files):
                pieces = files[number].read()
                yield from map(known.plain, pieces) if number % 2 else [known.ordered(pa.concat_tables(pieces))]


class _Ranges(Protocol):
    """Ranges of an order."""

    def place(self, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """The rows, with what it takes to order them later, and the range of each; keys of odd ranges are all equal."""

    def ordered(self, rows: pa.Table) -> pa.Table:
        """The rows of one range in order, without what was added to them."""

    def plain(self, rows: pa.Table) -> pa.Table:
        """Rows without what was added to them."""


@dataclass(frozen=True, slots=True)
class _SortedRanges:
    """Ranges between rows of a sample: the first rows of all ranges but the first."""

    order: GroupOrder
    firsts: pa.Table

    def place(self, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        firsts = self.firsts.num_rows
        keys = rows.select(self.firsts.schema.names).cast(self.firsts.schema)
        all_keys = pa.concat_tables([self.firsts, keys, self.firsts])
        all_keys = all_keys.append_column(_PLACE, pa.array(np.arange(all_keys.num_rows)))
        place = np.asarray(sort_rows(all_keys, self.order.schema, self.order.order).column(_PLACE))
        range_of = np.empty(len(place), dtype=np.int64)
        range_of[place] = _range_numbers(np.cumsum(place >= firsts + rows.num_rows), np.cumsum(place < firsts))
        return rows, range_of[firsts : firsts + rows.num_rows]

    def ordered(self, rows: pa.Table) -> pa.Table:
        return sort_rows(rows, self.order.schema, self.order.order)

    def plain(self, rows: pa.Table) -> pa.Table:
        return rows


def _sorted_ranges(order: GroupOrder, sample: pa.Table, ranges: int) -> _SortedRanges:
    ordered = sort_rows(sample, order.schema, order.order)
    cuts = np.linspace(0, ordered.num_rows, ranges, endpoint=False).astype(np.int64)[1:]
    return _SortedRanges(order, ordered.take(pa.array(np.unique(cuts))).combine_chunks())


@dataclass(frozen=True, slots=True)
class _CurveRanges:
    """Ranges of a curve whose cells are told by a sample: the distinct values of each column in it, and range ends."""

    order: GroupOrder
    levels: tuple[pa.Array, ...]
    bits: int
    firsts: npt.NDArray[np.uint64]

    def words(self, rows: pa.Table) -> list[npt.NDArray[np.uint64]]:
        """The place of every row on the curve, in words of which the first leads."""
        pairs = zip(self.levels, self.order.keys(rows), strict=True)
        codes = [_codes(levels, comparable(column.combine_chunks()), self.bits) for levels, column in pairs]
        return curve_words(codes, self.bits, self.order.strategy)

    def place(self, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        words = self.words(rows)
        for number, word in enumerate(words):
            rows = rows.append_column(f"{_WORD}{number}", pa.array(word))
        ends = (np.searchsorted(self.firsts, words[0], side=side) for side in ("left", "right"))
        return rows, _range_numbers(*ends)

    def ordered(self, rows: pa.Table) -> pa.Table:
        words = [np.asarray(rows.column(name)) for name in rows.schema.names if name.startswith(_WORD)]
        plain = self.plain(rows)
        leading = order_words(self.order.keys(plain)[0].combine_chunks())
        return take_rows(plain, pa.array(along_curve(words, self.bits * len(self.levels), leading)))

    def plain(self, rows: pa.Table) -> pa.Table:
        return rows.drop_columns([name for name in rows.schema.names if name.startswith(_WORD)])


def _curve_ranges(order: GroupOrder, sample: pa.Table, ranges: int, total: int) -> _CurveRanges:
    levels = tuple(_levels(comparable(column.combine_chunks())) for column in order.keys(sample))
    bits = cell_bits(len(levels), total)
    words = np.sort(_CurveRanges(order, levels, bits, np.zeros(0, dtype=np.uint64)).words(sample)[0])
    cuts = np.linspace(0, len(words), ranges, endpoint=False).astype(np.int64)[1:]
    return _CurveRanges(order, levels, bits, np.unique(words[cuts]))


def _range_numbers(below: npt.NDArray[np.int64], upto: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The range of rows above so many first rows of ranges, and above or equal to so many; odd where they are equal."""
    return np.asarray(2 * (below + upto) + (below != upto))


def _levels(values: pa.Array) -> pa.Array:
    distinct = pc.unique(values).drop_null()
    return distinct.take(pc.sort_indices(distinct))


def _codes(levels: pa.Array, values: pa.Array, bits: int) -> npt.NDArray[np.uint64]:
    """Where values lie among the levels, scaled to so many bits; nulls are last."""
    if pa.types.is_integer(levels.type):
        found = np.searchsorted(np.asarray(levels), np.asarray(values.fill_null(0)), side="right")
        return _scaled_codes(np.where(valid_mask(values), found, len(levels)), len(levels), bits)
    both = pa.concat_arrays([levels, values.cast(levels.type)])
    ranks = pc.rank(both, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    below = np.searchsorted(ranks[: len(levels)], ranks[len(levels) :], side="right")
    return _scaled_codes(below, len(levels), bits)


def _scaled_codes(below: npt.NDArray[np.int64], levels: int, bits: int) -> npt.NDArray[np.uint64]:
    return np.asarray(below.astype(np.uint64) * np.uint64((1 << bits) - 1) // np.uint64(max(1, levels + 1)))


def _by_range(rows: pa.Table, range_of: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.Table]]:
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


# All rows of a group in memory, and the order they are wanted in.
#
# Each column is one piece, because picking rows out of many pieces takes twice the time. Nothing is put in order as a
# whole: whoever writes rows picks those of one row group at a time.
#
# Memory: the rows, four bytes a row for the order, and a second copy of one column while its pieces are put together.


ORDER_BYTES = 24
"""What the order of a row takes while it is being found."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows as they were read, each column one piece if that can be, and their numbers in the order that is wanted."""

    rows: pa.Table
    numbers: RowNumbers

    @classmethod
    def of(cls, pieces: list[pa.Table], order: GroupOrder, threads: int) -> HeldRows:
        """Put pieces together; the list is emptied, so that each piece is let go as soon as it was copied."""
        schema = pieces[0].schema
        columns = [list(column) for column in zip(*(piece.columns for piece in pieces), strict=True)]
        pieces.clear()
        join = partial(_joined, columns, schema)
        keys = [schema.get_field_index(field.name) for field in order.key_schema.fields]
        others = [at for at in range(len(schema)) if at not in keys]
        joined = dict(zip(keys, parallel_map(join, keys, threads), strict=True))
        key_rows = pa.table([joined[at] for at in keys], schema=pa.schema([schema.field(at) for at in keys]))
        with ThreadPoolExecutor(1, "floeplan-order") as beside:
            numbers = beside.submit(order.numbers, key_rows)
            if threads <= 1:
                numbers.result()
            joined |= dict(zip(others, parallel_map(join, others, threads - 1), strict=True))
            return cls(pa.table([joined[at] for at in range(len(schema))], schema=schema), numbers.result())

    def __len__(self) -> int:
        return len(self.numbers)

    def picked(self, column: str, first: int, count: int) -> pa.Table:
        """One column of some rows in the order that is wanted."""
        return self.rows.select([column]).take(pa.array(self.numbers[first : first + count]))

    def in_order(self, first: int, count: int) -> pa.Table:
        """Some rows in the order that is wanted."""
        return self.rows.take(pa.array(self.numbers[first : first + count]))


def _joined(columns: Sequence[list[pa.ChunkedArray]], schema: pa.Schema, at: int) -> pa.ChunkedArray:
    field = schema.field(at)
    chunks = [chunk for column in columns[at] for chunk in column.chunks]
    columns[at].clear()
    return pa.table([pa.chunked_array(chunks, field.type)], schema=pa.schema([field])).combine_chunks().column(0)
