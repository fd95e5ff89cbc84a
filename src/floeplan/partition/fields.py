"""Partition fields with their source columns resolved by id, over every schema the table has had.

The type of a source is its current one, or its last one: a rename keeps the id, a dropped column is found in a
historical schema, and a column added again under an old name has another id and is another column. A source that is in
no schema has the unknown type, and so have the results of identity and truncate on it.

Fail-safe: where a source has had types whose values are not comparable (a promotion that changes what a transform
yields), nothing is lifted through the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg import types
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform

from floeplan.partition.transforms import TIMESTAMPS, Transform, can_apply, result_type
from floeplan.predicate.ir import Column
from floeplan.schemas import fields_by_id

SourceTypes: TypeAlias = Mapping[int, tuple[types.PrimitiveType, ...]]
"""Every type a column has had, by field id, the newest first."""


@dataclass(frozen=True, slots=True)
class BoundField:
    """A partition field as predicates see it: a column of partition values and where they come from.

    ``column`` is bound by the id of the partition field, or by another free id where the metadata uses one id for
    different fields. ``source_types`` holds the types of the source, the newest first. ``obstacle`` states why
    partition values determine nothing about the source; empty if they do.
    """

    column: Column
    source_id: int
    transform: Transform
    source_types: tuple[types.PrimitiveType, ...]
    obstacle: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "obstacle", _obstacle(self.transform, self.source_types))

    def __hash__(self) -> int:
        """By ids alone: fields are cache keys of lifting, and hashing PyIceberg types is slow."""
        return hash((self.column.field_id, self.source_id))

    @property
    def source_type(self) -> types.PrimitiveType:
        """The newest type of the source."""
        return self.source_types[0]

    @property
    def is_void(self) -> bool:
        """Whether the field was dropped in format 1, which replaces it by a void field: every value is null."""
        return isinstance(self.transform, VoidTransform)


def _obstacle(transform: Transform, sources: tuple[types.PrimitiveType, ...]) -> str:
    newest = sources[0]
    if isinstance(transform, VoidTransform):
        return "void"
    if isinstance(transform, UnknownTransform):
        return "unknown transform"
    if isinstance(newest, types.UnknownType):
        return "source column is in no schema"
    if not can_apply(transform, newest):
        return f"{transform_name(transform)} does not take {newest}"
    if not all(_comparable(transform, newest, older) for older in sources[1:]):
        return "source column changed its type"
    return ""


def bind_field(part: PartitionField, sources: SourceTypes, column_id: int | None = None) -> BoundField:
    """Resolve the source of a partition field; ``column_id`` replaces its id in the column that predicates see."""
    known = sources.get(part.source_id) or (types.UnknownType(),)
    field_id = part.field_id if column_id is None else column_id
    column = Column(field_id, result_type(part.transform, known[0]), (part.name,))
    return BoundField(column, part.source_id, part.transform, known)


def source_types(current: Schema, historical: Iterable[Schema] = ()) -> SourceTypes:
    """The types of every primitive column, newest first: those of the current schema, then by falling schema id."""
    others = sorted((s for s in historical if s.schema_id != current.schema_id), key=lambda s: -s.schema_id)
    found: dict[int, dict[types.PrimitiveType, None]] = {}
    for schema in (current, *others):
        for field_id, column in fields_by_id(schema).items():
            if isinstance(column.field_type, types.PrimitiveType):
                found.setdefault(field_id, {})[column.field_type] = None
    return {field_id: tuple(known) for field_id, known in found.items()}


def transform_name(transform: Transform) -> str:
    """The transform without its parameters, for messages."""
    return transform._transform if isinstance(transform, UnknownTransform) else str(transform).partition("[")[0]


def fields_on(fields: Sequence[BoundField], source_id: int) -> list[BoundField]:
    """The fields that take their values from one column."""
    return [field for field in fields if field.source_id == source_id]


def _comparable(transform: Transform, newer: types.PrimitiveType, older: types.PrimitiveType) -> bool:
    """Whether a transform of both types yields comparable values, so that old files can be compared with new ones."""
    match older, newer:
        case (types.IntegerType(), types.LongType()) | (types.FloatType(), types.DoubleType()):
            return True
        case types.UnknownType(), _:
            return True
        case types.DecimalType(), types.DecimalType():
            return older.scale == newer.scale
        case types.DateType(), _ if isinstance(newer, TIMESTAMPS):
            return transform.preserves_order and not isinstance(transform, IdentityTransform | TruncateTransform)
    return older == newer
