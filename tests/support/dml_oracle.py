"""What changes make of rows, computed one row at a time with PyIceberg's transforms."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, TypeAlias

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

Row: TypeAlias = dict[str, Any]


def partition_of(row: Row, spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """The partition tuple of a row under a spec, as texts: NaN equals itself, -0.0 is not 0.0."""
    values = []
    for field in spec.fields:
        if isinstance(field.transform, VoidTransform):
            continue
        source = schema.find_field(field.source_id)
        value = _internal(row[source.name])
        values.append(repr(None if value is None else field.transform.transform(source.field_type)(value)))
    return tuple(values)


def _internal(value: Any) -> Any:
    """A value as PyIceberg's transforms take it."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
    return value
