"""``floeplan append``, ``delete``, ``update``, ``merge`` and ``sql``.

The first four call the functions of `floeplan.dml`; only ``sql`` parses a statement. A change runs in this process and,
if Arrow cannot evaluate an expression, again on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.cli.commands.plan import SHOWN_ROWS, Answer, render
from floeplan.errors import InvalidOptionError
from floeplan.text import counted, human_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from floeplan.dml.commit import DmlResult
    from floeplan.dml.merge.builder import Merge
    from floeplan.dml.target import DmlTarget
    from floeplan.scan.plan import ScanPlan
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
FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE…", help="Parquet files, or folders of them.")]
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
        metavar="COLUMN=EXPR",
        help="A column and its new value; repeatable.",
        autocompletion=completion.assignments,
    ),
]
SourceOption = Annotated[
    str, typer.Option("--source", metavar="PATH|TABLE", help="A Parquet file, a folder of them, or namespace.name.")
]
OnOption = Annotated[
    str,
    typer.Option("--on", metavar="EXPR", help="A condition over target.… and source.… columns, or a common column."),
]
MatchedUpdateOption = Annotated[
    str | None, typer.Option("--when-matched-update", metavar="c=expr,…|*", help="Update matched rows.")
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
    typer.Option("--when-not-matched-insert", metavar="c=expr,…|*", help="Insert source rows without a match."),
]
BySourceUpdateOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-update",
        metavar="c=expr,…",
        help="(…-by-source-update) Update target rows without a match.",
    ),
]
BySourceDeleteOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-delete",
        metavar="COND",
        help="(…-by-source-delete) Delete target rows without a match that satisfy a condition; TRUE for all.",
    ),
]
StatementArgument = Annotated[
    str,
    typer.Argument(
        metavar="STATEMENT",
        help="INSERT, DELETE, UPDATE, MERGE, CREATE TABLE, ALTER TABLE … PARTITION FIELD, or CALL.",
    ),
]


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


def delete(
    table: common.ChangedTableArgument,
    where: common.RequiredWhereOption,
    branch: common.BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    dry_run: FilesDryRunOption = False,
    case_insensitive: common.CaseOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Delete matching rows.

    floeplan delete db.events --where "ts < TIMESTAMP '2024-01-01'" --dry-run
    """
    from floeplan.dml.delete_update import delete as delete_rows
    from floeplan.dml.target import Command, resolve

    target = common.writable_table(table, catalog)
    options = _change_options(branch, mode, isolation, trust_lists, allow_late_equality_deletes)
    exact = not case_insensitive
    if dry_run:
        planned = _dry_run(resolve(target, Command.DELETE, **options), where, None, exact)
        common.show(planned, draw_dry_run, as_json=json)
        return
    with common.spinner("deleting"):
        result = common.spark_for(spark).run(
            lambda session: delete_rows(target, where, spark=session, case_sensitive=exact, **options)
        )
    common.show(result, draw_change, as_json=json)


def update(
    table: common.ChangedTableArgument,
    set_: SetOption,
    where: common.RequiredWhereOption,
    branch: common.BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    dry_run: FilesDryRunOption = False,
    case_insensitive: common.CaseOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Update matching rows.

    floeplan update db.events --set "v = v * 2" --set "region = 'eu'" --where "id = 7"
    """
    from floeplan.dml.delete_update import update as update_rows
    from floeplan.dml.target import Command, resolve
    from floeplan.sql_text.parse import parse_assignments

    assigned = parse_assignments(", ".join(set_), "--set")
    target = common.writable_table(table, catalog)
    options = _change_options(branch, mode, isolation, trust_lists, allow_late_equality_deletes)
    exact = not case_insensitive
    if dry_run:
        planned = _dry_run(resolve(target, Command.UPDATE, **options), where, assigned, exact)
        common.show(planned, draw_dry_run, as_json=json)
        return
    with common.spinner("updating"):
        result = common.spark_for(spark).run(
            lambda session: update_rows(target, assigned, where, spark=session, case_sensitive=exact, **options)
        )
    common.show(result, draw_change, as_json=json)


def merge(
    table: common.ChangedTableArgument,
    source: SourceOption,
    on: OnOption,
    when_matched_update: MatchedUpdateOption = None,
    when_matched_delete: MatchedDeleteOption = None,
    when_not_matched_insert: InsertOption = None,
    when_not_matched_by_source_update: BySourceUpdateOption = None,
    when_not_matched_by_source_delete: BySourceDeleteOption = None,
    branch: common.BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    dry_run: FilesDryRunOption = False,
    case_insensitive: common.CaseOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Merge Parquet files or another table into a table. Delete clauses are evaluated before update clauses.

    floeplan merge db.events --source new.parquet --on id --when-matched-update "*" --when-not-matched-insert "*"
    """
    from floeplan.dml.merge.builder import merge as merge_rows
    from floeplan.dml.target import Command, resolve

    target = common.writable_table(table, catalog)
    set_matched = _values(when_matched_update, "update")
    set_by_source = _values(when_not_matched_by_source_update, "update")
    inserted = _values(when_not_matched_insert, "insert")
    by_source = (when_not_matched_by_source_update, when_not_matched_by_source_delete)
    clauses = (when_matched_update, when_matched_delete, when_not_matched_insert, *by_source)
    if all(clause is None for clause in clauses):
        raise InvalidOptionError("merge needs at least one --when-… option; see 'floeplan merge --help'")
    options = _change_options(branch, mode, isolation, trust_lists, allow_late_equality_deletes)
    options |= {"target_alias": "target", "source_alias": "source"}
    opened = common.spark_for(spark)
    with common.spinner("merging"):
        rows = _merge_source(source, opened, catalog)

        def begun(session: Any) -> Merge:
            change = merge_rows(target, rows, on, spark=session, case_sensitive=not case_insensitive, **options)
            if when_matched_delete is not None:
                change = change.when_matched_delete(when_matched_delete)
            if when_matched_update is not None:
                change = change.when_matched_update(set_matched)
            if when_not_matched_insert is not None:
                change = change.when_not_matched_insert(inserted)
            if when_not_matched_by_source_delete is not None:
                change = change.when_not_matched_by_source_delete(when_not_matched_by_source_delete)
            if when_not_matched_by_source_update is not None:
                change = change.when_not_matched_by_source_update(set_by_source or {})
            return change

        if dry_run:
            resolved = resolve(target, Command.MERGE, branch=branch, mode=mode, isolation=isolation)
            planned = opened.run(lambda session: _files_to_read(resolved, begun(session).plan()))
        else:
            result = opened.run(lambda session: begun(session).execute())
    if dry_run:
        common.show(planned, draw_dry_run, as_json=json)
    else:
        common.show(result, draw_change, as_json=json)


def _change_options(
    branch: str | None, mode: str | None, isolation: str | None, trust: bool, late: bool
) -> dict[str, Any]:
    """The arguments that ``delete``, ``update`` and ``merge`` share."""
    checks = {"trust_lists": trust, "allow_late_equality_deletes": late}
    return {"branch": branch, "mode": mode, "isolation": isolation, **checks}


def _values(text: str | None, what: str) -> dict[str, object] | None:
    """Parse ``c = expr, …``; ``None`` means ``*``, every column from the source column of the same name."""
    from floeplan.sql_text.parse import parse_assignments

    return None if text is None or text.strip() == "*" else parse_assignments(text, what)


def _merge_source(source: str, spark: SparkOnDemand, catalog: str | None) -> object:
    """The rows of ``--source``: a DataFrame if a session is open or the table is one of Spark's, otherwise Arrow."""
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
    session = spark.needed("a table of Spark as the source of MERGE")
    with spark_errors_translated():
        frame = session.read.parquet(source) if is_path else session.table(source)
        frame.schema  # noqa: B018 - Spark Connect analyzes a plan only when something asks for its schema
    return frame


def sql(
    statement: StatementArgument,
    branch: common.BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Run one SQL statement in Spark's dialect: a query or a change.

    floeplan sql "ALTER TABLE db.events REPLACE PARTITION FIELD ts_day WITH hours(ts)"
    """
    from floeplan.sql_text.run import StatementOptions, StatementResult, run_text

    with common.spinner("running"):
        options = StatementOptions(catalog, branch, mode, isolation, trust_lists, allow_late_equality_deletes)
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


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a change would do according to metadata.

    Attributes:
        operation: The command.
        mode: ``copy-on-write`` or ``merge-on-read``.
        files_total: Data files of the branch.
        files_by_metadata: Files that would be dropped without being read.
        rows_by_metadata: Rows in those files.
        files_to_read: Files that may contain matching rows.
        rows_to_read: Rows in those files.
        bytes_to_read: Bytes of those files.
    """

    operation: str
    mode: str
    files_total: int | None
    files_by_metadata: int
    rows_by_metadata: int
    files_to_read: int
    rows_to_read: int
    bytes_to_read: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"dry_run": True} | {name: getattr(self, name) for name in self.__slots__}


def _dry_run(target: DmlTarget, where: str, assigned: dict[str, object] | None, case_sensitive: bool) -> DryRun:
    """Make the same checks and the same plan as a delete, or an update if columns are assigned.

    Rows of files that must be read are reported as such, not estimated.
    """
    from floeplan.dml.assign import compile_assignments
    from floeplan.dml.commit import ChangeBuilder
    from floeplan.dml.delete_update import drop_files, plan_rows, refuse_moves
    from floeplan.predicate.names import Names
    from floeplan.predicate.stats import TriState

    if assigned is not None:
        compile_assignments(assigned, target.schema, Names(target.schema, case_sensitive))
    plan = plan_rows(target, where, None, case_sensitive)
    # A delete drops a file of which all rows match. An update reads it, because its rows get new values.
    changes, whole = ChangeBuilder(), (plan.files.states == TriState.TRUE) & (assigned is None)
    refuse_moves(target, plan.files, ~whole, updates=assigned is not None)
    proven = drop_files(plan.files, whole, changes)
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=int(proven.sum()),
        rows_by_metadata=changes.rows_deleted,
        files_to_read=int((~proven).sum()),
        rows_to_read=int(entries.record_count[~proven].sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes")[~proven].sum()),
    )


def _files_to_read(target: DmlTarget, plan: ScanPlan) -> DryRun:
    """The dry run of a change that reads every planned file."""
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=0,
        rows_by_metadata=0,
        files_to_read=len(plan.files),
        rows_to_read=int(entries.record_count.sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes").sum()),
    )


def draw_statement(result: StatementResult) -> RenderableType:
    """Render what a SQL statement changed: rows, or the partition spec."""
    from floeplan.sql_text.call import ProcedureResult
    from floeplan.sql_text.create import CreateResult
    from floeplan.transaction.evolve_spec import EvolveResult

    if isinstance(result, ProcedureResult):
        return common.rows_table(result.to_arrow(), len(result.rows))
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


def draw_dry_run(result: DryRun) -> RenderableType:
    """Render a dry run."""
    drawn = common.key_value_table()
    dropped = f"{counted(result.files_by_metadata, 'file')}, {counted(result.rows_by_metadata, 'row')}"
    drawn.add_row("would drop", f"{dropped}, by metadata alone")
    read = f"{counted(result.files_to_read, 'file')}, {counted(result.rows_to_read, 'row')}"
    drawn.add_row("would read", f"{read}, {human_bytes(result.bytes_to_read)}")
    drawn.add_row("table", "unknown" if result.files_total is None else counted(result.files_total, "file"))
    return Group(Text(f"{result.operation} ({result.mode}), dry run: nothing was changed", style="bold"), drawn)
