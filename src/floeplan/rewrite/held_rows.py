"""All rows of a group in memory, and the order they are wanted in.

Each column is one piece, because picking rows out of many pieces takes twice the time. Nothing is put in order as a
whole: whoever writes rows picks those of one row group at a time.

Memory: the rows, four bytes a row for the order, and a second copy of one column while its pieces are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from floeplan.rewrite.group_order import GroupOrder
from floeplan.rewrite.side_by_side import side_by_side
from floeplan.write.row_order import Numbers

ORDER_BYTES = 24
"""What the order of a row takes while it is being found."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows as they were read, each column one piece if that can be, and their numbers in the order that is wanted."""

    rows: pa.Table
    numbers: Numbers

    @classmethod
    def of(cls, pieces: list[pa.Table], order: GroupOrder, threads: int) -> HeldRows:
        """Put pieces together; the list is emptied, so that each piece is let go as soon as it was copied."""
        schema = pieces[0].schema
        columns = [list(column) for column in zip(*(piece.columns for piece in pieces), strict=True)]
        pieces.clear()
        join = partial(_joined, columns, schema)
        keys = [schema.get_field_index(field.name) for field in order.key_schema.fields]
        others = [at for at in range(len(schema)) if at not in keys]
        joined = dict(zip(keys, side_by_side(join, keys, threads), strict=True))
        key_rows = pa.table([joined[at] for at in keys], schema=pa.schema([schema.field(at) for at in keys]))
        with ThreadPoolExecutor(1, "floeplan-order") as beside:
            numbers = beside.submit(order.numbers, key_rows)
            if threads <= 1:
                numbers.result()
            joined |= dict(zip(others, side_by_side(join, others, threads - 1), strict=True))
            return cls(pa.table([joined[at] for at in range(len(schema))], schema=schema), numbers.result())

    def __len__(self) -> int:
        return len(self.numbers)

    def picked(self, column: str, first: int, count: int) -> pa.Table:
        """One column of some rows in the order that is wanted."""
        return self.rows.select([column]).take(pa.array(self.numbers[first : first + count]))

    def in_order(self, first: int, count: int) -> pa.Table:
        """Some rows in the order that is wanted."""
        return self.rows.take(pa.array(self.numbers[first : first + count]))


def _joined(columns: Sequence[list[pa.ChunkedArray]], schema: pa.Schema, at: int) -> pa.ChunkedArray:
    field = schema.field(at)
    chunks = [chunk for column in columns[at] for chunk in column.chunks]
    columns[at].clear()
    return pa.table([pa.chunked_array(chunks, field.type)], schema=pa.schema([field])).combine_chunks().column(0)
