"""Vector types and small helpers that every columnar module shares."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]


def all_set(mask: Mask) -> bool:
    """Whether no flag is missing; counting takes a fraction of what a reduction does where there are few."""
    return bool(np.count_nonzero(mask) == len(mask))


def validity_bitmap(valid: Mask) -> tuple[pa.Buffer | None, int]:
    """Arrow's validity bitmap and the null count; no bitmap when everything is valid."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def offsets_of(counts: npt.NDArray[np.integer]) -> Ints:
    """Where the items of each row begin when rows have these numbers of items, and where the last ones end."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def valid_mask(array: pa.Array) -> Mask:
    """Which rows are not null."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
