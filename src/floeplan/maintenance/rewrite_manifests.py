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
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.errors import InvalidOptionError
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, concat_entries, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.spec_upgrade.entry_moves import MOST_MANIFESTS, Clustering
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.manifests import MergeOptions
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints

_SAMPLED = 1000
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
        opened_before: Average manifests that pass 1 opened for a filter on one partition, by their summaries.
        opened_after: The same after.
        read_before: Average entries in these manifests before.
        read_after: The same after.
    """

    spec_id: int
    content: str
    entries: int
    manifests_before: int
    manifests_after: int
    overlap_before: float
    overlap_after: float
    opened_before: float
    opened_after: float
    read_before: float
    read_after: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, repr=False)
class RewriteManifestsResult(Displayed):
    """Manifests before and after, and the snapshot; none when nothing was rewritten."""

    manifests_before: int
    manifests_after: int
    entries_rewritten: int
    specs: tuple[SpecManifests, ...]
    snapshot_id: int | None
    dry_run: bool = False

    @property
    def gain(self) -> str:
        """What pass 1 of planning gains: what a filter on one partition opens, weighted by the entries of the specs."""
        weight = max(1, sum(one.entries for one in self.specs))

        def average(name: str) -> float:
            return float(sum(getattr(one, name) * one.entries for one in self.specs)) / weight

        after, before = (f"{average(f'opened_{when}'):.1f}".removesuffix(".0") for when in ("after", "before"))
        entries = [f"{average(f'read_{when}'):,.0f}" for when in ("after", "before")]
        fewer = f" ({' instead of '.join(entries)} entries)" if entries[0] != entries[1] else ""
        opened = f"{after} instead of {before} manifests" if after != before else "as many manifests as before"
        return f"a scan of one partition opens {opened}{fewer}"

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
    catalog: str | Catalog | None = None,
) -> RewriteManifestsResult:
    """Cluster the manifests of a branch by partition.

    Args:
        table: The table, or its name.
        spec_ids: Specs whose manifests are rewritten; all when not given.
        least_entries: Entries of a manifest below which neighbouring partitions share one.
        dry_run: Only report what would be done.
        branch: The branch.
        commit: Commit and retry options.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    if least_entries < 1:
        raise InvalidOptionError(
            f"least_entries is {least_entries} but must be at least 1", context={"value": least_entries}
        )
    loaded = load_table(table, catalog)
    for spec_id in spec_ids or ():
        UnionPartitionType.of_table(loaded.metadata).spec(spec_id)
    planned: list[tuple[SnapshotReader, list[_Group]]] = []

    def decide(head: SnapshotReader) -> EntryMove | None:
        chosen = _chosen(head, spec_ids, least_entries)
        planned.append((head, chosen))
        if not chosen:
            return None
        return EntryMove(
            np.concatenate([group.rows for group in chosen]),
            concat_entries([group.entries for group in chosen], head.union),
            [part for group in chosen for part in group.parts],
        )

    snapshot_id = None
    if dry_run:
        head = SnapshotReader.of_branch(loaded, branch)
        planned.append((head, _chosen(head, spec_ids, least_entries, dry_run=True)))
    else:
        summary = {"floeplan.operation": "rewrite-manifests"}
        done = move_entries(loaded, decide, branch=branch, summary=summary, options=commit)
        snapshot_id = None if done is None else done.snapshot_id
    # Of a commit that was retried, the last plan is the one that was committed.
    head, groups = planned[-1]
    before = len(head.manifest_rows(DATA)) + len(head.manifest_rows(DELETES))
    return RewriteManifestsResult(
        manifests_before=before,
        manifests_after=before + sum(len(group.parts) - len(group.rows) for group in groups),
        entries_rewritten=sum(len(group.entries) for group in groups),
        specs=tuple(group.report for group in groups),
        snapshot_id=snapshot_id,
        dry_run=dry_run,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The entries of one spec and kind, and the manifests they are to be in."""

    rows: Ints
    entries: EntriesTable
    parts: list[EntriesTable]
    report: SpecManifests


def _chosen(
    head: SnapshotReader, spec_ids: Sequence[int] | None, least_entries: int, *, dry_run: bool = False
) -> list[_Group]:
    """The groups whose manifests get fewer, or fewer per partition."""
    chosen = []
    for content in (DATA, DELETES):
        of_content = head.manifest_rows(content)
        specs = set(head.manifests.spec_id[of_content].tolist())
        for spec_id in sorted(specs if spec_ids is None else specs & set(spec_ids)):
            rows = of_content[head.manifests.spec_id[of_content] == spec_id]
            group = _group(head, rows, least_entries, dry_run=dry_run)
            before = group.report.overlap_before, group.report.manifests_before
            if (group.report.overlap_after, group.report.manifests_after) < before:
                chosen.append(group)
    return chosen


def _group(head: SnapshotReader, rows: Ints, least_entries: int, *, dry_run: bool) -> _Group:
    entries = head.entries(rows, EntryColumns(frozenset() if dry_run else WHOLE))
    if dry_run:
        # Partitions alone decide how entries are clustered; paths and statistics take several times their memory.
        names = ["manifest", "content", "spec_id", *map(partition_column, entries.partition_types)]
        entries = EntriesTable(entries.table.select(names), entries.partition_types)
    each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(entries)))
    target = MergeOptions.of(head.metadata.properties).target_bytes
    most = max(1, min(MOST_MANIFESTS, -(-len(entries) // least_entries)))
    parts = Clustering(head.union, target // each, most).manifests(entries)
    clustered = concat_entries(parts, head.union)
    before, now = entries.ints("manifest"), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    opened_before, read_before = manifests_opened(head, entries, before)
    opened_after, read_after = manifests_opened(head, clustered, now)
    report = SpecManifests(
        spec_id=int(head.manifests.spec_id[rows[0]]),
        content="data" if head.manifests.content[rows[0]] == DATA else "deletes",
        entries=len(entries),
        manifests_before=len(rows),
        manifests_after=len(parts),
        overlap_before=round(manifests_per_partition(head, entries, before)[1], 3),
        overlap_after=round(manifests_per_partition(head, clustered, now)[1], 3),
        opened_before=round(opened_before, 3),
        opened_after=round(opened_after, 3),
        read_before=round(read_before, 3),
        read_after=round(read_after, 3),
    )
    return _Group(rows, entries, parts, report)


def manifests_per_partition(head: SnapshotReader, entries: EntriesTable, manifest: Ints) -> tuple[int, float]:
    """The number of partitions, and the average number of manifests with entries of a partition."""
    codes = partition_codes(head.union, entries.spec_id, entries.partition_columns())
    partitions = len(np.unique(codes))
    pairs = int(np.unique(np.stack([codes, manifest]), axis=1).shape[1])
    return partitions, pairs / max(1, partitions)


def manifests_opened(head: SnapshotReader, entries: EntriesTable, manifest: Ints) -> tuple[float, float]:
    """The average number of manifests whose partition summaries admit a partition, and of the entries in them.

    A summary is a range per field, so a manifest of neighbouring partitions may admit one that it does not contain.
    At most ``_SAMPLED`` partitions are counted.
    """
    if not len(entries):
        return 0.0, 0.0
    codes = partition_codes(head.union, entries.spec_id, entries.partition_columns())
    first = np.unique(codes, return_index=True)[1]
    sampled = first[np.linspace(0, len(first) - 1, min(len(first), _SAMPLED)).astype(np.int64)]
    manifests = np.unique(manifest, return_inverse=True)[1]
    admits = np.ones((len(sampled), int(manifests.max()) + 1), dtype=np.bool_)
    for column in entries.partition_columns().values():
        if pa.types.is_null(column.type):
            continue
        # Ranks in the order of the values; nulls have a flag of their own in a summary.
        ranks = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
        null = column.is_null().to_numpy(zero_copy_only=False)
        lowest, highest = np.full(admits.shape[1], len(ranks) + 1), np.full(admits.shape[1], -1)
        np.minimum.at(lowest, manifests[~null], ranks[~null])
        np.maximum.at(highest, manifests[~null], ranks[~null])
        has_null = np.bincount(manifests[null], minlength=admits.shape[1]) > 0
        own = ranks[sampled, None]
        admits &= np.where(null[sampled, None], has_null, (lowest <= own) & (own <= highest))
    return float(admits.sum(axis=1).mean()), float((admits @ np.bincount(manifests)).mean())
