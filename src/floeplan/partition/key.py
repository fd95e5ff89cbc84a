"""The partition of a file: what must be equal for files to be grouped and for deletes to apply to data files.

A key is the spec id and the partition tuple under that spec. Different specs never share a key. The tuple is ``None``
exactly when the file's *own* spec is unpartitioned (no fields, or only void ones), independent of the default spec.

Equality is Iceberg's: NaN equals NaN, and -0.0 is another partition than 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan.partition.transforms import from_physical
from floeplan.partition.union import SpecProjection, UnionPartitionType
from floeplan.predicate.literals import Value
from floeplan.vectors import Ints, arrow, integers, without_nulls

PartitionTuple: TypeAlias = tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A spec id and the canonical partition values under it, in the order of the spec's fields; void is null."""

    spec_id: int
    partition: PartitionTuple | None = field(compare=False)
    _order: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", tuple(map(_order, self.partition or ())))

    @classmethod
    def from_tuple(cls, spec: SpecProjection, values: Sequence[Value | None]) -> PartitionKey:
        """The key of a file from its partition tuple; ``None`` if its own spec is unpartitioned."""
        return cls(spec.spec_id, None if spec.unpartitioned else tuple(values))

    def sort_key(self) -> tuple[int, tuple[Any, ...]]:
        """A total order: by spec id, then value by value with nulls first and NaN last."""
        return self.spec_id, self._order


def _order(value: Value | None) -> tuple[Any, ...]:
    """A value as something that compares and hashes the way partitions do."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value, math.copysign(1.0, value))
    return 1, value


def group_codes(
    union: UnionPartitionType, spec_ids: npt.NDArray[np.integer[Any]], columns: Mapping[int, pa.Array]
) -> tuple[Ints, list[PartitionKey]]:
    """Number the partitions of many files: a code per file as in ``partition_codes``, and the key of every code."""
    codes = partition_codes(union, spec_ids, columns)
    first = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    picked = {field_id: column.take(pa.array(first)).to_pylist() for field_id, column in columns.items()}
    keys: list[PartitionKey] = []
    for at, spec_id in enumerate(spec_ids[first].tolist()):
        spec = union.spec(spec_id)
        values: list[Value | None] = []
        for bound in spec.fields:
            known = not bound.is_void and bound.column.field_id in picked
            value = picked[bound.column.field_id][at] if known else None
            values.append(None if value is None else from_physical(bound.column.type, value))
        keys.append(PartitionKey.from_tuple(spec, values))
    return codes, keys


def partition_codes(
    union: UnionPartitionType, spec_ids: npt.NDArray[np.integer[Any]], columns: Mapping[int, pa.Array]
) -> Ints:
    """Number the partitions of many files in the order of their first appearance, by a few passes over whole columns.

    Args:
        union: The partition fields of the table.
        spec_ids: The spec of every file.
        columns: The columns of the union tuple by union field id, in the vector domain of their types; a column that
            is not there is null everywhere.
    """
    codes = _dense(arrow(spec_ids))
    for field_ in union.fields:
        if field_.id in columns:
            member = np.isin(spec_ids, list(field_.positions))
            column = columns[field_.id]
            if pa.types.is_floating(column.type):
                # By their bits, all NaN alike: -0.0 and 0.0 are different partitions.
                floats = column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
                bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
                column = pa.array(bits, mask=column.is_null().to_numpy(zero_copy_only=False))
            values = np.where(member, _dense(column) + 1, 0)  # 0 for null
            codes = _dense(arrow(codes * (int(values.max(initial=0)) + 1) + values))
    return codes


def _dense(values: pa.Array) -> Ints:
    """A number for every distinct value by first appearance, -1 for null."""
    return integers(without_nulls(values.dictionary_encode().indices, -1))
