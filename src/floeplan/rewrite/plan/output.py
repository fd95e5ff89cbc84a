"""The partition that the rows of a file will be in after a rewrite, where metadata proves it.

Rule: a file that keeps its spec keeps its partition. A file that moves to another spec has a proven partition there
when every field of that spec is also a field of its own spec, or can be recovered from its column bounds. Files of
several old specs are then packed together without being read.

Fail-safe: a partition that is not proven is computed from the rows. Such files are sorted by the lowest partition value
that their bounds admit, and packed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.errors import InvalidOptionError
from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.fields import transform_name
from floeplan.partition.recover import Obstacle, Recovered, recover
from floeplan.partition.transforms import can_apply
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, Mask


@dataclass(frozen=True, slots=True)
class OutputPartitions:
    """The output partition of each file.

    Attributes:
        spec_id: The output spec where the partition is proven, else the file's own.
        columns: By union field id, the partition values under that spec.
        obstacle: Why the first unproven field cannot be recovered, as a value of ``Obstacle``.
        lowest: Per field of the output spec, the lowest value of each file as far as known, to sort unproven files by.
    """

    spec_id: Ints
    columns: Mapping[int, pa.Array]
    obstacle: npt.NDArray[np.int8]
    lowest: tuple[pa.Array, ...] = ()

    @property
    def proven(self) -> Mask:
        """Whether the output partition is known."""
        return np.asarray(self.obstacle == Obstacle.NONE)


def output_partitions(entries: EntriesTable, union: UnionPartitionType, output_spec_id: int | None) -> OutputPartitions:
    """Compute the output partitions; the entries must have the bounds of ``needed_stats``."""
    own, columns = entries.spec_id, entries.partition_columns()
    if output_spec_id is None or (own == output_spec_id).all():
        return OutputPartitions(own, columns, np.zeros(len(entries), dtype=np.int8))
    fields = [field for field in union.fields if output_spec_id in field.positions]
    found = {field.id: _recovered(entries, field) for field in fields}
    has_own = {field.id: np.isin(own, list(field.positions)) for field in fields}
    moving = own != output_spec_id
    obstacle = np.zeros(len(entries), dtype=np.int8)
    for field_id, recovered in found.items():
        unproven = moving & ~has_own[field_id] & (obstacle == Obstacle.NONE)
        obstacle[unproven] = recovered.obstacle[unproven]
    proven = np.asarray(obstacle == Obstacle.NONE)
    filled = {
        field.id: _fill(columns[field.id], found[field.id], moving & proven & ~has_own[field.id], field)
        for field in fields
    }
    lowest = tuple(_lowest_value(columns[field.id], found[field.id], has_own[field.id], field) for field in fields)
    return OutputPartitions(np.where(proven, output_spec_id, own), {**columns, **filled}, obstacle, lowest)


def check_writable(union: UnionPartitionType, schema: Schema, output_spec_id: int | None) -> None:
    """Refuse a spec with a dropped source column or an unknown transform: rows cannot be partitioned by it."""
    for field in () if output_spec_id is None else union.spec(output_spec_id).fields:
        gone = field.source_id not in fields_by_id(schema)
        if not field.is_void and (gone or not can_apply(field.transform, field.source_type)):
            why = "its source column was dropped" if gone else f"{transform_name(field.transform)} cannot be computed"
            raise InvalidOptionError(
                f"files cannot be moved to spec {output_spec_id}, partition field {field.column}: {why}",
                context={"spec-id": output_spec_id, "field": str(field.column)},
            )


def needed_stats(union: UnionPartitionType, output_spec_id: int | None) -> frozenset[int]:
    """The columns whose bounds recover partition values of the output spec."""
    return frozenset(field.bound.source_id for field in union.fields if output_spec_id in field.positions)


def _recovered(entries: EntriesTable, field: UnionField) -> Recovered:
    source = field.bound.source_id
    known = file_stats(entries, [Column(source, field.bound.source_type, (str(source),))]).columns
    return recover(field.bound, known.get(source), len(entries))


def _lowest_value(column: pa.Array, found: Recovered, has_own: Mask, field: UnionField) -> pa.Array:
    """The value of a field where the file has it, else that of its lower bound, if there is one.

    Files are only sorted by it. Where values do not fit the type of the field, files are not sorted: the type may be
    unknown because the source column was dropped.
    """
    type_ = partition_arrow_type(field.bound.column.type)
    try:
        return pc.if_else(pa.array(has_own), column.cast(type_), pa.array(found.values).cast(type_))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), pa.int8())


def _fill(column: pa.Array, found: Recovered, where: Mask, field: UnionField) -> pa.Array:
    """The column with recovered values in some rows."""
    if not where.any():
        return column
    type_ = partition_arrow_type(field.bound.column.type)
    values = found.values
    if isinstance(values, np.ndarray):
        made = pa.array(values, mask=found.is_null | ~where)
    else:
        made = pc.if_else(pa.array(where & ~found.is_null), values, pa.scalar(None, values.type))
    return pc.if_else(pa.array(where), made.cast(type_), column.cast(type_))
