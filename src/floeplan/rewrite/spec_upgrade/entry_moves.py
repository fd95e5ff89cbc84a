"""Recording manifest entries in manifests of another spec or partition.

Moving entries replaces the manifests they are in: entries that stay are written again manifest by manifest, entries
that move are clustered by their new partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.manifests.entries import (
    WHOLE,
    Content,
    EntriesTable,
    EntryColumns,
    concat_entries,
    partition_column,
)
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.manifests import MergeOptions, group_entries_by_spec
from floeplan.transaction.move_entries import EntryMove
from floeplan.vectors import Ints, Mask

# Entries shared out over manifests so that a partition is in as few of them as can be.
#
# Rule: entries are sorted by their partition and cut where the partition changes: one manifest a partition, or several
# neighbouring partitions to a manifest where there are many. The partition summaries of such manifests are narrow,
# which
# is what lets a planner leave most of them unread.


MOST_MANIFESTS = 200
"""Manifests of one spec and kind beyond which neighbouring partitions share one."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """How entries are divided into manifests.

    Attributes:
        union: The partition fields of the table.
        most_entries: Maximum entries of a manifest, even within a partition.
        most_manifests: Maximum manifests of one spec and kind, unless ``most_entries`` requires more.
    """

    union: UnionPartitionType
    most_entries: int
    most_manifests: int = MOST_MANIFESTS

    def manifests(self, entries: EntriesTable) -> list[EntriesTable]:
        """The entries of each manifest, for entries of any specs and kinds."""
        is_data = entries.content == Content.DATA
        kinds = [entries.filter(kind) for kind in (is_data, ~is_data) if kind.any()]
        return [part for kind in kinds for own in group_entries_by_spec(kind).values() for part in self._parts(own)]

    def _parts(self, entries: EntriesTable) -> list[EntriesTable]:
        ordered = self._sorted(entries)
        codes = partition_codes(self.union, ordered.spec_id, ordered.partition_columns())
        ends = np.append(np.flatnonzero(np.diff(codes)) + 1, len(ordered))
        cuts = _cuts(ends, -(-len(ordered) // self.most_manifests), self.most_entries)
        return [
            EntriesTable(ordered.table.slice(start, stop - start).combine_chunks(), ordered.partition_types)
            for start, stop in zip([0, *cuts], cuts, strict=False)
        ]

    def _sorted(self, entries: EntriesTable) -> EntriesTable:
        fields = self.union.spec(int(entries.spec_id[0])).fields
        names = [partition_column(field.column.field_id) for field in fields if not field.is_void]
        known = [name for name in names if name in entries and entries.array(name).null_count < len(entries)]
        if not known:
            return entries
        order = pc.sort_indices(entries.table.select(known), [(name, "ascending") for name in known])
        return entries.take(order.to_numpy())


def _cuts(ends: Ints, least: int, most: int) -> list[int]:
    """Where manifests end: at the end of a partition once ``least`` entries are in, after ``most`` in any case."""
    cuts, start, length = [], 0, int(ends[-1])
    while start < length:
        wanted = int(ends[min(int(np.searchsorted(ends, start + max(1, least))), len(ends) - 1)])
        start = min(wanted, start + max(1, most))
        cuts.append(start)
    return cuts


# Moving entries.

_WHOLE = EntryColumns(WHOLE)


@dataclass(frozen=True, slots=True)
class PartitionTuples:
    """The spec id and the union partition tuple of many files, as columns."""

    spec_id: Ints
    columns: Mapping[int, pa.Array]

    @classmethod
    def of(cls, entries: EntriesTable) -> PartitionTuples:
        """The spec and partition of entries."""
        return cls(entries.spec_id, entries.partition_columns())

    def take(self, rows: Ints) -> PartitionTuples:
        """Those of some of the files."""
        picked = pa.array(rows)
        return PartitionTuples(self.spec_id[rows], {key: column.take(picked) for key, column in self.columns.items()})

    def apply(self, entries: EntriesTable) -> EntriesTable:
        """The entries with this spec and partition."""
        table = entries.table
        columns = {partition_column(key): column for key, column in self.columns.items()}
        for name, values in (("spec_id", pa.array(self.spec_id)), *columns.items()):
            if name in entries:
                at = table.schema.get_field_index(name)
                known = values.type if pa.types.is_null(table.schema.field(at).type) else table.schema.field(at).type
                table = table.set_column(at, name, values.cast(known))
        return EntriesTable(table, entries.partition_types)


@dataclass(frozen=True, slots=True)
class Move:
    """Live entries of one kind, which of them move, and the new partition of each that moves.

    A delete file that applies to data files in several partitions is recorded in each: the rows ``copies`` are also
    recorded in ``copy_partitions``.
    """

    entries: EntriesTable
    moves: Mask
    partitions: PartitionTuples
    copies: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    copy_partitions: PartitionTuples | None = None

    @property
    def nothing(self) -> bool:
        """Whether no entry moves or is copied."""
        return not self.moves.any() and not len(self.copies)


def entry_move_of(head: SnapshotReader, moves: Sequence[Move]) -> EntryMove | None:
    """The manifests to replace for some moves; ``None`` when nothing moves."""
    found = [_entry_move(head, move) for move in moves if not move.nothing]
    if not found:
        return None
    return EntryMove(
        np.concatenate([one.replaced for one in found]),
        concat_entries([one.before for one in found], head.union),
        [manifest for one in found for manifest in one.after],
    )


def _entry_move(head: SnapshotReader, move: Move) -> EntryMove:
    manifest = move.entries.ints("manifest")
    concerned = move.moves.copy()
    concerned[move.copies] = True
    rows = np.unique(manifest[concerned])
    there = np.isin(manifest, rows)
    whole, moves = head.entries(rows, _WHOLE), move.moves[there]
    staying = whole.filter(~moves)
    parts = [move.partitions.apply(whole.filter(moves))]
    if move.copy_partitions is not None:
        position = np.cumsum(there) - 1
        parts.append(move.copy_partitions.apply(whole.take(position[move.copies])))
    moved = concat_entries(parts, head.union)
    return EntryMove(rows, whole, [*_per_manifest(staying), *_clustering(head, rows, whole).manifests(moved)])


def _per_manifest(entries: EntriesTable) -> list[EntriesTable]:
    """Entries by manifest; they are in the order of the manifests."""
    starts = np.flatnonzero(np.diff(entries.ints("manifest"), prepend=-1))
    stops = np.append(starts[1:], len(entries))
    return (
        [entries.take(np.arange(start, stop)) for start, stop in zip(starts, stops, strict=True)] if len(starts) else []
    )


def _clustering(head: SnapshotReader, rows: Ints, entries: EntriesTable) -> Clustering:
    """Cluster to the target manifest size of the table, given the current bytes per entry."""
    each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(entries)))
    return Clustering(head.union, MergeOptions.of(head.metadata.properties).target_bytes // each)
