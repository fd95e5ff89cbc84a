"""What the commands share: their common options, and the two ways to show a result.

Rule: with `--json` stdout carries one JSON document and nothing else; progress, warnings and logs go to stderr.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa
import typer
from pyiceberg.table import StaticTable, Table
from rich.console import Console, Group, RenderableType
from rich.table import Table as Drawing
from rich.table import Table as RichTable
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.dml.outcome import DmlResult
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.redact import document_text, without_secrets
from floeplan.spark.session import SparkOnDemand
from floeplan.sql_text.run import StatementOptions, StatementResult
from floeplan.text import counted, human_bytes, human_count
from floeplan.transaction.evolve_spec import EvolveResult

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="namespace.name, or the path or URI of a *.metadata.json.")
]
WhereOption = Annotated[str | None, typer.Option("--where", metavar="EXPR", help="A Spark-SQL boolean expression.")]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="A catalog of PyIceberg's configuration; with none configured, the embedded default 'local'.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]

PIPE_WIDTH = 160
"""Columns of text that is not going to a terminal."""


class Result(Protocol):
    """Anything a command shows."""

    def to_dict(self) -> Mapping[str, Any]: ...


ResultT = TypeVar("ResultT", bound=Result)


def show(result: ResultT, render: Callable[[ResultT], RenderableType], *, as_json: bool) -> None:
    """Print a result: its document as JSON, or what `render` draws of it."""
    if as_json:
        print_json(result.to_dict())
        return
    console = text_console()
    with console.capture() as drawn:
        console.print(render(result))
    sys.stdout.write(without_secrets(drawn.get()))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document; NaN and values JSON does not know are errors, not guesses.

    Half characters, which a shell can hand over and no encoding knows, stay as the escapes JSON has for them.
    """
    sys.stdout.write(document_text(document).encode("utf-8", "backslashreplace").decode() + "\n")


def text_console() -> Console:
    """Return a console on stdout that takes text literally: no markup, no highlighting of what looks like a number."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


# What the commands that change tables share: their options, a sign of life, and how a result is shown.


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


# Rows for people and for JSON.


def rows_table(table: pa.Table, limit: int) -> RichTable:
    """The first rows, columns side by side."""
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in table.schema.names:
        drawn.add_column(Text(name), no_wrap=True, overflow="ellipsis", max_width=40)
    for row in zip(*(column.to_pylist() for column in table.slice(0, limit).columns), strict=True):
        drawn.add_row(*(Text("NULL", style="dim") if value is None else Text(str(value)) for value in row))
    return drawn


def json_rows(table: pa.Table, limit: int) -> list[dict[str, Any]]:
    """The first rows as JSON objects: what JSON has no form for becomes text."""
    return [{name: json_value(value) for name, value in row.items()} for row in table.slice(0, limit).to_pylist()]


def json_value(value: Any) -> Any:
    """A Python value as JSON: NaN and infinities, decimals, instants as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID() | timedelta():
            return str(value)
    return str(value)


# Options that reading commands share: which rows, which columns, which snapshot.


ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="a,b", help="Columns to read, nested ones by path; all by default.")
]
SnapshotOption = Annotated[int | None, typer.Option("--snapshot-id", metavar="N", help="The snapshot to read.")]
RefOption = Annotated[str | None, typer.Option("--ref", metavar="NAME", help="The branch or tag to read.")]
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="Read as of a time such as 2024-03-01T12:00:00 (UTC unless it says)."),
]
CaseOption = Annotated[
    bool, typer.Option("--case-insensitive", help="Let column names match whatever their capitals are.")
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Decode manifests anew, without the local cache.")]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Append no scan report to the report store.")]


def column_names(text: str | None) -> list[str] | None:
    """The names in a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def timestamp_ms(text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO time, taken as UTC when it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"--as-of {text!r} is no time; write it as 2024-03-01T12:00:00", context={"option": "--as-of"}
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
