"""Partition values of single files, for people and as constants for columns a file lacks.

Entries keep partition values in the physical domain of their type; here they become canonical values again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import PrimitiveType

from floeplan.metadata.entry_columns import partition_column
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.literals import Value
from floeplan.scan.expression_json import value_json

_TIME = (YearTransform, MonthTransform, DayTransform, HourTransform)


@dataclass(frozen=True, slots=True)
class PartitionNames:
    """Names and meaning of the partition columns of entries."""

    union: UnionPartitionType
    types: Mapping[int, PrimitiveType]

    def readable(self, spec_id: int, entry: Mapping[str, Any]) -> dict[str, object]:
        """The partition tuple of one entry by field name: times as people write them, other values as JSON has them."""
        shown: dict[str, object] = {}
        for field in self.union.spec(spec_id).fields:
            value = self._canonical(field.column.field_id, entry)
            if field.is_void or value is None:
                shown[field.column.path[0]] = None
            elif isinstance(field.transform, _TIME):
                shown[field.column.path[0]] = _time(field, value)
            else:
                shown[field.column.path[0]] = value_json(self.types[field.column.field_id], value)
        return shown

    def identities(self, spec_id: int, entry: Mapping[str, Any]) -> dict[int, object]:
        """Values of the source columns of identity fields, by field id; a null outweighs a default."""
        found: dict[int, object] = {}
        for field in self.union.spec(spec_id).fields:
            if isinstance(field.transform, IdentityTransform):
                found[field.source_id] = self._canonical(field.column.field_id, entry)
        return found

    def _canonical(self, key: int, entry: Mapping[str, Any]) -> Value | None:
        raw = entry.get(partition_column(key))
        return None if raw is None else from_physical(self.types[key], raw)


def _time(field: BoundField, value: Value) -> object:
    """A year, month, day or hour as people write it; its number where the calendar of Python does not reach."""
    try:
        return field.transform.to_human_string(field.source_type, value)
    except (OverflowError, ValueError):
        return value
