"""What a merge was given, compiled: clauses over the columns each kind may name, and the ON condition split into keys.

Rule: a conjunct ``target.a = source.b`` (or ``<=>``) of the ON condition is a key. A conjunct over one side is
evaluated on that side before joining, every other one on the pairs that the keys find. Together they are equivalent to
the condition. For planning, the keys become predicates on the target: the source's values, or their range when there
are many.

Names: ``target.x`` and ``t.x`` are columns of the target, ``source.x`` and ``s.x`` of the source, unless other
qualifiers are given. An unqualified name that both sides have is an error. Source columns get field ids beyond those
of any table, so that a compiled expression is bound by id over both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from sqlglot import exp, parse_one

from floeplan.dml.assign import Assignments, compile_assignments
from floeplan.errors import BadInputError, UnknownColumnError
from floeplan.predicate.build import and_, conjuncts, field_ids
from floeplan.predicate.ir import FALSE, TRUE, Between, Column, InList, IrExpr, Opaque, path_text
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.rows.evaluate import SqlExpression
from floeplan.predicate.sql_compiler import compile_sql
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_SOURCE_ID = 1_500_000_000
TARGET_QUALIFIERS, SOURCE_QUALIFIERS = ("target", "t"), ("source", "s")
LISTED_KEYS = 10_000
"""With more keys than this, a plan uses their range instead of a list."""


@dataclass(frozen=True, slots=True)
class WhenText:
    """A clause as given: SET or VALUES, where ``None`` means all columns; ``deletes`` for a DELETE."""

    condition: str | None
    values: Mapping[str, object] | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """Everything a merge was given."""

    table: Table | str | os.PathLike[str]
    source: object
    on: str | Sequence[str]
    spark: SparkSession | None
    case_sensitive: bool
    qualifiers: tuple[Sequence[str], Sequence[str]]
    arguments: Mapping[str, Any]
    summary: Mapping[str, str]
    options: CommitOptions | None
    matched: tuple[WhenText, ...] = ()
    not_matched: tuple[WhenText, ...] = ()
    by_source: tuple[WhenText, ...] = ()


# Names of both sides.


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

    def _is(self, name: str, qualifiers: Sequence[str]) -> bool:
        return name.lower() in (qualifier.lower() for qualifier in qualifiers)

    def _has(self, schema: Schema, name: str) -> bool:
        if self.case_sensitive:
            return any(field.name == name for field in schema.fields)
        return any(field.name.lower() == name.lower() for field in schema.fields)

    def qualified(self, text: str) -> str:
        """An expression with every column qualified by the first qualifier of its side, as an engine knows them."""
        parts, end = [], 0
        columns = parse_one(text, dialect="spark").find_all(exp.Column)
        for column in sorted(columns, key=lambda column: int(column.parts[0].meta["start"])):
            first = column.parts[0]
            start, stop = first.meta["start"], first.meta["end"] + 1
            has_more = len(column.parts) > 1 or isinstance(column.parent, exp.Dot)
            if has_more and self._is(first.name, self.target_qualifiers):
                replaced = path_text(self.target_qualifiers[:1])
            elif has_more and self._is(first.name, self.source_qualifiers):
                replaced = path_text(self.source_qualifiers[:1])
            else:  # the column itself
                is_source = self._has(self.source, first.name)
                side = self.source_qualifiers if is_source else self.target_qualifiers
                replaced = f"{path_text(side[:1])}.{text[start:stop]}"
            parts += [text[end:start], replaced]
            end = stop
        return "".join([*parts, text[end:]])


# Clauses.


@dataclass(frozen=True, slots=True)
class When:
    """A compiled clause; without assignments it deletes."""

    condition: IrExpr = TRUE
    assignments: Assignments | None = None


@dataclass(frozen=True, slots=True)
class CompiledMerge:
    """A merge compiled over the columns of both sides; ``on`` is the text of its condition."""

    names: MergeNames
    on: str
    condition: MergeCondition
    matched: tuple[When, ...]
    not_matched: tuple[When, ...]
    by_source: tuple[When, ...]

    @property
    def assignments(self) -> list[Assignments]:
        """Those of all clauses."""
        whens = (*self.matched, *self.not_matched, *self.by_source)
        return [when.assignments for when in whens if when.assignments is not None]

    @property
    def conditions(self) -> list[IrExpr]:
        """All conditions except for the keys."""
        on, whens = self.condition, (*self.matched, *self.not_matched, *self.by_source)
        return [on.target_only, on.source_only, on.pairs, *(when.condition for when in whens)]

    @property
    def fields(self) -> set[int]:
        """All fields of both sides that the merge names."""
        found = {field_id for key in self.condition.keys for field_id in (key.target, key.source)}
        return found.union(*map(field_ids, self.conditions), *(one.field_ids for one in self.assignments))


def compile_merge(merge: MergeStatement, schema: Schema, source: Schema) -> CompiledMerge:
    """Compile a merge: matched clauses may name both sides, inserts the source, the others the target."""

    def compiled(whens: tuple[WhenText, ...], of_target: Schema, of_source: Schema) -> tuple[When, ...]:
        names = MergeNames(of_target, merge.case_sensitive, of_source, *merge.qualifiers)
        found = []
        for when in whens:
            condition = TRUE if when.condition is None else compile_sql(when.condition, names)[0]
            assignments = None
            if not when.deletes:
                values = _all_columns(schema, source, names) if when.values is None else when.values
                assignments = compile_assignments(values, schema, names)
            found.append(When(condition, assignments))
        return tuple(found)

    names = MergeNames(schema, merge.case_sensitive, source, *merge.qualifiers)
    on = _condition_text(merge.on, names)
    return CompiledMerge(
        names,
        on,
        _compile_condition(on, names),
        compiled(merge.matched, schema, source),
        compiled(merge.not_matched, Schema(), source),
        compiled(merge.by_source, schema, Schema()),
    )


def _all_columns(schema: Schema, source: Schema, names: MergeNames) -> dict[str, object]:
    """``*``: each column of the table from the source column of the same name."""
    fold: Callable[[str], str] = str if names.case_sensitive else str.lower
    known = {fold(column.name): column.name for column in source.fields}
    missing = [column.name for column in schema.fields if fold(column.name) not in known]
    if missing:
        raise UnknownColumnError(
            f"the source has no column {missing[0]}; name the columns to set instead of taking all",
            context={"column": missing[0]},
        )
    qualifier = names.source_qualifiers[0]
    return {path_text((c.name,)): f"{qualifier}.{path_text((known[fold(c.name)],))}" for c in schema.fields}


# The ON condition.


def _condition_text(on: str | Sequence[str], names: MergeNames) -> str:
    """ON as SQL text; a column name means equality of that column on both sides."""
    given = [on] if isinstance(on, str) else list(on)
    both = [{column.name for column in side.fields} for side in (names.schema, names.source)]
    if isinstance(on, str) and not all(on in side for side in both):
        return on
    if not given:
        raise BadInputError("a merge needs a condition; name the columns that must be equal")
    target, source = names.target_qualifiers[0], names.source_qualifiers[0]
    return " AND ".join(f"{target}.{path_text((name,))} = {source}.{path_text((name,))}" for name in given)


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


def _compile_condition(on: str, names: MergeNames) -> MergeCondition:
    """Compile the text of an ON condition."""
    predicate, _ = compile_sql(on, names)
    keys: list[Key] = []
    sides: dict[str, list[IrExpr]] = {"target": [], "source": [], "pairs": []}
    for conjunct in conjuncts(predicate):
        key = _key(conjunct)
        if key is not None:
            keys.append(key)
            continue
        named = {is_source(field_id) for field_id in field_ids(conjunct)}
        side = {frozenset({True}): "source", frozenset({False}): "target"}.get(frozenset(named), "pairs")
        sides[side].append(conjunct)
    return MergeCondition(tuple(keys), and_(*sides["target"]), and_(*sides["source"]), and_(*sides["pairs"]))


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
    plain = values.drop_null()
    if isinstance(column.type, iceberg.IntegerType) and pt.is_int64(plain.type):
        # Keys that a 32-bit column cannot hold match nothing.
        plain = plain.filter(pc.and_(pc.greater_equal(plain, -(2**31)), pc.less(plain, 2**31))).cast(pa.int32())
    if not len(plain):
        return FALSE
    if not _is_same_type(column.type, plain.type):
        return TRUE
    # The IR has dates and timestamps as numbers.
    if pt.is_date32(plain.type) or pt.is_timestamp(plain.type):
        plain = plain.cast(pa.int32() if pt.is_date32(plain.type) else pa.int64())
    distinct = pc.unique(plain)
    if len(distinct) <= LISTED_KEYS:
        return InList(column, tuple(distinct.to_pylist()))
    ends = pc.min_max(plain)
    return Between(column, ends["min"].as_py(), ends["max"].as_py())


def _is_same_type(type_: iceberg.PrimitiveType, keys: pa.DataType) -> bool:
    """Whether key values are, as they are, values of the column's type."""
    match type_:
        case iceberg.IntegerType():
            return bool(pt.is_int32(keys))
        case iceberg.LongType():
            return bool(pt.is_int64(keys) or pt.is_int32(keys))
        case iceberg.StringType():
            return bool(pt.is_large_string(keys))
        case iceberg.DateType():
            return bool(pt.is_date32(keys))
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            has_zone = isinstance(type_, iceberg.TimestamptzType)
            return bool(pt.is_timestamp(keys)) and keys.unit == "us" and bool(keys.tz) == has_zone
        case iceberg.DecimalType(scale=scale):
            return bool(pt.is_decimal128(keys)) and keys.scale == scale
    return False
