"""Why a file is rewritten, and why it is not: every file that was considered has one or the other."""

from __future__ import annotations

from enum import IntEnum, IntFlag, unique
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Reason(IntFlag):
    """Why a file is a candidate; several may hold."""

    TOO_SMALL = 1
    TOO_LARGE = 2
    DELETES = 4
    DELETE_RATIO = 8
    SPEC_MIGRATION = 16
    REWRITE_ALL = 32


ENOUGH_ALONE = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION | Reason.REWRITE_ALL
"""Reasons for which a group is rewritten however few files it has."""

STILL_A_REASON = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION
"""Reasons to rewrite a file that the same run has made already."""


@unique
class Skip(IntEnum):
    """Why a file is left as it is."""

    NONE = 0
    OUTSIDE_FILTER = 1
    NO_MATCHING_ROWS = 2
    NOT_PARQUET = 3
    ENCRYPTED = 4
    NO_REASON = 5
    GROUP_TOO_SMALL = 6
    NO_FEWER_FILES = 7
    BEYOND_MAX_FILES = 8
    ALREADY_REWRITTEN = 9
    KEEPS_SPEC = 10


PRUNED_MANIFEST = "pruned-manifest"
"""Files whose manifest was not read because no partition in it can match: only their number is known."""


def label(reason: Reason | Skip) -> str:
    """The reason as documents and people name it."""
    return str(reason.name).lower().replace("_", "-")


def reason_counts(reasons: npt.NDArray[np.uint8]) -> dict[str, int]:
    """How many files each reason holds for; those that hold for none are left out."""
    counts = {label(reason): int(np.count_nonzero(reasons & reason)) for reason in Reason}
    return {name: count for name, count in counts.items() if count}


def skip_counts(skips: npt.NDArray[np.int8]) -> dict[str, int]:
    """How many files are left for each reason, in the order in which reasons are looked at."""
    counts = np.bincount(skips, minlength=len(Skip)).tolist()
    return {label(skip): counts[skip] for skip in Skip if skip is not Skip.NONE and counts[skip]}


def decision_texts(reasons: npt.NDArray[np.uint8], skips: npt.NDArray[np.int8]) -> pa.Array:
    """What was decided of each file, as text: its reasons, or why it is left."""
    taken = [" ".join(label(r) for r, on in zip(Reason, bits, strict=True) if on) for bits in _bits()]
    texts = taken + [label(skip) for skip in Skip]
    codes = np.where(skips == Skip.NONE, reasons, len(taken) + skips.astype(np.int32)).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))


def _bits() -> list[tuple[bool, ...]]:
    """Every combination of reasons, in the order of their numbers."""
    return [bits[::-1] for bits in product((False, True), repeat=len(Reason))]
