"""``floeplan inspect`` summarizes a table; ``floeplan entries`` writes its manifest entries to one Parquet file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.text import counted, human_bytes, percent

if TYPE_CHECKING:
    from floeplan.maintain.inspect import Inspection
    from floeplan.metadata.root_writer import RootSummary

BAR = 24
MOST_SNAPSHOTS = 8


def inspect(
    table: common.TableArgument,
    branch: common.BranchOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Show partition specs, schemas, snapshots, files by spec, delete files and sizes.

    floeplan inspect db.events
    """
    from floeplan.catalog import load_table
    from floeplan.maintain.inspect import inspect_table

    with common.spinner("reading manifests"):
        result = inspect_table(load_table(table, catalog), branch=branch or "main")
    common.show(result, draw_inspection, as_json=json)


def draw_inspection(result: Inspection) -> RenderableType:
    """Render a table from its specs down to file sizes."""
    title = Text(f"{result.table}  format {result.format_version}", style="bold")
    return Group(title, Text(result.location, style="dim"), draw_specs(result), _sizes(result), _snapshots(result))


def draw_specs(result: Inspection) -> RenderableType:
    """Render the files, rows and bytes of each spec."""
    numbers = (">files", ">partitions", ">manifests", ">rows", ">bytes")
    drawn = common.header_table("spec", "partitioned by", *numbers, "of bytes")
    found = {files.spec_id: files for files in result.files_by_spec}
    whole = sum(files.bytes for files in result.files_by_spec)
    for spec in result.specs:
        files = found.get(spec["spec_id"])
        mark = f"{spec['spec_id']} *" if spec["default"] else str(spec["spec_id"])
        if files is None:
            drawn.add_row(mark, spec["spec"], "–", "–", "–", "–", "–", "")
            continue
        counts = (f"{number:,}" for number in (files.files, files.partitions, files.manifests, files.rows))
        share = Text(_bar(files.bytes, whole), style="green" if spec["default"] else "yellow")
        share.append(f" {percent(files.bytes, whole)}", style="dim")
        drawn.add_row(mark, spec["spec"], *counts, human_bytes(files.bytes), share)
    return drawn


def _sizes(result: Inspection) -> RenderableType:
    drawn = common.key_value_table()
    sizes, deletes = result.sizes, result.delete_files
    middle = ", ".join(f"{name} {human_bytes(sizes[name])}" for name in ("smallest", "median", "largest"))
    drawn.add_row("data", f"{human_bytes(sizes['data_bytes'])}; {middle}")
    most = max((one["files"] for one in sizes["histogram"]), default=0)
    for one in sizes["histogram"]:
        bar = Text(_bar(one["files"], most), style="cyan")
        drawn.add_row(f"≤ {human_bytes(one['up_to_bytes'])}", bar.append(f" {one['files']:,}", style="dim"))
    kinds = ", ".join(f"{deletes[kind]:,} {kind}" for kind in ("position", "vectors", "equality") if deletes[kind])
    size = f"({human_bytes(sizes['delete_bytes'])}, {counted(deletes['rows'], 'row')})"
    drawn.add_row("deletes", f"{kinds} {size}" if kinds else "none")
    drawn.add_row("manifests", f"{sizes['manifests']:,}, {human_bytes(sizes['manifest_bytes'])}")
    columns = next(len(schema["columns"]) for schema in result.schemas if schema["current"])
    drawn.add_row("schemas", f"{len(result.schemas):,}; the current one has {counted(columns, 'column')}")
    return drawn


def _snapshots(result: Inspection) -> RenderableType:
    drawn = common.header_table("snapshot", "committed", "operation", "changes")
    changes = {"added-data-files": "+{} files", "deleted-data-files": "-{} files", "added-delete-files": "+{} deletes"}
    names = {ref["snapshot_id"]: name for name, ref in result.refs.items()}
    for snapshot in result.snapshots[:MOST_SNAPSHOTS]:
        committed = datetime.fromtimestamp(snapshot["timestamp_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        label = Text(str(snapshot["snapshot_id"]))
        label.append(f" {names.get(snapshot['snapshot_id'], '')}".rstrip(), style="green")
        summary = snapshot["summary"]
        changed = ", ".join(text.format(summary[name]) for name, text in changes.items() if name in summary)
        drawn.add_row(label, committed, snapshot["operation"] or "–", changed)
    more = len(result.snapshots) - MOST_SNAPSHOTS
    return drawn if more <= 0 else Group(drawn, Text(f"and {counted(more, 'older snapshot')}", style="dim"))


def _bar(part: int, whole: int) -> str:
    """A bar that is empty only for zero and full only for the whole."""
    if not part or not whole:
        return ""
    return "█" * min(BAR if part == whole else BAR - 1, max(1, round(BAR * part / whole)))


OutputOption = Annotated[
    str, typer.Option("-o", "--output", metavar="FILE.parquet", help="The file to write; an existing one is replaced.")
]


def entries(
    table: common.TableArgument,
    output: OutputOption,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Write the manifest entries of a snapshot to one Parquet file. It has the entries of all partition specs.

    floeplan entries db.events -o root.parquet
    """
    from floeplan.catalog import load_table
    from floeplan.metadata.root_writer import write_root
    from floeplan.snapshot.reader import resolve_target

    target = resolve_target(load_table(table, catalog), snapshot_id=snapshot_id, ref=ref)
    common.show(write_root(target.table, output, target.snapshot, io=target.table.io), draw_root, as_json=json)


def draw_root(summary: RootSummary) -> RenderableType:
    """Render what the file contains."""
    lines = {
        "snapshot": "none, the table is empty" if summary.snapshot_id is None else str(summary.snapshot_id),
        "entries": f"{counted(summary.data_files, 'data file')}, {counted(summary.delete_files, 'delete file')}",
        "specs": ", ".join(map(str, summary.specs)) or "none",
        "partition": ", ".join(summary.partition_fields) or "none",
        "row groups": f"{summary.row_groups:,}, each of one spec",
    }
    title = Text(f"{summary.location}  {human_bytes(summary.bytes)}", style="bold")
    return Group(title, *(Text(f"  {label:<11}{value}") for label, value in lines.items()))
