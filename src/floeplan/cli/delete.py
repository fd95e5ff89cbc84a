"""`floeplan delete`: rows that match go, whole files by metadata alone."""

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
from floeplan.cli.dry_run import dry_delete
from floeplan.cli.scan_options import CaseOption
from floeplan.sql_text.run import run_statement
from floeplan.sql_text.statements import Delete, TableName

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
