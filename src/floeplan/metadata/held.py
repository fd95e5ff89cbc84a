"""Decoded manifest entries of snapshots in memory, for processes that plan many scans of the same snapshots.

The disk cache (``cache``) assembles a result from the segments that hold its manifests, which takes longer than
evaluating a selective predicate. Here the entries of one snapshot are one table: the entries of some of its manifests
are rows of it.

Rule: the result equals that of the source. A read with a manifest that is not held goes to the source. The first one is
held as it is; after ``_MISSES`` further ones, all manifests of the snapshot are read and held, because every selective
scan needs other ones. Where these would exceed the limit, the neighbours of the manifests that were read are held: data
that is written together is often read together. (Only the type of a partition field whose source column was dropped may
be known here where the source, reading fewer manifests, does not know it.)

Partition summaries of an older spec often keep every manifest. ``manifest_bounds`` has the statistics of any column for
each manifest, a few bytes of each, so that a selective scan evaluates the entries of the manifests that can match.
They are computed, from all entries of the snapshot, once scans with the column have evaluated as many. Engines repeat
most leaves of a query (``ts IS NOT NULL``, ``region = 'eu'``): ``remember`` has their answers for each manifest. The
statistics of held entries are decoded once, for all entries of a table, and repeated leaves are answered once for them.

Fail-safe: the least recently used tables are dropped when all of them exceed a number of bytes, and a table that would
exceed it alone is not read. A manifest that cannot be read is an error for the scans that need it only. Tables are
never changed, so threads may read while another one replaces them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from cachetools import LRUCache
from cachetools.keys import hashkey
from pyiceberg.io import FileIO

from floeplan.metadata.files import MAX_WORKERS
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Slice
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.stats import concat_stats, file_stats, grouped_stats, manifest_stats
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import ColumnStats, StatsTable, Tri
from floeplan.vectors import Ints, expand_runs

_MISSES, _MOST_COUNTED = 8, 1024
_NEARBY = 32
"""Up to twice as many manifests, the first of them a multiple of this, are neighbours of each other."""
_ANSWER_BYTES = 8 * 1024 * 1024
"""Memory of answers for each manifest."""
_MOST_REPEATED = 8
"""Leaves whose answers for each entry of a table are kept, 6 bytes of each."""
_DECODED_BYTES = 24
"""Memory of the decoded statistics of a column of an entry, about."""
_MOST_BOUNDS, _LEAST_EVALUATED, _SLICE = 256, 4096, 65_536
"""Columns whose statistics of manifests are kept, entries below which they do not pay, and entries read at a time."""

_BoundsKey: TypeAlias = tuple[Hashable, int, str]
"""A snapshot, and the field id and type of a column; the type of a field of the partition tuple is ``_SUMMARY``."""
_SUMMARY = "partition summary"
Answers: TypeAlias = tuple[Tri, Tri]
"""The answers to a leaf for each manifest: by partition values alone, and by bounds too."""


class EntriesSource(Protocol):
    """Reads manifest entries, as ``floeplan.metadata.manifests.reader.read_entries`` does."""

    def read_entries(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: EntryColumns,
        *,
        rows: Ints | None = None,
        io: FileIO | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> EntriesTable: ...


class _Repeated(NamedTuple):
    """Leaves that were evaluated on entries of a table, and the answers to the repeated ones for all of its entries."""

    seen: set[IrExpr]
    answers: dict[IrExpr, Answers]

    def remember(self, leaf: IrExpr, answer: Callable[[], Answers]) -> Answers | None:
        """As ``Slice.remember``."""
        found = self.answers.get(leaf)
        if found is not None:
            return found
        if leaf not in self.seen:
            if len(self.seen) >= _MOST_COUNTED:
                self.seen.clear()
            self.seen.add(leaf)
            return None
        if len(self.answers) >= _MOST_REPEATED:
            self.answers.clear()
        return self.answers.setdefault(leaf, answer())


@dataclass(frozen=True, slots=True)
class _Held:
    """Entries of some manifests; ``first`` is the row of a manifest's first entry, or -1 where it is not held."""

    entries: EntriesTable
    first: Ints
    count: Ints
    decoded: dict[Hashable, ColumnStats] = field(default_factory=dict)
    repeated: _Repeated = field(default_factory=lambda: _Repeated(set(), {}))

    @classmethod
    def of(cls, entries: EntriesTable, rows: Ints, manifests: int) -> _Held:
        count = np.bincount(entries.ints("manifest"), minlength=manifests)
        first = np.full(manifests, -1, dtype=np.int64)
        first[rows] = np.cumsum(count[rows]) - count[rows]
        return cls(entries, first, count)

    @property
    def size(self) -> int:
        """The memory of the entries, and of their statistics once these are decoded."""
        columns: int = sum(name.startswith(("lower.", "partition.")) for name in self.entries.table.column_names)
        return int(self.entries.table.nbytes) + _DECODED_BYTES * columns * len(self.entries)

    def take(self, rows: Ints) -> EntriesTable:
        """The entries of these manifests, in that order."""
        first, count = self.first[rows], self.count[rows]
        if len(rows) and (first[1:] == first[:-1] + count[:-1]).all():
            start = int(first[0])
            table = self.entries.table.slice(start, int(count.sum()))
            return EntriesTable(
                table, self.entries.partition_types, Slice(self.entries, start, self.decoded, self.repeated.remember)
            )
        return self.entries.take(expand_runs(first, count))


class EntriesMemory:
    """The tables of several snapshots, up to a number of bytes; may be used by several threads."""

    def __init__(self, source: EntriesSource, max_bytes: int) -> None:
        self.source = source
        self._max_bytes = max_bytes
        self._held: LRUCache[Hashable, _Held] = LRUCache(max_bytes, getsizeof=lambda held: held.size)
        self._misses: LRUCache[Hashable, int] = LRUCache(_MOST_COUNTED)
        self._bounds: LRUCache[_BoundsKey, ColumnStats] = LRUCache(_MOST_BOUNDS)
        self._evaluated: LRUCache[Hashable, int] = LRUCache(_MOST_COUNTED)
        self._answers: LRUCache[Hashable, Answers] = LRUCache(_ANSWER_BYTES, getsizeof=_answers_size)
        self._lock = threading.Lock()

    def of(self, snapshot: Hashable) -> HeldEntries:
        """The entries of one snapshot; the key stands for its manifest list and partition fields."""
        return HeldEntries(self, snapshot)

    def find(self, key: Hashable) -> _Held | None:
        """The table of a snapshot and a set of columns."""
        with self._lock:
            return self._held.get(key)

    def keep(self, key: Hashable, held: _Held) -> None:
        """Replace a table."""
        with self._lock:
            if held.size <= self._max_bytes:
                self._held[key] = held
            self._misses.pop(key, None)

    def count_miss(self, key: Hashable) -> int:
        """Count a read that was not held."""
        with self._lock:
            misses = self._misses[key] = self._misses.get(key, 0) + 1
        return misses

    def fit(self, held: _Held, entries: int, tables: int = 1) -> bool:
        """Whether several tables with this many entries fit, if they are as large as those of another table."""
        each = held.size / max(len(held.entries), 1)
        return bool(each * entries * tables <= self._max_bytes)

    def find_bounds(self, key: _BoundsKey) -> ColumnStats | None:
        """The statistics of a column, or of a field of the partition tuple, for each manifest."""
        with self._lock:
            return self._bounds.get(key)

    def keep_bounds(self, key: _BoundsKey, stats: ColumnStats) -> None:
        """Keep the statistics of a column."""
        with self._lock:
            self._bounds[key] = stats

    def remember(self, key: Hashable, answer: Callable[[], Answers]) -> Answers:
        """The answers to a leaf, computed if they are not known."""
        with self._lock:
            found = self._answers.get(key)
        if found is None:
            found = answer()
            with self._lock:
                if _answers_size(found) <= _ANSWER_BYTES:
                    self._answers[key] = found
        return found

    def count_evaluated(self, snapshot: Hashable, field_ids: Iterable[int], entries: int) -> None:
        """Count entries of which statistics of these columns were read."""
        with self._lock:
            for field_id in field_ids:
                key = (snapshot, field_id)
                self._evaluated[key] = self._evaluated.get(key, 0) + entries

    def is_worth(self, snapshot: Hashable, field_ids: Iterable[int], entries: int) -> bool:
        """Whether scans have evaluated this many entries; counting then starts again, so that one thread computes."""
        keys = [(snapshot, field_id) for field_id in field_ids]
        with self._lock:
            worth = all(self._evaluated.get(key, 0) >= max(entries, _LEAST_EVALUATED) for key in keys)
            for key in keys if worth else ():
                self._evaluated.pop(key, None)
        return worth


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """Reads the entries of one snapshot from memory, else from the source."""

    memory: EntriesMemory
    snapshot: Hashable = field(hash=False)

    def read_entries(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: EntryColumns,
        *,
        rows: Ints | None = None,
        io: FileIO | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> EntriesTable:
        """As ``EntriesSource.read_entries``."""
        chosen = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        entries = self._read(manifests, partition, columns, chosen, io, max_workers)
        self.memory.count_evaluated(self.snapshot, columns.stats, len(entries))
        return entries

    def manifest_bounds(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: Mapping[int, Column],
        *,
        io: FileIO | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> StatsTable | None:
        """The statistics of these columns for each data manifest; ``None`` for none, while they do not pay."""
        keys = {i: (self.snapshot, i, str(column.type)) for i, column in columns.items()}
        known = {i: stats for i, key in keys.items() if (stats := self.memory.find_bounds(key)) is not None}
        lacking = {i: column for i, column in columns.items() if i not in known}
        if not lacking:
            return StatsTable(len(manifests), known) if known else None
        rows = np.flatnonzero(manifests.is_live & manifests.is_data)
        entries = np.cumsum(np.maximum(manifests.added_files[rows], 0) + np.maximum(manifests.existing_files[rows], 0))
        if len(rows) and self.memory.is_worth(self.snapshot, lacking, int(entries[-1])):
            slices = np.split(rows, np.flatnonzero(np.diff(entries // _SLICE)) + 1)

            def read(some: Ints) -> EntriesTable:
                wanted = EntryColumns(frozenset(), stats=frozenset(lacking), partition=False)
                source = self.memory.source
                return source.read_entries(manifests, partition, wanted, rows=some, io=io, max_workers=max_workers)

            with suppress(Exception):  # of a manifest that this scan does not need
                made = _bounds(slices, read, lacking.values(), len(manifests))
                for i, stats in made.items():
                    self.memory.keep_bounds(keys[i], stats)
                known |= made
        return StatsTable(len(manifests), known) if known else None

    def remember(self, leaf: IrExpr, bounded: bool, answer: Callable[[], Answers]) -> Answers:
        """The answers to a leaf for each manifest of the snapshot; ``bounded`` if bounds of its column are known."""
        return self.memory.remember(hashkey(self.snapshot, bounded, leaf), answer)

    def manifest_summaries(self, manifests: ManifestListTable, fields: Iterable[UnionField]) -> StatsTable:
        """As ``manifest_stats``; decoding the summaries of a long manifest list takes longer than evaluating them."""
        known = {}
        for field_ in fields:
            key = (self.snapshot, field_.id, _SUMMARY)
            stats = self.memory.find_bounds(key)
            if stats is None:
                stats = manifest_stats(manifests, [field_]).columns.get(field_.id)
                if stats is None:
                    continue
                self.memory.keep_bounds(key, stats)
            known[field_.id] = stats
        return StatsTable(len(manifests), known)

    def _read(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: EntryColumns,
        chosen: Ints,
        io: FileIO | None,
        max_workers: int,
    ) -> EntriesTable:
        key = (self.snapshot, columns)
        nearby = int(chosen[0]) // _NEARBY * _NEARBY if len(chosen) else 0
        held, neighbours = self.memory.find(key), self.memory.find((*key, nearby))
        for table in (held, neighbours):
            if table is not None and (table.first[chosen] >= 0).all():
                return table.take(chosen)

        def read(some: Ints) -> EntriesTable:
            source = self.memory.source
            return source.read_entries(manifests, partition, columns, rows=some, io=io, max_workers=max_workers)

        if held is None:
            entries = read(chosen)
            self.memory.keep(key, _Held.of(entries, chosen, len(manifests)))
            return entries
        misses = self.memory.count_miss(key)
        place: Hashable = (*key, nearby)
        counted = np.maximum(manifests.added_files, 0) + np.maximum(manifests.existing_files, 0)
        alike = np.flatnonzero(manifests.content == manifests.content[chosen[0]])
        near = alike[(alike >= nearby) & (alike < nearby + 2 * _NEARBY)]
        if self.memory.fit(held, int(counted[alike].sum())):
            due, place, near = misses % _MISSES == 0, key, alike
        else:
            few = self.memory.fit(held, int(counted[near].sum()), tables=4)
            due = few and misses >= _MISSES and bool(np.isin(chosen, near).all())
        if due:
            with suppress(Exception):  # of a manifest that this scan does not need
                table = _Held.of(read(near), near, len(manifests))
                self.memory.keep(place, table)
                if (table.first[chosen] >= 0).all():
                    return table.take(chosen)
        return read(chosen)


def _answers_size(answers: Answers) -> int:
    return sum(3 * len(tri.may_true) for tri in answers)


def _bounds(
    slices: Sequence[Ints], read: Callable[[Ints], EntriesTable], columns: Collection[Column], manifests: int
) -> Mapping[int, ColumnStats]:
    """The statistics of columns for each manifest of these slices; nothing is known of the others."""
    parts: list[StatsTable] = []
    at = np.full(manifests, -1, dtype=np.int64)
    for rows in slices:
        entries = read(rows)
        if len(entries):
            at[rows] = np.arange(len(rows)) + sum(part.length for part in parts)
            counts = np.bincount(entries.ints("manifest"), minlength=manifests)[rows]
            parts.append(grouped_stats(file_stats(entries, columns), counts))
    return concat_stats(parts, at).columns if parts else {}
