"""Deletes as Spark expressions: positions as bits of a constant, keys as anti-joins.

Positions: the deleted rows of all files with position deletes or deletion vectors are bits of one ``array<bigint>``
that a scalar subquery yields. A file has as many words of it as a power of two, and starts at a multiple of that, so
that the word of a row is its file's start *or* its number's part: adding, which Spark checks for overflow by way of
objects, costs every row more. Nothing is joined. A row without a number, or with one that no file of these can have, is
an error: left to itself it would be dropped in silence. That is looked at only for rows whose bit is not 0, without
asking for the bit again: a second subquery would have to be analysed. All words together are a power of two as well:
their number is part of the code Spark compiles, which should seldom change.

Keys: the delete files are read natively too and anti-joined on the key columns, null equal to null, NaN equal to NaN
and -0.0 apart from 0.0, as Iceberg compares keys. A delete row counts only for the data files the plan matched its
delete file with (sequence number, partition); where that is all of them nothing is asked.

Delete files are read in this process while they are small, and by Spark tasks otherwise. Either keeps the bits of the
files it read last, and a session the constants made of small ones (``floeplan.spark.read.deletes``): delete files never
change, and a table is seldom read but once.
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
import numpy.typing as npt
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
from floeplan.tasks.worker import ArrowTask, for_each_number
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


# Bits of deleted rows that are kept between reads: of each file here, and of the files of a read in Spark.
#
# Rule: what is held is named by all it was made of, files that never change among them. Fail-safe: whatever is not held
# is made anew; nothing is held beyond a number of bytes, and the least recently used go first.


Words = npt.NDArray[np.int64]

MOST_BYTES = 64 * 2**20
"""Of this process, and as many of the one that plans queries."""


@dataclass(frozen=True, slots=True)
class RowTest:
    """An expression of Spark that rows are tested with, and the size of the bits in it."""

    column: Column
    nbytes: int


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda name, make: name, lock=Lock())
def held_words(name: Hashable, make: Callable[[], Words]) -> Words:
    """The bits of a file that are held, or else are made now, other threads not waiting."""
    return make()


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda spark, name, make: (spark, name), lock=Lock())
def held_row_test(spark: SparkSession, name: Hashable, make: Callable[[], RowTest]) -> RowTest:
    """The expression that a session holds: its bits have been sent there, and need not be sent again."""
    return make()


# ---

SMALL_DELETES = 32 * 2**20
"""Bytes of position deletes that are read in this process; more are read by Spark tasks."""
BYTES_PER_TASK = 64 * 2**20
WORD = 64
START_BITS = 23
MAX_WORDS = 1 << START_BITS
"""64 MiB of bits, at least 250 million rows."""
_WORDS = "part long, words array<bigint>"
_UNNUMBERED = (
    "missing or invalid row index in a file with deletes: "
    'read with ReadOptions(path="arrow"), which does not ask Spark for it'
)
_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


def word_counts(rows: Ints) -> Ints:
    """How many words files of so many rows have: as many as they need, and then up to a power of two."""
    return _power_of_two(-(-rows // WORD))


def word_offsets(rows: Ints) -> Ints:
    """Where the bits of each file start, in words: the largest first, so that each starts at a multiple of its size."""
    counts = word_counts(rows)
    order = _largest_first(rows)
    offsets = np.empty_like(counts)
    offsets[order] = np.cumsum(counts[order]) - counts[order]
    return offsets


def is_kept(words: Column, count: int, start: str, row: str) -> Column:
    """Whether a row is not deleted: its file's bits start at a word (SQL), its number in the file is ``row`` (SQL).

    A choice and not an ``OR``: Spark puts the sides of that in order by a hash, which takes in all bits each time, and
    a row costs a twentieth more.
    """
    word = f"({start} | shiftright({row}, 6))"
    bit = F.getbit(F.get(words, F.expr(f"CAST({word} AS INT)")), F.expr(f"CAST({row} & {WORD - 1} AS INT)"))
    sure = f"{word} >= 0 AND {word} < {count}"
    deleted = F.expr(f"CASE WHEN {sure} THEN FALSE ELSE CAST(raise_error('{_UNNUMBERED}') AS BOOLEAN) END")
    return F.when(~bit.cast("boolean"), True).otherwise(deleted)


def not_deleted(spark: SparkSession, files: PlannedFiles, rows: Ints, table: Table, *, start: str, row: str) -> Column:
    """Whether a row of these files of a plan is not deleted; ``start`` and ``row`` are those of ``is_kept``.

    Bits that tasks read are not held by the session: each time they are read with the credentials of the time.
    """
    placed = rows[_largest_first(files.entries.record_count[rows])]
    scans, length, total = list(files.take(placed)), _all_words(files, placed), _deleting_bytes(files, placed)
    if total > SMALL_DELETES:
        return is_kept(_words_of_tasks(spark, scans, length, total, table), length, start, row)

    def test() -> RowTest:
        return RowTest(is_kept(_words_read_here(spark, scans, length, table), length, start, row), length * WORD // 8)

    names = (_key(table.metadata.table_uuid, scan) for scan in scans)
    return held_row_test(spark, (start, row, *names), test).column


def _all_words(files: PlannedFiles, rows: Ints) -> int:
    """How many words these files have together, and then up to a power of two."""
    return int(_power_of_two(word_counts(files.entries.record_count[rows]).sum()))


def _words_read_here(spark: SparkSession, scans: list[FileScan], length: int, table: Table) -> Column:
    """The bits of all deleted positions of files as a constant."""
    words = _words(scans, io=table.io, table=table.metadata.table_uuid, length=length)
    type_ = pa.list_(pa.field("element", pa.int64(), nullable=False))
    listed = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), pa.array(words), type=type_)
    return spark.createDataFrame(pa.table({"words": listed})).scalar()


def _words_of_tasks(spark: SparkSession, scans: list[FileScan], length: int, total: int, table: Table) -> Column:
    """The same, ``total`` bytes of deletes being read by tasks."""
    ensure_package(spark)
    read = partial(_words, io=table.io, table=table.metadata.table_uuid)
    slices = np.array_split(np.arange(len(scans)), min(len(scans), -(-total // BYTES_PER_TASK)))
    parts = [(number, [scans[i] for i in part]) for number, part in enumerate(slices)]
    frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(_words_task(parts, read), _WORDS)
    in_order = F.array_sort(F.collect_list(F.struct("part", "words")))
    counts = word_counts(np.array([scan.record_count for scan in scans], dtype=np.int64))
    rest = F.array_repeat(F.lit(0).cast("long"), length - int(counts.sum()))
    return frame.select(F.concat(F.flatten(F.transform(in_order, lambda part: part["words"])), rest)).scalar()


def _power_of_two(numbers: Ints) -> Ints:
    """The least that is no smaller."""
    return np.left_shift(1, np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64))


def _largest_first(rows: Ints) -> Ints:
    return np.argsort(-word_counts(rows), kind="stable")


def _deleting_bytes(files: PlannedFiles, rows: Ints) -> int:
    """The size of all position deletes and vectors of these files."""
    matched = np.unique(files.matches.take(rows).deletes)
    sizes = files.deletes.ints("content_size_in_bytes")
    sizes = np.where(sizes >= 0, sizes, files.deletes.ints("file_size_in_bytes"))[matched]
    return int(sizes[files.deletes.content[matched] == Content.POSITION_DELETES].sum())


def _words_task(parts: Sequence[tuple[int, list[FileScan]]], read: Callable[[Sequence[FileScan]], Ints]) -> ArrowTask:
    def words(number: int) -> Iterator[pa.RecordBatch]:
        part, scans = parts[number]
        found = read(scans)
        listed = pa.ListArray.from_arrays(pa.array([0, len(found)], pa.int32()), pa.array(found))
        yield pa.RecordBatch.from_arrays([pa.array([part]), listed], names=["part", "words"])

    return for_each_number(words)


def _words(scans: Sequence[FileScan], *, io: FileIO, table: UUID, length: int = 0) -> Ints:
    """The bits of files one after another; zeros up to a length."""
    reader = DeleteFileReader(io)
    reader.expect(delete for scan in scans for delete in scan.deletes if _key(table, scan) not in held_words.cache)
    counts = word_counts(np.array([scan.record_count for scan in scans], dtype=np.int64))
    ends = np.cumsum(counts)
    words = np.zeros(max(length, int(counts.sum())), dtype=np.int64)
    room = np.empty(int(counts.max(initial=0)) * WORD, dtype=np.bool_)
    for scan, count, end in zip(scans, counts.tolist(), ends.tolist(), strict=True):
        words[end - count : end] = held_words(
            _key(table, scan), partial(_file_words, scan, reader, room[: count * WORD])
        )
    return words


def _file_words(scan: FileScan, reader: DeleteFileReader, deleted: npt.NDArray[np.bool_]) -> Ints:
    """The bits of a file, the lowest of a word first; ``deleted`` is room for its rows."""
    deleted[:] = False
    for delete in scan.deletes:
        if delete.kind not in _EQUALITY:
            positions = reader.positions(delete, scan.path)
            deleted[positions[: np.searchsorted(positions, len(deleted))]] = True
    return np.packbits(deleted, bitorder="little").view(np.int64)


def _key(table: UUID, scan: FileScan) -> Hashable:
    """All that the bits of a file are made of; two stores may have files of one name, but not of one table."""
    deletes = ((delete.path, delete.file_size, delete.content_offset) for delete in scan.deletes)
    return table, scan.path, scan.record_count, *deletes
