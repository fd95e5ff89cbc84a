"""INSERT: the rows of a query under the names of the table's columns, and what they replace.

Rule: without a column list the query gives every column in the table's order, static partition columns left out; with
one it gives those; BY NAME it says itself. Columns that are not given take their default. INSERT OVERWRITE replaces all
rows, or those of the static partitions, or with Spark's ``partitionOverwriteMode=dynamic`` the partitions that the new
rows fall in; INSERT INTO … REPLACE WHERE those that match.

Fail-safe: the number of columns must agree, and only identity partition columns stand in a PARTITION clause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlglot.tokenizer_core import TokenType

from floeplan.dml.assign import compile_assignments
from floeplan.errors import BadInputError
from floeplan.predicate.arrow_columns import typed_columns_of
from floeplan.predicate.names import Names
from floeplan.scan.projection import arrow_schema
from floeplan.sql_text.statements import Insert
from floeplan.sql_text.tokens import Cursor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns of the query go; ``names`` is ``None`` when the query names them. Constants are SQL text."""

    names: tuple[str, ...] | None
    constants: dict[str, str]

    def for_query(self, given: Sequence[str], names: Names) -> tuple[str, ...]:
        """The table's columns for the columns of a query."""
        if self.names is None:
            return tuple(names.find((name,)).field.name for name in given)
        if len(given) != len(self.names):
            raise BadInputError(
                f"INSERT gives {len(given)} columns, but {len(self.names)} are asked for: {', '.join(self.names)}",
                context={"given": len(given), "expected": list(self.names)},
            )
        return self.names


def columns_of(statement: Insert, table: Table) -> Columns:
    """The columns an INSERT gives."""
    names = Names(table.schema(), case_sensitive=False)
    partition = [(names.find((item.column,)).field, item.value) for item in statement.partition]
    identities = {f.source_id for f in table.spec().fields if isinstance(f.transform, IdentityTransform)}
    for field, _ in partition:
        if field.field_id not in identities:
            raise BadInputError(
                f"PARTITION names {field.name}, which is no identity partition column of the current spec",
                context={"column": field.name},
            )
    constants = {field.name: value for field, value in partition if value is not None}
    if statement.by_name:
        return Columns(None, constants)
    if statement.columns is None:
        return Columns(tuple(f.name for f in table.schema().fields if f.name not in constants), constants)
    listed = tuple(names.find((name,)).field.name for name in statement.columns)
    for name in listed:
        if name in constants:
            raise BadInputError(f"{name} is given by the PARTITION clause and by the column list")
    return Columns(listed, constants)


def replaces_partitions(spark: SparkSession | None) -> bool:
    """Whether INSERT OVERWRITE replaces the partitions of the new rows, as the session says; by default it does not."""
    return spark is not None and str(spark.conf.get(_OVERWRITE_MODE, "static")).lower() == "dynamic"


def static_filter(columns: Columns) -> str:
    """The rows that INSERT OVERWRITE replaces: those of the static partitions, or all."""
    return " AND ".join(f"`{name}` <=> {value}" for name, value in columns.constants.items()) or "TRUE"


def value_rows(statement: Insert, columns: Columns, schema: Schema) -> pa.Table | None:
    """The rows of a VALUES list, evaluated here; ``None`` when the query is something else.

    Raises:
        UnsupportedError: An expression is for Spark to evaluate.
    """
    rows = _values(statement.query.text)
    if rows is None or columns.names is None:
        return None
    whole = arrow_schema(schema)
    made = [_row(texts, columns, schema, whole) for texts in rows]
    return pa.concat_tables(made)


def _row(texts: list[str], columns: Columns, schema: Schema, whole: pa.Schema) -> pa.Table:
    nothing = Names(Schema())
    given = dict(zip(columns.for_query(texts, nothing), texts, strict=True)) | columns.constants
    no_columns = typed_columns_of(pa.table({"row": pa.nulls(1)}), Schema())
    return compile_assignments(given, schema, nothing).insert(1, no_columns, whole)


def _values(text: str) -> list[list[str]] | None:
    cursor = Cursor(text)
    if not cursor.accept("VALUES"):
        return None
    rows: list[list[str]] = []
    while True:
        if cursor.sees_symbol(TokenType.L_PAREN):
            rows.append([piece.text for piece in cursor.items()])
        else:
            rows.append([cursor.until(lambda c: c.sees_symbol(TokenType.COMMA)).text])
        if cursor.done:
            return rows
        if not cursor.sees_symbol(TokenType.COMMA):
            return None
        cursor.at += 1
