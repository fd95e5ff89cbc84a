"""Run a query: every table of the catalog is planned with the query's own predicates and columns; the rest is Spark's.

::

    text ─► references ─► relations ─► placeholders ─► Spark's optimizer: predicate and columns of each table
                                                                              │ plan_scan, native reading
                                    Spark runs the same text over ◄── one DataFrame per reference

The text keeps Spark's semantics: only the names of tables are replaced, each by a DataFrame of its own, and Spark still
evaluates every condition. A column that the query does not refer to is NULL in that DataFrame and is not read.

A query that Spark cannot analyse, and that names metadata columns such as ``_file``, gets those columns too. It has to
list its columns then, since ``*`` would return them.

Fail-safe: a query that cannot be analysed over placeholders is planned without predicates, and Spark reports the error.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from sqlglot import TokenType

from floeplan.errors import BadInputError, FloeplanError
from floeplan.scan.metadata_columns import METADATA_IDS, metadata_fields
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan, report_scan
from floeplan.snapshot.reader import ScanTarget
from floeplan.spark.session import spark_errors_translated
from floeplan.sql_text.attach import AttachedTable, attached_tables, refresh_views
from floeplan.sql_text.join_pruning import can_prune, plan_by_keys
from floeplan.sql_text.relations import Relation, TableReference, as_of, find_relation, table_references
from floeplan.sql_text.tokens import Cursor, is_name, is_word, name_chain, quoted
from floeplan.tasks.shipping import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from floeplan.predicate.ir import IrExpr
    from floeplan.spark.pushdown import Pushed

_QUERY_WORDS = ("SELECT", "FROM", "VALUES", "TABLE", "WITH")
_EXPLAIN_MODES = ("EXTENDED", "CODEGEN", "COST", "FORMATTED")


def is_query(text: str) -> bool:
    """Whether a statement reads rows: a query, or EXPLAIN of one."""
    cursor = Cursor(text)
    if cursor.sees("EXPLAIN"):
        return True
    while cursor.sees_symbol(TokenType.L_PAREN):
        cursor.at += 1
    if not any(map(cursor.sees, _QUERY_WORDS)):
        return False
    cursor.at = 0
    cursor.until(lambda at: at.sees("INSERT"))  # WITH … INSERT and FROM … INSERT write
    return cursor.done


def run_query(spark: SparkSession, text: str, catalog: str | Catalog | None) -> DataFrame:
    """The rows of a query, or of EXPLAIN."""
    cursor = Cursor(text)
    if not cursor.sees("EXPLAIN"):
        return query_frame(spark, text, catalog)
    # sqlglot takes what follows EXPLAIN for one string.
    return explain_frame(spark, text[cursor.tokens[0].end + 1 :], catalog)


def query_frame(spark: SparkSession, text: str, catalog: str | Catalog | None) -> DataFrame:
    """The rows of a query over tables of the catalog, and tables and views of Spark.

    Raises:
        BadInputError: Spark cannot parse or analyse the query.
    """
    return PlannedQuery.of(spark, text, catalog).dataframe()


def explain_frame(spark: SparkSession, text: str, catalog: str | Catalog | None) -> DataFrame:
    """``[mode] query`` after EXPLAIN: how each table was pruned, and Spark's plan, in one row as Spark returns it."""
    cursor = Cursor(text)
    mode = next((mode for mode in _EXPLAIN_MODES if cursor.accept(mode)), "")
    if cursor.done:
        raise cursor.error("a query is expected after EXPLAIN")
    query = text[cursor.tokens[cursor.at].start :]
    if not is_query(query):
        raise BadInputError("EXPLAIN takes a query; use --dry-run to see what a change would do")
    planned = PlannedQuery.of(spark, query, catalog)
    with spark_errors_translated():
        (row,) = spark.sql(f"EXPLAIN {mode} {planned.template}", **planned.frames).collect()
    return spark.createDataFrame(pa.table({"plan": [f"{planned.explain()}{row[0]}"]}))


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A reference to a table in a query: the plan of its scan and its columns; neither for a metadata table."""

    reference: TableReference
    relation: Relation
    plan: ScanPlan | None
    schema: Schema | None

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows that the query needs, with all columns of the table; those it does not need are null."""
        if self.plan is None or self.schema is None:
            return _metadata_frame(spark, self.relation)
        from floeplan.spark.read.reader import read_plan_of

        return read_plan_of(spark, self.plan).dataframe(self.schema)


@dataclass(frozen=True)
class PlannedQuery:
    """A query whose tables are planned; ``template`` names each of ``frames`` in braces, for ``spark.sql``."""

    spark: SparkSession
    template: str
    tables: tuple[PlannedTable, ...] = field(default=())

    @staticmethod
    def of(spark: SparkSession, text: str, catalog: str | Catalog | None) -> PlannedQuery:
        """Resolve and plan the tables of a query."""
        found = list(find_relations(spark, text, catalog))
        template = query_template(text, [reference for reference, _ in found])
        targets = [None if relation.metadata else relation.target() for _, relation in found]
        schemas = [None if target is None else target.schema for target in targets]
        # Spark Connect offers no optimized plan; what the text names decides there.
        over = None if is_connect(spark) else _over_placeholders(spark, template, found, schemas)
        if over is None:
            schemas = _with_metadata_columns(text, targets)
            # What Spark still cannot analyse is raised again, and reported, when the query itself is analysed.
            over = _over_placeholders(spark, template, found, schemas)
        plans = _plan_all(spark, [relation for _, relation in found], schemas, over)
        tables = (
            PlannedTable(reference, relation, plan, schema)
            for (reference, relation), plan, schema in zip(found, plans, schemas, strict=True)
        )
        return PlannedQuery(spark, template, tuple(tables))

    @cached_property
    def frames(self) -> dict[str, Any]:
        """The DataFrame of each reference; references with one plan share it, and Spark may scan the files once."""
        of_plan: dict[int, DataFrame] = {}
        frames = {}
        for number, table in enumerate(self.tables):
            key = id(table.relation if table.plan is None else table.plan)
            if key not in of_plan:
                of_plan[key] = table.frame(self.spark)
            frames[_name(number)] = of_plan[key]
        return frames

    def dataframe(self) -> DataFrame:
        """The rows of the query; nothing is read yet."""
        with spark_errors_translated():
            frame = self.spark.sql(self.template, **self.frames)
            frame.schema  # noqa: B018 - Spark Connect analyses a query only when its schema is needed
            return frame

    def explain(self) -> str:
        """The pruning pyramid of each table."""
        lines = []
        for table in self.tables:
            if table.plan is not None:
                title = f"== {'.'.join(table.relation.table.name())} =="
                lines += [title, table.plan.explain().rstrip(), ""]
        return "\n".join([*lines, ""]) if lines else ""


def find_relations(
    spark: SparkSession, text: str, catalog: str | Catalog | None
) -> Iterator[tuple[TableReference, Relation]]:
    """The tables that a query names, in its order; a table that it names twice is loaded once, at one snapshot."""
    attached = attached_tables(spark)
    found: dict[tuple[str, ...], Relation | None] = {}
    names_others = False
    for reference in table_references(text, single=bool(attached)):
        if reference.parts not in found:
            found[reference.parts] = _find_relation(reference.parts, catalog, attached)
        relation = found[reference.parts]
        if relation is None:
            names_others = True
            continue
        yield reference, as_of(relation, reference, _milliseconds(spark, reference.timestamp))
    if attached and names_others:
        refresh_views(spark)  # a view of the session may read an attached table by its name


def _find_relation(
    parts: tuple[str, ...], catalog: str | Catalog | None, attached: Mapping[str, AttachedTable]
) -> Relation | None:
    if len(parts) > 1:
        return find_relation(parts, catalog)
    name = parts[0].lower()
    return Relation(attached[name].load()) if name in attached else None


def _milliseconds(spark: SparkSession, expression: str | None) -> int | None:
    """The value of the expression after TIMESTAMP AS OF, in milliseconds since 1970."""
    if expression is None:
        return None
    with spark_errors_translated():
        (row,) = spark.sql(f"SELECT unix_millis(CAST(({expression}) AS TIMESTAMP))").collect()
    if row[0] is None:
        raise BadInputError(f"TIMESTAMP AS OF {expression} is null")
    return int(row[0])


def _name(number: int) -> str:
    return f"floeplan_{number}"


def query_template(text: str, references: Sequence[TableReference]) -> str:
    """The text with each reference as a name in braces, and everything else as written.

    A qualifier of several parts (``db.t.id``) becomes the last part, the alias that the reference gets.
    """
    changes = []
    for number, reference in enumerate(references):
        alias = f" AS {quoted(reference.parts[-1])}" if reference.needs_alias else ""
        changes.append((reference.start, reference.end, f"{{{_name(number)}}}{alias}"))
    qualifiers = {
        tuple(part.lower() for part in reference.parts): reference.parts[-1]
        for reference in references
        if reference.needs_alias and len(reference.parts) > 1
    }
    tokens = Cursor(text).tokens if qualifiers else ()
    taken = {start for start, _, _ in changes}
    for index, token in enumerate(tokens):
        if not is_name(token) or token.start in taken or (index and tokens[index - 1].text == "."):
            continue
        chain = name_chain(tokens, index)
        for length in range(len(chain) - 1, 1, -1):
            name = qualifiers.get(tuple(one.text.lower() for one in chain[:length]))
            if name is not None:
                changes.append((token.start, chain[length - 1].end + 1, quoted(name)))
                break
    built, at = [], 0
    for start, end, new in sorted(changes):
        built += [_escaped(text[at:start]), new]
        at = end
    return "".join([*built, _escaped(text[at:])])


def _escaped(text: str) -> str:
    """Text in which ``spark.sql`` replaces nothing."""
    return text.replace("{", "{{").replace("}", "}}")


def _over_placeholders(
    spark: SparkSession,
    template: str,
    found: Sequence[tuple[TableReference, Relation]],
    schemas: Sequence[Schema | None],
) -> DataFrame | None:
    """The query over placeholders; ``None`` with Spark Connect, and if Spark cannot analyse the query."""
    from floeplan.spark.pushdown import placeholder

    if is_connect(spark) or not any(schemas):
        return None
    frames: dict[str, Any] = {
        _name(at): _metadata_frame(spark, found[at][1]) if schema is None else placeholder(spark, at, schema)
        for at, schema in enumerate(schemas)
    }
    try:
        with spark_errors_translated():
            return spark.sql(template, **frames)
    except FloeplanError:
        return None


def _plan_all(
    spark: SparkSession, relations: Sequence[Relation], schemas: Sequence[Schema | None], over: DataFrame | None
) -> list[ScanPlan | None]:
    """Plan each table with what the query needs of it, by join keys too; ``over`` is the query over placeholders."""
    from floeplan.spark.pushdown import Pushed, pushed_down

    pushed = [Pushed() for _ in schemas] if over is None else pushed_down(over, schemas)

    made: dict[tuple[int, str], ScanPlan] = {}

    def plan(at: int, needed: Pushed) -> ScanPlan:
        schema = schemas[at]
        assert schema is not None
        key = (id(relations[at]), repr(needed))  # unlike equality, the text tells -0.0 from 0.0 and 1 from 1.0
        if key not in made:
            made[key] = _plan(spark, relations[at], schema, needed)
        return made[key]

    plans = [None if schema is None else plan(at, pushed[at]) for at, schema in enumerate(schemas)]
    if over is not None and can_prune(plans):
        from floeplan.spark.join_keys import join_keys

        def replan(at: int, predicate: IrExpr, columns: tuple[str, ...] | None) -> ScanPlan:
            return plan(at, Pushed(predicate, columns or pushed[at].columns))

        plans = plan_by_keys(plans, schemas, join_keys(over), replan)
    return [None if plan is None else report_scan(plan) for plan in plans]


def _with_metadata_columns(text: str, targets: Sequence[ScanTarget | None]) -> list[Schema | None]:
    """The schemas of the tables, with the metadata columns that a query names.

    Raises:
        BadInputError: The query names some, and has a clause that uses all columns.
    """
    tokens = Cursor(text).tokens
    named = {token.text.lower() for token in tokens if is_name(token)}
    uses_all = [token.text for token in tokens if is_word(token, "NATURAL", "PIVOT", "UNPIVOT", "|>")]
    # A star after these stands for all columns, as in struct(*); others are products, or in count(*).
    uses_all += [
        star.text
        for called, before, star in zip((None, *tokens), tokens, tokens[1:], strict=False)
        if star.token_type is TokenType.STAR
        and (
            is_word(before, "SELECT", "DISTINCT", "ALL")
            or before.token_type in (TokenType.COMMA, TokenType.DOT)
            or (before.token_type is TokenType.L_PAREN and called is not None and not is_word(called, "COUNT"))
        )
    ]
    schemas: list[Schema | None] = []
    for target in targets:
        if target is None:
            schemas.append(None)
            continue
        own = {field.name.lower() for field in target.schema.fields}
        extra = [f for name, f in metadata_fields(target.metadata).items() if name in named and name not in own]
        if extra and uses_all:
            raise BadInputError(
                f"a query that names {extra[0].name} must list its columns; {uses_all[0]} would include it too",
                context={"column": extra[0].name},
            )
        schemas.append(Schema(*target.schema.fields, *extra, schema_id=target.schema.schema_id))
    return schemas


def _plan(spark: SparkSession, relation: Relation, schema: Schema, needed: Pushed) -> ScanPlan:
    """Plan a table without a scan report: a plan may be replaced by one with join keys."""
    from floeplan.spark.planning import SparkPlanning

    names = needed.columns
    if names is not None:
        # A query that counts rows refers to no column; the cheapest one stands for its rows.
        names = names or (schema.fields[0].name,)
        names = None if any("." in name for name in names) else names
    if names is None and not METADATA_IDS.isdisjoint(field.field_id for field in schema.fields):
        names = tuple(field.name for field in schema.fields)
    return plan_scan(
        relation.table,
        needed.predicate,
        columns=names,
        snapshot_id=relation.snapshot_id,
        ref=relation.ref,
        timestamp_ms=relation.timestamp_ms,
        options=ScanOptions(footers=False, report=False, planning=SparkPlanning(spark)),
    )


def _metadata_frame(spark: SparkSession, relation: Relation) -> DataFrame:
    from floeplan.spark.metadata_tables import metadata_table

    assert relation.metadata is not None
    snapshot = None if relation.timestamp_ms is None else relation.target().snapshot
    snapshot_id = relation.snapshot_id if snapshot is None else snapshot.snapshot_id
    return metadata_table(spark, relation.table, relation.metadata, snapshot_id=snapshot_id, ref=relation.ref)


# Tables in conditions: a condition of DELETE or UPDATE is part of a larger text, so its tables are named views.


@contextmanager
def table_views(spark: SparkSession, catalog: str | Catalog | None) -> Iterator[Callable[[str], str]]:
    """Yield a function that replaces the catalog's tables in a text by temporary views, dropped at the end."""
    views: list[str] = []

    def with_views(text: str) -> str:
        for reference, relation in reversed(list(find_relations(spark, text, catalog))):
            views.append(f"floeplan_{uuid.uuid4().hex}")
            relation_frame(spark, relation).createOrReplaceTempView(views[-1])
            alias = f" AS {quoted(reference.parts[-1])}" if reference.needs_alias else ""
            text = text[: reference.start] + views[-1] + alias + text[reference.end :]
        return text

    try:
        yield with_views
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def relation_frame(spark: SparkSession, relation: Relation) -> DataFrame:
    """All rows of a relation."""
    if relation.metadata is not None:
        return _metadata_frame(spark, relation)
    from floeplan.spark.pushdown import Pushed
    from floeplan.spark.read.reader import read_plan_of

    plan = report_scan(_plan(spark, relation, relation.target().schema, Pushed()))
    return read_plan_of(spark, plan).dataframe()


def read_table(spark: SparkSession, table: Table, ref: str | None) -> DataFrame:
    """Read a table, or a branch or tag of it, as a DataFrame."""
    return relation_frame(spark, Relation(table, ref=ref))
