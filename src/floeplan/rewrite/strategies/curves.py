"""What strategies along a space-filling curve share: one number per row, close for rows close in several columns.

Every column is mapped to the rank of its values among the distinct values of a sample, scaled to a few bits. All
columns therefore weigh the same in the curve, for all types and distributions. Nulls rank highest. The numbers
are comparable only among the rows they were computed from.

Cells are about ``CELL_ROWS`` rows large, so a page holds rows of a few cells. Finer cells would not let a reader skip
more; instead, rows within a cell are sorted by the first column, which makes files smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from floeplan.rewrite.strategies.base import ByColumns, RowOrder, Strategy, range_numbers
from floeplan.vectors import Ints, valid_mask
from floeplan.write.partitioning import KeyPrefix, RowNumbers, SortKey, key_prefix, sort_by_prefixes, take_rows

Words: TypeAlias = npt.NDArray[np.uint64]
Curve: TypeAlias = Callable[[Sequence[Words], int], list[Words]]
"""Maps cell coordinates (one array per column, that many bits each) to positions, in words, most significant first."""

MAX_BITS = 16
"""Most bits per column: 65,536 steps distinguish more than any number of files or row groups can use."""
MIN_BITS = 4
SAMPLE_ROWS = 1 << 16
"""Rows that estimate the distribution of a column."""
CELL_ROWS = 1024
"""Approximate rows per cell; a page has up to 20,000."""
_WORD_BITS = 64
_TABLE_BITS = 20
_ONE = np.uint64(1)
_SIGN = np.uint64(1 << 63)
_WORD = "floeplan.curve"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStrategy(Strategy):
    """Clusters rows along a curve; sorting them by partition first would break it."""

    curve: Curve
    by: ByColumns = ByColumns.REQUIRED
    partition_first: bool = False

    def row_order(self, schema: Schema, order: SortOrder) -> RowOrder:
        return CurveOrder(schema, order, self.curve)


@dataclass(frozen=True, slots=True)
class CurveOrder(RowOrder):
    """Orders rows along a curve through the columns of the sort order."""

    curve: Curve

    def permutation(self, rows: pa.Table) -> RowNumbers:
        return curve_rows(self.keys(rows), self.curve)

    def fitted(self, sample: pa.Table, total_rows: int) -> FittedCurve:
        distinct = [pc.unique(comparable(column.combine_chunks())).drop_null() for column in self.keys(sample)]
        levels = tuple(values.take(pc.sort_indices(values)) for values in distinct)
        return FittedCurve(self.schema, self.order, self.curve, levels, cell_bits(len(levels), total_rows))

    def ranges(self, sample: pa.Table, count: int, total_rows: int) -> CurveRanges:
        return self.fitted(sample, total_rows).ranges(sample, count, total_rows)


@dataclass(frozen=True, slots=True)
class FittedCurve(CurveOrder):
    """A curve whose cells come from a sample, so that rows of several tables are on one curve.

    Attributes:
        levels: The distinct values of each key column in the sample.
        bits: Bits per column.
    """

    levels: tuple[pa.Array, ...]
    bits: int

    def positions(self, rows: pa.Table) -> list[Words]:
        """The position of every row on the curve, in words, most significant first."""
        pairs = zip(self.levels, self.keys(rows), strict=True)
        codes = [level_codes(levels, comparable(column.combine_chunks()), self.bits) for levels, column in pairs]
        return curve_words(codes, self.bits, self.curve)

    def permutation(self, rows: pa.Table) -> RowNumbers:
        leading = order_words(self.keys(rows)[0].combine_chunks())
        return _by_position(self.positions(rows), self.bits * len(self.levels), leading)

    def exact_permutation(self, rows: pa.Table) -> npt.NDArray[np.integer[Any]]:
        # Only by position: how rows within a cell compare depends on the other rows of their table.
        return np.argsort(self.leading_words(rows), kind="stable")

    def leading_words(self, rows: pa.Table) -> Words:
        return self.positions(rows)[0]

    def fitted(self, sample: pa.Table, total_rows: int) -> FittedCurve:
        return self

    def ranges(self, sample: pa.Table, count: int, total_rows: int) -> CurveRanges:
        positions = np.sort(self.positions(sample)[0])
        cuts = np.linspace(0, len(positions), count, endpoint=False).astype(np.int64)[1:]
        return CurveRanges(self, np.unique(positions[cuts]))


@dataclass(frozen=True, slots=True)
class CurveRanges:
    """Ranges of a curve; ``firsts`` holds the first position of every range but the first."""

    order: FittedCurve
    firsts: Words

    def assign(self, rows: pa.Table) -> tuple[pa.Table, Ints]:
        words = self.order.positions(rows)
        for number, word in enumerate(words):
            rows = rows.append_column(f"{_WORD}{number}", pa.array(word))
        below, up_to = (np.searchsorted(self.firsts, words[0], side=side) for side in ("left", "right"))
        return rows, range_numbers(below, up_to)

    def sorted(self, rows: pa.Table) -> pa.Table:
        words = [np.asarray(rows.column(name)) for name in rows.schema.names if name.startswith(_WORD)]
        plain = self.plain(rows)
        leading = order_words(self.order.keys(plain)[0].combine_chunks())
        used_bits = self.order.bits * len(self.order.levels)
        return take_rows(plain, pa.array(_by_position(words, used_bits, leading)))

    def plain(self, rows: pa.Table) -> pa.Table:
        return rows.drop_columns([name for name in rows.schema.names if name.startswith(_WORD)])


def curve_rows(columns: Sequence[pa.ChunkedArray], curve: Curve) -> RowNumbers:
    """The row numbers along a curve; rows of one cell are sorted by their first column."""
    bits = cell_bits(len(columns), len(columns[0]))
    leading = order_words(columns[0].combine_chunks())
    others = (order_words(column.combine_chunks()).words for column in columns[1:])
    codes = [cell_codes(words, bits) for words in chain([leading.words], others)]
    return _by_position(curve_words(codes, bits, curve), bits * len(columns), leading)


def _by_position(words: Sequence[Words], used_bits: int, leading: KeyPrefix) -> RowNumbers:
    """The row numbers by position on the curve, of which ``used_bits`` bits are in use, then by ``leading``."""
    shift = np.uint64(max(0, _WORD_BITS - used_bits))
    cells = KeyPrefix(words[0] >> shift, min(used_bits, _WORD_BITS), exact=len(words) == 1)
    return sort_by_prefixes([cells, leading], len(words[0]))[0]


def curve_words(codes: Sequence[Words], bits: int, curve: Curve) -> list[Words]:
    """The position of cells on a curve, in words, most significant first.

    With few cells, it is computed once per cell and looked up per row.
    """
    total = bits * len(codes)
    if total > _TABLE_BITS or len(codes[0]) < 1 << total:
        return curve(codes, bits)
    every_cell = np.arange(1 << total, dtype=np.uint64)
    shifts = [np.uint64(bits * number) for number in range(len(codes))]
    (positions,) = curve([every_cell >> shift & np.uint64((1 << bits) - 1) for shift in shifts], bits)
    cells = np.zeros(len(codes[0]), dtype=np.uint32)
    for code, shift in zip(codes, shifts, strict=True):
        cells |= (code << shift).astype(np.uint32)
    return [positions[cells]]


def interleave(codes: Sequence[Words], bits: int) -> list[Words]:
    """Interleave the bits of all codes, the highest bit of the first code first: the position on a Z-order curve."""
    total = bits * len(codes)
    words = [np.zeros(len(codes[0]), dtype=np.uint64) for _ in range(-(-total // _WORD_BITS))]
    position = 0
    for bit in range(bits - 1, -1, -1):
        for code in codes:
            word, offset = divmod(position, _WORD_BITS)
            words[word] |= ((code >> np.uint64(bit)) & _ONE) << np.uint64(_WORD_BITS - 1 - offset)
            position += 1
    return words


def bits_per_column(columns: int) -> int:
    """Bits per column with which all columns together fill one word."""
    return max(1, min(MAX_BITS, _WORD_BITS // columns))


def cell_bits(columns: int, rows: int) -> int:
    """Bits per column with which a cell holds about ``CELL_ROWS`` of the rows."""
    needed = -(-(rows // CELL_ROWS).bit_length() // columns)
    return min(bits_per_column(columns), max(MIN_BITS, needed))


def order_words(column: pa.Array) -> KeyPrefix:
    """Integers in the order of the values, nulls largest: ranks of few rows, the leading bits of many."""
    plain = comparable(column)
    if len(plain) > SAMPLE_ROWS:
        return key_prefix(SortKey(plain, nulls_first=False))
    ranks = pc.rank(plain, tiebreaker="dense")
    words = np.asarray(ranks.to_numpy(zero_copy_only=False).astype(np.uint64) - _ONE)
    return KeyPrefix(words, int(words.max(initial=0)).bit_length(), exact=True)


def cell_codes(words: Words, bits: int) -> Words:
    """Scale integers to ``bits`` bits by their rank among the distinct ones of a sample; monotonic.

    Distinct integers of the sample get distinct codes as long as there are enough codes.
    """
    levels = np.unique(words[:: max(1, -(-len(words) // SAMPLE_ROWS))])
    codes = np.arange(len(levels), dtype=np.uint64) * np.uint64(1 << bits) // np.uint64(max(1, len(levels)))
    firsts = np.flatnonzero(np.diff(codes)) + 1
    found = np.searchsorted(levels[firsts], words, side="right")
    return np.asarray(codes[np.append(0, firsts)][found]) if len(words) else words


def level_codes(levels: pa.Array, values: pa.Array, bits: int) -> Words:
    """Scale the rank of values among sorted distinct levels to ``bits`` bits; nulls rank last."""
    codes = np.arange(len(levels) + 1, dtype=np.uint64) * np.uint64((1 << bits) - 1) // np.uint64(len(levels) + 1)
    if not pa.types.is_integer(levels.type):
        both = pa.concat_arrays([levels, values.cast(levels.type)])
        ranks = pc.rank(both, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
        return np.asarray(codes[np.searchsorted(ranks[: len(levels)], ranks[len(levels) :], side="right")])
    # Codes are far fewer than levels: search among the levels at which the code grows, which fit into the CPU cache.
    grows = np.flatnonzero(np.diff(codes)) + 1
    found = np.searchsorted(np.asarray(levels)[grows - 1], np.asarray(values.fill_null(0)), side="right")
    scaled = np.asarray(codes[np.append(0, grows)][found])
    return np.where(valid_mask(values), scaled, codes[-1]) if values.null_count else scaled


def comparable(column: pa.Array) -> pa.Array:
    """Convert a column to a type that Arrow sorts and ranks as Spark does; nulls stay null.

    Spark has one NaN, larger than all numbers, and one zero. Doubles become unsigned integers in that order; times and
    booleans become integers, strings and everything else binary.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return comparable(column.dictionary_decode())
    if pa.types.is_decimal(type_):
        return column.cast(pa.decimal128(38, type_.scale))
    if pa.types.is_floating(type_):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        bits = np.where(np.isnan(values), np.nan, values).view(np.uint64)
        return pa.array(np.where(bits & _SIGN, ~bits, bits | _SIGN), mask=~valid_mask(column))
    if pa.types.is_temporal(type_):
        return column.view(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(pa.int64())
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return column.cast(pa.int64())
    return column.cast(pa.large_binary())
