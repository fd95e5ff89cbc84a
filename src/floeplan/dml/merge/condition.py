"""The ON condition of a merge, split into join keys and other conjuncts.

Rule: a conjunct ``target.a = source.b`` (or ``<=>``) is a key. A conjunct over one side is evaluated on that side
before joining, every other one on the pairs that the keys find. Together they are equivalent to the condition.

For planning, the keys become predicates on the target: the source's values, or their range when there are many.

Names: ``target.x`` and ``t.x`` are columns of the target, ``source.x`` and ``s.x`` of the source, unless other
qualifiers are given. An unqualified name that both sides have is an error. Source columns get field ids beyond those
of any table, so that a compiled expression is bound by id over both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlglot import exp, parse_one

from floeplan.errors import UnknownColumnError
from floeplan.predicate.build import and_, conjuncts, field_ids
from floeplan.predicate.ir import FALSE, TRUE, Between, Column, InList, IrExpr, Opaque, path_text
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.rows.evaluate import SqlExpression
from floeplan.predicate.sql_compiler import compile_sql

FIRST_SOURCE_ID = 1_500_000_000
TARGET_QUALIFIERS, SOURCE_QUALIFIERS = ("target", "t"), ("source", "s")


def source_schema(columns: pa.Schema) -> Schema:
    """The schema of a source, with field ids no table has."""
    numbers = count(FIRST_SOURCE_ID)
    plain = _pyarrow_to_schema_without_ids(columns, format_version=3)
    return assign_fresh_schema_ids(plain, lambda: next(numbers))


def is_source(field_id: int) -> bool:
    """Whether a field is the source's; ids of metadata columns lie above both."""
    return FIRST_SOURCE_ID <= field_id < 2_000_000_000


@dataclass(frozen=True, slots=True)
class MergeNames(Names):
    """Name lookup over both sides; a side that may not be named is empty."""

    source: Schema = field(default_factory=Schema)
    target_qualifiers: Sequence[str] = TARGET_QUALIFIERS
    source_qualifiers: Sequence[str] = SOURCE_QUALIFIERS

    def find(self, path: Sequence[str]) -> Reference:
        """The field a path names, on the side it is on."""
        target, source = Names(self.schema, self.case_sensitive), Names(self.source, self.case_sensitive)
        if len(path) > 1 and self._is(path[0], self.target_qualifiers):
            return target.find(path[1:])
        if len(path) > 1 and self._is(path[0], self.source_qualifiers):
            return source.find(path[1:])
        found = [side for side in (target, source) if self._has(side.schema, path[0])]
        if len(found) == 2:
            raise UnknownColumnError(
                f"both tables have a column {path_text(path[:1])}; write "
                f"{self.target_qualifiers[0]}.{path_text(path)} or {self.source_qualifiers[0]}.{path_text(path)}",
                context={"column": path_text(path)},
            )
        return (found[0] if found else target if self.schema.fields else source).find(path)

    def is_qualifier(self, name: str) -> bool:
        """Whether a name stands for one of the sides."""
        return self._is(name, self.target_qualifiers) or self._is(name, self.source_qualifiers)

    def qualifiers_of(self, name: str, *, may_qualify: bool) -> Sequence[str]:
        """The qualifiers of the side that the first part of a name belongs to."""
        if may_qualify and self.is_qualifier(name):
            return self.target_qualifiers if self._is(name, self.target_qualifiers) else self.source_qualifiers
        return self.source_qualifiers if self._has(self.source, name) else self.target_qualifiers

    def _is(self, name: str, qualifiers: Sequence[str]) -> bool:
        return name.lower() in (qualifier.lower() for qualifier in qualifiers)

    def _has(self, schema: Schema, name: str) -> bool:
        if self.case_sensitive:
            return any(field.name == name for field in schema.fields)
        return any(field.name.lower() == name.lower() for field in schema.fields)


def qualified_text(text: str, names: MergeNames) -> str:
    """An expression with every column qualified by the first qualifier of its side, as an engine knows them."""
    parts, end = [], 0
    for column in sorted(parse_one(text, dialect="spark").find_all(exp.Column), key=_start):
        first = column.parts[0]
        has_more = len(column.parts) > 1 or isinstance(column.parent, exp.Dot)
        side = names.qualifiers_of(first.name, may_qualify=has_more)
        start, stop = first.meta["start"], first.meta["end"] + 1
        named = has_more and names.is_qualifier(first.name)
        parts += [text[end:start], path_text(side[:1]), "" if named else f".{text[start:stop]}"]
        end = stop
    return "".join([*parts, text[end:]])


def _start(column: exp.Column) -> int:
    return int(column.parts[0].meta["start"])


LISTED_KEYS = 10_000
"""With more keys than this, a plan uses their range instead of a list."""


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of columns, by field id, that must be equal; ``null_safe`` when NULL equals NULL."""

    target: int
    source: int
    null_safe: bool


@dataclass(frozen=True, slots=True)
class MergeCondition:
    """When a target row and a source row match."""

    keys: tuple[Key, ...]
    target_only: IrExpr
    source_only: IrExpr
    pairs: IrExpr


def compile_condition(on: str, names: MergeNames) -> MergeCondition:
    """Compile the text of an ON condition."""
    predicate, _ = compile_sql(on, names)
    keys: list[Key] = []
    sides: dict[str, list[IrExpr]] = {"target": [], "source": [], "pairs": []}
    for conjunct in conjuncts(predicate):
        key = _key(conjunct)
        if key is not None:
            keys.append(key)
        else:
            sides[_side(conjunct)].append(conjunct)
    return MergeCondition(tuple(keys), and_(*sides["target"]), and_(*sides["source"]), and_(*sides["pairs"]))


def _side(conjunct: IrExpr) -> str:
    of_source = {is_source(field_id) for field_id in field_ids(conjunct)}
    if not of_source:
        return "pairs"
    return "pairs" if len(of_source) == 2 else "source" if True in of_source else "target"


def _key(conjunct: IrExpr) -> Key | None:
    if not isinstance(conjunct, Opaque) or not isinstance(conjunct.expression, SqlExpression):
        return None
    tree = conjunct.expression.tree.unnest()
    if not isinstance(tree, exp.EQ | exp.NullSafeEQ):
        return None
    sides = [tree.this.unnest(), tree.expression.unnest()]
    if not all(isinstance(side, exp.Placeholder) for side in sides):
        return None
    left, right = (int(side.this) for side in sides)
    if is_source(left) == is_source(right):
        return None
    target, source = (right, left) if is_source(left) else (left, right)
    return Key(target, source, isinstance(tree, exp.NullSafeEQ))


def key_predicate(column: Column, values: pa.Array) -> IrExpr:
    """A predicate that every target row with one of these keys satisfies; TRUE when there is none."""
    plain = _in_range(column.type, values.drop_null())
    if not len(plain):
        return FALSE
    if not _is_same_type(column.type, plain.type):
        return TRUE
    distinct = pc.unique(plain)
    if len(distinct) <= LISTED_KEYS:
        return InList(column, tuple(_canonical(distinct).to_pylist()))
    ends = pc.min_max(plain)
    low, high = (_canonical(pa.array([ends[end].as_py()], plain.type))[0].as_py() for end in ("min", "max"))
    return Between(column, low, high)


def _in_range(type_: PrimitiveType, keys: pa.Array) -> pa.Array:
    """Without keys that a 32-bit column cannot hold: they match nothing."""
    if not isinstance(type_, IntegerType) or not pt.is_int64(keys.type):
        return keys
    kept = keys.filter(pc.and_(pc.greater_equal(keys, -(2**31)), pc.less(keys, 2**31)))
    return kept.cast(pa.int32())


def _is_same_type(type_: PrimitiveType, keys: pa.DataType) -> bool:
    """Whether key values are, as they are, values of the column's type."""
    match type_:
        case IntegerType():
            return bool(pt.is_int32(keys))
        case LongType():
            return bool(pt.is_int64(keys) or pt.is_int32(keys))
        case StringType():
            return bool(pt.is_large_string(keys))
        case DateType():
            return bool(pt.is_date32(keys))
        case TimestampType() | TimestamptzType():
            return (
                bool(pt.is_timestamp(keys))
                and keys.unit == "us"
                and isinstance(type_, TimestamptzType) == bool(keys.tz)
            )
        case DecimalType(scale=scale):
            return bool(pt.is_decimal128(keys)) and keys.scale == scale
    return False


def _canonical(values: pa.Array) -> pa.Array:
    """Literal values as the IR has them: dates and timestamps are numbers."""
    if pt.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pt.is_timestamp(values.type) else values
