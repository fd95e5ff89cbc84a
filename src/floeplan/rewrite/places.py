"""Where entries are filed, and what it takes to file some of them elsewhere.

A place is a spec and a partition under it. Filing entries elsewhere replaces the manifests they are in: what stays is
written again manifest by manifest, what moves is clustered by its new partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import WHOLE, EntryColumns, partition_column
from floeplan.rewrite.clustering import Clustering
from floeplan.transaction.entry_tables import concat_entries
from floeplan.transaction.merge_manifests import MergeOptions
from floeplan.transaction.refile import Head, Refiling

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


def refiling_of(head: Head, moves: Sequence[Move]) -> Refiling | None:
    """The manifests to replace so that entries are filed as asked; ``None`` when all stay."""
    found = [_refiled(head, move) for move in moves if not move.nothing]
    if not found:
        return None
    return Refiling(
        np.concatenate([one.replaced for one in found]),
        concat_entries([one.before for one in found], head.union),
        [manifest for one in found for manifest in one.after],
    )


def _refiled(head: Head, move: Move) -> Refiling:
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
    return Refiling(rows, whole, [*_per_manifest(staying), *_clustering(head, rows, whole).manifests(moved)])


def _per_manifest(entries: EntriesTable) -> list[EntriesTable]:
    """Entries as they were grouped; they come in the order of the manifests."""
    starts = np.flatnonzero(np.diff(entries.ints("manifest"), prepend=-1))
    stops = np.append(starts[1:], len(entries))
    return (
        [entries.take(np.arange(start, stop)) for start, stop in zip(starts, stops, strict=True)] if len(starts) else []
    )


def _clustering(head: Head, rows: Ints, entries: EntriesTable) -> Clustering:
    """Manifests of about the size the table asks for, judged by what entries take now."""
    each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(entries)))
    return Clustering(head.union, MergeOptions.of(head.metadata.properties).target_bytes // each)
