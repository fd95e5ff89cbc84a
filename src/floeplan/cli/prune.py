"""`floeplan prune`: which row groups, pages and rows of a Parquet file can match, and with `--read` which do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli.common import JsonOption, show, text_console
from floeplan.cli.picture import draw, legend
from floeplan.cli.rows import json_rows, rows_table
from floeplan.cli.scan_options import CaseOption, column_names
from floeplan.errors import InvalidOptionError
from floeplan.parquet.prune import PruneOptions, PruneRequest, PruneResult
from floeplan.parquet.reader import ReadResult, read
from floeplan.parquet.source import open_source

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
from floeplan.text import counted, human_bytes

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Path or URI of a Parquet file.")]
PredicateOption = Annotated[str, typer.Option("--where", metavar="EXPR", help="A Spark-SQL boolean expression.")]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="a,b", help="With --read: the columns to read; all by default.")
]
NoPageIndexOption = Annotated[bool, typer.Option("--no-page-index", help="Judge row groups only, not pages.")]
NoBloomOption = Annotated[bool, typer.Option("--no-bloom", help="Do not ask bloom filters.")]
ReadOption = Annotated[bool, typer.Option("--read", help="Read the rows that match, and show the first of them.")]
CredentialsOption = Annotated[
    str | None,
    typer.Option("--catalog", metavar="NAME", help="The catalog of PyIceberg's configuration whose store FILE is in."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="With --read: how many rows to show (10).")
]
_SHOWN_ROWS = 10
_PICTURE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command shows."""

    where: str
    file_bytes: int
    prune: PruneResult
    read: ReadResult | None
    limit: int | None

    def to_dict(self) -> dict[str, Any]:
        if self.read is None:
            return self.prune.to_dict() | {"file_bytes": self.file_bytes}
        rows = {} if self.limit is None else {"rows": json_rows(self.read.table, self.limit)}
        return self.read.to_dict() | {"file_bytes": self.file_bytes} | rows


def prune(
    file: FileArgument,
    where: PredicateOption,
    columns: ColumnsOption = None,
    no_page_index: NoPageIndexOption = False,
    no_bloom: NoBloomOption = False,
    read_rows: ReadOption = False,
    limit: LimitOption = None,
    case_insensitive: CaseOption = False,
    catalog: CredentialsOption = None,
    json: JsonOption = False,
) -> None:
    """Show what of a Parquet file a predicate leaves to read, decided from metadata alone.

    floeplan prune file.parquet --where "id = 42" --read --limit 5
    """
    if not read_rows and (columns is not None or limit is not None):
        raise InvalidOptionError("--columns and --limit say which rows to show; add --read")
    options = PruneOptions(page_index=not no_page_index, bloom_filter=not no_bloom, case_sensitive=not case_insensitive)
    source = open_source(file, None if catalog is None else _file_io(catalog, file))
    if read_rows:
        result = read(source, where, column_names(columns), options=options)
        answer = Answer(where, source.size, result.prune, result, limit)
    else:
        pruned = PruneRequest(source).with_predicate(where).with_options(options).prune()
        answer = Answer(where, source.size, pruned, None, limit)
    show(answer, render, as_json=json)


def _file_io(catalog: str, location: str) -> FileIO:
    from pyiceberg.io import load_file_io

    from floeplan.catalog import open_catalog  # catalogs take long to import, and a local file needs none

    return load_file_io(open_catalog(catalog).properties, location)


def render(answer: Answer) -> RenderableType:
    """The whole answer: what was asked, the picture, the pyramid of counts, what could not be used, the rows."""
    pruned = answer.prune
    width = min(text_console().width - 2, _PICTURE_WIDTH)
    parts: list[RenderableType] = [
        Text(f"{pruned.file}  {counted(pruned.rows_total, 'row')}, {human_bytes(answer.file_bytes)}", style="bold"),
        Text(f"where {answer.where}"),
        Text(),
        *(Text("  ") + line for line in draw(pruned, width)),
        Text("  ") + legend(),
        Text(),
        *_pyramid(answer),
    ]
    remarks = [*_diagnostics(answer), *(Text(f"  {note}", style="dim") for note in pruned.notes)]
    if remarks:
        parts += [Text(), *remarks]
    if answer.read is not None:
        shown = _SHOWN_ROWS if answer.limit is None else answer.limit
        parts += [Text(), rows_table(answer.read.table, shown)]
    return Group(*parts)


def _pyramid(answer: Answer) -> Iterator[Text]:
    """Row groups, pages and rows that are left, and the bytes that were fetched."""
    pruned = answer.prune
    yield _count_line("row groups", len(pruned.row_groups), pruned.row_groups_total)
    if pruned.pages_total:
        yield _count_line("pages", pruned.pages_kept, pruned.pages_total, "of those whose index was read")
    proven = pruned.proven.row_count
    yield _count_line("rows", pruned.rows_selected, pruned.rows_total, f"{proven:,} proven to match" if proven else "")
    if answer.read is not None:
        yield _count_line("matched", answer.read.table.num_rows, pruned.rows_total)
    cost = answer.read or pruned
    requests = f"{counted(cost.requests, 'request')}, {counted(cost.round_trips, 'round trip')}"
    share = 100 * cost.bytes_read / max(answer.file_bytes, 1)
    yield Text(
        f"  {'bytes read':<11}{human_bytes(cost.bytes_read):>14} of {human_bytes(answer.file_bytes)}"
        f"  {share:.2f} %  {requests}"
    )


def _count_line(what: str, kept: int, total: int, remark: str = "") -> Text:
    share = 100 * kept / max(total, 1)
    return Text(f"  {what:<11}{kept:>14,} of {total:,}  {share:.2f} %{'  ' + remark if remark else ''}")


def _diagnostics(answer: Answer) -> Iterator[Text]:
    """Each piece that statistics cannot answer, marked in the predicate."""
    for error in answer.prune.compile_result.errors:
        yield Text(f"  only rows can answer {error.text}: {error.message}", style="yellow")
        if error.start is not None and error.end is not None and "\n" not in answer.where:
            yield Text(f"    {answer.where}")
            yield Text(f"    {' ' * error.start}{'^' * max(1, error.end - error.start)}", style="yellow")
