"""Values at a path of encoded variants, and what the bounds of a variant column say about them.

A variant is two byte strings: ``metadata``, a dictionary of field names, and ``value``. See "Variant Binary Encoding"
of the Parquet format. The bounds of a variant column are variants too, their two parts concatenated: an object whose
keys are normalized JSON paths (``$['a']['b']``) and whose values bound the values at that path.

Rule: bounds of a path hold for all values there that are not null, and such values have one type. They answer a
condition on ``variant_get(v, path, type)`` where the cast from that type keeps the order of values; what Spark casts
otherwise, such as text to a number, is unknown. There may always be rows without the path, so NULL may always occur.

Fail-safe: a path without bounds, bounds of two types, and bytes that cannot be decoded are unknown.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from floeplan.predicate.evaluate import evaluate, physical
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, Vector

Step: TypeAlias = "str | int"
"""The name of a field, or the index of an element."""

OBJECT, ARRAY = 2, 3
_SHORT_STRING = 1
_STEP = re.compile(r"""\.([^.\[\s]+)|\['([^'?\s]+)'\]|\["([^"?\s]+)"\]|\[([0-9]{1,9})\]""")


class VariantError(ValueError):
    """A variant that cannot be put together; callers add file and column."""


class Kind(StrEnum):
    """Types of primitive variants that Spark tells apart."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    FLOAT = "float"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    BINARY = "binary"
    STRING = "string"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Names:
    """The field names in the metadata of a variant, by id, and the id of each."""

    texts: tuple[str, ...]
    ids: Mapping[str, int]


def parse_path(text: str) -> tuple[Step, ...] | None:
    """The steps of a path such as ``$.a['b'][0]``; ``None`` for one that Spark may read otherwise or refuse."""
    steps: list[Step] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            return None
        dotted, single, double, index = found.groups()
        steps.append(int(index) if index is not None else dotted or single or double)
        at = found.end()
    return tuple(steps) if text.startswith("$") else None


@lru_cache(maxsize=256)
def names_of(metadata: bytes) -> Names:
    """The dictionary of a variant: version and offset size, the number of names, their offsets, and the names."""
    _, texts = _dictionary(metadata)
    return Names(texts, {text: number for number, text in enumerate(texts)})


def _dictionary(metadata: bytes) -> tuple[int, tuple[str, ...]]:
    """Where the metadata end, and the names."""
    size = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + size], "little")
    body = 1 + size * (count + 2)
    starts = [int.from_bytes(metadata[at : at + size], "little") for at in range(1 + size, body, size)]
    texts = tuple(metadata[body + start : body + stop].decode() for start, stop in pairwise(starts))
    return body + starts[-1], texts


def fields_of(value: bytes) -> dict[int, bytes]:
    """The encoded fields of an object by id; their offsets need not be in order."""
    header = value[0]
    if header & 3 != OBJECT:
        raise VariantError("the value beside the fields of an object is not an object")
    offset_size, id_size, large = (header >> 2 & 3) + 1, (header >> 4 & 3) + 1, header >> 6 & 1
    at = 5 if large else 2
    count = int.from_bytes(value[1:at], "little")
    start = at + count * id_size
    ids = [int.from_bytes(value[one : one + id_size], "little") for one in range(at, start, id_size)]
    body = start + (count + 1) * offset_size
    offsets = [int.from_bytes(value[one : one + offset_size], "little") for one in range(start, body, offset_size)]
    ends = dict(pairwise(sorted(offsets)))
    return {number: value[body + begin : body + ends[begin]] for number, begin in zip(ids, offsets[:-1], strict=True)}


def _element(value: bytes, index: int) -> bytes | None:
    header = value[0]
    size, large = (header >> 2 & 3) + 1, header >> 4 & 1
    at = 5 if large else 2
    count = int.from_bytes(value[1:at], "little")
    if index >= count:
        return None
    start, body = at + index * size, at + (count + 1) * size
    begin, end = (int.from_bytes(value[one : one + size], "little") for one in (start, start + size))
    return value[body + begin : body + end]


def value_at(metadata: bytes, value: bytes, steps: Sequence[Step]) -> bytes | None:
    """The encoded value at a path; ``None`` if there is none."""
    for step in steps:
        kind = value[0] & 3
        if isinstance(step, int):
            found = _element(value, step) if kind == ARRAY else None
        else:
            number = names_of(metadata).ids.get(step)
            found = None if kind != OBJECT or number is None else fields_of(value).get(number)
        if found is None:
            return None
        value = found
    return value


def decode(value: bytes) -> tuple[Kind, Any] | None:
    """A primitive in the canonical form of the IR; ``None`` for an object, an array, and a type that Spark lacks."""
    basic, number = value[0] & 3, value[0] >> 2
    if basic == _SHORT_STRING:
        return Kind.STRING, value[1 : 1 + number].decode()
    if basic:
        return None
    if number in _FIXED:
        kind, code = _FIXED[number]
        return kind, struct.unpack_from(f"<{code}", value, 1)[0]
    match number:
        case 0:
            return Kind.NULL, None
        case 1 | 2:
            return Kind.BOOLEAN, number == 1
        case 8 | 9 | 10:
            unscaled = int.from_bytes(value[2 : 2 + (4 << (number - 8))], "little", signed=True)
            return Kind.DECIMAL, Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -value[1]))
        case 15 | 16:
            raw = value[5 : 5 + int.from_bytes(value[1:5], "little")]
            return (Kind.BINARY, raw) if number == 15 else (Kind.STRING, raw.decode())
        case 20:
            return Kind.UUID, str(UUID(bytes=value[1:17]))
    return None


_FIXED: Mapping[int, tuple[Kind, str]] = {
    3: (Kind.INTEGER, "b"),
    4: (Kind.INTEGER, "h"),
    5: (Kind.INTEGER, "i"),
    6: (Kind.INTEGER, "q"),
    7: (Kind.DOUBLE, "d"),
    11: (Kind.DATE, "i"),
    12: (Kind.TIMESTAMP, "q"),
    13: (Kind.TIMESTAMP_NTZ, "q"),
    14: (Kind.FLOAT, "f"),
}
"""Primitive types of a fixed size by number, and how ``struct`` unpacks them."""


class VariantBounds(NamedTuple):
    """Answers a condition on the value at a path from the bounds of the variant.

    Attributes:
        path: The normalized JSON path.
        leaf: The condition; its column has the type that values are cast to.
        type: That type.
        field_id: The field id of the variant.
    """

    path: str
    leaf: IrExpr
    type: PrimitiveType
    field_id: int

    @classmethod
    def of(cls, steps: Sequence[Step], leaf: IrExpr, type_: PrimitiveType, field_id: int) -> VariantBounds | None:
        """``None`` for a path through an array: its bounds are those of all elements together."""
        if not all(isinstance(step, str) for step in steps):
            return None
        return cls(normalized(map(str, steps)), leaf, type_, field_id)

    def answer(self, stats: ColumnStats) -> Tri:
        """What may occur among the rows of each container."""
        nonempty = stats.may_null | stats.may_value
        if stats.stored is None:
            return Tri.unknown(nonempty)
        ranges = self._ranges(*stats.stored)
        lower = _bound(self.type, [None if one is None else one.least for one in ranges])
        upper = _bound(self.type, [None if one is None else one.greatest for one in ranges])
        nan = stats.may_value & np.array([one is None or one.may_nan for one in ranges], dtype=np.bool_)
        known = ColumnStats(nonempty, nan, stats.may_value, lower, upper)
        return evaluate(self.leaf, StatsTable(len(nonempty), {self.field_id: known}, nonempty))

    def shown(self, stats: ColumnStats) -> str:
        """The bounds of the path in the first container."""
        (found,) = [None] if stats.stored is None else self._ranges(*(part[:1] for part in stats.stored))
        return f"{self.path} {'unknown' if found is None else f'{found.least} to {found.greatest}'}"

    def _ranges(self, lower: pa.Array, upper: pa.Array) -> list[_Range | None]:
        pairs = zip(lower.to_pylist(), upper.to_pylist(), strict=True)
        return [_range(low, high, self.path, self.type) for low, high in pairs]


def normalized(names: Iterable[str]) -> str:
    """The path through the fields of these names, normalized as in RFC 9535."""

    def escaped(name: str) -> str:
        return "".join(_ESCAPES.get(one) or (f"\\u{ord(one):04x}" if one < " " else one) for one in name)

    return "$" + "".join(f"['{escaped(name)}']" for name in names)


_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", "'": "\\'", "\\": "\\\\"}


@lru_cache(maxsize=4096)
def _fields_of_bound(bound: bytes) -> Mapping[str, bytes]:
    """The bounds of each path."""
    end, names = _dictionary(bound)
    return {names[number]: value for number, value in fields_of(bound[end:]).items()}


class _Range(NamedTuple):
    """What the values at a path may be after the cast: from the least to the greatest, or NaN."""

    least: Any
    greatest: Any
    may_nan: bool


def _range(low: bytes | None, high: bytes | None, path: str, type_: PrimitiveType) -> _Range | None:
    """What the values at a path may be; ``None`` if unknown."""
    if low is None or high is None:
        return None
    try:
        ends = [decode(_fields_of_bound(bound)[path]) for bound in (low, high)]
    except (LookupError, ValueError, struct.error):
        return None
    least, greatest = ends
    if least is None or greatest is None or least[0] is not greatest[0]:
        return None
    try:
        first, last = _cast(*least, type_, -math.inf), _cast(*greatest, type_, math.inf)
    except (ArithmeticError, ValueError):
        return None
    if first is None or last is None:
        return None
    return _Range(first, last, least[0] in (Kind.DOUBLE, Kind.FLOAT) and isinstance(type_, DoubleType))


_SAME: Mapping[Kind, type[PrimitiveType]] = {
    Kind.BOOLEAN: BooleanType,
    Kind.STRING: StringType,
    Kind.DATE: DateType,
    Kind.TIMESTAMP: TimestamptzType,
    Kind.TIMESTAMP_NTZ: TimestampType,
}
_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.FLOAT)


def _cast(kind: Kind, value: Any, type_: PrimitiveType, toward: float) -> Any:
    """The cast of a bound, rounded outwards; ``None`` where it does not bound the casts of the values."""
    match type_:
        case IntegerType() | LongType() if kind in _NUMBERS:
            number = math.trunc(value)
            return number if -(2**63) <= number < 2**63 else None
        case DoubleType() if kind in (Kind.DOUBLE, Kind.FLOAT):
            return float(value)
        case DoubleType() if kind in _NUMBERS:
            return math.nextafter(float(value), toward)  # whichever way the cast rounds
        case DecimalType(precision=precision, scale=scale) if kind in (Kind.INTEGER, Kind.DECIMAL) and precision <= 18:
            exact = Decimal(value).scaleb(scale)
            unscaled = int(exact.to_integral_value(ROUND_FLOOR if toward < 0 else ROUND_CEILING))
            return Decimal(unscaled).scaleb(-scale) if abs(unscaled) < 2**63 else None
    return value if _SAME.get(kind) is type(type_) else None


def _bound(type_: PrimitiveType, values: Sequence[Any]) -> Bound:
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    made: Vector
    if isinstance(type_, StringType):
        made = pa.array(values, pa.large_string())
    else:
        dtype = np.float64 if isinstance(type_, DoubleType) else np.int64
        made = np.array([0 if value is None else physical(type_, value) for value in values], dtype=dtype)
    return Bound(made, valid)
