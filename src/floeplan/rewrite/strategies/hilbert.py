"""``hilbert``: rows clustered along a Hilbert curve.

The Hilbert curve visits the same cells as the Z-order curve without jumps: neighbours on the curve are always
neighbours in space, at the price of some arithmetic per bit and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from floeplan.rewrite.strategies.curves import CurveStrategy, Words, interleave

_ONE = np.uint64(1)


def hilbert_position(codes: Sequence[Words], bits: int) -> list[Words]:
    """The position of cells on the Hilbert curve, in words, most significant first.

    Skilling's algorithm transforms the coordinates so that their interleaved bits are the position on the curve. From
    the highest bit down, the half that a coordinate lies in mirrors or exchanges the lower bits of the axes, which
    undoes the rotation of the sub-cubes; a Gray code over the axes then orders the sub-cubes themselves.
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
    return interleave(axes, bits)


HILBERT = CurveStrategy("hilbert", curve=hilbert_position)
