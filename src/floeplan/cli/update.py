"""`floeplan update`: rows that match get new values."""

from __future__ import annotations

from typing import Annotated

import typer

from floeplan.cli.changes import (
    BranchOption,
    ChangedTableArgument,
    DryRunOption,
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
from floeplan.cli.dry_run import dry_update
from floeplan.cli.scan_options import CaseOption
from floeplan.sql_text.parse_names import parse_assignments
from floeplan.sql_text.run import run_statement
from floeplan.sql_text.statements import TableName, Update

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
