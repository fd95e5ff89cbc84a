"""Space-filling curves: one number per row, close for rows that are close in several columns at once.

Every column becomes the rank of its values among the rows at hand, scaled to a few bits: equal shares of the rows
fall into every stretch of a column, whatever its type and however its values are spread, so that all columns have the
same part in the curve. Nulls are the highest rank. The numbers mean something only among the rows they were made of.

The Z-order interleaves the bits of all columns, the first column leading. The Hilbert curve visits the same cells
without jumps: neighbours on it are always neighbours in space, at the price of some arithmetic per bit and column.

Cells are so large that a page has rows of a few of them. Finer ones would not let more be skipped; within a cell rows
are sorted by the first column instead, which makes files smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.rewrite.order_bytes import comparable
from floeplan.write.row_order import Numbers

Words: TypeAlias = npt.NDArray[np.uint64]

MOST_BITS = 16
"""Bits of a column at most: 65,536 stretches tell apart more than any number of files or row groups can use."""
LEAST_BITS = 4
CELL_ROWS = 1024
"""Rows of a cell, about; a page has up to 20,000."""
_WORD_BITS = 64
_ONE = np.uint64(1)


def curve_rows(columns: Sequence[pa.ChunkedArray], curve: str) -> Numbers:
    """The numbers of the rows along a curve (``zorder`` or ``hilbert``), those of one cell by their first column."""
    bits = cell_bits(len(columns), len(columns[0]))
    ranks = [dense_ranks(column.combine_chunks()) for column in columns]
    words = curve_words([scaled(rank, bits) for rank in ranks], bits, curve)
    return along_curve(words, bits * len(columns), ranks[0]).astype(np.uint32)


def along_curve(words: Sequence[Words], used: int, leading: Words) -> npt.NDArray[np.int64]:
    """The numbers of rows by their words, of which so many bits are in use; where these are equal, by ``leading``."""
    if used + int(leading.max(initial=0)).bit_length() > _WORD_BITS:
        return np.lexsort([leading, *words[::-1]])
    return np.argsort(words[0] | leading, kind="stable")


def curve_words(codes: Sequence[Words], bits: int, curve: str) -> list[Words]:
    """The place on a curve of cells with these codes, in words of which the first leads."""
    return interleave(codes if curve == "zorder" else hilbert_axes(codes, bits), bits)


def bits_per_column(columns: int) -> int:
    """So many bits that all columns together fill one word, if there are not too many of them."""
    return max(1, min(MOST_BITS, _WORD_BITS // columns))


def cell_bits(columns: int, rows: int) -> int:
    """So many bits of each column that a cell holds about ``CELL_ROWS`` of so many rows."""
    wanted = -(-(rows // CELL_ROWS).bit_length() // columns)
    return min(bits_per_column(columns), max(LEAST_BITS, wanted))


def rank_codes(column: pa.Array, bits: int) -> Words:
    """The dense rank of every value, scaled to so many bits; a larger value never has a smaller code."""
    return scaled(dense_ranks(column), bits)


def dense_ranks(column: pa.Array) -> Words:
    """How many different values are smaller than each; nulls are largest."""
    ranks = pc.rank(comparable(column), tiebreaker="dense")
    return np.asarray(ranks.to_numpy(zero_copy_only=False).astype(np.uint64) - _ONE)


def scaled(ranks: Words, bits: int) -> Words:
    """Ranks in so many bits."""
    return np.asarray(ranks * np.uint64(1 << bits) // (ranks.max(initial=0) + _ONE))


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
