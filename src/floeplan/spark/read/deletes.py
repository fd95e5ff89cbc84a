"""Deletes as Spark expressions: position deletes as one bitmap constant, equality deletes as anti-joins.

Position deletes and deletion vectors: the deleted rows of all files of a branch are the bits of one ``array<bigint>``
that a scalar subquery returns, tested with ``getbit`` on the row index. There is no join; a broadcast anti-join on
(file, row index) costs 5 times the CPU, a sort-merge join 12 times.

The words of a file are a power of two, and start at a multiple of it, so the word of a row is ``start | row >> 6``.
``|`` instead of ``+``, because Spark checks additions for overflow, which costs every row more.

Fail-safe: a row without a row index, or with one beyond the array, has no bit and is an error; it would be dropped
silently otherwise.

Equality deletes (joined in ``native``): the delete files are read by Spark as well and anti-joined on the key columns;
null equals null, NaN equals NaN and -0.0 differs from 0.0, as Iceberg compares keys. A delete applies only to the data
files that the plan matched with its delete file (by sequence number and partition).

Delete files are read in this process while they are small, and by Spark tasks otherwise. Bitmaps of the last files are
cached, as are the row tests of a session: delete files never change, and a table is usually read more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pyarrow as pa
from cachetools import LRUCache, cached
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import Content
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.model import FileScan, PlannedFiles
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import for_each_number
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

CACHE_BYTES = 64 * 2**20
"""Size of each cache: of bitmaps in this process, and of row tests, whose constants are in the JVM."""
SMALL_DELETES = 32 * 2**20
"""Bytes of position deletes up to which this process reads them; more are read by Spark tasks."""
BYTES_PER_TASK = 64 * 2**20
WORD = 64
START_BITS = 23
MAX_WORDS = 1 << START_BITS
"""64 MiB of bits: at least 250 million rows, since the words of a file are rounded up to a power of two."""
_WORDS = "part long, words array<bigint>"
_INVALID_ROW_INDEX = (
    'missing or invalid row index in a file with deletes: read with ReadOptions(path="arrow"), which does not use it'
)
_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


def word_counts(rows: Ints) -> Ints:
    """The number of words of files with these numbers of rows, rounded up to a power of two."""
    return _power_of_two(-(-rows // WORD))


def word_offsets(rows: Ints) -> Ints:
    """The first word of each file: largest files first, so that each starts at a multiple of its size."""
    counts = word_counts(rows)
    order = _largest_first(rows)
    offsets = np.empty_like(counts)
    offsets[order] = np.cumsum(counts[order]) - counts[order]
    return offsets


def is_kept(words: Column, start: str, row: str) -> Column:
    """Whether a row is not deleted; ``start`` is the first word of its file and ``row`` its row index, both as SQL.

    The test is short because the JVM compiles it for every query, a quarter of the CPU time of a short one. ``OR``
    instead of ``coalesce`` would make Spark hash the whole bitmap, since it orders the operands of ``OR``.
    """
    word = F.get(words, F.expr(f"try_cast({start} | shiftright({row}, 6) AS INT)"))
    is_deleted = F.getbit(word, F.expr(f"CAST({row} & {WORD - 1} AS INT)")).cast("boolean")
    return F.coalesce(~is_deleted, F.expr(f"CAST(raise_error('{_INVALID_ROW_INDEX}') AS BOOLEAN)"))


def not_deleted(spark: SparkSession, files: PlannedFiles, rows: Ints, table: Table, *, start: str, row: str) -> Column:
    """Whether a row of these files of a plan is not deleted; ``start`` and ``row`` are those of ``is_kept``."""
    ordered = rows[_largest_first(files.entries.record_count[rows])]
    scans = list(files.take(ordered))
    # The size of all position deletes and deletion vectors of these files.
    matched = np.unique(files.matches.take(ordered).deletes)
    sizes = files.deletes.ints("content_size_in_bytes")
    sizes = np.where(sizes >= 0, sizes, files.deletes.ints("file_size_in_bytes"))[matched]
    total_bytes = int(sizes[files.deletes.content[matched] == Content.POSITION_DELETES].sum())
    if total_bytes > SMALL_DELETES:
        # Not cached: the tasks read the delete files whenever the query runs, with the credentials of that time.
        return is_kept(_bitmap_from_tasks(spark, scans, total_bytes, table), start, row)

    def test() -> RowTest:
        """Test against a constant, read by this process."""
        words = _bitmap(scans, io=table.io, table=table.metadata.table_uuid)
        type_ = pa.list_(pa.field("element", pa.int64(), nullable=False))
        listed = pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), pa.array(words), type=type_)
        constant = spark.createDataFrame(pa.table({"words": listed})).scalar()
        return RowTest(is_kept(constant, start, row), words.nbytes)

    names = (_key(table.metadata.table_uuid, scan) for scan in scans)
    return cached_row_test(spark, (start, row, *names), test).column


@dataclass(frozen=True, slots=True)
class RowTest:
    """A Spark expression that tests rows, and the size of its bitmap."""

    column: Column
    nbytes: int


@cached(LRUCache(CACHE_BYTES, attrgetter("nbytes")), key=lambda name, make: name, lock=Lock())
def cached_bitmap(name: Hashable, make: Callable[[], Ints]) -> Ints:
    """The bitmap of a file, from the cache or made now; making it does not block other threads."""
    return make()


@cached(LRUCache(CACHE_BYTES, attrgetter("nbytes")), key=lambda spark, name, make: (spark, name), lock=Lock())
def cached_row_test(spark: SparkSession, name: Hashable, make: Callable[[], RowTest]) -> RowTest:
    """The row test of a session, from the cache or made now: its bitmap is in the JVM and is not sent again."""
    return make()


def _bitmap_from_tasks(spark: SparkSession, scans: list[FileScan], total: int, table: Table) -> Column:
    """The bitmap of files, with ``total`` bytes of delete files read by tasks."""
    ensure_package(spark)
    read = partial(_bitmap, io=table.io, table=table.metadata.table_uuid)
    slices = np.array_split(np.arange(len(scans)), min(len(scans), -(-total // BYTES_PER_TASK)))
    parts = [[scans[i] for i in part] for part in slices]

    def part_words(number: int) -> Iterator[pa.RecordBatch]:
        words = read(parts[number])
        listed = pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), pa.array(words))
        yield pa.RecordBatch.from_arrays([pa.array([number]), listed], names=["part", "words"])

    frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(for_each_number(part_words), _WORDS)
    in_order = F.array_sort(F.collect_list(F.struct("part", "words")))
    return frame.select(F.flatten(F.transform(in_order, lambda part: part["words"]))).scalar()


def _power_of_two(numbers: Ints) -> Ints:
    """The smallest power of two that is at least as large."""
    return np.left_shift(1, np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64))


def _largest_first(rows: Ints) -> Ints:
    return np.argsort(-word_counts(rows), kind="stable")


def _bitmap(scans: Sequence[FileScan], *, io: FileIO, table: UUID) -> Ints:
    """The bitmaps of files, concatenated."""
    reader = DeleteFileReader(io)
    reader.expect(delete for scan in scans for delete in scan.deletes if _key(table, scan) not in cached_bitmap.cache)
    counts = word_counts(np.array([scan.record_count for scan in scans], dtype=np.int64))
    ends = np.cumsum(counts)
    words = np.zeros(int(counts.sum()), dtype=np.int64)
    buffer = np.empty(int(counts.max(initial=0)) * WORD, dtype=np.bool_)

    def file_bitmap(scan: FileScan, deleted: Mask) -> Ints:
        """The bitmap of a file, the first row in the lowest bit; ``deleted`` is a buffer of its rows."""
        deleted[:] = False
        for delete in scan.deletes:
            if delete.kind not in _EQUALITY:
                positions = reader.positions(delete, scan.path)
                deleted[positions[: np.searchsorted(positions, len(deleted))]] = True
        return np.packbits(deleted, bitorder="little").view(np.int64)

    for scan, count, end in zip(scans, counts.tolist(), ends.tolist(), strict=True):
        make = partial(file_bitmap, scan, buffer[: count * WORD])
        words[end - count : end] = cached_bitmap(_key(table, scan), make)
    return words


def _key(table: UUID, scan: FileScan) -> Hashable:
    """The cache key: everything the bitmap depends on. Two stores may have equal paths, but not for one table."""
    deletes = ((delete.path, delete.file_size, delete.content_offset) for delete in scan.deletes)
    return table, scan.path, scan.record_count, *deletes
