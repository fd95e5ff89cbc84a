"""Random rows over random schemas, as canonical Python values and as Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
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

from floeplan.predicate.ir import (
    FALSE,
    NULL_PREDICATE,
    TRUE,
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from tests.support.oracles.values import TRICKY_TYPES, TYPES, edges, is_float, neighbours, values

NAMES = ("a", "b", "c", "d", "Grün", "dotted.name", "select", "with `tick`", "é" * 3, "x y")
Layout = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Dataset:
    """Rows over a schema. ``raw`` also has the values hidden inside null structs; ``present`` says which are not."""

    schema: Schema
    size: int
    raw: dict[int, list[Any]]
    present: dict[int, list[bool]]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every primitive column, nested ones with their path."""
        return tuple(_columns(self.schema.fields, ()))

    @property
    def rows(self) -> list[dict[int, Any]]:
        """One mapping from field id to canonical value or None for each row."""
        visible = dict(_visible(self.schema.fields, self, [True] * self.size))
        return [{field_id: column[row] for field_id, column in visible.items()} for row in range(self.size)]

    def values_of(self, column: Column) -> list[Any]:
        """The non-null values of a column, hidden ones included."""
        return [value for value in self.raw[column.field_id] if value is not None]

    def without(self, field_id: int) -> Dataset:
        """The same rows with all values of a top-level column null."""
        field = self.schema.find_field(field_id)
        gone = {column.field_id for column in _columns((field,), ())}
        raw = {i: [None] * self.size if i in gone else column for i, column in self.raw.items()}
        return Dataset(self.schema, self.size, raw, self.present)


def _columns(fields: tuple[NestedField, ...], path: tuple[str, ...]) -> Iterator[Column]:
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from _columns(field.field_type.fields, (*path, field.name))
        else:
            assert isinstance(field.field_type, PrimitiveType)
            yield Column(field.field_id, field.field_type, (*path, field.name))


def _visible(fields: tuple[NestedField, ...], data: Dataset, seen: list[bool]) -> Iterator[tuple[int, list[Any]]]:
    for field in fields:
        if isinstance(field.field_type, StructType):
            inside = [a and b for a, b in zip(seen, data.present[field.field_id], strict=True)]
            yield from _visible(field.field_type.fields, data, inside)
        else:
            raw = data.raw[field.field_id]
            yield field.field_id, [v if here else None for v, here in zip(raw, seen, strict=True)]


@st.composite
def schemas(draw: st.DrawFn, types: tuple[PrimitiveType, ...] = TYPES, max_fields: int = 4) -> Schema:
    """A few columns of any types, some inside structs of one or two levels, with ids in random order."""
    ids = iter(draw(st.permutations(range(1, 40))))

    def fields(depth: int, most: int) -> list[NestedField]:
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=most, unique=True))
        return [NestedField(next(ids), name, field_type(depth), required=False) for name in names]

    def field_type(depth: int) -> PrimitiveType | StructType:
        if depth < 2 and draw(st.integers(0, 3)) == 0:
            return StructType(*fields(depth + 1, 2))
        return draw(st.sampled_from(types))

    return Schema(*fields(0, max_fields))


def one_column() -> st.SearchStrategy[Schema]:
    """A schema with one column of any type; half of the time a type that is not ordered like plain numbers."""
    return (st.sampled_from(TYPES) | st.sampled_from(TRICKY_TYPES)).map(
        lambda type_: Schema(NestedField(1, "c", type_))
    )


@st.composite
def datasets(
    draw: st.DrawFn, schema: st.SearchStrategy[Schema] | None = None, min_size: int = 0, max_size: int = 16
) -> Dataset:
    """Rows whose columns repeat a few values, so that equality and IN match, with nulls at every level."""
    drawn = draw(schemas() if schema is None else schema)
    size = draw(st.integers(min_size, max_size))
    shell = Dataset(drawn, size, {}, {})
    for column in shell.columns:
        pool = draw(st.lists(values(column.type), min_size=1, max_size=5))
        with_null = [None, *pool] if draw(st.booleans()) else pool
        shell.raw[column.field_id] = draw(st.lists(st.sampled_from(with_null), min_size=size, max_size=size))
    for field in _structs(drawn.fields):
        shell.present[field.field_id] = draw(st.lists(st.booleans() | st.just(True), min_size=size, max_size=size))
    return shell


def _structs(fields: tuple[NestedField, ...]) -> Iterator[NestedField]:
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield field
            yield from _structs(field.field_type.fields)


def to_table(
    data: Dataset, layouts: dict[int, Layout] | None = None, *, with_ids: bool = False, left_out: int | None = None
) -> pa.Table:
    """The rows as Arrow. With ids, the names are wrong on purpose, as after a rename; a column may be left out."""
    fields, arrays = _arrow_fields(data.schema.fields, data, layouts or {}, with_ids)
    kept = [i for i, field in enumerate(data.schema.fields) if field.field_id != left_out]
    if not kept:
        return pa.table({"something else": pa.nulls(data.size)})
    return pa.Table.from_arrays([arrays[i] for i in kept], schema=pa.schema([fields[i] for i in kept]))


def _arrow_fields(
    fields: tuple[NestedField, ...], data: Dataset, layouts: dict[int, Layout], with_ids: bool
) -> tuple[list[pa.Field], list[pa.Array]]:
    arrays = [_arrow(field, data, layouts, with_ids) for field in fields]
    renamed = [fields[i - 1].name if with_ids else field.name for i, field in enumerate(fields)]
    ids = [{b"PARQUET:field_id": str(field.field_id).encode()} if with_ids else None for field in fields]
    named = zip(renamed, arrays, ids, strict=True)
    return [pa.field(name, array.type, metadata=metadata) for name, array, metadata in named], arrays


def _arrow(field: NestedField, data: Dataset, layouts: dict[int, Layout], with_ids: bool) -> pa.Array:
    if isinstance(field.field_type, StructType):
        children, arrays = _arrow_fields(field.field_type.fields, data, layouts, with_ids)
        mask = pa.array([not here for here in data.present[field.field_id]], type=pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=children, mask=mask)
    assert isinstance(field.field_type, PrimitiveType)
    plain = to_arrow(field.field_type, data.raw[field.field_id])
    layout = layouts.get(field.field_id)
    return plain if layout is None else layout(plain)


ARROW_TYPES: dict[type[PrimitiveType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    TimestampNanoType: pa.timestamp("ns"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    UUIDType: pa.binary(16),
    StringType: pa.string(),
    BinaryType: pa.binary(),
}


def arrow_type(type_: PrimitiveType) -> pa.DataType:
    """The Arrow type a writer would choose."""
    match type_:
        case DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
        case FixedType():
            return pa.binary(len(type_))
    return ARROW_TYPES[type(type_)]


def to_arrow(type_: PrimitiveType, column: list[Any]) -> pa.Array:
    """Canonical values in the default Arrow type."""
    wanted = arrow_type(type_)
    if pa.types.is_temporal(wanted):
        return pa.array(column, type=pa.int32() if pa.types.is_date32(wanted) else pa.int64()).view(wanted)
    return pa.array(column, type=wanted)


def other_types(type_: PrimitiveType) -> list[pa.DataType]:
    """Other Arrow types that can hold the same values."""
    match type_:
        case IntegerType() | LongType():
            return [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
        case FloatType():
            return [pa.float64()]
        case DecimalType(precision=precision, scale=scale):
            finer = pa.decimal256(precision + 5, scale + 5)
            return [pa.decimal128(38, scale), pa.decimal256(76, scale), finer]
        case DateType():
            return [pa.date64(), pa.int32()]
        case TimeType():
            return [pa.time32("s"), pa.time32("ms"), pa.time64("ns"), pa.int64()]
        case TimestampType() | TimestampNanoType():
            return [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")] + [pa.int64()]
        case TimestamptzType() | TimestamptzNanoType():
            return [pa.timestamp(unit, "America/New_York") for unit in ("s", "ms", "us", "ns")]
        case StringType():
            return [pa.large_string(), pa.string_view(), pa.binary()]
        case UUIDType():
            return [pa.uuid(), pa.binary(), pa.large_binary()]
        case BinaryType() | FixedType():
            return [pa.binary(), pa.large_binary(), pa.binary_view()]
    return []


def layouts(type_: PrimitiveType) -> st.SearchStrategy[Layout]:
    """Physical layouts of the same values: another type if it holds them exactly, dictionary-encoded, or unchanged."""

    def recast(other: pa.DataType) -> Layout:
        def change(plain: pa.Array) -> pa.Array:
            try:
                return plain.cast(other)
            except pa.ArrowInvalid:
                return plain

        return change

    def untyped(plain: pa.Array) -> pa.Array:
        return pa.nulls(len(plain)) if plain.null_count == len(plain) else plain

    as_they_are: list[Layout] = [lambda plain: plain, lambda plain: plain.dictionary_encode(), untyped]
    return st.sampled_from(as_they_are + [recast(other) for other in other_types(type_)])


# Random predicates over the columns of a dataset, with literals equal to, next to and far from the data.


def predicates(data: Dataset, *, opaque: bool = False, max_leaves: int = 6) -> st.SearchStrategy[IrExpr]:
    """Any tree of any nodes; with ``opaque`` some leaves cannot be evaluated on statistics."""
    leaf = st.one_of([leaves(column, literals(column, data)) for column in data.columns])
    constant = st.sampled_from((TRUE, FALSE, NULL_PREDICATE))
    base = one_in(6, constant, leaf)
    if opaque:
        base = one_in(4, base.map(hidden), base)

    def combined(inner: st.SearchStrategy[IrExpr]) -> st.SearchStrategy[IrExpr]:
        operands = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(operands.map(And), operands.map(Or), inner.map(Not))

    return st.recursive(base, combined, max_leaves=max_leaves)


def one_in(
    times: int, seldom: st.SearchStrategy[IrExpr], often: st.SearchStrategy[IrExpr]
) -> st.SearchStrategy[IrExpr]:
    """A weighted choice; ``one_of`` would flatten its alternatives and make them equally likely."""
    return st.integers(1, times).flatmap(lambda number: seldom if number == times else often)


def hidden(expr: IrExpr) -> Opaque:
    """The same predicate as a node that can only be evaluated on rows."""
    return Opaque(f"opaque({expr!r})", (), expr)


def literals(column: Column, data: Dataset) -> list[Any]:
    """Values of the column, their neighbours, and edge cases of its type."""
    found = data.values_of(column)
    return [*found, *(near for value in found for near in neighbours(column.type, value)), *edges(column.type)]


def leaves(column: Column, candidates: list[Any]) -> st.SearchStrategy[IrExpr]:
    """Any leaf on one column."""
    value = st.sampled_from(candidates)
    several = st.lists(value, max_size=4).map(tuple)
    negated = st.booleans()
    kinds: list[st.SearchStrategy[IrExpr]] = [
        st.builds(Cmp, st.just(column), st.sampled_from(CmpOp), value),
        st.builds(Cmp, st.just(column), st.sampled_from(CmpOp), value),
        st.builds(Between, st.just(column), value, value, st.booleans()),
        st.builds(InList, st.just(column), several, negated),
        st.builds(IsNull, st.just(column), negated),
        st.builds(BloomEq, st.just(column), value),
        st.builds(BloomInList, st.just(column), several.filter(bool)),
    ]
    if is_float(column.type):
        kinds.append(st.builds(IsNaN, st.just(column), negated))
    if isinstance(column.type, StringType):
        kinds.append(st.builds(StartsWith, st.just(column), value, negated))
    return st.one_of(kinds)


def every_leaf(column: Column, candidates: list[Any]) -> Iterator[IrExpr]:
    """Each kind of leaf on one column with each candidate, where random draws would cover too little."""
    unique = list({repr(value): value for value in candidates}.values())
    for value in unique:
        yield from (Cmp(column, op, value) for op in CmpOp)
        yield BloomEq(column, value)
        if isinstance(column.type, StringType):
            yield StartsWith(column, value)
    for low, high in pairwise(unique):
        yield from (Between(column, low, high, inclusive) for inclusive in (True, False))
        yield InList(column, (low, high))
        yield BloomInList(column, (low, high))
    yield from (InList(column, values) for values in ((), tuple(unique)))
    yield IsNull(column)
    if is_float(column.type):
        yield IsNaN(column)
