"""`floeplan doctor`: what is wrong with a table, and mending it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.changes import BranchOption, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.maintain.doctor import DoctorResult, Finding, Severity
from floeplan.maintain.doctor import doctor as examine
from floeplan.text import counted

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def doctor(
    table: TableArgument,
    repair: Annotated[bool, typer.Option("--repair", help="File stray deletes where their data files are.")] = False,
    branch: BranchOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Look for faults that metadata tell of; exit 1 when one of them is an error.

    floeplan doctor db.events
    """
    loaded = writable_table(table, catalog) if repair else load_table(table, catalog)
    with sign_of_life("looking at the table"):
        result = examine(loaded, repair=repair, branch=branch or "main")
    show(result, draw_findings, as_json=json)
    if not result.healthy:
        raise typer.Exit(1)


def draw_findings(result: DoctorResult) -> RenderableType:
    """The findings, worst first."""
    parts: list[RenderableType] = []
    if result.repaired is not None:
        done = f"snapshot {result.repaired.snapshot_id}" if result.repaired.snapshot_id else "nothing to mend"
        parts.append(Text(f"{counted(result.repaired.delete_files, 'delete file')} filed anew: {done}", style="bold"))
    worst_first = sorted(result.findings, key=lambda finding: list(Severity).index(finding.severity))
    parts += [_line(finding) for finding in worst_first]
    return Group(*parts) if result.findings else Group(*parts, Text("nothing is wrong with it", style="green"))


def _line(finding: Finding) -> Text:
    where = "" if finding.spec_id is None else f" (spec {finding.spec_id})"
    line = Text(f"{finding.severity.value:<8}", style=_STYLES[finding.severity])
    return line.append(f"{finding.kind}{where}: {finding.message}", style="default")
