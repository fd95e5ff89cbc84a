"""``floeplan append``, ``delete``, ``update``, ``merge`` and ``sql``.

The first four call the functions of `floeplan.dml`; only ``sql`` parses a statement. A change runs in this process and,
if Arrow cannot evaluate an expression, again on Spark.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.cli.commands.plan import SHOWN_ROWS, Answer, render
from floeplan.errors import InvalidOptionError
from floeplan.text import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from floeplan.dml.commit import DmlResult
    from floeplan.dml.merge.builder import Merge
    from floeplan.spark.session import SparkOnDemand
    from floeplan.sql_text.create import CreateResult
    from floeplan.sql_text.run import StatementResult

ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="copy-on-write or merge-on-read; by default the table property.",
        autocompletion=completion.one_of("copy-on-write", "merge-on-read"),
    ),
]
IsolationOption = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        metavar="LEVEL",
        help="serializable or snapshot; by default the table property.",
        autocompletion=completion.one_of("serializable", "snapshot"),
    ),
]
FilesDryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show which files would be dropped or read; change nothing.")
]
FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE", help="Parquet files, or folders of them.")]
AddFilesOption = Annotated[
    bool, typer.Option("--add-files", help="Register the files in place instead of rewriting their rows.")
]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Create the table with the columns of the first file if it does not exist.")
]
PartitionedByOption = Annotated[
    str | None,
    typer.Option(
        "--partitioned-by", metavar="TERMS", help="Partitioning of a created table, e.g. 'days(ts), bucket(16, id)'."
    ),
]
SpecOption = Annotated[
    int | None,
    typer.Option("--spec", metavar="ID", help="Partition spec of the new files; the current one by default."),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="c=expr",
        help="A column and its new value; repeatable.",
        autocompletion=completion.assignments,
    ),
]
SourceOption = Annotated[
    str, typer.Option("--source", metavar="SOURCE", help="A Parquet file, a folder of them, or namespace.name.")
]
OnOption = Annotated[
    str,
    typer.Option("--on", metavar="EXPR", help="A condition over target.… and source.… columns, or a common column."),
]
MatchedUpdateOption = Annotated[
    str | None, typer.Option("--when-matched-update", metavar="SET|*", help="Update matched rows: c=expr,… or *.")
]
MatchedDeleteOption = Annotated[
    str | None,
    typer.Option(
        "--when-matched-delete",
        metavar="COND",
        help="Delete matched rows that satisfy a condition; TRUE for all.",
    ),
]
InsertOption = Annotated[
    str | None,
    typer.Option("--when-not-matched-insert", metavar="SET|*", help="Insert unmatched source rows: c=expr,… or *."),
]
BySourceUpdateOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-update",
        metavar="SET",
        help="Update unmatched target rows: c=expr,…",
    ),
]
BySourceDeleteOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-delete",
        metavar="COND",
        help="Delete unmatched target rows that satisfy a condition; TRUE for all.",
    ),
]
StatementArgument = Annotated[
    str,
    typer.Argument(
        metavar="STATEMENT",
        help="A query, INSERT, DELETE, UPDATE, MERGE, CREATE TABLE, ALTER TABLE … PARTITION FIELD or CALL.",
    ),
]


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of all commands that change rows; their names are those of the functions of the library."""

    branch: common.BranchOption = None
    mode: ModeOption = None
    isolation: IsolationOption = None
    trust_lists: common.TrustListsOption = False
    allow_late_equality_deletes: common.LateDeletesOption = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``delete``, ``update`` and ``merge``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``delete``, ``update`` and ``merge``: how they run and what they show."""

    dry_run: FilesDryRunOption = False
    case_insensitive: common.CaseOption = False
    spark: common.SparkOption = None
    catalog: common.CatalogOption = None
    json: common.JsonOption = False


def append(
    table: common.ChangedTableArgument,
    files: FilesArgument,
    add_files: AddFilesOption = False,
    create: CreateOption = False,
    partitioned_by: PartitionedByOption = None,
    spec: SpecOption = None,
    branch: common.BranchOption = None,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Append the rows of Parquet files.

    floeplan append db.events new/*.parquet
    """
    from floeplan.dml.append import append as append_rows

    if partitioned_by is not None and not create:
        raise InvalidOptionError("--partitioned-by is for a table that --create creates")
    created = False
    if create:
        from floeplan.sql_text.create import create_for_files

        created = create_for_files(table, files, partitioned_by, catalog).created
    target = common.writable_table(table, catalog)
    try:
        with common.spinner("appending"):
            session = common.spark_for(spark).session
            result = append_rows(target, files, spark=session, branch=branch, add_files=add_files, spec_id=spec)
    except BaseException:
        if created:
            target.catalog.drop_table(target.name())
        raise
    common.show(result, draw_change, as_json=json)


@common.shared_options
def delete(
    table: common.ChangedTableArgument,
    where: common.RequiredWhereOption,
    change: ChangeOptions,
    run: RunOptions,
) -> None:
    """Delete matching rows.

    floeplan delete db.events --where "ts < TIMESTAMP '2024-01-01'" --dry-run
    """
    from floeplan.dml.delete_update import delete as delete_rows

    target, exact = common.writable_table(table, run.catalog), not run.case_insensitive
    if run.dry_run:
        from floeplan.cli.dry_run import draw, plan_change

        common.show(plan_change(target, where, None, exact, change.arguments), draw, as_json=run.json)
        return
    with common.spinner("deleting"):
        result = common.spark_for(run.spark).run(
            lambda session: delete_rows(target, where, spark=session, case_sensitive=exact, **change.arguments)
        )
    common.show(result, draw_change, as_json=run.json)


@common.shared_options
def update(
    table: common.ChangedTableArgument,
    set_: SetOption,
    where: common.RequiredWhereOption,
    change: ChangeOptions,
    run: RunOptions,
) -> None:
    """Update matching rows.

    floeplan update db.events --set "v = v * 2" --set "region = 'eu'" --where "id = 7"
    """
    from floeplan.dml.delete_update import update as update_rows
    from floeplan.sql_text.parse import parse_assignments

    assigned = parse_assignments(", ".join(set_), "--set")
    target, exact = common.writable_table(table, run.catalog), not run.case_insensitive
    if run.dry_run:
        from floeplan.cli.dry_run import draw, plan_change

        common.show(plan_change(target, where, assigned, exact, change.arguments), draw, as_json=run.json)
        return
    with common.spinner("updating"):
        result = common.spark_for(run.spark).run(
            lambda session: update_rows(
                target, assigned, where, spark=session, case_sensitive=exact, **change.arguments
            )
        )
    common.show(result, draw_change, as_json=run.json)


@common.shared_options
def merge(
    *,
    table: common.ChangedTableArgument,
    source: SourceOption,
    on: OnOption,
    when_matched_update: MatchedUpdateOption = None,
    when_matched_delete: MatchedDeleteOption = None,
    when_not_matched_insert: InsertOption = None,
    when_not_matched_by_source_update: BySourceUpdateOption = None,
    when_not_matched_by_source_delete: BySourceDeleteOption = None,
    change: ChangeOptions,
    run: RunOptions,
) -> None:
    """Merge Parquet files or another table into a table. Delete clauses are evaluated before update clauses.

    floeplan merge db.events --source new.parquet --on id --when-matched-update "*" --when-not-matched-insert "*"
    """
    from floeplan.dml.merge.builder import merge as merge_rows

    target = common.writable_table(table, run.catalog)
    set_matched = _values(when_matched_update, "update")
    set_by_source = _values(when_not_matched_by_source_update, "update")
    inserted = _values(when_not_matched_insert, "insert")
    by_source = (when_not_matched_by_source_update, when_not_matched_by_source_delete)
    clauses = (when_matched_update, when_matched_delete, when_not_matched_insert, *by_source)
    if all(clause is None for clause in clauses):
        raise InvalidOptionError("merge needs at least one --when-… option; see 'floeplan merge --help'")
    options = change.arguments | {"target_alias": "target", "source_alias": "source"}
    opened = common.spark_for(run.spark)
    with common.spinner("merging"):
        rows = _merge_source(source, opened, run.catalog)

        def begun(session: Any) -> Merge:
            merge = merge_rows(target, rows, on, spark=session, case_sensitive=not run.case_insensitive, **options)
            if when_matched_delete is not None:
                merge = merge.when_matched_delete(when_matched_delete)
            if when_matched_update is not None:
                merge = merge.when_matched_update(set_matched)
            if when_not_matched_insert is not None:
                merge = merge.when_not_matched_insert(inserted)
            if when_not_matched_by_source_delete is not None:
                merge = merge.when_not_matched_by_source_delete(when_not_matched_by_source_delete)
            if when_not_matched_by_source_update is not None:
                merge = merge.when_not_matched_by_source_update(set_by_source or {})
            return merge

        if run.dry_run:
            from floeplan.cli.dry_run import draw, files_to_read

            planned = opened.run(lambda session: files_to_read(target, begun(session).plan(), change.arguments))
        else:
            result = opened.run(lambda session: begun(session).execute())
    if run.dry_run:
        common.show(planned, draw, as_json=run.json)
    else:
        common.show(result, draw_change, as_json=run.json)


def _values(text: str | None, what: str) -> dict[str, object] | None:
    """Parse ``c = expr, …``; ``None`` means ``*``, every column from the source column of the same name."""
    from floeplan.sql_text.parse import parse_assignments

    return None if text is None or text.strip() == "*" else parse_assignments(text, what)


def _merge_source(source: str, spark: SparkOnDemand, catalog: str | None) -> object:
    """The rows of ``--source``: a DataFrame if a session is open, otherwise Arrow or a path."""
    from floeplan.catalog import load_table
    from floeplan.scan.model import ScanOptions
    from floeplan.scan.plan import plan_scan
    from floeplan.spark.session import spark_errors_translated
    from floeplan.sql_text.queries import read_table
    from floeplan.sql_text.relations import find_table

    is_path = "/" in source or source.endswith(".parquet") or Path(source).exists()
    if is_path and spark.session is None:
        return source
    found = None if is_path else find_table(source.split("."), catalog)
    if found is not None:
        table, ref = found
        if spark.session is None:
            return plan_scan(table, ref=ref, options=ScanOptions(report=False)).to_arrow()
        return read_table(spark.session, table, ref)
    if spark.session is None:  # a session that is started now has no tables
        return load_table(source, catalog)
    session = spark.session
    with spark_errors_translated():
        frame = session.read.parquet(source) if is_path else session.table(source)
        frame.schema  # noqa: B018 - Spark Connect analyzes a plan only when something asks for its schema
    return frame


@common.shared_options
def sql(
    statement: StatementArgument,
    change: ChangeOptions,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Run one SQL statement in Spark's dialect: a query or a change.

    floeplan sql "ALTER TABLE db.events REPLACE PARTITION FIELD ts_day WITH hours(ts)"
    """
    from floeplan.sql_text.run import StatementOptions, StatementResult, run_text

    with common.spinner("running"):
        options = StatementOptions(catalog, **change.arguments)
        result = run_text(statement, common.spark_for(spark), options)
        if isinstance(result, StatementResult):
            common.show(result, draw_statement, as_json=json)
            return
        answer = _answer(result, None if json else SHOWN_ROWS + 1)
    common.show(answer, draw_answer, as_json=json)


def _answer(frame: DataFrame, limit: int | None) -> Answer:
    """The rows of a query, all or the first ones."""
    from floeplan.spark.session import spark_errors_translated

    with spark_errors_translated():
        table = (frame if limit is None else frame.limit(limit)).toArrow()
    return Answer(table.num_rows, table)


def draw_answer(answer: Answer) -> RenderableType:
    """Render the rows of a query; those of EXPLAIN as they are."""
    table = answer.table
    if table is not None and table.column_names == ["plan"] and table.num_rows == 1:
        return Text(str(table["plan"][0]))
    return render(answer)


def draw_statement(result: StatementResult) -> RenderableType:
    """Render what a SQL statement changed: rows, or the partition spec."""
    from floeplan.sql_text.call import ProcedureResult
    from floeplan.sql_text.create import CreateResult
    from floeplan.transaction.evolve_spec import EvolveResult

    if isinstance(result, ProcedureResult):
        return common.RowsTable(result.to_arrow(), len(result.rows))
    if isinstance(result, CreateResult):
        return Text(f"{result.name} {_created(result)}")
    if not isinstance(result, EvolveResult):
        return draw_change(result)
    drawn = common.key_value_table()
    for field in result.spec.fields:
        source = result.table.schema().find_column_name(field.source_id) or f"dropped column {field.source_id}"
        drawn.add_row(field.name, f"{field.transform} of {source} (field {field.field_id})")
    what = "new" if result.is_new else "already existed"
    title = f"spec {result.spec.spec_id} ({what}{', default' if result.is_default else ''})"
    return Group(Text(title, style="bold"), drawn if result.spec.fields else Text("unpartitioned"))


def _created(result: CreateResult) -> str:
    if not result.created:
        return "exists already; nothing was changed"
    fields = f", partitioned by {', '.join(result.partitioned_by)}" if result.partitioned_by else ""
    return f"created{fields}" + (f", {counted(result.rows_inserted, 'row')} inserted" if result.snapshot_id else "")


def draw_change(result: DmlResult) -> RenderableType:
    """Render the rows, files and manifests of a change."""
    if not result.committed:
        return Text(f"{result.operation}: no rows matched; nothing was committed")
    drawn = common.key_value_table()
    rows = {"deleted": result.rows_deleted, "updated": result.rows_updated, "inserted": result.rows_inserted}
    drawn.add_row("rows", ", ".join(f"{number:,} {what}" for what, number in rows.items() if number) or "none")
    drawn.add_row("data files", f"{result.data_files_added:,} added, {result.data_files_removed:,} removed")
    drawn.add_row("delete files", f"{result.delete_files_added:,} added, {result.delete_files_removed:,} removed")
    for manifest in result.manifests_written:
        written = f"spec {manifest.spec_id}, {manifest.content}, {counted(manifest.entries, 'file')}"
        drawn.add_row("new manifest", written)
    drawn.add_row("snapshot", f"{result.snapshot_id}, after {counted(result.attempts, 'attempt')}")
    mode = "" if result.operation == "append" else f" ({result.mode})"
    return Group(Text(f"{result.operation}{mode}", style="bold"), drawn)
