"""`floeplan sql`: one statement that changes a table, in Spark's dialect."""

from __future__ import annotations

from typing import Annotated

import typer

from floeplan.cli.changes import (
    BranchOption,
    IsolationOption,
    ModeOption,
    SparkOption,
    draw_result,
    sign_of_life,
    spark_for,
    statement_options,
)
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.sql_text.run import run_text

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
