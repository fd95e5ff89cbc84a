"""Vector types and small helpers that every columnar module shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan import arrow_compute as pc

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


def arrow(values: npt.NDArray[np.generic], missing: Mask | None = None) -> pa.Array:
    """A NumPy vector as an Arrow array, numbers without a copy; null where ``missing``.

    As ``pa.array``, which imports pandas if it is installed, to recognise its objects: half of what a first plan costs.
    """
    is_mask = values.dtype == np.bool_
    data = np.packbits(values.view(np.bool_), bitorder="little") if is_mask else np.ascontiguousarray(values)
    bitmap, nulls = (None, 0) if missing is None else validity_bitmap(~missing)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, pa.py_buffer(data)], nulls)


def arrow_binary(values: Sequence[bytes | None]) -> pa.Array:
    """Byte strings as an Arrow array; see ``arrow``."""
    offsets = offsets_of(np.fromiter((len(value or b"") for value in values), np.int64, len(values))).astype(np.int32)
    bitmap, nulls = validity_bitmap(np.fromiter((value is not None for value in values), np.bool_, len(values)))
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [bitmap, pa.py_buffer(offsets), data], nulls)


def arrow_values(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Numbers or text, without nulls, as an Arrow array; see ``arrow``. Values of other types are left to pyarrow."""
    if type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return pc.cast(arrow_binary([v.encode() if isinstance(v, str) else v for v in values]), type_)
    if pa.types.is_int64(type_) or pa.types.is_float64(type_):
        return arrow(np.array(values, dtype=type_.to_pandas_dtype()))
    return pa.array(values, type_)


def without_nulls(array: pa.Array, value: int) -> pa.Array:
    """An integer or boolean array with a value in place of nulls; see ``arrow``."""
    return pc.fill_null(array, pc.cast(arrow(np.array([value])), array.type)[0]) if array.null_count else array


def integers(array: pa.Array) -> Ints:
    """An Arrow array of signed integers without nulls as 64-bit integers, without a copy if it has these.

    As ``to_numpy``, which imports pandas, too.
    """
    return signed(array).astype(np.int64, copy=False)


def signed(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    """An Arrow array of signed integers without nulls as integers of the same width, without a copy."""
    bits = array.type.bit_width
    values = np.frombuffer(array.buffers()[1] or b"", dtype=f"i{bits // 8}", count=array.offset + len(array))
    return values[array.offset :]


def flags(array: pa.Array) -> Mask:
    """An Arrow array of booleans without nulls as a mask; unpacking takes a tenth of the time of ``to_numpy``."""
    bits = array.buffers()[1]
    if not len(array) or bits is None:
        return np.zeros(len(array), dtype=np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=array.offset + len(array), bitorder="little")
    return unpacked[array.offset :].view(np.bool_)


def offsets_of(counts: npt.NDArray[np.integer]) -> Ints:
    """Where the items of each row begin when rows have these numbers of items, and where the last ones end."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def expand_runs(starts: Ints, counts: Ints) -> Ints:
    """The numbers of runs, one run after the other: 5, 6, 9 for runs that start at 5 and 9 and have 2 and 1 numbers."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return numbers


def valid_mask(array: pa.Array) -> Mask:
    """Which rows are not null."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return flags(pc.is_valid(array))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; Arrow cannot combine no chunks of a struct with an extension type (UUIDs)."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
