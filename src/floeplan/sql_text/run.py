"""Running a statement: names become tables, queries become rows, and the change is made by the function that makes it.

In SQL text names of columns match whatever their capitals are, as in Spark. Nothing is read or written before the whole
statement has been understood, and Spark is asked only for what Arrow cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlglot import TokenType

from floeplan.dml.append import append
from floeplan.dml.assign import compile_assignments
from floeplan.dml.delete_update import delete, update
from floeplan.dml.merge.builder import merge
from floeplan.dml.outcome import DmlResult
from floeplan.dml.overwrite import overwrite
from floeplan.dml.sources import arrow_table
from floeplan.dml.statement import SubqueryCondition
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.partition.evolution import DropField, SpecChange, Term
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.projection import arrow_schema
from floeplan.spark.session import SparkOnDemand, spark_errors_translated
from floeplan.sql_text.parse import parse_statement
from floeplan.sql_text.relations import (
    Views,
    find_table,
    open_table,
    query_frame,
    quoted,
    views,
    with_views,
)
from floeplan.sql_text.statements import (
    SOURCE,
    TARGET,
    AlterPartitioning,
    Assignment,
    Clause,
    Delete,
    DeleteRow,
    Insert,
    Merge,
    Relation,
    Source,
    Statement,
    TableName,
    Update,
)
from floeplan.sql_text.tokens import Cursor
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.evolve_spec import EvolveResult, evolve_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Rows = TypeVar("Rows", pa.Table, DataFrame)
    from pyspark.sql import DataFrame


# INSERT: the rows of a query under the names of the table's columns, and what they replace.
#
# Rule: without a column list the query gives every column in the table's order, static partition columns left out; with
# one it gives those; BY NAME it says itself. Columns that are not given take their default. INSERT OVERWRITE
# replaces all
# rows, or those of the static partitions, or with Spark's ``partitionOverwriteMode=dynamic`` the partitions that
# the new
# rows fall in; INSERT INTO … REPLACE WHERE those that match.
#
# Fail-safe: the number of columns must agree, and only identity partition columns stand in a PARTITION clause.


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
    for partition_field, _ in partition:
        if partition_field.field_id not in identities:
            raise BadInputError(
                f"PARTITION names {partition_field.name}, which is no identity partition column of the current spec",
                context={"column": partition_field.name},
            )
    constants = {partition_field.name: value for partition_field, value in partition if value is not None}
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
    rows = _insert_values(statement.query.text)
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


def _insert_values(text: str) -> list[list[str]] | None:
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


# The source of a MERGE: in this process where it can be had there, otherwise as a DataFrame.
#
# Rule: a table of the catalog is read by Floeplan, Parquet files by Arrow. Queries, views and everything else are
# Spark's.


_PARQUET = "parquet"


def local_source(source: Source, target: Table, catalog: str | Catalog | None) -> pa.Table | None:
    """The rows of a table of the catalog or of Parquet files; ``None`` when they are not to be had without Spark."""
    if not isinstance(source, Relation):
        return None
    if len(source.parts) == 2 and source.parts[0].lower() == _PARQUET:
        return arrow_table([source.parts[1]], target.io)
    found = find_table(source.parts, catalog)
    if found is None:
        return None
    table, ref = found
    return plan_scan(table, ref=ref, options=ScanOptions(report=False)).to_arrow()


def source_frame(source: Source, made: Views, catalog: str | Catalog | None) -> DataFrame:
    """The rows of any source, from Spark."""
    if isinstance(source, Relation):
        return query_frame(f"SELECT * FROM {'.'.join(map(quoted, source.parts))}", made, catalog)
    return query_frame(source.text, made, catalog)


def named(rows: Rows, columns: tuple[str, ...] | None) -> Rows:
    """The rows with their columns called as the alias of the source says."""
    if columns is None:
        return rows
    given = rows.column_names if isinstance(rows, pa.Table) else rows.columns
    if len(given) != len(columns):
        raise BadInputError(f"the source has {len(given)} columns, and its alias names {len(columns)}")
    return rows.rename_columns(columns) if isinstance(rows, pa.Table) else rows.toDF(*columns)


# ---

StatementResult: TypeAlias = DmlResult | EvolveResult


@dataclass(frozen=True, slots=True)
class StatementOptions:
    """What a statement itself does not say.

    Attributes:
        catalog: The catalog in which names without one are looked up.
        branch: The branch to change, unless the name of the table ends with one.
        mode: ``copy-on-write`` or ``merge-on-read`` instead of what the table's properties say.
        isolation: ``serializable`` or ``snapshot`` instead of what the table's properties say.
        case_sensitive: Whether names of columns must match exactly.
        commit: How the commit is made.
    """

    catalog: str | Catalog | None = None
    branch: str | None = None
    mode: str | None = None
    isolation: str | None = None
    case_sensitive: bool = False
    commit: CommitOptions = field(default_factory=CommitOptions)

    def branch_of(self, name: TableName) -> str | None:
        """The branch a statement changes."""
        if self.branch is not None and name.branch is not None and self.branch != name.branch:
            raise BadInputError(f"the statement changes branch {name.branch}, and branch {self.branch} is asked for")
        return name.branch or self.branch

    def refuse(self, statement: str, *names: str) -> None:
        """Options that mean nothing to a statement are an error."""
        for name in names:
            if getattr(self, name) is not None:
                raise BadInputError(f"{statement} knows no {name}; leave it out", context={"option": name})

    def for_rows(self, name: TableName) -> dict[str, Any]:
        """The arguments of a row-level change."""
        return {
            "branch": self.branch_of(name),
            "mode": self.mode,
            "isolation": self.isolation,
            "case_sensitive": self.case_sensitive,
            "options": self.commit,
        }


def sql(
    spark: SparkSession | None,
    statement: str,
    *,
    catalog: str | Catalog | None = None,
    branch: str | None = None,
    mode: str | None = None,
    isolation: str | None = None,
) -> StatementResult:
    """Run one INSERT, DELETE, UPDATE, MERGE or ALTER TABLE … PARTITION FIELD in Spark's dialect.

    Args:
        spark: A session for the work, and for queries; ``None`` runs what Arrow can do in this process.
        statement: The text.
        catalog: The catalog in which names without one are looked up.
        branch: The branch to change, unless the name of the table ends with one (``db.t.branch_b``).
        mode: ``copy-on-write`` or ``merge-on-read``; as the table's properties say when not given.
        isolation: ``serializable`` or ``snapshot``; as the table's properties say when not given.

    Raises:
        BadInputError: The statement is not one of these, or cannot be parsed.
    """
    options = StatementOptions(catalog, branch, mode, isolation)
    return run_text(statement, SparkOnDemand(spark), options)


def run_text(text: str, spark: SparkOnDemand, options: StatementOptions) -> StatementResult:
    """Run the text of a statement."""
    statement = parse_statement(text)
    return run_statement(statement, open_table(statement.table.parts, options.catalog), spark, options)


def run_statement(
    statement: Statement, table: Table, spark: SparkOnDemand, options: StatementOptions
) -> StatementResult:
    """Run a parsed statement on its table."""
    match statement:
        case AlterPartitioning():
            options.refuse("ALTER TABLE", "branch", "mode", "isolation")
            changes = [_as_written(change, table.schema()) for change in statement.changes]
            return evolve_spec(table, changes, options=options.commit)
        case Delete():
            return _delete(statement, table, spark, options)
        case Update():
            return _update(statement, table, spark, options)
        case Insert():
            return _insert(statement, table, spark, options)
        case Merge():
            return _merge(statement, table, spark, options)


def _delete(statement: Delete, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    how = options.for_rows(statement.table)
    return _changed(lambda where, session: delete(table, where, spark=session, **how), statement, spark, options)


def _update(statement: Update, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    how, assigned = options.for_rows(statement.table), assigned_texts(statement.assignments)
    return _changed(
        lambda where, session: update(table, assigned, where, spark=session, **how), statement, spark, options
    )


def _changed(
    change: Callable[[str | SubqueryCondition, SparkSession | None], DmlResult],
    statement: Delete | Update,
    spark: SparkOnDemand,
    options: StatementOptions,
) -> DmlResult:
    """Change the rows of a condition; the tables of its subqueries are views for as long as that takes."""
    where = statement.where or "TRUE"
    if isinstance(where, str):
        return spark.run(lambda session: change(where, session))
    session = spark.needed("a subquery")
    with views(session) as made, spark_errors_translated():
        return change(replace(where, text=with_views(where.text, made, options.catalog)), session)


def _insert(statement: Insert, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    columns = columns_of(statement, table)
    if spark.session is None:
        try:
            rows = value_rows(statement, columns, table.schema())
        except UnsupportedError:
            rows = None
        if rows is not None:
            return _store(statement, table, columns, rows, spark, options)
    session = spark.needed("a query as the source of INSERT")
    with views(session) as made:
        frame = query_frame(statement.query.text, made, options.catalog)
        with spark_errors_translated():
            return _store(statement, table, columns, _as_stored(frame, columns, table), spark, options)


def _as_stored(frame: DataFrame, columns: Columns, table: Table) -> DataFrame:
    from floeplan.spark.write.storing import stored_frame

    names = columns.for_query(frame.columns, Names(table.schema(), case_sensitive=False))
    return stored_frame(frame, names, columns.constants, table.schema())


def _store(
    statement: Insert,
    table: Table,
    columns: Columns,
    rows: object,
    spark: SparkOnDemand,
    options: StatementOptions,
) -> DmlResult:
    how = options.for_rows(statement.table)
    if not statement.overwrite and statement.replace_where is None:
        options.refuse("INSERT INTO", "mode", "isolation")
        return append(table, rows, spark=spark.session, branch=how["branch"], options=options.commit)
    if statement.overwrite and replaces_partitions(spark.session):
        return overwrite(table, rows, dynamic=True, spark=spark.session, **how)
    where = statement.replace_where or static_filter(columns)
    return spark.run(lambda session: overwrite(table, rows, where, spark=session, **how))


def _merge(statement: Merge, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    found = local_source(statement.source, table, options.catalog) if spark.session is None else None
    if found is not None:
        rows = named(found, statement.source_columns)
        return spark.run(lambda session: _merged(statement, table, rows, session, options))
    session = spark.needed("a query or a table of Spark's as the source of MERGE")
    with views(session) as made:
        frame = source_frame(statement.source, made, options.catalog)
        with spark_errors_translated():
            return _merged(statement, table, named(frame, statement.source_columns), session, options)


def _merged(
    statement: Merge, table: Table, rows: object, session: SparkSession | None, options: StatementOptions
) -> DmlResult:
    how = options.for_rows(statement.table)
    begun = merge(table, rows, statement.on, spark=session, target_alias=TARGET, source_alias=SOURCE, **how)
    for clause in statement.matched:
        if isinstance(clause.action, DeleteRow):
            begun = begun.when_matched_delete(clause.condition)
        else:
            begun = begun.when_matched_update(_values(clause), clause.condition)
    for clause in statement.not_matched:
        begun = begun.when_not_matched_insert(_values(clause), clause.condition)
    for clause in statement.not_matched_by_source:
        if isinstance(clause.action, DeleteRow):
            begun = begun.when_not_matched_by_source_delete(clause.condition)
        else:
            begun = begun.when_not_matched_by_source_update(_values(clause) or {}, clause.condition)
    return begun.execute()


def _values(clause: Clause) -> dict[str, object] | None:
    """What a clause assigns; ``None`` for all columns."""
    if isinstance(clause.action, DeleteRow) or clause.action.assignments is None:
        return None
    return assigned_texts(clause.action.assignments)


def assigned_texts(assignments: tuple[Assignment, ...]) -> dict[str, object]:
    """Assignments by the SQL name of their column."""
    return {".".join(map(quoted, one.column)): one.value for one in assignments}


def _as_written(change: SpecChange, schema: Schema) -> SpecChange:
    """A plain name that is no column is the name of a partition field, as Spark has it."""
    match change:
        case DropField(Term((name,), IdentityTransform())) if name not in schema.column_names:
            return DropField(name)
    return change
