"""What the commands that change tables share: their options, a sign of life, and how a result is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pyiceberg.table import StaticTable, Table
from rich.console import Console, Group, RenderableType
from rich.table import Table as Drawing
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.dml.result import DmlResult
from floeplan.errors import BadInputError
from floeplan.sql_text.run import StatementOptions, StatementResult
from floeplan.sql_text.session import SparkOnDemand
from floeplan.text import counted, human_bytes, human_count
from floeplan.transaction.evolve_spec import EvolveResult

LOCAL_SPARK = "local[*]"
ChangedTableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="namespace.name of the table to change.")]
BranchOption = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="The branch to change.")]
ModeOption = Annotated[
    str | None,
    typer.Option("--mode", metavar="MODE", help="copy-on-write or merge-on-read; as the table says by default."),
]
IsolationOption = Annotated[
    str | None,
    typer.Option("--isolation", metavar="LEVEL", help="serializable or snapshot; as the table says by default."),
]
SparkOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="URL",
        envvar="FLOEPLAN_SPARK",
        help="Work on this Spark session; by default local[*], and only for what Arrow cannot do.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be dropped and what would be read; change nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without this only say what would be done.")]
TrustListsOption = Annotated[
    bool,
    typer.Option("--trust-lists", help="Go on where a manifest list has fewer files than its snapshot counts."),
]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a change would do, as far as metadata tell.

    Attributes:
        operation: The command.
        mode: How rows would be changed.
        files_total: Data files of the branch.
        files_by_metadata: Files that would go without being opened, and the rows in them.
        files_to_read: Files in which rows would be looked for, and their bytes and rows.
    """

    operation: str
    mode: str
    files_total: int | None
    files_by_metadata: int
    rows_by_metadata: int
    files_to_read: int
    rows_to_read: int
    bytes_to_read: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"dry_run": True} | {name: getattr(self, name) for name in self.__slots__}


def writable_table(name: str, catalog: str | None) -> Table:
    """The table of a name, which must be one of a catalog."""
    table = load_table(name, catalog)
    if isinstance(table, StaticTable):
        raise BadInputError(
            f"{name} was opened by its metadata file, which is read-only; name the table as namespace.name",
            context={"table": name},
        )
    return table


def spark_for(url: str | None) -> SparkOnDemand:
    """The session that was asked for, opened at once; otherwise a local one when something needs it."""
    spark = SparkOnDemand(url=url or LOCAL_SPARK)
    if url is not None:
        spark.needed("--spark")
    return spark


def statement_options(
    catalog: str | None, branch: str | None, mode: str | None, isolation: str | None, *, case_sensitive: bool = False
) -> StatementOptions:
    """What the options of a command say about its statement."""
    return StatementOptions(catalog, branch, mode, isolation, case_sensitive)


@contextmanager
def sign_of_life(doing: str) -> Iterator[None]:
    """A spinner while something is done, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(doing):
        yield


def draw_result(result: StatementResult | DryRun) -> RenderableType:
    """What was done, as a small table."""
    match result:
        case EvolveResult():
            return _draw_spec(result)
        case DryRun():
            return _draw_dry_run(result)
    return _draw_change(result)


def _draw_change(result: DmlResult) -> RenderableType:
    if not result.committed:
        return Text(f"{result.operation}: no row was changed, so nothing was committed")
    drawn = pairs()
    rows = {"deleted": result.rows_deleted, "updated": result.rows_updated, "inserted": result.rows_inserted}
    drawn.add_row("rows", ", ".join(f"{human_count(n)} {what}" for what, n in rows.items() if n) or "none")
    drawn.add_row("data files", _added_removed(result.data_files_added, result.data_files_removed))
    drawn.add_row("delete files", _added_removed(result.delete_files_added, result.delete_files_removed))
    for one in result.manifests_written:
        drawn.add_row("manifest", f"spec {one.spec_id}, {one.content}, {counted(one.entries, 'file')}")
    drawn.add_row("snapshot", f"{result.snapshot_id}, after {counted(result.attempts, 'attempt')}")
    how = "" if result.operation == "append" else f" ({result.mode})"
    return Group(Text(f"{result.operation}{how}", style="bold"), drawn)


def _draw_spec(result: EvolveResult) -> RenderableType:
    drawn = pairs()
    for one in result.spec.fields:
        source = result.table.schema().find_column_name(one.source_id) or f"column {one.source_id}, which was dropped"
        drawn.add_row(one.name, f"{one.transform} of {source} (field {one.field_id})")
    what = "new" if result.is_new else "known before"
    title = f"spec {result.spec.spec_id} ({what}{', default' if result.is_default else ''})"
    return Group(Text(title, style="bold"), drawn if result.spec.fields else Text("unpartitioned"))


def _draw_dry_run(result: DryRun) -> RenderableType:
    drawn = pairs()
    drawn.add_row(
        "by metadata", f"{counted(result.files_by_metadata, 'file')}, {counted(result.rows_by_metadata, 'row')}"
    )
    read = f"{counted(result.files_to_read, 'file')}, {counted(result.rows_to_read, 'row')}"
    drawn.add_row("to be read", f"{read}, {human_bytes(result.bytes_to_read)}")
    drawn.add_row("of", "unknown" if result.files_total is None else counted(result.files_total, "file"))
    return Group(Text(f"{result.operation} ({result.mode}), nothing was changed", style="bold"), drawn)


def _added_removed(added: int, removed: int) -> str:
    return f"{human_count(added)} added, {human_count(removed)} removed"


def pairs() -> Drawing:
    """A table of names and what they are."""
    drawn = Drawing(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim")
    drawn.add_column()
    return drawn
