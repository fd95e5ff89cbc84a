"""`floeplan entries`: a whole snapshot, data and delete files of all specs, as one columnar root manifest."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.cli.scan_options import RefOption, SnapshotOption
from floeplan.metadata.root import RootSummary, write_root
from floeplan.scan.target import resolve_target
from floeplan.text import human_bytes, human_count

OutputOption = Annotated[
    str,
    typer.Option("-o", "--output", metavar="FILE.parquet", help="Where to write; a file that is there is replaced."),
]


def entries(
    table: TableArgument,
    output: OutputOption,
    snapshot_id: SnapshotOption = None,
    ref: RefOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Write the entries of all manifests of a snapshot, whatever their spec, into one Parquet file.

    floeplan entries db.events -o root.parquet
    """
    target = resolve_target(load_table(table, catalog), snapshot_id=snapshot_id, ref=ref)
    show(write_root(target.table, output, target.snapshot, io=target.table.io), render, as_json=json)


def render(summary: RootSummary) -> RenderableType:
    """What the file holds, line by line."""
    lines = {
        "snapshot": "none, the table is empty" if summary.snapshot_id is None else str(summary.snapshot_id),
        "entries": f"{human_count(summary.data_files)} data files, {human_count(summary.delete_files)} delete files",
        "specs": ", ".join(map(str, summary.specs)) or "none",
        "partition": ", ".join(summary.partition_fields) or "none",
        "row groups": f"{human_count(summary.row_groups)}, each of one spec",
    }
    title = Text(f"{summary.location}  {human_bytes(summary.bytes)}", style="bold")
    return Group(title, *(Text(f"  {label:<11}{value}") for label, value in lines.items()))
