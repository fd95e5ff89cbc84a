"""A picture in text of which rows of a file are read: row groups as blocks, pages as the cells inside them.

One cell stands for the same share of its row group everywhere; with more row groups than there is room for, one cell
stands for several. Rule: a cell looks dropped only when every row in it is, so a single kept row among millions shows.
"""

from __future__ import annotations

import numpy as np
from rich.text import Text

from floeplan.parquet.prune_result import PruneResult
from floeplan.parquet.selection import Rows

LINES = 4
MOST_CELLS = 48
CELLS = {
    "dropped": ("░", "dim"),
    "read in part": ("▒", "yellow"),
    "read": ("█", "yellow"),
    "read, every row proven to match": ("◆", "green"),
}
_DROPPED, _IN_PART, _READ, _PROVEN = CELLS.values()


def draw(result: PruneResult, width: int) -> list[Text]:
    """At most ``LINES`` lines of cells, no wider than asked for."""
    groups = result.row_groups_total
    cells = min(width * LINES // max(groups, 1) - 1, width, MOST_CELLS, _finest(result))
    if cells < 1:
        return _many_groups(result, width)
    looks = _looks(result, _edges(_group_rows(result), cells)).reshape(groups, cells)
    per_line = (width + 1) // (cells + 1)
    return [
        Text(" ").join(_cells(group) for group in looks[first : first + per_line])
        for first in range(0, groups, per_line)
    ]


def legend() -> Text:
    """What the cells mean."""
    return Text("   ").join(Text.assemble((glyph, style), f" {meaning}") for meaning, (glyph, style) in CELLS.items())


def _finest(result: PruneResult) -> int:
    """The most segments that any row group was judged by."""
    return int(np.bincount(result.segments.row_group).max(initial=1))


def _group_rows(result: PruneResult) -> Rows:
    """First row of each row group, and the number of rows at the end."""
    rows = np.bincount(result.segments.row_group, result.segments.row_count, minlength=result.row_groups_total)
    return np.concatenate(([0], np.cumsum(rows))).astype(np.int64)


def _edges(group_rows: Rows, cells: int) -> Rows:
    """Rows at which cells begin, each row group cut into so many, and the last end."""
    share = np.arange(cells) * np.diff(group_rows)[:, None] // cells
    return np.append((group_rows[:-1, None] + share).ravel(), group_rows[-1])


def _many_groups(result: PruneResult, width: int) -> list[Text]:
    cut = np.linspace(0, result.row_groups_total, width * LINES + 1).astype(np.int64)
    looks = _looks(result, _group_rows(result)[cut])
    return [_cells(looks[first : first + width]) for first in range(0, len(looks), width)]


def _looks(result: PruneResult, edges: Rows) -> Rows:
    """Per cell the position of its look in ``CELLS``."""
    total = np.diff(edges)
    read, proven = np.diff(result.file_selection.rank(edges)), np.diff(result.proven.rank(edges))
    return np.select([read == 0, proven == total, read == total], [0, 3, 2], default=1)


def _cells(looks: Rows) -> Text:
    text = Text()
    for look in looks.tolist():
        text.append(*(_DROPPED, _IN_PART, _READ, _PROVEN)[look])
    return text
