"""The predicates and columns of each table in a query, as Spark's own optimizer pushes them down.

Each reference to a table becomes a *placeholder*: an empty Parquet relation with the table's columns, named
``r<reference>_<column>``. Spark analyses and optimizes the query over the placeholders, and what it leaves directly
above one of them is what the query needs of that table: the filter, and the columns that anything above refers to.
Spark reads through CTEs, views, subqueries and set operations, folds constants, and knows which side of an outer join
a condition may be moved to. Nothing is executed.

A condition is rendered by Spark and compiled to the IR; conjuncts that the IR does not have are dropped. The result is
weaker than the query's own filter, which Spark evaluates anyway.

Fail-safe: no predicate and every column where anything is in doubt: Spark Connect, which has no optimizer in this
process, an API of the JVM that has changed, a clock (it would be read twice), a query that Spark refuses here. In a
session time zone other than UTC, conjuncts that compute with dates or timestamps are dropped, and literals of
timestamps are converted. Without ``spark.sql.ansi.enabled``, conjuncts with casts and functions are dropped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, TimestampType, TimestamptzType, UUIDType
from pyspark.sql.types import StructField, StructType
from sqlglot import Token, TokenType

from floeplan.errors import FloeplanError
from floeplan.predicate.build import and_, column_of, columns, conjuncts, leaves, negate, or_, without_opaque
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import TRUE, Between, Cmp, CmpOp, InList, IrExpr, IsNull, Opaque, StartsWith
from floeplan.predicate.sql_parser import BooleanTree, Junction, Negation, Piece, split_predicate
from floeplan.scan.metadata_columns import is_metadata
from floeplan.spark.jvm import JavaObject, class_name, elements, optimized_plan, reads_clock
from floeplan.spark.read.file_log import read_logged
from floeplan.spark.read.reader_choice import UTC_ZONES, ZONE_CONF
from floeplan.spark.types import NANOSECONDS, quoted, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"\br(\d+)_(\d+)\b")
_RELATION = re.compile(r"Relation \[r(\d+)_0#")
_TEMPORAL = (DateType, TimestampType, TimestamptzType)
_ANSI_CONF = "spark.sql.ansi.enabled"
_COMPARES = (Between, Cmp, InList, StartsWith)
_UNKNOWN = Opaque("unknown", (), None)
_EMPTY, _NO_FILES = np.zeros(0, dtype=np.int64), pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a query needs of a table.

    Attributes:
        predicate: Holds for every row of the table that can change the result.
        columns: The columns that the query refers to, in the table's order; ``None`` for all.
    """

    predicate: IrExpr = TRUE
    columns: tuple[str, ...] | None = None


def placeholder(spark: SparkSession, number: int, schema: Schema) -> DataFrame:
    """An empty relation with the columns of a table, for the reference of this number."""
    return _placeholder(spark, number, spark_schema(schema).json())


@lru_cache(maxsize=128)
def _placeholder(spark: SparkSession, number: int, schema: str) -> DataFrame:
    """A placeholder for a schema, given as JSON; cached, since building it takes a call to the JVM for each column."""
    fields = StructType.fromJson(json.loads(schema)).fields
    renamed = StructType([StructField(f"r{number}_{at}", field.dataType) for at, field in enumerate(fields)])
    frame = read_logged(spark, renamed, _NO_FILES, _EMPTY, _EMPTY)
    return frame.selectExpr(*(f"r{number}_{at} AS {quoted(field.name)}" for at, field in enumerate(fields)))


def pushed_down(query: DataFrame, schemas: Sequence[Schema | None]) -> list[Pushed]:
    """What a query over placeholders needs of each table, by their numbers; a number may have no placeholder."""
    nothing = [Pushed() for _ in schemas]
    try:
        plan = None if reads_clock(query) else optimized_plan(query)
        if plan is None:
            return nothing
        found = _Found([[] for _ in schemas])
        found.visit(plan)
        # A relation that was not visited could need other rows: Spark's own text of the plan shows all of them.
        shown = Counter(int(number) for number in _RELATION.findall(str(plan.toString())))
        if any(shown[number] > len(uses) for number, uses in enumerate(found.uses)):
            return nothing
        settings = query.sparkSession.conf
        zone, ansi = str(settings.get(ZONE_CONF)), str(settings.get(_ANSI_CONF)).lower() == "true"
        return [_merged(uses, schema, zone, ansi) for uses, schema in zip(found.uses, schemas, strict=True)]
    except Exception:  # py4j raises many classes; planning without the query's predicates is only slower
        return nothing


@dataclass(frozen=True, slots=True)
class _Use:
    """One relation of the optimized plan: the text of its filter, and the ordinals of the columns it provides."""

    condition: str | None
    ordinals: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _Found:
    """The uses of each placeholder in a plan; a reference in a CTE may have several."""

    uses: list[list[_Use]]

    def visit(self, node: JavaObject) -> None:
        """Collect from a plan, its subqueries included: a relation with the filter and the projection above it."""
        projection = filter_ = None
        relation, name = node, class_name(node)
        if name == "Project":
            projection, relation = relation, self._only_child(relation)
            name = class_name(relation)
        if name == "Filter":
            filter_, relation = relation, self._only_child(relation)
            name = class_name(relation)
        if name == "LogicalRelation":
            self._use(relation, filter_, projection)
            return
        self._subqueries(relation)
        for child in elements(relation.children()):
            self.visit(child)

    def _only_child(self, node: JavaObject) -> JavaObject:
        self._subqueries(node)
        return node.child()

    def _use(self, relation: JavaObject, filter_: JavaObject | None, projection: JavaObject | None) -> None:
        output = relation.output()
        first = _NAME.fullmatch(str(output.head().name())) if output.nonEmpty() else None
        if first is None:
            return
        condition, ordinals = None, None
        if filter_ is not None and filter_.condition().deterministic():
            condition = str(filter_.condition().sql())
        if projection is not None:
            ordinals = _ordinals(projection) | (frozenset() if filter_ is None else _ordinals(filter_))
        self.uses[int(first[1])].append(_Use(condition, ordinals))

    def _subqueries(self, node: JavaObject) -> None:
        for plan in elements(node.subqueries()):
            self.visit(plan)


def _ordinals(node: JavaObject) -> frozenset[int]:
    """The columns of a placeholder that the expressions of a node refer to."""
    return frozenset(int(at) for _, at in _NAME.findall(str(node.references().toString())))


def _merged(uses: Sequence[_Use], schema: Schema | None, zone: str, ansi: bool) -> Pushed:
    """What all uses of a reference need together; everything when Spark has removed the reference."""
    if schema is None or not uses:
        return Pushed()
    names = [field.name for field in schema.fields]
    compiler = ConditionCompiler(schema, zone, ansi)
    predicate = or_(*(TRUE if use.condition is None else compiler.predicate(use.condition) for use in uses))
    if any(use.ordinals is None for use in uses):
        return Pushed(predicate)
    needed = sorted(frozenset().union(*(use.ordinals or () for use in uses)))
    return Pushed(predicate, tuple(names[at] for at in needed))


@dataclass(frozen=True, slots=True)
class ConditionCompiler:
    """Compiles conditions of Spark's over the columns of a table; what the IR does not have stays opaque."""

    schema: Schema
    zone: str = "UTC"
    ansi: bool = True

    def predicate(self, condition: str) -> IrExpr:
        """A condition without its opaque pieces: every row that matches the condition satisfies it."""
        try:
            return _without_implied(without_opaque(self._tree(split_predicate(condition), condition)))
        except FloeplanError:  # nested too deeply
            return TRUE

    def _tree(self, tree: BooleanTree, condition: str) -> IrExpr:
        match tree:
            case Junction(every, operands):
                return (and_ if every else or_)(*(self._tree(operand, condition) for operand in operands))
            case Negation(operand):
                return negate(self._tree(operand, condition))
            case Piece(tokens):
                try:
                    return self._piece(tokens, condition)
                except (FloeplanError, ValueError, ZoneInfoNotFoundError):
                    return _UNKNOWN

    def _piece(self, tokens: Sequence[Token], condition: str) -> IrExpr:
        calls = _has_call(tokens)
        if calls and not self.ansi:
            return _UNKNOWN  # a cast that wraps around, or returns null instead of failing
        expr = compile_predicate(self._text(tokens, condition), self.schema).predicate
        for leaf in leaves(expr):
            column = column_of(leaf)
            type_ = None if column is None else column.type
            if column is not None and is_metadata(column.field_id):
                return _UNKNOWN  # prunes nothing
            if isinstance(type_, NANOSECONDS):
                return _UNKNOWN  # Spark compares them after truncation to microseconds
            if isinstance(type_, UUIDType) and not self._compares_uuid(leaf, tokens):
                return _UNKNOWN
            if isinstance(type_, _TEMPORAL) and not self._is_utc and calls:
                return _UNKNOWN  # a function or cast that may depend on the time zone
        return expr

    def _text(self, tokens: Sequence[Token], condition: str) -> str:
        """A piece with the names of the table's columns, and with timestamps in UTC; everything else as it is."""
        parts, end = [], tokens[0].start
        for before, token in zip((None, *tokens), tokens, strict=False):
            named = _NAME.fullmatch(token.text) if token.token_type is TokenType.VAR else None
            is_time = token.token_type is TokenType.STRING and before is not None and before.text == "TIMESTAMP"
            if named is not None:
                new = quoted(self.schema.fields[int(named[2])].name)
            elif is_time and not self._is_utc:
                new = f"'{_in_utc(token.text, self.zone)}'"
            else:
                continue
            parts += [condition[end : token.start], new]
            end = token.end + 1
        return "".join([*parts, condition[end : tokens[-1].end + 1]])

    @property
    def _is_utc(self) -> bool:
        return self.zone in UTC_ZONES

    @staticmethod
    def _compares_uuid(leaf: IrExpr, tokens: Sequence[Token]) -> bool:
        """Whether a comparison of UUIDs is one of their texts, which is what Spark compares."""
        texts = [token.text for token in tokens if token.token_type is TokenType.STRING]
        is_equality = isinstance(leaf, InList | IsNull) or (isinstance(leaf, Cmp) and leaf.op in (CmpOp.EQ, CmpOp.NE))
        return is_equality and all(str(UUID(text)) == text for text in texts)


def _without_implied(expr: IrExpr) -> IrExpr:
    """A predicate without the ``IS NOT NULL`` that Spark adds to every comparison of a column."""
    parts = conjuncts(expr)
    compared = {column.field_id for part in parts if isinstance(part, _COMPARES) for column in columns(part).values()}
    implied = [p for p in parts if isinstance(p, IsNull) and p.negated and p.column.field_id in compared]
    return and_(*(part for part in parts if part not in implied))


def _has_call(tokens: Sequence[Token]) -> bool:
    """Whether a piece may call a function: a parenthesis after anything but IN."""
    return any(
        after.token_type is TokenType.L_PAREN and before.token_type is not TokenType.IN
        for before, after in pairwise(tokens)
    )


def _in_utc(text: str, zone: str) -> str:
    """A timestamp of a time zone in UTC; ``ValueError`` if the clock was changed then."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    if local.utcoffset() != local.replace(fold=1).utcoffset():
        raise ValueError(text)
    return local.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
