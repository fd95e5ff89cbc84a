"""`floeplan append`: the rows of Parquet files become rows of a table, or the files become files of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pyiceberg.table import Table

from floeplan.cli.common import (
    BranchOption,
    CaseOption,
    CatalogOption,
    ChangedTableArgument,
    DryRun,
    DryRunOption,
    IsolationOption,
    JsonOption,
    ModeOption,
    SparkOption,
    draw_result,
    show,
    sign_of_life,
    spark_for,
    statement_options,
    writable_table,
)
from floeplan.dml.append import append as append_rows
from floeplan.dml.assign import compile_assignments
from floeplan.dml.outcome import Outcome
from floeplan.dml.planning import drop_proven, plan_rows
from floeplan.dml.statement import planned
from floeplan.dml.target import Command, DmlTarget, resolve
from floeplan.errors import InvalidOptionError
from floeplan.predicate.names import Names
from floeplan.scan.scan_plan import ScanPlan
from floeplan.sql_text.names import parse_assignments
from floeplan.sql_text.run import StatementOptions, assigned_texts, run_statement, run_text
from floeplan.sql_text.statements import (
    Assignment,
    Clause,
    Delete,
    DeleteRow,
    InsertRow,
    Merge,
    Relation,
    TableName,
    Update,
    UpdateRow,
)
from floeplan.vectors import Mask

FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE…", help="Parquet files, or folders of them.")]
AddFilesOption = Annotated[
    bool, typer.Option("--add-files", help="Register the files where they are instead of writing their rows again.")
]
SpecOption = Annotated[
    int | None, typer.Option("--spec", metavar="ID", help="The spec of the new files; the default spec if not given.")
]


def append(
    table: ChangedTableArgument,
    files: FilesArgument,
    add_files: AddFilesOption = False,
    spec: SpecOption = None,
    branch: BranchOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Append Parquet files.

    floeplan append db.events new/*.parquet
    """
    target = writable_table(table, catalog)
    with sign_of_life("appending"):
        session = spark_for(spark).session
        result = append_rows(target, files, spark=session, branch=branch, add_files=add_files, spec_id=spec)
    show(result, draw_result, as_json=json)


# `floeplan merge`: rows of a file or table are joined with the table, and update, delete or become rows of it.


SourceOption = Annotated[
    str, typer.Option("--source", metavar="PATH|TABLE", help="Parquet files, a folder of them, or namespace.name.")
]
OnOption = Annotated[
    str,
    typer.Option("--on", metavar="EXPR", help="A condition over target.… and source.… columns, or one column of both."),
]
MatchedUpdateOption = Annotated[
    str | None,
    typer.Option("--when-matched-update", metavar="c=expr,…|*", help="New values for rows that met a source row."),
]
MatchedDeleteOption = Annotated[
    str | None,
    typer.Option(
        "--when-matched-delete",
        metavar="COND",
        help="Delete rows that met a source row and satisfy this; TRUE for all.",
    ),
]
InsertOption = Annotated[
    str | None,
    typer.Option("--when-not-matched-insert", metavar="c=expr,…|*", help="Insert source rows that met no row."),
]
BySourceUpdateOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-update", metavar="c=expr,…", help="New values for rows that met no source row."
    ),
]
BySourceDeleteOption = Annotated[
    str | None,
    typer.Option(
        "--when-not-matched-by-source-delete",
        metavar="COND",
        help="Delete rows that met no source row and satisfy this; TRUE for all.",
    ),
]


def merge(
    table: ChangedTableArgument,
    source: SourceOption,
    on: OnOption,
    when_matched_update: MatchedUpdateOption = None,
    when_matched_delete: MatchedDeleteOption = None,
    when_not_matched_insert: InsertOption = None,
    when_not_matched_by_source_update: BySourceUpdateOption = None,
    when_not_matched_by_source_delete: BySourceDeleteOption = None,
    branch: BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    case_insensitive: CaseOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Merge files or another table into the table; a row that fits a delete condition is deleted, not updated.

    floeplan merge db.events --source new.parquet --on id --when-matched-update "*" --when-not-matched-insert "*"
    """
    target = writable_table(table, catalog)
    inserts = [] if when_not_matched_insert is None else [Clause(InsertRow(_values(when_not_matched_insert, "insert")))]
    statement = Merge(
        TableName(target.name()),
        _relation(source),
        on,
        _clauses(when_matched_delete, when_matched_update),
        tuple(inserts),
        _clauses(when_not_matched_by_source_delete, when_not_matched_by_source_update),
    )
    if not (statement.matched or statement.not_matched or statement.not_matched_by_source):
        raise InvalidOptionError("merge needs at least one --when-… option; see 'floeplan merge --help'")
    options = statement_options(catalog, branch, mode, isolation, case_sensitive=not case_insensitive)
    with sign_of_life("merging"):
        result = run_statement(statement, target, spark_for(spark), options)
    show(result, draw_result, as_json=json)


def _clauses(delete: str | None, update: str | None) -> tuple[Clause, ...]:
    deletes = [] if delete is None else [Clause(DeleteRow(), delete)]
    return (*deletes, *([] if update is None else [Clause(UpdateRow(_values(update, "update")))]))


def _values(text: str, what: str) -> tuple[Assignment, ...] | None:
    """Assignments, or ``None`` for ``*``."""
    return None if text.strip() == "*" else parse_assignments(text, what)


def _relation(source: str) -> Relation:
    if "/" in source or source.endswith(".parquet") or Path(source).exists():
        return Relation(("parquet", source))
    return Relation(tuple(source.split(".")))


# `floeplan sql`: one statement that changes a table, in Spark's dialect.


StatementArgument = Annotated[
    str,
    typer.Argument(
        metavar="STATEMENT",
        help="INSERT, DELETE, UPDATE, MERGE, or ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD.",
    ),
]


def sql(
    statement: StatementArgument,
    branch: BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Run one statement.

    floeplan sql "ALTER TABLE db.events REPLACE PARTITION FIELD ts_day WITH hours(ts)"
    """
    options = statement_options(catalog, branch, mode, isolation)
    with sign_of_life("running"):
        result = run_text(statement, spark_for(spark), options)
    show(result, draw_result, as_json=json)


# What a delete or update would do, from the same plan that it would be made with.
#
# Fail-safe: options, columns and types are checked as they would be, so a dry run refuses what the change would refuse;
# rows that must be read are counted as such, and never guessed at.


def dry_delete(table: Table, where: str, options: StatementOptions) -> DryRun:
    """What deleting would do."""
    target = _target(table, Command.DELETE, options)
    plan = plan_rows(target, where, None, options.case_sensitive)
    outcome = Outcome()
    proven = drop_proven(plan.files, outcome)
    return _dry_run(target, plan, proven, outcome.rows_deleted)


def dry_update(statement: Update, table: Table, options: StatementOptions) -> DryRun:
    """What updating would do; a file of which every row changes must be read all the same."""
    target = _target(table, Command.UPDATE, options)
    compile_assignments(
        assigned_texts(statement.assignments), target.schema, Names(target.schema, options.case_sensitive)
    )
    plan = plan_rows(
        target, None if statement.where is None else planned(statement.where), None, options.case_sensitive
    )
    return _dry_run(target, plan, np.zeros(len(plan.files), dtype=np.bool_), 0)


def _target(table: Table, command: Command, options: StatementOptions) -> DmlTarget:
    return resolve(table, command, branch=options.branch, mode=options.mode, isolation=options.isolation)


def _dry_run(target: DmlTarget, plan: ScanPlan, proven: Mask, rows: int) -> DryRun:
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=int(proven.sum()),
        rows_by_metadata=rows,
        files_to_read=int((~proven).sum()),
        rows_to_read=int(entries.record_count[~proven].sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes")[~proven].sum()),
    )


# `floeplan delete`: rows that match go, whole files by metadata alone.


DeletedWhereOption = Annotated[
    str, typer.Option("--where", metavar="EXPR", help="A Spark-SQL boolean expression; TRUE deletes every row.")
]


def delete(
    table: ChangedTableArgument,
    where: DeletedWhereOption,
    branch: BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    dry_run: DryRunOption = False,
    case_insensitive: CaseOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the rows that match.

    floeplan delete db.events --where "ts < TIMESTAMP '2024-01-01'" --dry-run
    """
    target = writable_table(table, catalog)
    options = statement_options(catalog, branch, mode, isolation, case_sensitive=not case_insensitive)
    if dry_run:
        show(dry_delete(target, where, options), draw_result, as_json=json)
        return
    statement = Delete(TableName(target.name()), where)
    with sign_of_life("deleting"):
        result = run_statement(statement, target, spark_for(spark), options)
    show(result, draw_result, as_json=json)


# `floeplan update`: rows that match get new values.


SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="COLUMN=EXPR", help="A column and its new value; may be repeated."),
]
UpdatedWhereOption = Annotated[
    str, typer.Option("--where", metavar="EXPR", help="A Spark-SQL boolean expression; TRUE changes every row.")
]


def update(
    table: ChangedTableArgument,
    set_: SetOption,
    where: UpdatedWhereOption,
    branch: BranchOption = None,
    mode: ModeOption = None,
    isolation: IsolationOption = None,
    dry_run: DryRunOption = False,
    case_insensitive: CaseOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Give the rows that match new values.

    floeplan update db.events --set "v = v * 2" --set "region = 'eu'" --where "id = 7"
    """
    assignments = parse_assignments(", ".join(set_), "--set")
    target = writable_table(table, catalog)
    options = statement_options(catalog, branch, mode, isolation, case_sensitive=not case_insensitive)
    statement = Update(TableName(target.name()), assignments, where)
    if dry_run:
        show(dry_update(statement, target, options), draw_result, as_json=json)
        return
    with sign_of_life("updating"):
        result = run_statement(statement, target, spark_for(spark), options)
    show(result, draw_result, as_json=json)
