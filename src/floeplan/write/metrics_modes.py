"""Which statistics a table wants of each column: ``none``, ``counts``, ``truncate(n)`` or ``full``.

A property of the column wins. Without a default in the properties the default is ``truncate(16)``, but of a wide table
only the first columns have one: those of a struct before those of structs inside it. Columns of the sort order whose
transform keeps the order have bounds in any case, unless a property of the column says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from floeplan.errors import InvalidOptionError
from floeplan.text import parse_count

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_MOST_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """What is kept of one column; ``width`` cuts bounds of text and bytes, ``None`` keeps them whole."""

    counts: bool
    bounds: bool
    width: int | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> MetricsMode:
        """A mode as properties spell it."""
        known = {"none": NONE, "counts": COUNTS, "full": FULL}
        wanted = text.strip().lower()
        cut = re.fullmatch(r"truncate\((\d+)\)", wanted)
        if cut is not None and int(cut[1]) > 0:
            return cls(counts=True, bounds=True, width=int(cut[1]))
        if wanted not in known:
            raise InvalidOptionError(
                f"table property {name} is set to {text!r}, but must be none, counts, truncate(n) with n > 0, or full",
                context={"property": name, "value": text},
            )
        return known[wanted]


NONE = MetricsMode(counts=False, bounds=False)
COUNTS = MetricsMode(counts=True, bounds=False)
FULL = MetricsMode(counts=True, bounds=True)
TRUNCATE_16 = MetricsMode(counts=True, bounds=True, width=16)


@dataclass(frozen=True, slots=True)
class MetricsModes:
    """The mode of every column by field id."""

    by_id: Mapping[int, MetricsMode]
    default: MetricsMode = NONE

    def of(self, field_id: int) -> MetricsMode:
        """The mode of one column."""
        return self.by_id.get(field_id, self.default)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], schema: Schema, sort_order: SortOrder | None = None
    ) -> MetricsModes:
        """The modes a table's properties ask for."""
        leaves = list(_leaves(schema.as_struct()))
        configured = properties.get(_DEFAULT)
        if configured is not None:
            default = MetricsMode.parse(configured, _DEFAULT)
            modes = dict.fromkeys(leaves, default)
        else:
            default = NONE
            modes = dict.fromkeys(leaves[: _most_inferred(properties)], TRUNCATE_16)
        for field_id in _order_preserving(sort_order):
            if not modes.get(field_id, NONE).bounds:
                modes[field_id] = TRUNCATE_16
        for name, text in properties.items():
            if name.startswith(_COLUMN):
                field_id = schema._name_to_id.get(name.removeprefix(_COLUMN), -1)
                modes[field_id] = MetricsMode.parse(text, name)
        return cls(modes, default)


def _leaves(type_: IcebergType) -> Iterator[int]:
    """Field ids of primitive columns, those of a struct before those inside its nested fields."""
    match type_:
        case StructType(fields=fields):
            nested = fields
        case ListType(element_field=element):
            nested = (element,)
        case MapType(key_field=key, value_field=value):
            nested = (key, value)
        case _:
            return
    for field in nested:
        if isinstance(field.field_type, PrimitiveType):
            yield field.field_id
    for field in nested:
        yield from _leaves(field.field_type)


def _most_inferred(properties: Mapping[str, str]) -> int:
    text = properties.get(_MOST_INFERRED, "100").strip()
    most = parse_count(text)
    if most is None:
        raise InvalidOptionError(
            f"table property {_MOST_INFERRED} is set to {text!r}, but must be a whole number",
            context={"property": _MOST_INFERRED, "value": text},
        )
    return most


def _order_preserving(sort_order: SortOrder | None) -> list[int]:
    fields = sort_order.fields if sort_order is not None else ()
    return [field.source_id for field in fields if field.transform.preserves_order]
