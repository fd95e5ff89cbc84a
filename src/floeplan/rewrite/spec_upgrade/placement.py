"""Where entries are filed, and what it takes to file some of them elsewhere.

A place is a spec and a partition under it. Filing entries elsewhere replaces the manifests they are in: what stays is
written again manifest by manifest, what moves is clustered by its new partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.manifests.entries import WHOLE, Content, EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.new_entries import concat_entries
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.manifests import group_entries_by_spec
from floeplan.transaction.merge_manifests import MergeOptions
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
    """How entries are shared out.

    Attributes:
        union: The partition fields of the table.
        most_entries: Entries after which a manifest ends even within a partition.
        most_manifests: Manifests of one spec and kind, unless ``most_entries`` asks for more.
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


# ---

_WHOLE = EntryColumns(WHOLE)


@dataclass(frozen=True, slots=True)
class Places:
    """A spec id and the columns of the union partition tuple, for many files."""

    spec_id: Ints
    columns: Mapping[int, pa.Array]

    @classmethod
    def of(cls, entries: EntriesTable) -> Places:
        """Where entries are."""
        return cls(entries.spec_id, entries.partition_columns())

    def take(self, rows: Ints) -> Places:
        """The places of some of the files."""
        picked = pa.array(rows)
        return Places(self.spec_id[rows], {key: column.take(picked) for key, column in self.columns.items()})

    def apply(self, entries: EntriesTable) -> EntriesTable:
        """The entries, filed at these places."""
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
    """Live entries of one kind, which of them move, and where to; ``places`` has a row for each that moves.

    A delete file that takes effect in several partitions is listed in each: ``copies`` names rows that are filed at
    ``copy_places`` as well as where they are.
    """

    entries: EntriesTable
    moves: Mask
    places: Places
    copies: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    copy_places: Places | None = None

    @property
    def nothing(self) -> bool:
        """Whether all entries stay where they are, and only there."""
        return not self.moves.any() and not len(self.copies)


def refiling_of(head: SnapshotReader, moves: Sequence[Move]) -> EntryMove | None:
    """The manifests to replace so that entries are filed as asked; ``None`` when all stay."""
    found = [_refiled(head, move) for move in moves if not move.nothing]
    if not found:
        return None
    return EntryMove(
        np.concatenate([one.replaced for one in found]),
        concat_entries([one.before for one in found], head.union),
        [manifest for one in found for manifest in one.after],
    )


def _refiled(head: SnapshotReader, move: Move) -> EntryMove:
    manifest = move.entries.ints("manifest")
    concerned = move.moves.copy()
    concerned[move.copies] = True
    rows = np.unique(manifest[concerned])
    there = np.isin(manifest, rows)
    whole, moves = head.entries(rows, _WHOLE), move.moves[there]
    staying = whole.filter(~moves)
    parts = [move.places.apply(whole.filter(moves))]
    if move.copy_places is not None:
        position = np.cumsum(there) - 1
        parts.append(move.copy_places.apply(whole.take(position[move.copies])))
    moved = concat_entries(parts, head.union)
    return EntryMove(rows, whole, [*_per_manifest(staying), *_clustering(head, rows, whole).manifests(moved)])


def _per_manifest(entries: EntriesTable) -> list[EntriesTable]:
    """Entries as they were grouped; they come in the order of the manifests."""
    starts = np.flatnonzero(np.diff(entries.ints("manifest"), prepend=-1))
    stops = np.append(starts[1:], len(entries))
    return (
        [entries.take(np.arange(start, stop)) for start, stop in zip(starts, stops, strict=True)] if len(starts) else []
    )


def _clustering(head: SnapshotReader, rows: Ints, entries: EntriesTable) -> Clustering:
    """Manifests of about the size the table asks for, judged by what entries take now."""
    each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(entries)))
    return Clustering(head.union, MergeOptions.of(head.metadata.properties).target_bytes // each)
