"""Equality deletes on Arrow rows: which rows have a key that a delete file lists.

A row is deleted when all its key columns equal those of one delete row, null equal to null, NaN equal to NaN and
-0.0 apart from 0.0, as Iceberg compares struct keys. Keys become integer codes column by column, so that no row is
ever a Python object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.scan.projection import project


def key_columns(
    stored: pa.Table, keys: Sequence[Schema], constants: Mapping[int, object], path: str, rows: int
) -> pa.Table:
    """The columns of a key out of a file's rows; each schema holds one column, which may lie within structs."""
    columns = [project(stored, key, constants, path, rows).column(0) for key in keys]
    return pa.table([_innermost(column) for column in columns], names=[str(key) for key in range(len(keys))])


def _innermost(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The one column within structs of one field each; null where a struct is."""
    while pa.types.is_struct(column.type):
        column = pc.struct_field(column, [0])
    return column


def matches_any(rows: pa.Table, deletes: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row whether its key is among the deletes; both tables have the key columns in the same order."""
    codes = np.zeros(rows.num_rows + deletes.num_rows, dtype=np.int64)
    for position in range(rows.num_columns):
        column = _codes(rows.column(position), deletes.column(position))
        pairs = codes * (column.max(initial=0) + 1) + column
        _, codes = np.unique(pairs, return_inverse=True)
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])


def _codes(left: pa.ChunkedArray, right: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """One integer per row of both columns, equal where the values are; null has a code of its own."""
    both = pa.chunked_array([*_comparable(left).chunks, *_comparable(right).chunks], type=_comparable(left).type)
    encoded = pc.dictionary_encode(both.combine_chunks(), null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floating point as bit patterns with one NaN, extension types as their storage, everything else as it is."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if pa.types.is_floating(column.type):
        values = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
        bits = pa.int64() if column.type == pa.float64() else pa.int32()
        return pa.chunked_array([chunk.view(bits) for chunk in values.chunks], type=bits)
    return column
