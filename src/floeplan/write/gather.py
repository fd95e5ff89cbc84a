"""Small pieces of rows put together: what is done for each piece costs more than what is done for its rows.

Rule: pieces of one layout wait until they have enough rows or bytes; their order stays. Memory: ``BYTES_AT_ONCE`` and
one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from floeplan.write.conform import Rows

ROWS_AT_ONCE = 128 * 1024
BYTES_AT_ONCE = 64 * 1024 * 1024


def at_once(pieces: Iterable[Rows]) -> Iterator[pa.Table]:
    """The same rows in fewer tables, none of which is empty."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for piece in pieces:
        if not piece.num_rows:
            continue
        table = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
        piece_bytes = piece.nbytes
        full = rows + table.num_rows > ROWS_AT_ONCE or size + piece_bytes > BYTES_AT_ONCE
        if waiting and (full or table.schema != waiting[0].schema):
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(table)
        rows, size = rows + table.num_rows, size + piece_bytes
    if waiting:
        yield _together(waiting)


def _together(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
