"""Space-filling curves: one number per row, close for rows that are close in several columns at once.

Every column becomes the rank of its values among the different ones of a sample of the rows at hand, scaled to a few
bits: whatever its type and however its values are spread, all columns have the same part in the curve. Nulls are the
highest rank. The numbers mean something only among the rows they were made of.

The Z-order interleaves the bits of all columns, the first column leading. The Hilbert curve visits the same cells
without jumps: neighbours on it are always neighbours in space, at the price of some arithmetic per bit and column.

Cells are so large that a page has rows of a few of them. Finer ones would not let more be skipped; within a cell rows
are sorted by the first column instead, which makes files smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.rewrite.strategies.order_bytes import comparable
from floeplan.write.row_order import KeyPrefix, RowNumbers, SortKey, key_prefix, sort_by_prefixes

Words: TypeAlias = npt.NDArray[np.uint64]

MOST_BITS = 16
"""Bits of a column at most: 65,536 stretches tell apart more than any number of files or row groups can use."""
LEAST_BITS = 4
SAMPLE_ROWS = 1 << 16
"""Rows that tell how the values of a column are spread."""
CELL_ROWS = 1024
"""Rows of a cell, about; a page has up to 20,000."""
_WORD_BITS = 64
_TABLE_BITS = 20
_ONE = np.uint64(1)


def curve_rows(columns: Sequence[pa.ChunkedArray], curve: str) -> RowNumbers:
    """The numbers of the rows along a curve (``zorder`` or ``hilbert``), those of one cell by their first column."""
    bits = cell_bits(len(columns), len(columns[0]))
    leading = order_words(columns[0].combine_chunks())
    others = (order_words(column.combine_chunks()).words for column in columns[1:])
    codes = [cell_codes(words, bits) for words in chain([leading.words], others)]
    return along_curve(curve_words(codes, bits, curve), bits * len(columns), leading)


def along_curve(words: Sequence[Words], used: int, leading: KeyPrefix) -> RowNumbers:
    """The numbers of rows by their words, of which so many bits are in use; where these are equal, by ``leading``."""
    cells = KeyPrefix(words[0] >> np.uint64(max(0, _WORD_BITS - used)), min(used, _WORD_BITS), exact=len(words) == 1)
    return sort_by_prefixes([cells, leading], len(words[0]))[0]


def curve_words(codes: Sequence[Words], bits: int, curve: str) -> list[Words]:
    """The place on a curve of cells with these codes, in words of which the first leads.

    Where there are few cells, it is worked out for each cell instead of each row.
    """
    total = bits * len(codes)
    if total > _TABLE_BITS or len(codes[0]) < 1 << total:
        return _places(codes, bits, curve)
    every = np.arange(1 << total, dtype=np.uint64)
    shifts = [np.uint64(bits * number) for number in range(len(codes))]
    (places,) = _places([every >> shift & np.uint64((1 << bits) - 1) for shift in shifts], bits, curve)
    cells = np.zeros(len(codes[0]), dtype=np.uint32)
    for code, shift in zip(codes, shifts, strict=True):
        cells |= (code << shift).astype(np.uint32)
    return [places[cells]]


def _places(codes: Sequence[Words], bits: int, curve: str) -> list[Words]:
    return interleave(codes if curve == "zorder" else hilbert_axes(codes, bits), bits)


def bits_per_column(columns: int) -> int:
    """So many bits that all columns together fill one word, if there are not too many of them."""
    return max(1, min(MOST_BITS, _WORD_BITS // columns))


def cell_bits(columns: int, rows: int) -> int:
    """So many bits of each column that a cell holds about ``CELL_ROWS`` of so many rows."""
    wanted = -(-(rows // CELL_ROWS).bit_length() // columns)
    return min(bits_per_column(columns), max(LEAST_BITS, wanted))


def order_words(column: pa.Array) -> KeyPrefix:
    """Numbers in the order of the values, nulls largest: of few rows their ranks, of many what a number can hold."""
    plain = comparable(column)
    if len(plain) > SAMPLE_ROWS:
        return key_prefix(SortKey(plain, nulls_first=False))
    ranks = pc.rank(plain, tiebreaker="dense")
    words = np.asarray(ranks.to_numpy(zero_copy_only=False).astype(np.uint64) - _ONE)
    return KeyPrefix(words, int(words.max(initial=0)).bit_length(), exact=True)


def cell_codes(words: Words, bits: int) -> Words:
    """Where each number lies among the different ones of a sample, in so many bits; a larger one has no smaller code.

    Of so many numbers as a sample has, different ones have different codes as long as there are enough of these.
    """
    levels = np.unique(words[:: max(1, -(-len(words) // SAMPLE_ROWS))])
    codes = np.arange(len(levels), dtype=np.uint64) * np.uint64(1 << bits) // np.uint64(max(1, len(levels)))
    firsts = np.flatnonzero(np.diff(codes)) + 1
    found = np.searchsorted(levels[firsts], words, side="right")
    return np.asarray(codes[np.append(0, firsts)][found]) if len(words) else words


def interleave(codes: Sequence[Words], bits: int) -> list[Words]:
    """The bits of all codes in turn, the highest of the first code first, in words of which the first leads."""
    total = bits * len(codes)
    words = [np.zeros(len(codes[0]), dtype=np.uint64) for _ in range(-(-total // _WORD_BITS))]
    place = 0
    for bit in range(bits - 1, -1, -1):
        for code in codes:
            word, inside = divmod(place, _WORD_BITS)
            words[word] |= ((code >> np.uint64(bit)) & _ONE) << np.uint64(_WORD_BITS - 1 - inside)
            place += 1
    return words


def hilbert_axes(codes: Sequence[Words], bits: int) -> list[Words]:
    """Coordinates turned so that their interleaved bits are the place on the Hilbert curve.

    From the highest bit down, the half that a coordinate lies in mirrors or exchanges the lower bits of the axes, which
    undoes the turns of the sub-cubes; a Gray code over the axes then orders the sub-cubes themselves.
    """
    axes = [code.copy() for code in codes]
    first = axes[0]
    for bit in range(bits - 1, 0, -1):
        below = np.uint64((1 << bit) - 1)
        for axis in axes:
            upper = (axis >> np.uint64(bit)) & _ONE == _ONE
            swapped = np.where(upper, np.uint64(0), (first ^ axis) & below)
            first ^= np.where(upper, below, swapped)
            if axis is not first:
                axis ^= swapped
    for previous, axis in pairwise(axes):
        axis ^= previous
    turn = np.zeros_like(first)
    for bit in range(bits - 1, 0, -1):
        turn ^= np.where((axes[-1] >> np.uint64(bit)) & _ONE == _ONE, np.uint64((1 << bit) - 1), np.uint64(0))
    for axis in axes:
        axis ^= turn
    return axes
