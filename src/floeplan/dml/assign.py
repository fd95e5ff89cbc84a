"""SET and VALUES: assignments, checked against the schema and evaluated on Arrow rows.

Rule: all expressions see the old row. Columns that are not assigned keep their values, and so do the other fields of a
struct when one field is assigned.

Fail-safe: an unknown column, a column assigned twice, a value that does not fit its column and NULL for a required
column are errors that name the column, before anything is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from sqlglot import TokenType

from floeplan.errors import BadInputError, FloeplanError, PredicateSyntaxError, TypeMismatchError, UnsupportedError
from floeplan.predicate.ir import IrExpr, path_text
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import Resolver
from floeplan.predicate.rows.evaluate import ValueExpression, evaluate_rows, store
from floeplan.predicate.sql_compiler import compile_value
from floeplan.predicate.sql_parser import tokenize
from floeplan.scan.projection import arrow_schema
from floeplan.schemas import fields_by_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column or struct field and its new value."""

    path: tuple[str, ...]
    field: NestedField
    value: ValueExpression


@dataclass(frozen=True, slots=True)
class Assignments:
    """All assignments of a clause."""

    items: tuple[Assignment, ...]

    @property
    def field_ids(self) -> frozenset[int]:
        """Columns the expressions read."""
        return frozenset(field_id for item in self.items for field_id in item.value.field_ids)

    def kept_fields(self, schema: Schema) -> list[NestedField]:
        """The columns of a schema that expressions read, or that keep a value."""
        replaced = {item.field.field_id for item in self.items if len(item.path) == 1}
        replaced -= {field.field_id for field in top_fields(schema, self.field_ids).fields}
        return [field for field in schema.fields if field.field_id not in replaced]

    def map_text(self, change: Callable[[str], str]) -> Assignments:
        """The same assignments with the text of their expressions changed, for Spark."""
        return Assignments(tuple(replace(item, value=item.value.reworded(change)) for item in self.items))

    def update(self, rows: pa.Table, resolve: Resolver, shape: pa.Schema) -> pa.Table:
        """The rows with their new values; they may lack columns of ``shape`` that are replaced."""
        changed, known = rows, set(rows.schema.names)
        if len(known) < len(shape):
            columns = [rows.column(f.name) if f.name in known else pa.nulls(rows.num_rows, f.type) for f in shape]
            changed = pa.Table.from_arrays(columns, schema=shape)
        for item in self.items:
            wanted = _type_at(shape.field(item.path[0]).type, item.path[1:])
            values = self._values(item, wanted, rows.num_rows, resolve)
            changed = replace_value(changed, item.path, values)
        return changed

    def insert(self, rows: int, resolve: Resolver, schema: pa.Schema) -> pa.Table:
        """New rows of the assigned columns."""
        columns = {}
        for item in self.items:
            columns[item.path[0]] = self._values(item, schema.field(item.path[0]).type, rows, resolve)
        return pa.table(columns) if columns else pa.table({"none": pa.nulls(rows)}).select([])

    def _values(self, item: Assignment, type_: pa.DataType, rows: int, resolve: Resolver) -> pa.Array:
        name, text = path_text(item.path), item.value.expression.text
        values = store(item.value.evaluate(rows, resolve), type_, item.field, text)
        if item.field.required and values.null_count:
            raise TypeMismatchError(
                f"column {name} is required, but {text} is NULL in {values.null_count} rows", context={"column": name}
            )
        return values


def compile_assignments(given: Mapping[str, object], schema: Schema, names: Names) -> Assignments:
    """Compile assignments; ``names`` resolves the columns the expressions read."""
    if not given:
        raise BadInputError("no column is assigned; name at least one column and its new value")
    items = []
    for column, value in given.items():
        # A name is that of a column if there is one, otherwise it is parsed as SQL.
        path: Sequence[str] = (column,)
        if all(field.name != column for field in schema.fields):
            path = [token.text for token in tokenize(column) if token.text != "."]
        found = Names(schema, names.case_sensitive).find(path)
        if isinstance(value, str) and value.strip().upper() == "DEFAULT":
            value = found.field.write_default
            if isinstance(value, str):
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                value = f"'{escaped}'"
        items.append(Assignment(found.path, found.field, compile_value(literal_text(value), names)))
    paths = [item.path for item in items]
    for one in paths:
        if any(other != one and one[: len(other)] == other for other in paths) or paths.count(one) > 1:
            raise BadInputError(f"column {path_text(one)} is assigned twice", context={"column": path_text(one)})
    return Assignments(tuple(items))


def literal_text(value: object) -> str:
    """A string unchanged, as SQL text; any other Python value as its SQL literal."""
    match value:
        case str():
            return value
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case Decimal():
            _, digits, exponent = value.as_tuple()
            scale = max(0, -int(exponent))
            return f"CAST('{value:f}' AS DECIMAL({max(len(digits) + max(0, int(exponent)), scale)}, {scale}))"
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case bytes():
            return f"X'{value.hex()}'"
    raise BadInputError(f"{type(value).__name__} cannot be assigned to a column; write it as SQL text")


def top_fields(schema: Schema, ids: Iterable[int]) -> Schema:
    """The top-level columns that hold any of these fields."""
    wanted = frozenset(ids)
    return Schema(*(f for f in schema.fields if not wanted.isdisjoint(fields_by_id(Schema(f)))))


def replace_value(rows: pa.Table, path: Sequence[str], values: pa.Array) -> pa.Table:
    """The rows with one column, or one field within its structs, replaced; values are cast to its type."""
    position = rows.schema.get_field_index(path[0])
    column = rows.schema.field(position)
    wanted = values.cast(_type_at(column.type, path[1:]))
    array = rows.column(position).combine_chunks()
    return rows.set_column(position, column, _replaced(array, path[1:], wanted))


def _type_at(type_: pa.DataType, path: Sequence[str]) -> pa.DataType:
    for name in path:
        type_ = type_.field(name).type
    return type_


def _replaced(array: pa.Array, path: Sequence[str], values: pa.Array) -> pa.Array:
    """The array with one field within its structs replaced; a struct that was null has the others null."""
    if not path:
        return values
    type_, children = array.type, []
    for position in range(type_.num_fields):
        child = pc.struct_field(array, [position])
        mine = type_.field(position).name == path[0]
        children.append(_replaced(child, path[1:], values) if mine else child)
    return pa.StructArray.from_arrays(children, fields=list(type_))


def arrow_evaluates(
    schemas: Sequence[Schema], conditions: Iterable[IrExpr], assigned: Iterable[Assignments | None] = ()
) -> bool:
    """Whether Arrow can evaluate these expressions as Spark would, tried on one row of nulls.

    An unsupported expression fails on any row; wrong types and values are reported when the real rows are evaluated.
    """
    row = pa.table({"row": pa.nulls(1)})

    def nulls(field_id: int) -> pa.ChunkedArray:
        schema = next(schema for schema in schemas if field_id in fields_by_id(schema))
        return pa.chunked_array([pa.nulls(1, arrow_schema(Schema(schema.find_field(field_id))).field(0).type)])

    calls: list[Callable[[], object]] = [partial(evaluate_rows, condition, row, nulls) for condition in conditions]
    groups = [group for group in assigned if group is not None]
    calls += [partial(item.value.evaluate, 1, nulls) for group in groups for item in group.items]
    for call in calls:
        try:
            call()
        except UnsupportedError:
            return False
        except FloeplanError:
            continue
    return True


# What is fixed about a statement before it is planned: its timestamp, and conditions that contain subqueries.
#
# ``current_timestamp()`` and related functions are evaluated once per statement and replaced by a literal, because
# tasks run at different times and may run twice. Other non-deterministic functions (``rand()``, ``uuid()``) are
# refused.


Value = TypeVar("Value")

_INSTANT_FUNCTIONS = ("current_timestamp", "now")
_LOCAL_FUNCTION = "localtimestamp"
_DATE_FUNCTIONS = ("current_date", "curdate")
_MENTIONED = re.compile("|".join((*_INSTANT_FUNCTIONS, _LOCAL_FUNCTION, *_DATE_FUNCTIONS)), re.IGNORECASE)


def statement_timestamp() -> datetime:
    """The time a statement begins."""
    return datetime.now(UTC)


def with_timestamp(value: Value, timestamp: datetime) -> Value:
    """SQL text with ``current_timestamp()`` and related functions as literals; other values unchanged."""
    if not isinstance(value, str) or _MENTIONED.search(value) is None:
        return value
    text: str = value
    try:
        tokens = tokenize(text)
    except PredicateSyntaxError:
        return value  # the parser reports the error with its position
    parts, end = [], 0
    for at, token in enumerate(tokens):
        literal = _literal(token.text.lower(), timestamp)
        if literal is None or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) or token.start < end:
            continue
        # A part of a column's name is not a function.
        if TokenType.DOT in [tokens[n].token_type for n in (at - 1, at + 1) if 0 <= n < len(tokens)]:
            continue
        called = [other.token_type for other in tokens[at + 1 : at + 3]] == [TokenType.L_PAREN, TokenType.R_PAREN]
        # Spark allows current_timestamp and current_date without parentheses, but not now and curdate.
        if not called and token.text.lower() in ("now", "curdate"):
            continue
        parts += [text[end : token.start], literal]
        end = (tokens[at + 2] if called else token).end + 1
    return "".join([*parts, text[end:]])  # type: ignore[return-value]


def _literal(name: str, timestamp: datetime) -> str | None:
    if name in _INSTANT_FUNCTIONS:
        return f"TIMESTAMP '{timestamp.isoformat(sep=' ', timespec='microseconds').replace('+00:00', 'Z')}'"
    if name == _LOCAL_FUNCTION:
        return f"TIMESTAMP_NTZ '{timestamp.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    return f"DATE '{timestamp.date().isoformat()}'" if name in _DATE_FUNCTIONS else None


@dataclass(frozen=True, slots=True)
class SubqueryCondition:
    """A condition with subqueries, which only Spark can evaluate.

    Files are planned with ``implied``, so that no file that may match is left out for any result of the subqueries, and
    no file is removed by metadata alone; Spark then evaluates the condition on every row of those files.

    Attributes:
        text: The condition; its subqueries name views of the session.
        implied: What every matching row satisfies, without subqueries.
        alias: The name of the table in the condition.
    """

    text: str
    implied: str
    alias: str

    def columns(self, schema: Schema) -> set[int]:
        """The columns the condition may name, including same-named columns of other tables."""
        words = {token.text.lower() for token in tokenize(self.text)}
        return {field.field_id for field in schema.fields if field.name.lower() in words}

    def matching(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame for which the condition is TRUE."""
        from pyspark.sql import functions

        return frame.alias(self.alias).where(functions.expr(self.text))
