"""``rewrite_manifests``: cluster manifest entries by partition, so that planning prunes most manifests.

Rule: per spec and kind, entries are sorted by partition and cut into manifests (``Clustering``). A spec is left alone
when that would reduce neither the manifests per partition nor the number of manifests.

Fail-safe: a ``replace`` snapshot of EXISTING entries; every file keeps its snapshot id, sequence numbers and row ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table
from floeplan.errors import InvalidOptionError
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, concat_entries
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.spec_upgrade.entry_moves import MOST_MANIFESTS, Clustering
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.manifests import MergeOptions
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints

LEAST_ENTRIES = 50
"""Entries of a manifest below which neighbouring partitions share one."""


@dataclass(frozen=True, slots=True)
class SpecManifests:
    """The manifests of one spec and kind, before and after.

    Attributes:
        spec_id: The spec.
        content: ``data`` or ``deletes``.
        entries: Live entries.
        manifests_before: Manifests that held them.
        manifests_after: Manifests that hold them now.
        overlap_before: Average manifests per partition before.
        overlap_after: Average manifests per partition after.
    """

    spec_id: int
    content: str
    entries: int
    manifests_before: int
    manifests_after: int
    overlap_before: float
    overlap_after: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RewriteManifestsResult:
    """Manifests before and after, and the snapshot; none when nothing was rewritten."""

    manifests_before: int
    manifests_after: int
    entries_rewritten: int
    specs: tuple[SpecManifests, ...]
    snapshot_id: int | None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"specs": [one.to_dict() for one in self.specs]}


def rewrite_manifests(
    table: Table | str,
    *,
    spec_ids: Sequence[int] | None = None,
    least_entries: int = LEAST_ENTRIES,
    dry_run: bool = False,
    branch: str = MAIN_BRANCH,
    commit: CommitOptions | None = None,
) -> RewriteManifestsResult:
    """Cluster the manifests of a branch by partition.

    Args:
        table: The table, or its name.
        spec_ids: Specs whose manifests are rewritten; all when not given.
        least_entries: Entries of a manifest below which neighbouring partitions share one.
        dry_run: Only report what would be done.
        branch: The branch.
        commit: Commit and retry options.
    """
    if least_entries < 1:
        raise InvalidOptionError("least_entries must be at least 1", context={"value": least_entries})
    loaded = load_table(table)
    for spec_id in spec_ids or ():
        UnionPartitionType.of_table(loaded.metadata).spec(spec_id)
    planned: list[_Plan] = []

    def decide(head: SnapshotReader) -> EntryMove | None:
        planned.append(_plan(head, spec_ids, least_entries))
        return planned[-1].entry_move()

    if dry_run:
        decide(SnapshotReader.of_branch(loaded, branch))
        return planned[-1].result(None, dry_run=True)
    summary = {"floeplan.operation": "rewrite-manifests"}
    done = move_entries(loaded, decide, branch=branch, summary=summary, options=commit)
    return planned[-1].result(None if done is None else done.snapshot_id, dry_run=False)


@dataclass(frozen=True, slots=True)
class _Group:
    """The entries of one spec and kind, and the manifests they are to be in."""

    rows: Ints
    entries: EntriesTable
    parts: list[EntriesTable]
    report: SpecManifests

    @property
    def better(self) -> bool:
        """Whether rewriting is worth it."""
        before = self.report.overlap_before, self.report.manifests_before
        return (self.report.overlap_after, self.report.manifests_after) < before


@dataclass(frozen=True, slots=True)
class _Plan:
    """What would be rewritten on one head."""

    head: SnapshotReader
    groups: list[_Group]

    @property
    def chosen(self) -> list[_Group]:
        return [group for group in self.groups if group.better]

    def entry_move(self) -> EntryMove | None:
        if not self.chosen:
            return None
        return EntryMove(
            np.concatenate([group.rows for group in self.chosen]),
            concat_entries([group.entries for group in self.chosen], self.head.union),
            [part for group in self.chosen for part in group.parts],
        )

    def result(self, snapshot_id: int | None, *, dry_run: bool) -> RewriteManifestsResult:
        before = len(self.head.manifest_rows(DATA)) + len(self.head.manifest_rows(DELETES))
        gone, come = (sum(n) for n in zip((0, 0), *((len(g.rows), len(g.parts)) for g in self.chosen), strict=True))
        return RewriteManifestsResult(
            manifests_before=before,
            manifests_after=before - gone + come,
            entries_rewritten=sum(len(group.entries) for group in self.chosen),
            specs=tuple(group.report for group in self.chosen),
            snapshot_id=snapshot_id,
            dry_run=dry_run,
        )


def _plan(head: SnapshotReader, spec_ids: Sequence[int] | None, least_entries: int) -> _Plan:
    groups = []
    for content in (DATA, DELETES):
        rows = head.manifest_rows(content)
        specs = np.unique(head.manifests.spec_id[rows]).tolist()
        asked = specs if spec_ids is None else sorted(set(specs) & set(spec_ids))
        groups += [_group(head, rows[head.manifests.spec_id[rows] == spec_id], least_entries) for spec_id in asked]
    return _Plan(head, groups)


def _group(head: SnapshotReader, rows: Ints, least_entries: int) -> _Group:
    entries = head.entries(rows, EntryColumns(WHOLE))
    each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(entries)))
    target = MergeOptions.of(head.metadata.properties).target_bytes
    most = max(1, min(MOST_MANIFESTS, -(-len(entries) // least_entries)))
    parts = Clustering(head.union, target // each, most).manifests(entries)
    now = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    report = SpecManifests(
        spec_id=int(head.manifests.spec_id[rows[0]]),
        content="data" if head.manifests.content[rows[0]] == DATA else "deletes",
        entries=len(entries),
        manifests_before=len(rows),
        manifests_after=len(parts),
        overlap_before=_overlap(head, entries, entries.ints("manifest")),
        overlap_after=_overlap(head, concat_entries(parts, head.union), now),
    )
    return _Group(rows, entries, parts, report)


def _overlap(head: SnapshotReader, entries: EntriesTable, manifest: Ints) -> float:
    """Average manifests per partition."""
    codes = partition_codes(head.union, entries.spec_id, entries.partition_columns())
    if not len(codes):
        return 0.0
    places = int(np.unique(np.stack([codes, manifest]), axis=1).shape[1])
    return round(places / len(np.unique(codes)), 3)
