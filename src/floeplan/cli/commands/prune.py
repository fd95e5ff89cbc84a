"""``floeplan prune``: the row groups, pages and rows of a Parquet file that may match; ``--read`` evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.errors import InvalidOptionError
from floeplan.text import counted, human_bytes, percent

if TYPE_CHECKING:
    from floeplan.parquet.prune.result import PruneResult
    from floeplan.parquet.read.reader import ReadResult

LINES = 4
MOST_CELLS = 48
CELLS = {
    "dropped": ("░", "dim"),
    "read in part": ("▒", "yellow"),
    "read": ("█", "yellow"),
    "read, every row proven to match": ("◆", "green"),
}
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Path or URI of a Parquet file.")]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="a,b", help="With --read: columns to read; all by default.")
]
NoPageIndexOption = Annotated[bool, typer.Option("--no-page-index", help="Prune row groups only, not pages.")]
NoBloomOption = Annotated[bool, typer.Option("--no-bloom", help="Do not use bloom filters.")]
ReadOption = Annotated[bool, typer.Option("--read", help="Read matching rows and show the first ones.")]
CredentialsOption = Annotated[
    str | None,
    typer.Option("--catalog", metavar="NAME", help="The PyIceberg catalog whose storage properties open FILE."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="With --read: rows to show (10 by default).")
]
_SHOWN_ROWS = 10
_PICTURE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the command."""

    where: str
    file_bytes: int
    prune: PruneResult
    read: ReadResult | None
    limit: int | None

    def to_dict(self) -> dict[str, Any]:
        if self.read is None:
            return self.prune.to_dict() | {"file_bytes": self.file_bytes}
        rows = {} if self.limit is None else {"rows": common.json_rows(self.read.table, self.limit)}
        return self.read.to_dict() | {"file_bytes": self.file_bytes} | rows


def prune(
    file: FileArgument,
    where: common.RequiredWhereOption,
    columns: ColumnsOption = None,
    no_page_index: NoPageIndexOption = False,
    no_bloom: NoBloomOption = False,
    read_rows: ReadOption = False,
    limit: LimitOption = None,
    case_insensitive: common.CaseOption = False,
    catalog: CredentialsOption = None,
    json: common.JsonOption = False,
) -> None:
    """Show the row groups and pages of a Parquet file that may match a predicate. Only metadata is read.

    floeplan prune file.parquet --where "id = 42" --read --limit 5
    """
    from pyiceberg.io import load_file_io

    from floeplan.catalog import open_catalog
    from floeplan.parquet.prune.options import PruneOptions
    from floeplan.parquet.prune.request import PruneRequest
    from floeplan.parquet.read.reader import read
    from floeplan.parquet.source import open_source

    if not read_rows and (columns is not None or limit is not None):
        raise InvalidOptionError("--columns and --limit need --read")
    options = PruneOptions(page_index=not no_page_index, bloom_filter=not no_bloom, case_sensitive=not case_insensitive)
    source = open_source(file, None if catalog is None else load_file_io(open_catalog(catalog).properties, file))
    if read_rows:
        result = read(source, where, common.column_names(columns), options=options)
        answer = Answer(where, source.size, result.prune, result, limit)
    else:
        pruned = PruneRequest(source).with_predicate(where).with_options(options).prune()
        answer = Answer(where, source.size, pruned, None, limit)
    common.show(answer, render, as_json=json)


def render(answer: Answer) -> RenderableType:
    """Render the predicate, the picture, the counts, what could not be used, and the rows."""
    pruned, where = answer.prune, answer.where
    width = min(common.text_console().width - 2, _PICTURE_WIDTH)
    legend = (Text.assemble((glyph, style), f" {meaning}") for meaning, (glyph, style) in CELLS.items())
    parts: list[RenderableType] = [
        Text(f"{pruned.file}  {counted(pruned.rows_total, 'row')}, {human_bytes(answer.file_bytes)}", style="bold"),
        Text(f"where {where}"),
        Text(),
        *(Text("  ") + line for line in draw(pruned, width)),
        Text("  ") + Text("   ").join(legend),
        Text(),
        *_counts(answer),
    ]
    # Conditions that statistics cannot evaluate, marked in the predicate.
    remarks = []
    for error in pruned.compile_result.errors:
        remarks.append(Text(f"  not evaluated from statistics: {error.text}: {error.message}", style="yellow"))
        if error.start is not None and error.end is not None and "\n" not in where:
            mark = f"{' ' * error.start}{'^' * max(1, error.end - error.start)}"
            remarks += [Text(f"    {where}"), Text(f"    {mark}", style="yellow")]
    remarks += [Text(f"  {note}", style="dim") for note in pruned.notes]
    if remarks:
        parts += [Text(), *remarks]
    if answer.read is not None:
        shown = _SHOWN_ROWS if answer.limit is None else answer.limit
        parts += [Text(), common.RowsTable(answer.read.table, shown)]
    return Group(*parts)


def draw(result: PruneResult, width: int) -> list[Text]:
    """Draw row groups as blocks of cells, at most ``LINES`` lines of ``width`` cells.

    A cell is the same fraction of every row group, or several row groups if there are too many. It is drawn as dropped
    only if all its rows are, so that one kept row among millions is visible.
    """
    import numpy as np

    groups, segments = result.row_groups_total, result.segments
    rows = np.bincount(segments.row_group, segments.row_count, minlength=groups)
    group_rows = np.concatenate(([0], np.cumsum(rows))).astype(np.int64)  # first rows, then the total
    pages = int(np.bincount(segments.row_group).max(initial=1))
    cells = min(width * LINES // max(groups, 1) - 1, width, MOST_CELLS, pages)
    if cells < 1:
        # Several row groups per cell, without gaps.
        edges = group_rows[np.linspace(0, groups, width * LINES + 1).astype(np.int64)]
        per_block, per_line, gap = width, 1, ""
    else:
        share = np.arange(cells) * np.diff(group_rows)[:, None] // cells
        edges = np.append((group_rows[:-1, None] + share).ravel(), group_rows[-1])
        per_block, per_line, gap = cells, (width + 1) // (cells + 1), " "
    total = np.diff(edges)
    read, proven = np.diff(result.file_selection.rank(edges)), np.diff(result.proven.rank(edges))
    states = np.select([read == 0, proven == total, read == total], [0, 3, 2], default=1).tolist()
    glyphs = list(CELLS.values())
    blocks = [
        Text.assemble(*(glyphs[state] for state in states[first : first + per_block]))
        for first in range(0, len(states), per_block)
    ]
    return [Text(gap).join(blocks[first : first + per_line]) for first in range(0, len(blocks), per_line)]


def _counts(answer: Answer) -> Iterator[Text]:
    """Render kept row groups, pages and rows, and the bytes fetched."""

    def line(what: str, kept: int, total: int, remark: str = "") -> Text:
        parts = (f"  {what:<11}{kept:>14,} of {total:,}", percent(kept, total), remark)
        return Text("  ".join(filter(None, parts)))

    pruned, proven = answer.prune, answer.prune.proven.row_count
    yield line("row groups", len(pruned.row_groups), pruned.row_groups_total)
    if pruned.pages_total:
        yield line("pages", pruned.pages_kept, pruned.pages_total, "of those with an index")
    yield line("rows", pruned.rows_selected, pruned.rows_total, f"{proven:,} proven to match" if proven else "")
    if answer.read is not None:
        yield line("matched", answer.read.table.num_rows, pruned.rows_total)
    cost = answer.read or pruned
    requests = f"{counted(cost.requests, 'request')}, {counted(cost.round_trips, 'round trip')}"
    size = f"{human_bytes(cost.bytes_read):>14} of {human_bytes(answer.file_bytes)}"
    yield Text(f"  {'bytes read':<11}{size}  {percent(cost.bytes_read, answer.file_bytes)}  {requests}")
