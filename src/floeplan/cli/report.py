"""`floeplan report`: the explorer of a table as files that open without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.changes import SparkOption, sign_of_life
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.explorer.audit import audit_reports
from floeplan.explorer.site import SiteReport, write_report
from floeplan.text import counted, human_bytes

OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write into.")]
WheresOption = Annotated[
    list[str] | None, typer.Option("--where", metavar="EXPR", help="A predicate to plan; may be given several times.")
]
ReportsOption = Annotated[
    str | None,
    typer.Option("--reports", metavar="DIR|TABLE", help="Audit these scan reports, on Spark, and show what it finds."),
]


def report(
    table: TableArgument,
    output: OutputOption,
    where: WheresOption = None,
    reports: ReportsOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Write a site about a table: its map, its history, plans of predicates, a rewrite's preview and its health.

    floeplan report db.events -o site --where "region = 'eu'" --where "ts >= '2024-03-01'"
    """
    loaded = load_table(table, catalog)
    with sign_of_life("writing the report"):
        audit = None if reports is None else audit_reports(reports, spark, catalog)
        result = write_report(loaded, output, where or (), audit=audit)
    show(result, draw_report, as_json=json)


def draw_report(result: SiteReport) -> RenderableType:
    """Where the report is."""
    what = f"{counted(result.files, 'file')}, {counted(result.plans, 'plan')}, {human_bytes(result.bytes)} of data"
    return Group(Text(result.path, style="bold"), Text(f"{result.table}: {what}; open it in a browser"))
