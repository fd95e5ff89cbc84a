"""`floeplan merge`: rows of a file or table are joined with the table, and update, delete or become rows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from floeplan.cli.changes import (
    BranchOption,
    ChangedTableArgument,
    IsolationOption,
    ModeOption,
    SparkOption,
    draw_result,
    sign_of_life,
    spark_for,
    statement_options,
    writable_table,
)
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.cli.scan_options import CaseOption
from floeplan.errors import InvalidOptionError
from floeplan.sql_text.parse_names import parse_assignments
from floeplan.sql_text.run import run_statement
from floeplan.sql_text.statements import Assignment, Clause, DeleteRow, InsertRow, Merge, Relation, TableName, UpdateRow

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
