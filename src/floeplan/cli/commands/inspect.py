"""``floeplan inspect`` summarizes a table; ``floeplan entries`` writes its manifest entries as Parquet files."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.text import counted, human_bytes, percent

if TYPE_CHECKING:
    from floeplan.maintenance.inspect import Inspection
    from floeplan.metadata.root_writer import RootSummary
    from floeplan.metadata.v4.convert import TreeSummary
    from floeplan.metadata.v4.to_manifests import ManifestsSummary

BAR = 24
MOST_SNAPSHOTS = 8
DEPRECATED = (
    "floeplan: warning: the layout of one file is deprecated, and plan --root reads it until the next release; "
    "-o FOLDER writes a metadata tree"
)


class EntriesLayout(StrEnum):
    """What ``entries`` writes."""

    FILE = "file"
    V3 = "v3"
    V4 = "v4"


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
    from floeplan.maintenance.inspect import inspect_table

    with common.spinner("reading manifests"):
        result = inspect_table(load_table(table, catalog), branch=branch or "main")
    common.show(result, draw_inspection, as_json=json)


def draw_inspection(result: Inspection) -> RenderableType:
    """Render a table from its specs down to file sizes."""
    title = Text(f"{result.table}  format {result.format_version}", style="bold")
    return Group(title, Text(result.location, style="dim"), draw_specs(result), _sizes(result), _snapshots(result))


def draw_specs(result: Inspection) -> RenderableType:
    """Render the files, rows and bytes of each spec."""
    numbers = (">files", ">partitions", ">manifests", ">rows", ">bytes", ">share")
    drawn = common.header_table("spec", "partitioned by", *numbers)
    found = {files.spec_id: files for files in result.files_by_spec}
    whole = sum(files.bytes for files in result.files_by_spec)
    for spec in result.specs:
        files = found.get(spec["spec_id"])
        mark = f"{spec['spec_id']} *" if spec["default"] else str(spec["spec_id"])
        if files is None:
            drawn.add_row(mark, spec["spec"], "–", "–", "–", "–", "–", "")
            continue
        counts = (f"{number:,}" for number in (files.files, files.partitions, files.manifests, files.rows))
        share = Text(percent(files.bytes, whole), style="green" if spec["default"] else "yellow")
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
    # A plan counts them, too: the snapshot of a rewrite lists the manifests from which it removed all files.
    without = sizes["data_manifests"] + sizes["delete_manifests"] - sizes["manifests"]
    others = f"; {without:,} more without live files" if without else ""
    drawn.add_row("manifests", f"{sizes['manifests']:,}, {human_bytes(sizes['manifest_bytes'])}{others}")
    columns = next(len(schema["columns"]) for schema in result.schemas if schema["current"])
    drawn.add_row("schemas", f"{len(result.schemas):,}; the current one has {counted(columns, 'column')}")
    return drawn


def _snapshots(result: Inspection) -> RenderableType:
    drawn = common.header_table("snapshot", "committed (UTC)", "operation", "changes")
    changes = ("added-data-files", "deleted-data-files", "added-delete-files")
    names = {ref["snapshot_id"]: name for name, ref in result.refs.items()}
    for snapshot in result.snapshots[:MOST_SNAPSHOTS]:
        committed = datetime.fromtimestamp(snapshot["timestamp_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        label = Text(str(snapshot["snapshot_id"]))
        label.append(f" {names.get(snapshot['snapshot_id'], '')}".rstrip(), style="green")
        changed = ", ".join(common.summary_changes(snapshot["summary"], changes))
        drawn.add_row(label, committed, snapshot["operation"] or "–", changed)
    more = len(result.snapshots) - MOST_SNAPSHOTS
    return drawn if more <= 0 else Group(drawn, Text(f"and {counted(more, 'older snapshot')}", style="dim"))


def _bar(part: int, whole: int) -> str:
    """A bar that is empty only for zero and full only for the whole."""
    if not part or not whole:
        return ""
    return "█" * min(BAR if part == whole else BAR - 1, max(1, round(BAR * part / whole)))


OutputOption = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="The folder to write to, or FILE.parquet for the layout 'file'.",
    ),
]
LayoutOption = Annotated[
    EntriesLayout | None,
    typer.Option(
        "--layout",
        help="v4: a metadata tree of the Iceberg v4 draft (default). v3: manifests from such a tree. "
        "file: one file (default for FILE.parquet; deprecated).",
    ),
]
LeafOption = Annotated[
    int | None,
    typer.Option(
        "--leaf-entries",
        metavar="N",
        min=0,
        help="v4: files per leaf (default 10000); 0 puts all in the root.",
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep-manifests", help="v4: refer to the table's manifests instead of writing leaves.")
]
TreeRootOption = Annotated[
    str | None, typer.Option("--root", metavar="FILE", help="v3: the root of the tree to write manifests from.")
]


def entries(
    table: common.TableArgument,
    output: OutputOption,
    layout: LayoutOption = None,
    leaf_entries: LeafOption = None,
    keep_manifests: KeepOption = False,
    root: TreeRootOption = None,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Write the manifest entries of a snapshot as Parquet files. They have the entries of all partition specs.

    The files are a metadata tree of the Iceberg v4 draft (experimental): a root manifest and leaves in a folder.
    With --layout v3 --root FILE such a tree is written back as a manifest list and manifests.
    With -o FILE.parquet all entries go to one file in Floeplan's earlier layout, which is deprecated.

    floeplan entries db.events -o tree
    """
    from floeplan.catalog import load_table
    from floeplan.errors import BadInputError
    from floeplan.snapshot.reader import resolve_target

    if layout is None:
        layout = EntriesLayout.FILE if output.endswith(".parquet") else EntriesLayout.V4
    if (leaf_entries is not None or keep_manifests) and layout is not EntriesLayout.V4:
        raise BadInputError("--leaf-entries and --keep-manifests need --layout v4, which writes to a folder")
    if (root is None) == (layout is EntriesLayout.V3):
        raise BadInputError("--layout v3 needs --root FILE, the root of a metadata tree, and --root needs --layout v3")
    is_file, path = layout is EntriesLayout.FILE, Path(output)
    if path.is_dir() if is_file else path.is_file():
        found, expected = ("folder", "file") if is_file else ("file", "folder")
        raise BadInputError(f"-o {output} is a {found}, and a {expected} is expected", context={"option": "-o"})
    target = resolve_target(load_table(table, catalog), snapshot_id=snapshot_id, ref=ref)
    if root is not None:
        from floeplan.metadata.root import open_root
        from floeplan.metadata.v4.to_manifests import write_manifests
        from floeplan.metadata.v4.tree import MetadataTree

        tree = open_root(root, target.table.metadata, target.table.io)
        if not isinstance(tree, MetadataTree):
            raise BadInputError(f"{root} is not a metadata tree but one file of entries: write a tree with --layout v4")
        back = write_manifests(target.table, tree, output, target.snapshot, io=target.table.io)
        common.show(back, draw_manifests, as_json=json)
        return
    if layout is EntriesLayout.V4:
        from floeplan.metadata.v4.convert import LEAF_ENTRIES, write_tree

        result = write_tree(
            target.table,
            output,
            target.snapshot,
            leaf_entries=LEAF_ENTRIES if leaf_entries is None else leaf_entries,
            keep_manifests=keep_manifests,
            io=target.table.io,
        )
        common.show(result, draw_tree, as_json=json)
        return
    from floeplan.metadata.root_writer import write_root

    summary = write_root(target.table, output, target.snapshot, io=target.table.io)
    print(DEPRECATED, file=sys.stderr)  # noqa: T201
    common.show(summary, draw_root, as_json=json)


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


def draw_tree(summary: TreeSummary) -> RenderableType:
    """Render what was written."""
    lines = {
        "profile": f"{summary.profile}, experimental",
        "snapshot": "none, the table is empty" if summary.snapshot_id is None else str(summary.snapshot_id),
        "entries": f"{counted(summary.entries, 'file')}, {counted(summary.vectors, 'deletion vector')}",
        "leaves": counted(len(summary.leaves), "manifest"),
        "omitted": "; ".join(summary.lost) or "nothing",
    }
    title = Text(f"{summary.root}  {human_bytes(summary.bytes)}", style="bold")
    return Group(title, *(Text(f"  {label:<11}{value}") for label, value in lines.items()))


def draw_manifests(summary: ManifestsSummary) -> RenderableType:
    """Render what was written."""
    lines = {
        "snapshot": str(summary.snapshot_id),
        "format": str(summary.format_version),
        "entries": counted(summary.entries, "file"),
        "manifests": f"{len(summary.manifests):,}",
        "omitted": "; ".join(summary.lost) or "nothing",
    }
    title = Text(f"{summary.manifest_list}  {human_bytes(summary.bytes)}", style="bold")
    return Group(title, *(Text(f"  {label:<11}{value}") for label, value in lines.items()))
