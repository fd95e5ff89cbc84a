"""``floeplan report`` writes the explorer as static files; ``floeplan serve`` serves it on 127.0.0.1."""

from __future__ import annotations

import secrets
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.errors import InvalidOptionError
from floeplan.text import counted, human_bytes

if TYPE_CHECKING:
    from floeplan.explorer.site import SiteReport

DEFAULT_PORT, DEFAULT_HOST = 8765, "127.0.0.1"

OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write to.")]
WheresOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="EXPR", help="A predicate to plan; repeatable.", autocompletion=completion.conditions
    ),
]
ReportsOption = Annotated[
    str | None, typer.Option("--reports", metavar="DIR|TABLE", help="Also audit these scan reports, on Spark.")
]


def report(
    table: common.TableArgument,
    output: OutputOption,
    where: WheresOption = None,
    reports: ReportsOption = None,
    spark: common.SparkJobOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Write a static site with the map, history, plans and health of a table.

    floeplan report db.events -o site --where "region = 'eu'" --where "ts >= '2024-03-01'"
    """
    from floeplan.catalog import load_table
    from floeplan.explorer.server import audit_reports
    from floeplan.explorer.site import write_report

    loaded = load_table(table, catalog)
    with common.spinner("writing the report"):
        audit = None if reports is None else audit_reports(reports, spark, catalog, ".".join(loaded.name()))
        result = write_report(loaded, output, where or (), audit=audit)
    common.show(result, draw_report, as_json=json)


def draw_report(result: SiteReport) -> RenderableType:
    """Render the location of the report."""
    what = f"{counted(result.files, 'file')}, {counted(result.plans, 'plan')}, {human_bytes(result.bytes)} of data"
    return Group(Text(result.path, style="bold"), Text(f"{result.table}: {what}; open it in a browser"))


def serve(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="The table to serve; by default all tables of the catalog.",
            autocompletion=completion.tables,
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port; 0 picks a free one.")] = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Listen on another address; then every page needs a token."),
    ] = DEFAULT_HOST,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="Allow rewrites and spec upgrades from the pages, after a confirmation."),
    ] = False,
    reports: ReportsOption = None,
    spark: common.SparkJobOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Serve the explorer on 127.0.0.1 until interrupted.

    floeplan serve db.events --open
    """
    from floeplan.audit.reports import check_reports
    from floeplan.catalog import load_table
    from floeplan.explorer.server import ExplorerServer, ExplorerService, audit_reports

    if not 0 <= port <= 65535:
        raise InvalidOptionError(f"--port is {port} but must be between 0 and 65535", context={"option": "--port"})
    if table is not None:
        (common.writable_table if allow_writes else load_table)(table, catalog)
    if reports is not None:
        check_reports(reports, catalog)
    audit = None if reports is None else partial(audit_reports, reports, spark, catalog)
    service = ExplorerService(table, catalog, allow_writes, audit, secrets.token_urlsafe(32))
    try:
        server = ExplorerServer(service, port, host)
    except OSError as error:
        raise InvalidOptionError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another address with --host, or another "
            "port with --port (0 picks a free one)",
            context={"option": "--port", "value": port, "host": host},
        ) from error
    if not server.is_local:
        print(  # noqa: T201
            f"floeplan: warning: other machines can reach {server.url} over unencrypted HTTP; whoever has the URL with "
            f"its token sees the tables{' and can change them' if allow_writes else ''}",
            file=sys.stderr,
        )
    with server:
        if json:
            common.print_json({"url": server.page_url, "allow_writes": allow_writes, "tables": service.tables()})
        else:
            common.text_console().print(f"{server.page_url}  (press Ctrl-C to stop)")
        sys.stdout.flush()
        try:
            if open_:
                webbrowser.open(server.page_url)
            server.serve_forever()
        except KeyboardInterrupt:
            return
