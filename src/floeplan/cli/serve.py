"""`floeplan serve`: the explorer on this machine, planning as one types."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from typing import Annotated

import typer

from floeplan.catalog import load_table
from floeplan.cli.changes import SparkOption, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, print_json, text_console
from floeplan.cli.report import ReportsOption
from floeplan.errors import InvalidOptionError
from floeplan.explorer.audit import audit_reports, check_reports
from floeplan.explorer.server import ExplorerServer
from floeplan.explorer.service import ExplorerService

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
            print_json({"url": server.url, "allow_writes": allow_writes, "tables": service.tables()})
        else:
            text_console().print(f"{server.url}  (Ctrl-C ends it)")
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
