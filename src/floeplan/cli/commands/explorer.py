"""`floeplan report`: the explorer of a table as files that open without a server."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.common import (
    CatalogOption,
    JsonOption,
    SparkOption,
    TableArgument,
    print_json,
    show,
    spinner,
    text_console,
    writable_table,
)
from floeplan.errors import InvalidOptionError
from floeplan.explorer.server import ExplorerServer
from floeplan.explorer.service import ExplorerService, audit_reports, check_reports
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
    with spinner("writing the report"):
        audit = None if reports is None else audit_reports(reports, spark, catalog)
        result = write_report(loaded, output, where or (), audit=audit)
    show(result, draw_report, as_json=json)


def draw_report(result: SiteReport) -> RenderableType:
    """Where the report is."""
    what = f"{counted(result.files, 'file')}, {counted(result.plans, 'plan')}, {human_bytes(result.bytes)} of data"
    return Group(Text(result.path, style="bold"), Text(f"{result.table}: {what}; open it in a browser"))


# `floeplan serve`: the explorer on this machine, planning as one types.


DEFAULT_PORT = 8765


def serve(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="The table to serve; all of the catalog's by default.")
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port on 127.0.0.1; 0 for any.")] = DEFAULT_PORT,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let pages rewrite files and upgrade specs, after a confirmation.")
    ] = False,
    reports: ReportsOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the explorer on 127.0.0.1 until it is interrupted.

    floeplan serve db.events --port 8765
    """
    if table is not None:
        (writable_table if allow_writes else load_table)(table, catalog)
    if reports is not None:
        check_reports(reports, catalog)
    audit = None if reports is None else partial(audit_reports, reports, spark, catalog)
    service = ExplorerService(table, catalog, allow_writes, audit, secrets.token_urlsafe(32))
    with _listening(service, port) as server:
        if json:
            print_json({"url": server.page_url, "allow_writes": allow_writes, "tables": service.tables()})
        else:
            text_console().print(f"{server.page_url}  (press Ctrl-C to stop)")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _listening(service: ExplorerService, port: int) -> ExplorerServer:
    if not 0 <= port <= 65535:
        raise InvalidOptionError(f"--port is {port} but must be between 0 and 65535", context={"option": "--port"})
    try:
        return ExplorerServer(service, port)
    except OSError as error:
        raise InvalidOptionError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port, or 0 for any",
            context={"option": "--port"},
        ) from error
