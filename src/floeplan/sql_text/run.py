"""Run a statement: a query, or a change, of which the query is evaluated and the function of ``dml`` called.

Column names match case-insensitively, as in Spark. Nothing is read or written before the whole statement is parsed. A
statement runs in this process where Arrow can evaluate it, and on Spark otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlglot import TokenType

from floeplan.dml.append import append
from floeplan.dml.assign import SubqueryCondition, compile_assignments
from floeplan.dml.commit import DmlResult
from floeplan.dml.delete_update import delete, update
from floeplan.dml.merge.builder import merge
from floeplan.dml.overwrite import overwrite
from floeplan.dml.sources import arrow_table
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.partition.evolution import DropField, SpecChange, Term
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.projection import arrow_schema
from floeplan.spark.session import SparkOnDemand, active_session, spark_errors_translated
from floeplan.sql_text.call import ProcedureResult, run_call
from floeplan.sql_text.create import CreateResult, run_create
from floeplan.sql_text.parse import parse_statement
from floeplan.sql_text.queries import is_query, query_frame, run_query, table_views
from floeplan.sql_text.relations import find_table, open_table, refuse_unknown_tables
from floeplan.sql_text.statements import SOURCE, TARGET, AlterPartitioning, Delete, Insert, Merge, TableName, Update
from floeplan.sql_text.tokens import Cursor, is_word, quoted
from floeplan.transaction.evolve_spec import EvolveResult, evolve_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"

StatementResult: TypeAlias = DmlResult | EvolveResult | ProcedureResult | CreateResult


@dataclass(frozen=True, slots=True)
class StatementOptions:
    """Options of running a statement.

    Attributes:
        catalog: The catalog of table names without one.
        branch: The branch to change, unless the name of the table ends with one.
        mode: ``copy-on-write`` or ``merge-on-read``; overrides the table's properties.
        isolation: ``serializable`` or ``snapshot``; overrides the table's properties.
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.
    """

    catalog: str | Catalog | None = None
    branch: str | None = None
    mode: str | None = None
    isolation: str | None = None
    trust_lists: bool = False
    allow_late_equality_deletes: bool = False

    def refuse(self, statement: str, *names: str) -> None:
        """Raise if an option is set that a statement does not have."""
        for name in names:
            if getattr(self, name) is not None:
                raise BadInputError(f"{statement} does not take {name}; omit it", context={"option": name})

    def dml_arguments(self, name: TableName) -> dict[str, Any]:
        """The keyword arguments of the functions of ``dml``."""
        if self.branch is not None and name.branch is not None and self.branch != name.branch:
            raise BadInputError(f"the statement changes branch {name.branch}, but branch {self.branch} is requested")
        return {
            "branch": name.branch or self.branch,
            "mode": self.mode,
            "isolation": self.isolation,
            "case_sensitive": False,
            "trust_lists": self.trust_lists,
            "allow_late_equality_deletes": self.allow_late_equality_deletes,
        }


def sql(
    first: SparkSession | str | None = None,
    second: str | None = None,
    /,
    *,
    statement: str | None = None,
    spark: SparkSession | None = None,
    catalog: str | Catalog | None = None,
    branch: str | None = None,
    mode: str | None = None,
    isolation: str | None = None,
    trust_lists: bool = False,
    allow_late_equality_deletes: bool = False,
) -> DataFrame | StatementResult:
    """Run one statement in Spark's dialect: ``fp.sql(statement, spark=spark)`` or ``fp.sql(spark, statement)``.

    A query returns a DataFrame. Each table of the catalog in it is planned with the query's own predicates and
    columns; everything else is Spark's. EXPLAIN shows how each table was pruned above Spark's plan. INSERT, DELETE,
    UPDATE, MERGE, CREATE TABLE, ALTER TABLE … PARTITION FIELD and CALL return what they changed.

    Args:
        first: The statement, or a session followed by the statement.
        second: The statement after a session.
        statement: The statement by name.
        spark: A session for queries and distributed work. Without one, queries use the active session, and changes
            that Arrow can evaluate run in this process.
        catalog: The catalog of table names without one.
        branch: The branch to change, unless the name of the table ends with one (``db.t.branch_b``).
        mode: ``copy-on-write`` or ``merge-on-read``; by default from the table's properties.
        isolation: ``serializable`` or ``snapshot``; by default from the table's properties.
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.

    Raises:
        BadInputError: The statement is of another kind, or cannot be parsed or analysed.
    """
    texts = [given for given in (first, second, statement) if isinstance(given, str)]
    if len(texts) != 1:
        raise BadInputError("fp.sql takes one statement: fp.sql(statement, spark=spark) or fp.sql(spark, statement)")
    session = spark if first is None or isinstance(first, str) else first
    options = StatementOptions(catalog, branch, mode, isolation, trust_lists, allow_late_equality_deletes)
    if session is None and is_query(texts[0]):
        session = active_session()
    return run_text(texts[0], SparkOnDemand(session), options)


def run_text(text: str, spark: SparkOnDemand, options: StatementOptions) -> DataFrame | StatementResult:
    """Parse and run a statement."""
    if is_query(text):
        options.refuse("a query", "branch", "mode", "isolation")
        return run_query(_session_for(text, "a query", spark, options), text, options.catalog)
    cursor = Cursor(text)
    if is_word(cursor.tokens[0], "CALL"):
        options.refuse("CALL", "branch", "mode", "isolation")
        return run_call(cursor, spark.session, options.catalog)
    if is_word(cursor.tokens[0], "CREATE"):
        options.refuse("CREATE", "branch", "mode", "isolation")
        return _create(cursor, spark, options)
    statement = parse_statement(text)
    table = open_table(statement.table.parts, options.catalog)
    match statement:
        case AlterPartitioning(changes=changes):
            options.refuse("ALTER TABLE", "branch", "mode", "isolation")
            return evolve_spec(table, [_spec_change(change, table.schema()) for change in changes])
        case Delete() | Update():
            return _delete_or_update(statement, table, spark, options)
        case Insert():
            return _insert(statement, table, spark, options)
        case Merge():
            return _merge(statement, table, spark, options)


def _session_for(query: str, what: str, spark: SparkOnDemand, options: StatementOptions) -> SparkSession:
    """The session for a query; a misspelt table is refused before one is started, which takes long."""
    if spark.session is None:
        refuse_unknown_tables(query, options.catalog)
    return spark.needed(what)


def _create(cursor: Cursor, spark: SparkOnDemand, options: StatementOptions) -> CreateResult:
    """CREATE; the query of CREATE TABLE … AS runs on Spark."""
    if not cursor.sees("CREATE", "TABLE") or not any(is_word(token, "AS") for token in cursor.tokens):
        return run_create(cursor, options.catalog, spark.session)
    session = spark.needed("the query of CREATE TABLE … AS")
    with spark_errors_translated():
        return run_create(cursor, options.catalog, session, lambda query: query_frame(session, query, options.catalog))


def _spec_change(change: SpecChange, schema: Schema) -> SpecChange:
    """In DROP PARTITION FIELD a plain name that is not a column names a partition field, as in Iceberg's extensions."""
    match change:
        case DropField(Term((name,), IdentityTransform())) if name not in schema.column_names:
            return DropField(name)
    return change


def _delete_or_update(
    statement: Delete | Update, table: Table, spark: SparkOnDemand, options: StatementOptions
) -> DmlResult:
    arguments = options.dml_arguments(statement.table)

    def change(where: str | SubqueryCondition, session: SparkSession | None) -> DmlResult:
        if isinstance(statement, Delete):
            return delete(table, where, spark=session, **arguments)
        return update(table, statement.assignments, where, spark=session, **arguments)

    where = statement.where or "TRUE"
    if isinstance(where, str):
        return spark.run(lambda session: change(where, session))
    # The catalog's tables in subqueries are temporary views while the statement runs.
    session = spark.needed("a subquery")
    with table_views(session, options.catalog) as with_views, spark_errors_translated():
        return change(replace(where, text=with_views(where.text)), session)


# INSERT. Without a column list the query gives every column in the table's order, except static partition columns; with
# a list it gives those; BY NAME matches by the query's own names. Columns that are not given take their default.
# INSERT OVERWRITE replaces all rows, or those of the static partitions, or with partitionOverwriteMode=dynamic the
# partitions of the new rows; INSERT INTO … REPLACE WHERE replaces the rows that match.


def _insert(statement: Insert, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    expected, static = _insert_columns(statement, table)
    arguments = options.dml_arguments(statement.table)

    def store(rows: object) -> DmlResult:
        if not statement.overwrite and statement.replace_where is None:
            options.refuse("INSERT INTO", "mode", "isolation")
            return append(table, rows, spark=spark.session, branch=arguments["branch"])
        mode = spark.session.conf.get(_OVERWRITE_MODE, "static") if spark.session is not None else "static"
        if statement.overwrite and str(mode).lower() == "dynamic":
            return overwrite(table, rows, dynamic=True, spark=spark.session, **arguments)
        in_static = " AND ".join(f"{quoted(name)} <=> {value}" for name, value in static.items())
        where = statement.replace_where or in_static or "TRUE"
        return spark.run(lambda session: overwrite(table, rows, where, spark=session, **arguments))

    if spark.session is None and expected is not None:
        try:
            local_rows = _values_rows(statement.query, expected, static, table.schema())
        except UnsupportedError:  # an expression that only Spark evaluates
            local_rows = None
        if local_rows is not None:
            return store(local_rows)
    session = _session_for(statement.query, "a query as the source of INSERT", spark, options)
    frame = query_frame(session, statement.query, options.catalog)
    with spark_errors_translated():
        from floeplan.spark.types import assign_columns

        names = Names(table.schema(), case_sensitive=False)
        if expected is None:
            expected = tuple(names.find((name,)).field.name for name in frame.columns)
        _check_count(frame.columns, expected)
        return store(assign_columns(frame, expected, static, table.schema()))


def _insert_columns(statement: Insert, table: Table) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """The table's columns that the query gives (``None``: matched by name), and static partition values as SQL text."""
    names = Names(table.schema(), case_sensitive=False)
    identities = {f.source_id for f in table.spec().fields if isinstance(f.transform, IdentityTransform)}
    static: dict[str, str] = {}
    for name, value in statement.partition:
        column = names.find((name,)).field
        if column.field_id not in identities:
            raise BadInputError(
                f"PARTITION names {column.name}, which is not an identity partition column of the current spec",
                context={"column": column.name},
            )
        if value is not None:
            static[column.name] = value
    if statement.by_name:
        return None, static
    if statement.columns is None:
        return tuple(f.name for f in table.schema().fields if f.name not in static), static
    listed = tuple(names.find((name,)).field.name for name in statement.columns)
    for name in listed:
        if name in static:
            raise BadInputError(f"{name} is in the PARTITION clause and in the column list")
    return listed, static


def _check_count(given: Sequence[str], expected: Sequence[str]) -> None:
    if len(given) != len(expected):
        raise BadInputError(
            f"INSERT has {len(given)} columns, but {len(expected)} are expected: {', '.join(expected)}",
            context={"given": len(given), "expected": list(expected)},
        )


def _values_rows(query: str, columns: Sequence[str], static: dict[str, str], schema: Schema) -> pa.Table | None:
    """The rows of a VALUES list, evaluated by Arrow; ``None`` when the query is anything else."""
    cursor = Cursor(query)
    if not cursor.accept("VALUES"):
        return None
    no_names, arrow = Names(Schema()), arrow_schema(schema)
    no_columns = typed_columns_of(pa.table({"row": pa.nulls(1)}), Schema())
    rows: list[pa.Table] = []
    while True:
        if cursor.sees_symbol(TokenType.L_PAREN):
            values = [piece.text for piece in cursor.items()]
        else:
            values = [cursor.until(lambda c: c.sees_symbol(TokenType.COMMA)).text]
        _check_count(values, columns)
        assigned = dict(zip(columns, values, strict=True)) | static
        rows.append(compile_assignments(assigned, schema, no_names).insert(1, no_columns, arrow))
        if cursor.done:
            return pa.concat_tables(rows)
        if not cursor.sees_symbol(TokenType.COMMA):  # an alias, or anything else that is Spark's
            return None
        cursor.at += 1


# MERGE: the source is read in this process where possible, and is a DataFrame otherwise.


def _merge(statement: Merge, table: Table, spark: SparkOnDemand, options: StatementOptions) -> DmlResult:
    source, columns = statement.source, statement.source_columns
    arguments = options.dml_arguments(statement.table)

    def run(rows: Any, session: SparkSession | None) -> DmlResult:
        if columns is not None:
            given = rows.column_names if isinstance(rows, pa.Table) else rows.columns
            if len(given) != len(columns):
                raise BadInputError(f"the source has {len(given)} columns, and its alias names {len(columns)}")
            rows = rows.rename_columns(columns) if isinstance(rows, pa.Table) else rows.toDF(*columns)
        begun = merge(table, rows, statement.on, spark=session, target_alias=TARGET, source_alias=SOURCE, **arguments)
        matched, not_matched, by_source = statement.matched, statement.not_matched, statement.not_matched_by_source
        return replace(begun, matched=matched, not_matched=not_matched, by_source=by_source).execute()

    if spark.session is None and isinstance(source, TableName):
        local_rows = None
        if len(source.parts) == 2 and source.parts[0].lower() == "parquet":
            local_rows = arrow_table([source.parts[1]], table.io)
        elif (found := find_table(source.parts, options.catalog)) is not None:
            local_rows = plan_scan(found[0], ref=found[1], options=ScanOptions(report=False)).to_arrow()
        if local_rows is not None:
            return spark.run(lambda session: run(local_rows, session))
    query = f"SELECT * FROM {quoted(*source.parts)}" if isinstance(source, TableName) else source
    session = _session_for(query, "a query or a table of Spark's as the source of MERGE", spark, options)
    frame = query_frame(session, query, options.catalog)
    with spark_errors_translated():
        return run(frame, session)
