"""Options, table loading and output shared by the commands.

Rule: with ``--json`` stdout carries one JSON document and nothing else; progress, warnings and logs go to stderr.

This module and those of the commands import rich and typer, which help needs, and nothing that imports PyIceberg,
pyarrow, NumPy or Spark: those are imported by the functions that run, so that help and completion do not wait for them.
"""

from __future__ import annotations

import base64
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_type_hints

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from floeplan.cli import completion
from floeplan.errors import InvalidOptionError
from floeplan.text import counted, document_text, parse_count, without_secrets
from floeplan.times import epoch_ms, is_age, time_before

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from floeplan.spark.session import SparkOnDemand

PIPE_WIDTH = 160
"""Line width when stdout is not a terminal."""
_UNLIMITED = 1_000_000
"""Line width to measure how wide rows are."""

# Options of all commands.

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="namespace.name, or the path of a *.metadata.json or table folder.",
        autocompletion=completion.tables,
    ),
]
ChangedTableArgument = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="The table to change, as namespace.name.", autocompletion=completion.tables),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="EXPR", help="A Spark-SQL boolean expression.", autocompletion=completion.conditions
    ),
]
RequiredWhereOption = Annotated[
    str,
    typer.Option(
        "--where",
        metavar="EXPR",
        help="A Spark-SQL boolean expression; TRUE for all rows.",
        autocompletion=completion.conditions,
    ),
]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="A catalog of the PyIceberg configuration; the embedded catalog 'local' if none is configured.",
        autocompletion=completion.catalogs,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]
SparkOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="URL",
        envvar="FLOEPLAN_SPARK",
        help="Run on this Spark session. Without it, local[*] is started if Arrow cannot evaluate an expression.",
    ),
]

SparkRewriteOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="URL",
        envvar="FLOEPLAN_SPARK",
        help="Run on this Spark session; by default in this process, on all cores.",
    ),
]
SparkJobOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="URL",
        envvar="FLOEPLAN_SPARK",
        help="Run the audit of scan reports on this Spark session; local[*] by default.",
    ),
]

ReportsOption = Annotated[
    str | None,
    typer.Option(
        "--reports",
        metavar="DIR|TABLE",
        help="Scan reports: a folder of JSON lines or logs, or a table. By default $FLOEPLAN_REPORTS, or the user's "
        "state folder.",
    ),
]

# Options of commands that read.

ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="a,b",
        help="Columns to read, nested ones by path; all by default.",
        autocompletion=completion.columns,
    ),
]
SnapshotOption = Annotated[int | None, typer.Option("--snapshot-id", metavar="N", help="Read this snapshot.")]
RefOption = Annotated[
    str | None, typer.Option("--ref", metavar="NAME", help="Read this branch or tag.", autocompletion=completion.refs)
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Read as of a time, e.g. 2024-03-01T12:00:00 (UTC by default), or of an age such as 2h.",
    ),
]
CaseOption = Annotated[bool, typer.Option("--case-insensitive", help="Match column names case-insensitively.")]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Do not use the local manifest cache.")]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Do not write a scan report.")]

# Options of commands that write.

BranchOption = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="NAME", help="The branch to use; main by default.", autocompletion=completion.branches
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Apply the changes; without it, this is a dry run.")]
DefaultDryRunOption = Annotated[bool, typer.Option("--dry-run", help="The default: show what would change.")]
TrustListsOption = Annotated[
    bool,
    typer.Option(
        "--trust-lists", help="Continue if a manifest list has fewer files than its snapshot summary reports."
    ),
]
LateDeletesOption = Annotated[
    bool,
    typer.Option(
        "--allow-late-equality-deletes",
        help="Move rows to another spec even if a writer recently added equality deletes under the old one.",
    ),
]


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take options together: a parameter whose type is a dataclass stands for the options in its fields.

    The command line and the help are those of a command that lists all of them at this position.
    """
    groups, parameters = dict[str, Any](), list[inspect.Parameter]()
    hints = get_type_hints(command, include_extras=True)
    for given in inspect.signature(command).parameters.values():
        type_ = hints[given.name]
        if not is_dataclass(type_):
            parameters.append(given.replace(annotation=type_, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[given.name], types = type_, get_type_hints(type_, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields(type_)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class Result(Protocol):
    """A result with a JSON document."""

    def to_dict(self) -> Mapping[str, Any]: ...


ResultT = TypeVar("ResultT", bound=Result)


def show(result: ResultT, render: Callable[[ResultT], RenderableType], *, as_json: bool) -> None:
    """Print a result as a JSON document, or as the text that ``render`` makes of it."""
    if as_json:
        print_json(result.to_dict())
        return
    console = text_console()
    with console.capture() as drawn:
        console.print(render(result))
    sys.stdout.write(without_secrets(drawn.get()))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document; NaN and types that JSON does not have are errors.

    Lone surrogates, which a shell can pass in arguments and UTF-8 cannot encode, are written as JSON escapes.
    """
    sys.stdout.write(document_text(document).encode("utf-8", "backslashreplace").decode() + "\n")


def text_console() -> Console:
    """A console on stdout that prints text literally: without markup, emoji or highlighting."""
    # rich takes the width of a terminal, or $COLUMNS.
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def spinner(activity: str) -> Iterator[None]:
    """Show a spinner on stderr if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(activity):
        yield


def writable_table(name: str, catalog: str | None) -> Table:
    """Load a table from a catalog.

    Raises:
        BadInputError: The name is the path of a metadata file, through which nothing can be committed.
    """
    from floeplan.catalog import load_table, require_writable

    table = load_table(name, catalog)
    require_writable(table)
    return table


def spark_for(url: str | None) -> SparkOnDemand:
    """The requested Spark session, opened now; without a URL, a local one that is opened when it is needed."""
    from floeplan.spark.session import SparkOnDemand

    spark = SparkOnDemand(url=url or "local[*]", opened=_announce_interrupts)
    if url is not None:
        spark.needed("--spark")
    return spark


def applies(yes: bool, dry_run: bool) -> bool:
    """Whether a command that deletes files applies its changes: only with ``--yes``."""
    if yes and dry_run:
        raise InvalidOptionError("--yes and --dry-run exclude each other: omit one", context={"option": "--dry-run"})
    return yes


def _announce_interrupts() -> None:
    """Handle Ctrl-C again if this is the program: Spark has replaced the handler by its own."""
    import signal

    from floeplan.cli import interrupts

    if isinstance(signal.getsignal(signal.SIGTERM), interrupts.StopHandler):
        interrupts.install()


def column_names(text: str | None) -> list[str] | None:
    """Split a comma-separated list of names.

    Raises:
        InvalidOptionError: It has no name.
    """
    names = None if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if names == []:
        raise InvalidOptionError(f"{text!r} names no column; omit the option for the default")
    return names


def parse_time(text: str, message: str) -> datetime:
    """Parse an ISO 8601 time, in UTC unless it has an offset; ``message`` is the error if it is none.

    Raises:
        InvalidOptionError: The text is not a time; the message begins with the option.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(message, context={"option": message.split(maxsplit=1)[0]}) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def timestamp_ms(as_of: str | None) -> int | None:
    """``--as-of`` in milliseconds since 1970."""
    if as_of is None:
        return None
    if is_age(as_of):
        return epoch_ms(time_before(datetime.now(UTC), as_of, "--as-of"))
    message = f"--as-of {as_of!r} is neither a time such as 2024-03-01T12:00:00 nor an age such as 2h"
    return epoch_ms(parse_time(as_of, message))


def header_table(*names: str) -> RichTable:
    """An empty table with a header line; a column whose name begins with ``>`` has numbers, aligned to the right."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        # Nothing is cut: in a narrow terminal, text wraps and numbers stay whole.
        number = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def key_value_table() -> RichTable:
    """An empty table of two columns: names and values."""
    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    return table


def look_for_pandas(schema: pa.Schema) -> None:
    """Let pyarrow find pandas, which ``main`` hides: its Python values of nanoseconds are those of pandas."""
    if any("[ns" in str(field.type) for field in schema):
        import pyarrow as pa

        with suppress(ImportError):
            pa.nulls(0).to_pandas()


class RowsTable:
    """The first rows of an Arrow table; where they are too wide, a line for each column, so that none is cut."""

    def __init__(self, table: pa.Table, limit: int) -> None:
        look_for_pandas(table.schema)
        self._names = table.schema.names
        self._rows = list(zip(*(column.to_pylist() for column in table.slice(0, limit).columns), strict=True))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in self._names:
            wide.add_column(Text(name), no_wrap=True)
        for row in self._rows:
            wide.add_row(*map(_cell, row))
        width = console.measure(wide, options=options.update(max_width=_UNLIMITED)).maximum
        if width <= options.max_width or not self._rows:
            yield wide
            return
        for number, row in enumerate(self._rows):
            yield Text("" if number == 0 else "\n", end="")
            tall = key_value_table()
            for name, value in zip(self._names, row, strict=True):
                tall.add_row(Text(name, overflow="fold"), _cell(value))
            yield tall


def _cell(value: Any) -> Text:
    return Text("NULL", style="dim") if value is None else Text(str(value).expandtabs(), overflow="fold")


def json_rows(table: pa.Table, limit: int) -> list[dict[str, Any]]:
    """The first rows of an Arrow table as JSON objects."""
    look_for_pandas(table.schema)
    return [{name: json_value(value) for name, value in row.items()} for row in table.slice(0, limit).to_pylist()]


def json_value(value: Any) -> Any:
    """A Python value as JSON: bytes as base64; NaN, infinities, decimals and times as text."""
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
    return str(value)


_CHANGES = {
    "added-data-files": ("+", "file"),
    "deleted-data-files": ("-", "file"),
    "added-records": ("+", "row"),
    "deleted-records": ("-", "row"),
    "added-delete-files": ("+", "delete"),
    "removed-delete-files": ("-", "delete"),
}


def summary_changes(summary: Mapping[str, str], names: Iterable[str] = _CHANGES) -> list[str]:
    """What a snapshot changed, by the counts of its summary: ``+3 files``."""
    found = ((*_CHANGES[name], parse_count(summary.get(name))) for name in names)
    return [f"{sign}{counted(count, noun)}" for sign, noun, count in found if count is not None]
