"""The schema of a Parquet file: its tree, its leaf columns, and the Iceberg types they stand for.

Two generations of type annotations (converted and logical types) become one ``Annotation``. A leaf's Iceberg type is
the type its values are read as; a leaf that no Iceberg type fits has none and is not offered for predicates.

Types outside Iceberg are represented by a wider one that holds all their values: small and unsigned integers by int
or long, unsigned 64-bit by decimal(20, 0), half floats by float, INT96 by timestamptz, times by microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.parquet.footer.thrift import SCALAR, Struct, integer

MAX_ELEMENTS = 250_000
MAX_DEPTH = 64


class Physical(IntEnum):
    """How the values of a leaf are stored."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


class Repetition(IntEnum):
    """How often a node occurs in its parent."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class Kind(StrEnum):
    """What the stored values mean."""

    NONE = "none"
    STRING = "string"
    ENUM = "enum"
    JSON = "json"
    BSON = "bson"
    DECIMAL = "decimal"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    INTEGER = "integer"
    UUID = "uuid"
    FLOAT16 = "float16"
    INTERVAL = "interval"
    ALWAYS_NULL = "always null"
    LIST = "list"
    MAP = "map"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Annotation:
    """A logical or converted type; ``unit`` is the nanoseconds of one tick of a time or timestamp."""

    kind: Kind = Kind.NONE
    unit: int = 0
    utc: bool = False
    bits: int = 0
    signed: bool = True
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """One stored column.

    ``field_id`` is the file's own when every field of the file has one, else assigned by position. ``type`` is what
    the values are read as, ``None`` when Iceberg has nothing that fits. ``ordered`` says whether the file states the
    standard order for the column's bounds, ``None`` that it states nothing, as files of old writers.
    """

    index: int
    path: tuple[str, ...]
    field_id: int
    physical: Physical
    annotation: Annotation
    type_length: int
    max_def: int
    max_rep: int
    type: PrimitiveType | None
    ordered: bool | None

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """A node of the schema tree; ``encoded`` is its element as it stands in the footer, ``leaf`` its column index."""

    name: str
    repetition: Repetition
    physical: Physical | None
    annotation: Annotation
    type_length: int
    field_id: int | None
    children: tuple[SchemaNode, ...]
    leaf: int | None
    encoded: bytes

    def walk(self) -> Iterator[SchemaNode]:
        """The node and all below it, parents first: the order of the footer."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def leaf_indexes(self) -> list[int]:
        """Indexes of the leaf columns at or below this node."""
        return [node.leaf for node in self.walk() if node.leaf is not None]


_DETAILS_SHAPE = {1: SCALAR, 2: dict.fromkeys((1, 2, 3), SCALAR)}
ELEMENT_SHAPE = dict.fromkeys(range(1, 10), SCALAR) | {10: dict.fromkeys(range(1, 32), _DETAILS_SHAPE)}


def build_tree(elements: Sequence[tuple[Struct, bytes]]) -> SchemaNode:
    """The tree from the footer's flat list of elements; a list that is no tree is a ``ValueError``."""
    if not elements:
        raise ValueError("the schema is empty")
    builder = _TreeBuilder(elements)
    root = builder.node(0)
    if builder.position != len(elements):
        raise ValueError("the schema has elements that belong to no field")
    return root


class _TreeBuilder:
    def __init__(self, elements: Sequence[tuple[Struct, bytes]]) -> None:
        self._elements = elements
        self.position = 0
        self._leaves = 0

    def node(self, depth: int) -> SchemaNode:
        if self.position >= len(self._elements):
            raise ValueError("the schema ends before all fields are named")
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema nests deeper than {MAX_DEPTH}")
        element, encoded = self._elements[self.position]
        self.position += 1
        name = element.get(4)
        if not isinstance(name, bytes):
            raise ValueError("a field of the schema has no name")
        count = integer(element, 5, 0)
        if not 0 <= count <= len(self._elements) - self.position:
            raise ValueError(f"a field claims {count} children")
        is_leaf = 1 in element and count == 0
        if depth and not count and not is_leaf:
            raise ValueError("a field of the schema has neither a type nor fields")
        leaf = self._leaves if is_leaf else None
        self._leaves += is_leaf
        return SchemaNode(
            _text(name),
            Repetition(integer(element, 3, 0)),
            Physical(integer(element, 1)) if is_leaf else None,
            annotation_of(element),
            integer(element, 2, 0),
            integer(element, 9) if 9 in element else None,
            tuple(self.node(depth + 1) for _ in range(count)),
            leaf,
            encoded,
        )


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ValueError(f"a field of the schema is named {name!r}, which is no text") from None


_UNITS = {1: 1_000_000, 2: 1_000, 3: 1}
_LOGICAL = {
    1: Kind.STRING,
    2: Kind.MAP,
    3: Kind.LIST,
    4: Kind.ENUM,
    6: Kind.DATE,
    11: Kind.ALWAYS_NULL,
    12: Kind.JSON,
    13: Kind.BSON,
    14: Kind.UUID,
    15: Kind.FLOAT16,
}
_CONVERTED = {
    0: Annotation(Kind.STRING),
    1: Annotation(Kind.MAP),
    2: Annotation(Kind.MAP),
    3: Annotation(Kind.LIST),
    4: Annotation(Kind.ENUM),
    6: Annotation(Kind.DATE),
    7: Annotation(Kind.TIME, unit=1_000_000, utc=True),
    8: Annotation(Kind.TIME, unit=1_000, utc=True),
    9: Annotation(Kind.TIMESTAMP, unit=1_000_000, utc=True),
    10: Annotation(Kind.TIMESTAMP, unit=1_000, utc=True),
    **{11 + i: Annotation(Kind.INTEGER, bits=8 << i, signed=False) for i in range(4)},
    **{15 + i: Annotation(Kind.INTEGER, bits=8 << i) for i in range(4)},
    19: Annotation(Kind.JSON),
    20: Annotation(Kind.BSON),
    21: Annotation(Kind.INTERVAL),
}


def annotation_of(element: Struct) -> Annotation:
    """The annotation of a schema element: the logical type where one is known, else the converted type."""
    logical = element.get(10)
    if isinstance(logical, dict) and len(logical) == 1:
        return _from_logical(*next(iter(logical.items())))
    if 6 not in element:
        return Annotation(Kind.UNKNOWN if 10 in element else Kind.NONE)
    converted = integer(element, 6)
    if converted == 5:
        return Annotation(Kind.DECIMAL, precision=integer(element, 8, 0), scale=integer(element, 7, 0))
    return _CONVERTED.get(converted, Annotation(Kind.UNKNOWN))


def _from_logical(field: int, details: Any) -> Annotation:
    if not isinstance(details, dict):
        return Annotation(Kind.UNKNOWN)
    if field == 5:
        return Annotation(Kind.DECIMAL, precision=integer(details, 2, 0), scale=integer(details, 1, 0))
    if field in (7, 8):
        unit = details.get(2)
        ticks = _UNITS.get(next(iter(unit), 0), 0) if isinstance(unit, dict) else 0
        if not ticks:
            return Annotation(Kind.UNKNOWN)
        return Annotation(Kind.TIME if field == 7 else Kind.TIMESTAMP, unit=ticks, utc=details.get(1) is True)
    if field == 10:
        return Annotation(Kind.INTEGER, bits=integer(details, 1, 0), signed=details.get(2) is True)
    return Annotation(_LOGICAL.get(field, Kind.UNKNOWN))


def iceberg_type(physical: Physical, annotation: Annotation, type_length: int) -> PrimitiveType | None:
    """The Iceberg type that holds every value of a leaf, or ``None``."""
    kind = annotation.kind
    match physical:
        case Physical.BOOLEAN:
            return BooleanType()
        case Physical.INT32 | Physical.INT64:
            return _integer_type(physical, annotation)
        case Physical.INT96:
            return TimestamptzType()
        case Physical.FLOAT:
            return FloatType()
        case Physical.DOUBLE:
            return DoubleType()
    if kind is Kind.DECIMAL:
        return _decimal_type(annotation)
    if physical is Physical.BYTE_ARRAY:
        if kind in (Kind.STRING, Kind.ENUM, Kind.JSON):
            return StringType()
        return BinaryType() if kind in (Kind.NONE, Kind.BSON) else None
    if kind is Kind.UUID and type_length == 16:
        return UUIDType()
    if kind is Kind.FLOAT16 and type_length == 2:
        return FloatType()
    return FixedType(type_length) if kind is Kind.NONE and type_length > 0 else None


def _integer_type(physical: Physical, annotation: Annotation) -> PrimitiveType | None:
    wide = physical is Physical.INT64
    plain = LongType() if wide else IntegerType()
    match annotation.kind:
        case Kind.NONE | Kind.ALWAYS_NULL:
            return plain
        case Kind.INTEGER if annotation.bits == 64 and not annotation.signed:
            return DecimalType(20, 0) if wide else None
        case Kind.INTEGER if annotation.bits == 32 and not annotation.signed:
            return LongType()
        case Kind.INTEGER:
            return plain
        case Kind.DECIMAL:
            return _decimal_type(annotation)
        case Kind.DATE:
            return None if wide else DateType()
        case Kind.TIME:
            return TimeType()
        case Kind.TIMESTAMP if wide and annotation.unit == 1:
            return TimestamptzNanoType() if annotation.utc else TimestampNanoType()
        case Kind.TIMESTAMP if wide:
            return TimestamptzType() if annotation.utc else TimestampType()
    return None


def _decimal_type(annotation: Annotation) -> PrimitiveType | None:
    precision, scale = annotation.precision, annotation.scale
    return DecimalType(precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None


def assign_ids(root: SchemaNode) -> dict[int, int]:
    """Field ids by the identity of the node: the file's own when all fields have distinct ones, else by position."""
    own = has_field_ids(root)
    return {
        id(node): node.field_id if own and node.field_id is not None else position
        for position, node in enumerate(_fields(root), start=1)
    }


def has_field_ids(root: SchemaNode) -> bool:
    """Whether every field of the file carries a field id, all of them different."""
    own = [node.field_id for node in _fields(root)]
    return None not in own and len(set(own)) == len(own)


def _fields(group: SchemaNode) -> Iterator[SchemaNode]:
    """The nodes that are fields to a reader: all but the root and the repeated middle of lists and maps."""
    for child in _logical_children(group):
        yield child
        yield from _fields(child)


def _logical_children(node: SchemaNode) -> tuple[SchemaNode, ...]:
    """Children as Iceberg sees them: the element of a list, key and value of a map, the fields of a struct."""
    if is_list(node):
        return (list_element(node),)
    if is_map(node):
        return node.children[0].children
    return node.children


def is_list(node: SchemaNode) -> bool:
    """Whether a group is a list: annotated so, with one repeated child."""
    return (
        node.annotation.kind is Kind.LIST
        and len(node.children) == 1
        and node.children[0].repetition is Repetition.REPEATED
    )


def is_map(node: SchemaNode) -> bool:
    """Whether a group is a map: annotated so, with one repeated child of key and value."""
    return (
        node.annotation.kind is Kind.MAP
        and len(node.children) == 1
        and node.children[0].repetition is Repetition.REPEATED
        and len(node.children[0].children) == 2
    )


def list_element(node: SchemaNode) -> SchemaNode:
    """The element of a list: below the repeated group, or the repeated node itself in files of old writers."""
    repeated = node.children[0]
    old_style = len(repeated.children) != 1 or repeated.name in ("array", f"{node.name}_tuple")
    return repeated if old_style else repeated.children[0]


def leaf_columns(root: SchemaNode, ordered: list[bool | None]) -> tuple[LeafColumn, ...]:
    """All leaves in file order; ``ordered`` says for each whether its bounds have the standard order."""
    ids = assign_ids(root)
    return tuple(_leaves(root, (), 0, 0, ids, ordered))


def _leaves(
    node: SchemaNode, path: tuple[str, ...], max_def: int, max_rep: int, ids: dict[int, int], ordered: list[bool | None]
) -> Iterator[LeafColumn]:
    for child in node.children:
        deeper = max_def + (child.repetition is not Repetition.REQUIRED)
        repeats = max_rep + (child.repetition is Repetition.REPEATED)
        names = (*path, child.name)
        if child.leaf is None or child.physical is None:
            yield from _leaves(child, names, deeper, repeats, ids, ordered)
            continue
        yield LeafColumn(
            index=child.leaf,
            path=names,
            field_id=ids[id(child)],
            physical=child.physical,
            annotation=child.annotation,
            type_length=child.type_length,
            max_def=deeper,
            max_rep=repeats,
            type=iceberg_type(child.physical, child.annotation, child.type_length),
            ordered=ordered[child.leaf],
        )


def iceberg_schema(root: SchemaNode) -> Schema:
    """The Iceberg schema of a file read on its own; fields that Iceberg has no type for are left out."""
    return Schema(*_struct_fields(root.children, assign_ids(root)))


def _struct_fields(nodes: tuple[SchemaNode, ...], ids: dict[int, int]) -> list[NestedField]:
    """The fields of a struct; a repeated field outside a list is a list without a field id, so it is left out."""
    fields = []
    for node in nodes:
        type_ = None if node.repetition is Repetition.REPEATED else _field_type(node, ids)
        if type_ is not None:
            required = node.repetition is Repetition.REQUIRED
            fields.append(NestedField(ids[id(node)], node.name, type_, required=required))
    return fields


def _field_type(node: SchemaNode, ids: dict[int, int]) -> IcebergType | None:
    if node.physical is not None:
        return iceberg_type(node.physical, node.annotation, node.type_length)
    if is_list(node):
        element = list_element(node)
        type_ = _field_type(element, ids)
        required = element.repetition is not Repetition.OPTIONAL
        return type_ and ListType(ids[id(element)], type_, element_required=required)
    if is_map(node):
        key, value = node.children[0].children
        key_type, value_type = _field_type(key, ids), _field_type(value, ids)
        if key_type is None or value_type is None:
            return None
        required = value.repetition is Repetition.REQUIRED
        return MapType(ids[id(key)], key_type, ids[id(value)], value_type, value_required=required)
    if node.annotation.kind is Kind.UNKNOWN:
        return None
    return StructType(*_struct_fields(node.children, ids))
