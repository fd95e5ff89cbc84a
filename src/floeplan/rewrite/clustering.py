"""Entries shared out over manifests so that a partition is in as few of them as can be.

Rule: entries are sorted by their partition and cut where the partition changes: one manifest a partition, or several
neighbouring partitions to a manifest where there are many. The partition summaries of such manifests are narrow, which
is what lets a planner leave most of them unread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from floeplan.metadata.decoder import Ints
from floeplan.metadata.entries import Content, EntriesTable
from floeplan.metadata.entry_columns import partition_column
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.spec_groups import group_entries_by_spec

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
