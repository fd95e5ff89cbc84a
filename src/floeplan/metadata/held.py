"""Decoded manifest entries of snapshots in memory, for processes that plan many scans of the same snapshots.

The disk cache (``cache``) assembles a result from the segments that hold its manifests, which takes longer than
evaluating a selective predicate. Here the entries of one snapshot are one table: the entries of some of its manifests
are rows of it.

Rule: the result equals that of the source. A read with a manifest that is not held goes to the source. The first one is
held as it is; after ``_MISSES`` further ones, all manifests of the snapshot are read and held, because every selective
scan needs other ones. (Only the type of a partition field whose source column was dropped may be known here where the
source, reading fewer manifests, does not know it.)

Fail-safe: the least recently used tables are dropped when all of them exceed a number of bytes, and a table that would
exceed it alone is not read. A manifest that cannot be read is an error for the scans that need it only. Tables are
never changed, so threads may read while another one replaces them.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from pyiceberg.io import FileIO

from floeplan.metadata.files import MAX_WORKERS
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints

_MISSES, _MOST_COUNTED = 8, 1024


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


@dataclass(frozen=True, slots=True)
class _Held:
    """Entries of some manifests; ``first`` is the row of a manifest's first entry, or -1 where it is not held."""

    entries: EntriesTable
    first: Ints
    count: Ints

    @classmethod
    def of(cls, entries: EntriesTable, rows: Ints, manifests: int) -> _Held:
        count = np.bincount(entries.ints("manifest"), minlength=manifests)
        first = np.full(manifests, -1, dtype=np.int64)
        first[rows] = np.cumsum(count[rows]) - count[rows]
        return cls(entries, first, count)

    def take(self, rows: Ints) -> EntriesTable:
        """The entries of these manifests, in that order."""
        first, count = self.first[rows], self.count[rows]
        before = np.cumsum(count) - count
        chosen = np.repeat(first - before, count) + np.arange(int(count.sum()))
        if len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen) and (np.diff(chosen) == 1).all():
            table = self.entries.table.slice(int(chosen[0]), len(chosen))
            return EntriesTable(table, self.entries.partition_types)
        return self.entries.take(chosen)


class EntriesMemory:
    """The tables of several snapshots, up to a number of bytes; may be used by several threads."""

    def __init__(self, source: EntriesSource, max_bytes: int) -> None:
        self.source = source
        self._max_bytes = max_bytes
        self._held: LRUCache[Hashable, _Held] = LRUCache(max_bytes, getsizeof=lambda held: held.entries.table.nbytes)
        self._misses: LRUCache[Hashable, int] = LRUCache(_MOST_COUNTED)
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
            if held.entries.table.nbytes <= self._max_bytes:
                self._held[key] = held
            self._misses.pop(key, None)

    def is_due(self, key: Hashable, entries: float, held: _Held) -> bool:
        """Count a read that was not held; whether it is time to hold all entries, and they fit."""
        with self._lock:
            misses = self._misses[key] = self._misses.get(key, 0) + 1
        each = held.entries.table.nbytes / max(len(held.entries), 1)
        return misses % _MISSES == 0 and each * entries <= self._max_bytes


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
        key = (self.snapshot, columns)
        held = self.memory.find(key)
        if held is not None and (held.first[chosen] >= 0).all():
            return held.take(chosen)

        def read(some: Ints) -> EntriesTable:
            source = self.memory.source
            return source.read_entries(manifests, partition, columns, rows=some, io=io, max_workers=max_workers)

        entries = read(chosen)
        if held is None:
            self.memory.keep(key, _Held.of(entries, chosen, len(manifests)))
            return entries
        alike = np.flatnonzero(manifests.content == manifests.content[chosen[0]])
        listed = float(np.maximum(manifests.added_files, 0)[alike].sum() + manifests.existing_files[alike].sum())
        if self.memory.is_due(key, listed, held):
            with suppress(Exception):  # of a manifest that this scan does not need
                self.memory.keep(key, _Held.of(read(alike), alike, len(manifests)))
        return entries
