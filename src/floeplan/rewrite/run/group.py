"""A group of files as a task, one attempt at it, its result, and where its rows went: values that can be pickled.

``GroupTask`` is a group, or a part of one, to rewrite; ``GroupAttempt`` is one attempt at it on the machine where it
runs; ``GroupResult`` lists what was written and what it replaces.

``PositionMap`` maps positions in old files to positions in new ones. With it, position deletes that another writer adds
to the old files during the rewrite are carried over to the new files (``carry_deletes``). Live rows of the old files
are numbered in the order in which they are read; rows that were already deleted have no number. The *offset* of a row
counts over all new files, one after the other. A map has runs of positions that were read, and runs of row numbers with
the offset at which each was written; where rows were shuffled, it has the offset of every row number instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pyiceberg.table.sorting import SortOrder

from floeplan.errors import FloeplanError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.model import GroupRanges
from floeplan.rewrite.strategies.base import Strategy
from floeplan.scan.file_rows import FileRows
from floeplan.vectors import Ints, expand_runs
from floeplan.write.data_files import FileTask
from floeplan.write.metrics import remove_written_files
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import WriteTarget

_AnyInts: TypeAlias = npt.NDArray[np.integer[Any]]

Runs: TypeAlias = tuple[_AnyInts, _AnyInts]
"""Starts and lengths of runs of row numbers, in any order."""

_NO_RUNS: Runs = (np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.uint8))
_SHUFFLED = 4
"""With fewer rows per run than this on average, an offset for every row number is smaller than the runs."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A group to rewrite, or a part of one.

    Attributes:
        group_id: The id of the group in the plan.
        files: Its files.
        output_spec_id: The spec of the new files.
        partition: The partition that all rows are in under that spec; ``None`` when it is computed from the rows.
        outputs: The expected number of new files, when all rows are in one partition.
        max_file_bytes: The size at which a file is closed in any case.
        sizes: Computes how many files a number of bytes becomes.
        nan_counts: For each file the NaN counts by field id, as far as its manifest entry has them.
        cores: Cores assigned to the group; it may use the memory of as many tasks.
    """

    group_id: int
    files: tuple[FileTask, ...]
    output_spec_id: int
    partition: PartitionKey | None
    outputs: int
    max_file_bytes: int
    sizes: FileSizes
    nan_counts: tuple[Mapping[int, int], ...]
    cores: int = 1

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(one.file.file_size for one in self.files)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a group task wrote.

    Attributes:
        group_id: The id of the group.
        bytes: Bytes of the replaced files.
        added: Entries of the new files.
        removed_data: Paths of the replaced files.
        removed_deletes: Delete files that applied to the replaced files only.
        position_map: Where each row went.
        decoded_because: Why row groups were decoded; empty when they were copied.
        map_files: Files that the map is in, which are not part of the table.
        ranges: How the group was divided into tasks; ``None`` for one task.
    """

    group_id: int
    bytes: int
    added: EntriesTable
    removed_data: tuple[str, ...]
    removed_deletes: tuple[DeleteFileId, ...]
    position_map: RowMap
    decoded_because: str
    map_files: tuple[str, ...] = ()
    ranges: GroupRanges | None = None

    def discard(self, files: TableFiles) -> None:
        """Remove everything that was written; what cannot be removed remains as an orphan."""
        remove_written_files(self.added, files)
        files.remove(self.map_files)


class RowMap(Protocol):
    """Maps rows of old files to rows of new files."""

    def remap(self, path: str, positions: npt.ArrayLike) -> dict[str, Ints]:
        """Map positions in an old file to sorted positions in new files, by path; deleted rows are left out."""


@dataclass(frozen=True, slots=True)
class GroupAttempt:
    """One attempt at one group.

    Attributes:
        task: The group.
        target: The table as writers see it, with the spec and the file size of this group.
        strategy: The strategy.
        order: What rows are sorted or clustered by; unsorted when they keep their order.
        token: The prefix of file names, unique to this attempt.
        files: Opens files of the table.
        position_map: Records where rows go.
        memory: Bytes that sorting may take.
        threads: Threads to use.
    """

    task: GroupTask
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    token: str
    files: FileRows
    position_map: PositionMapBuilder
    memory: int
    threads: int = 1

    def new_file(self, written: ExitStack, partition: FilePartition, number: int = 0) -> str:
        """The location of a new data file; ``written`` removes the file when it exits with an exception."""
        target = self.target
        path = target.new_location(f"{target.file_name(f'{self.token}-{number}')}.parquet", partition.key)

        def remove_on_error(kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
            if kind is not None:
                target.files.remove([path])

        written.push(remove_on_error)
        return path


@dataclass(frozen=True, slots=True)
class PositionMap:
    """Maps rows of old files to rows of new files.

    Attributes:
        sources: The old files.
        targets: The new files.
        target_rows: Rows of each new file.
        source: For each run of positions that was read, its old file.
        source_start: Its first position.
        count: Its rows; row numbers continue from run to run.
        first: The first row number of each run that was written, ascending; ``None`` with an offset per row number.
        offset: The offset of each of these.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    target_rows: Ints
    source: Ints
    source_start: Ints
    count: Ints
    first: Ints | None
    offset: _AnyInts
    _number: Ints = field(init=False, repr=False, compare=False)
    _source_index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_number", np.cumsum(self.count) - self.count)
        object.__setattr__(self, "_source_index", {path: index for index, path in enumerate(self.sources)})

    def __reduce__(self) -> tuple[Callable[..., PositionMap], tuple[Any, ...]]:
        """Pickle integers in the narrowest type: every task returns a map, which may have millions of runs."""
        runs = np.bincount(self.source, minlength=len(self.sources))
        first = None if self.first is None else _narrow(self.first)
        numbers = (_narrow(runs), _narrow(self.source_start), _narrow(self.count), first, _narrow(self.offset))
        return _unpickled, (self.sources, self.targets, self.target_rows, *numbers)

    def remap(self, path: str, positions: npt.ArrayLike) -> dict[str, Ints]:
        """Map positions in an old file to sorted positions in new files, by path.

        Positions of rows that were already deleted are left out. Costs one binary search per position.
        """
        deleted = np.asarray(positions, dtype=np.int64)
        # Positions to row numbers, through the runs that were read from this file.
        index = self._source_index[path]
        low, high = np.searchsorted(self.source, [index, index + 1])
        starts, count = self.source_start[low:high], self.count[low:high]
        run = np.searchsorted(starts, deleted, side="right") - 1
        deleted, run = deleted[run >= 0], run[run >= 0]
        inside = deleted - starts[run]
        read = inside < count[run]
        numbers = self._number[low:high][run[read]] + inside[read]
        # Row numbers to offsets in the new files.
        if self.first is None:
            offset = self.offset[numbers].astype(np.int64)
        else:
            run = np.searchsorted(self.first, numbers, side="right") - 1
            offset = self.offset[run] + numbers - self.first[run]
        return positions_in_files(np.sort(offset), self.targets, self.target_rows)


def positions_in_files(offsets: Ints, targets: Sequence[str], rows: Ints) -> dict[str, Ints]:
    """Sorted offsets in the rows of new files, one file after the other, as positions in each file that has some."""
    ends = np.cumsum(rows)
    cuts = np.searchsorted(offsets, ends)
    begins = np.concatenate(([0], cuts[:-1]))
    return {
        targets[i]: offsets[begins[i] : cuts[i]] - (ends[i] - rows[i]) for i in np.flatnonzero(cuts > begins).tolist()
    }


def _unpickled(
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    target_rows: Ints,
    runs: Ints,
    source_start: Ints,
    count: Ints,
    first: Ints | None,
    offset: _AnyInts,
) -> PositionMap:
    """A map from its pickled form, which has the number of runs of each old file."""
    return PositionMap(
        sources=sources,
        targets=targets,
        target_rows=target_rows,
        source=np.repeat(np.arange(len(sources)), runs),
        source_start=source_start.astype(np.int64),
        count=count.astype(np.int64),
        first=None if first is None else first.astype(np.int64),
        offset=offset if first is None else offset.astype(np.int64),
    )


@dataclass(slots=True)
class PositionMapBuilder:
    """Records which rows are read from old files and in which order they are written.

    Fail-safe: refuses when the number of rows read and written differ, so a group that lost a row is never committed.
    """

    sources: Sequence[str]
    on_read: Callable[[int], None] | None = None
    """Called with the number of rows of each read."""
    rows: int = 0
    targets: list[str] = field(default_factory=list)
    target_rows: list[int] = field(default_factory=list)
    _read: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _written: list[Runs] = field(default_factory=list)

    def add_read(self, source: int, starts: Ints, counts: Ints) -> range:
        """Record that runs of positions of a source were read; return the row numbers they get."""
        first = self.rows
        self._read.append((np.full(len(starts), source, dtype=np.int64), starts, counts))
        self.rows += int(counts.sum())
        if self.on_read is not None:
            self.on_read(self.rows - first)
        return range(first, self.rows)

    def add_written(self, targets: Sequence[str], rows: Sequence[int], numbers: Sequence[Runs]) -> None:
        """Record that new files hold these row numbers in this order, ``rows[i]`` of them in ``targets[i]``."""
        read = sum(int(counts.sum()) for _, counts in numbers)
        if read != sum(rows):
            raise FloeplanError(f"{read} rows were read and {sum(rows)} written; nothing is committed")
        self.targets += targets
        self.target_rows += rows
        self._written += numbers

    def check_complete(self) -> None:
        """Refuse when fewer or more rows were written than read."""
        if self.rows != sum(self.target_rows):
            raise FloeplanError(f"{self.rows} rows were read and {sum(self.target_rows)} written")

    def finish(self) -> PositionMap:
        """The map."""
        self.check_complete()
        source, position, size = (_concat([part[i] for part in self._read]) for i in range(3))
        first: Ints | None = None
        offset: _AnyInts
        if _SHUFFLED * sum(len(start) for start, _ in self._written) > self.rows:
            offset = self.offset_per_row()
        else:
            start, count = (_concat([part[i] for part in self._written]) for i in range(2))
            order = np.argsort(start)
            first, offset = start[order], (np.cumsum(count) - count)[order]
        rows = np.array(self.target_rows, dtype=np.int64)
        return PositionMap(tuple(self.sources), tuple(self.targets), rows, source, position, size, first, offset)

    def offset_per_row(self) -> _AnyInts:
        """The offset of every row number, in the narrowest type; frees what was recorded piece by piece."""
        offsets = np.empty(self.rows, dtype=np.min_scalar_type(self.rows))
        done = 0
        for at, (start, count) in enumerate(self._written):
            written = np.arange(done, done + int(count.sum()), dtype=offsets.dtype)
            if len(start) == len(written):
                offsets[start] = written
            else:
                offsets[expand_runs(start.astype(np.int64), count.astype(np.int64))] = written
            done += len(written)
            self._written[at] = _NO_RUNS
        return offsets


def runs_of(numbers: Ints) -> Runs:
    """Encode row numbers as runs of consecutive ones, or as runs of one where that is smaller.

    There may be as many runs as rows, so they are kept in the narrowest type.
    """
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
    first, counts = _narrow(numbers[starts]), _narrow(np.diff(np.append(starts, len(numbers))))
    narrow = _narrow(numbers)
    return runs_of_one(narrow) if narrow.nbytes < first.nbytes + counts.nbytes else (first, counts)


def runs_of_one(numbers: _AnyInts) -> Runs:
    """Encode shuffled row numbers as runs of one row each."""
    return numbers, np.broadcast_to(np.uint8(1), len(numbers))


def _narrow(numbers: _AnyInts) -> _AnyInts:
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


def _concat(parts: Sequence[_AnyInts]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)
