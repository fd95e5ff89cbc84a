"""`floeplan doctor`: what is wrong with a table, and mending it."""

from __future__ import annotations

from typing import Annotated

import typer
from pyiceberg.table import Table
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.audit.candidates import asked_columns
from floeplan.audit.workload import read_workload
from floeplan.catalog import load_table
from floeplan.cli.audit import ReportsOption
from floeplan.cli.changes import BranchOption, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.maintain.doctor import SAMPLED_FILES, DoctorResult, Finding, Severity
from floeplan.maintain.doctor import doctor as examine
from floeplan.text import counted

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def doctor(
    table: TableArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what metadata alone can mend: stray deletes and wrong summaries.")
    ] = False,
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=0, help="Compare rows of so many files with their partition."),
    ] = SAMPLED_FILES,
    reports: ReportsOption = None,
    branch: BranchOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Look for faults of a table, each with what helps; exit 1 when one of them is an error.

    floeplan doctor db.events --sample 100
    """
    loaded = writable_table(table, catalog) if repair else load_table(table, catalog)
    with sign_of_life("looking at the table"):
        filtered = () if reports is None else filtered_columns(loaded, reports, catalog)
        result = examine(loaded, repair=repair, branch=branch or "main", sample=sample, filtered=filtered)
    show(result, draw_findings, as_json=json)
    if not result.healthy:
        raise typer.Exit(1)


def filtered_columns(table: Table, reports: str, catalog: str | None) -> list[str]:
    """The columns that logged queries filter by."""
    name, schema = ".".join(table.name()), table.metadata.schema()
    asked = asked_columns(read_workload(reports, name, schema, catalog=catalog))
    return [".".join(column.path) for column in asked]


def draw_findings(result: DoctorResult) -> RenderableType:
    """The findings, worst first."""
    parts: list[RenderableType] = []
    if result.repaired is not None:
        done = f"snapshot {result.repaired.snapshot_id}" if result.repaired.snapshot_id else "nothing to mend"
        parts.append(Text(f"{counted(result.repaired.delete_files, 'delete file')} filed anew: {done}", style="bold"))
        if result.manifests_repaired:
            parts.append(Text(f"{counted(result.manifests_repaired, 'manifest')} written anew", style="bold"))
    worst_first = sorted(result.findings, key=lambda finding: list(Severity).index(finding.severity))
    parts += [_line(finding) for finding in worst_first]
    return Group(*parts) if result.findings else Group(*parts, Text("nothing is wrong with it", style="green"))


def _line(finding: Finding) -> Text:
    where = "" if finding.spec_id is None else f" (spec {finding.spec_id})"
    line = Text(f"{finding.severity.value:<8}", style=_STYLES[finding.severity])
    line.append(f"{finding.kind}{where}: {finding.message}", style="default")
    return line if finding.fix is None else line.append(f"\n        → {finding.fix}", style="cyan")
