"""Packing files into groups: next-fit within a partition, in the order of the files.

Rule, as Iceberg's packer with a lookback of one: a file joins the open group when the group stays within its limits,
else it opens the next one. A file that alone exceeds the limit is a group of its own.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


def next_fit(weights: Ints, starts: Ints, limit: int, most: int) -> Ints:
    """Where groups start: positions in ``weights``, of which every partition start is one.

    Partitions that fit into one group cost no step of their own; the others cost one search a group.

    Args:
        weights: Sizes of all files, partition after partition.
        starts: Where each partition starts.
        limit: Bytes in a group at most.
        most: Files in a group at most.
    """
    through = np.cumsum(weights, dtype=np.int64)
    ends = np.append(starts[1:], len(weights))
    total = _sums(through, starts, ends)
    large = np.flatnonzero((total > limit) | (ends - starts > most)).tolist()
    cuts = [_cuts(through, int(starts[at]), int(ends[at]), limit, most) for at in large]
    return np.unique(np.concatenate([starts, *cuts]))


def _cuts(through: Ints, start: int, end: int, limit: int, most: int) -> Ints:
    """Where groups start within one partition."""
    cuts = []
    at = start
    while at < end:
        cuts.append(at)
        before = int(through[at - 1]) if at else 0
        fitting = int(np.searchsorted(through[at:end], before + limit, side="right"))
        at += max(1, min(fitting, most))
    return np.array(cuts, dtype=np.int64)


def _sums(through: Ints, starts: Ints, ends: Ints) -> Ints:
    upto = np.concatenate(([0], through))
    return np.asarray(upto[ends] - upto[starts])
