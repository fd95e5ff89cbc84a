"""Streams the rows of a plan: with bounded memory, and no more of them than a limit needs.

A file is read in parts: row groups of about ``PART_BYTES``, or one that is larger. Parts are read ahead of the consumer
while those that wait take less than ``AHEAD_BYTES``. A consumer that stops early cancels the parts that have not begun
and waits for the others; nothing is read afterwards, and all files are closed.

A limit opens files one after another, and only as many parts are read as it takes. Where metadata proves how many rows
the first files have, only these files are opened, ahead of the consumer, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.parquet.read.decoder import decode_alone
from floeplan.predicate.stats import TriState
from floeplan.scan.model import FileScan, PlannedFiles
from floeplan.scan.planned_scan import PlannedScan
from floeplan.scan.projection import arrow_schema
from floeplan.scan.read import FilePart, PlanReader, read_threads

if TYPE_CHECKING:
    import polars as pl

PART_BYTES = 8 * 1024 * 1024
AHEAD_BYTES = 16 * 1024 * 1024
"""Sizes of encoded, uncompressed columns."""
BATCH_ROWS = 64 * 1024
Item = TypeVar("Item")
Result = TypeVar("Result")


def batch_reader(
    plan: PlannedScan, schema: Schema, *, limit: int | None = None, in_order: bool = True
) -> pa.RecordBatchReader:
    """The rows as an Arrow stream with the columns of ``schema``."""
    tables = stream(plan, schema, limit=limit, in_order=in_order)
    batches = (batch for table in tables for batch in table.to_batches(BATCH_ROWS))
    # A reader that imports another one drops it when it is closed, and so stops the generator.
    return pa.RecordBatchReader.from_stream(pa.RecordBatchReader.from_batches(arrow_schema(schema), batches))


def stream(plan: PlannedScan, schema: Schema, *, limit: int | None = None, in_order: bool = True) -> Iterator[pa.Table]:
    """Read a plan part by part, in the order of its files or as parts become available."""
    reader, files = PlanReader.of(plan, schema), plan.files
    proven = len(files) if limit is None else _proven_files(files, limit)
    if limit is not None and proven is None:
        yield from _one_by_one(reader, files, limit)
        return
    pool = ThreadPoolExecutor(read_threads(plan), "floeplan-read", decode_alone)
    try:
        opened = _ahead(
            pool, lambda file: reader.parts(file, PART_BYTES), islice(files, proven), lambda _: AHEAD_BYTES // 8
        )
        parts = _cut(chain.from_iterable(opened), limit)
        yield from _ahead(pool, reader.read_part, parts, lambda part: part.bytes, in_order=in_order)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _proven_files(files: PlannedFiles, limit: int) -> int | None:
    """How many files it takes to reach a limit, if the row counts of all of them are proven by metadata."""
    counts = files.entries.record_count
    exact = (files.states == TriState.TRUE) & (files.matches.counts == 0) & (counts >= 0)
    needed = int(np.searchsorted(np.cumsum(counts), limit)) + 1 if limit else 0
    return needed if exact[:needed].all() else None


def _cut(parts: Iterable[FilePart], limit: int | None) -> Iterator[FilePart]:
    """The parts that hold the first rows, the last of them cut to what is left."""
    for part in parts:
        if limit is None:
            yield part
            continue
        yield part.cut(limit)
        limit -= min(limit, part.selection.row_count)
        if not limit:
            return


def _one_by_one(reader: PlanReader, files: Iterable[FileScan], limit: int) -> Iterator[pa.Table]:
    """Read until there are enough rows; a part whose rows all match is cut before it is read."""
    for part in chain.from_iterable(reader.parts(file, PART_BYTES) for file in files):
        rows = reader.read_part(part.cut(limit) if part.exact else part, limit).slice(0, limit)
        yield rows
        limit -= rows.num_rows
        if not limit:
            return


def _ahead(
    pool: ThreadPoolExecutor,
    action: Callable[[Item], Result],
    items: Iterable[Item],
    size: Callable[[Item], int],
    *,
    in_order: bool = True,
) -> Iterator[Result]:
    """Run an action on items, as many ahead of the consumer as ``AHEAD_BYTES`` allows, and at least one."""
    running: deque[tuple[Future[Result], int]] = deque()
    taken = 0
    for item in items:
        while running and taken + size(item) > AHEAD_BYTES:
            future, freed = _next(running, in_order)
            taken -= freed
            yield future.result()
        running.append((pool.submit(action, item), size(item)))
        taken += size(item)
    while running:
        yield _next(running, in_order)[0].result()


def _next(running: deque[tuple[Future[Result], int]], in_order: bool) -> tuple[Future[Result], int]:
    if not in_order:
        done = wait([future for future, _ in running], return_when=FIRST_COMPLETED).done
        running.rotate(-next(at for at, (future, _) in enumerate(running) if future in done))
    return running.popleft()


def lazy_frame(plan: PlannedScan, schema: Schema) -> pl.LazyFrame:
    """The rows for Polars, which reads the columns and the number of rows that a query needs."""
    import polars as pl
    from polars.io.plugins import register_io_source

    def read(
        names: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        # A frame without columns has no rows, so that one column is read to count them.
        wanted = schema.fields if names is None else [f for f in schema.fields if f.name in names] or schema.fields[:1]
        # Polars pushes no limit down together with a predicate.
        for table in stream(plan, Schema(*wanted), limit=limit if predicate is None else None):
            frame = pl.DataFrame(table)
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=pl.DataFrame(arrow_schema(schema).empty_table()).schema)
