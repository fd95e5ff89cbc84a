"""Writers of equality deletes that a move of rows to another partition spec would leave behind.

A streaming writer (Flink, RisingWave) keeps the spec it has loaded. Its equality deletes apply within their spec and
partition, so later upserts do not apply to rows that a rewrite or a change of rows has written under another spec, and
duplicate them. The writer must be stopped before the move and started again after it, or rows must keep their spec.

Rule: a spec has a live writer when a snapshot of the last ``RECENT_HOURS`` added equality deletes under it. Deletes of
an unpartitioned spec apply to all specs and do not count. Fail-safe: a writer that has ended recently counts too; so do
equality deletes of expired snapshots when the history is shorter than that.

A delete *came late* if rows had left its spec before it was added. Snapshots that move rows record it
(``floeplan.moved-from-specs``, and ``floeplan.operation`` of a move by metadata). Once such a snapshot has expired, and
where another engine has rewritten them, the files of a rewrite still show that their rows may come from any other spec:
their data sequence number is lower than their file sequence number.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of

from floeplan.errors import UnsupportedError
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import Content, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.passes import ScanDeletes, match
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import counted
from floeplan.vectors import Ints, Mask

RECENT_HOURS = 24
STOP_WRITERS = (
    "writers that add equality deletes under an old spec must be stopped: their deletes would not apply to moved rows"
)
MOVED_FROM_SPECS, REPLACED_SPECS = "floeplan.moved-from-specs", "floeplan.replaced-specs"
_LIVE_WRITER = "live-equality-writer"
_MOST_LISTS = 50
"""Snapshots whose manifest list is read; a live writer has added the newest of them."""


@dataclass(frozen=True, slots=True)
class LiveWriter:
    """A writer of equality deletes under a spec that rows would leave."""

    spec_id: int
    snapshot_id: int
    output_spec_id: int
    expired: bool = False

    def warning(self, fix: str) -> PlanWarning:
        """The warning of it; ``fix`` is what to do instead."""
        hours = f"of the last {RECENT_HOURS} hours"
        when = f", which has expired and may be {hours}," if self.expired else f" {hours}"
        text = (
            f"snapshot {self.snapshot_id}{when} added equality deletes under partition spec "
            f"{self.spec_id}: later upserts of that writer would duplicate rows that move to spec "
            f"{self.output_spec_id}; {fix}"
        )
        return PlanWarning(_LIVE_WRITER, text, {"spec_id": self.spec_id, "snapshot_id": self.snapshot_id})


def find_live_writer(
    metadata: TableMetadata, snapshot: Snapshot | None, io: FileIO | None, specs: Collection[int], output_spec_id: int
) -> LiveWriter | None:
    """The newest writer of equality deletes under a partitioned spec that rows leave, in the history of a snapshot."""
    union = UnionPartitionType.of_table(metadata)
    leaving = [i for i in sorted(set(specs) - {output_spec_id}) if not union.spec(i).unpartitioned]
    since = (time.time() - RECENT_HOURS * 3600) * 1000
    history = list(ancestors_of(snapshot, metadata)) if leaving else []
    recent = list(takewhile(lambda one: one.timestamp_ms >= since, history))
    adding = [one for one in recent if one.summary and "added-equality-deletes" in one.summary.additional_properties]
    for at, added in enumerate(adding[:_MOST_LISTS]):
        manifests = read_manifest_list(added.manifest_list, io, table_location=metadata.location)
        added_by = manifests.added_snapshot_id
        # The newest list also has what older snapshots added, except for manifests that were merged since.
        own = np.isin(added_by, [one.snapshot_id for one in adding]) if at == 0 else added_by == added.snapshot_id
        deletes = (manifests.content == DELETES) & np.isin(manifests.spec_id, leaving) & (manifests.added_files != 0)
        for row in np.flatnonzero(own & deletes).tolist():
            return LiveWriter(int(manifests.spec_id[row]), int(added_by[row]), output_spec_id)
    if snapshot is None or not recent or len(recent) < len(history) or (history[-1].sequence_number or 0) <= 1:
        return None  # the history is whole, or reaches back far enough
    return _writer_of_expired_snapshot(metadata, snapshot, io, leaving, output_spec_id)


def _writer_of_expired_snapshot(
    metadata: TableMetadata, head: Snapshot, io: FileIO | None, leaving: list[int], output_spec_id: int
) -> LiveWriter | None:
    """The newest of the equality deletes under some specs whose snapshot has expired, so that its time is unknown."""
    if head.summary is not None and head.summary.additional_properties.get("total-equality-deletes") == "0":
        return None
    manifests = read_manifest_list(head.manifest_list, io, table_location=metadata.location)
    rows = np.flatnonzero((manifests.content == DELETES) & manifests.is_live & np.isin(manifests.spec_id, leaving))
    columns, union = EntryColumns(frozenset({"snapshot_id"}), partition=False), UnionPartitionType.of_table(metadata)
    deletes = read_entries(manifests, union, columns, rows=rows, io=io, live=True)
    added_by = deletes.ints("snapshot_id")
    expired = ~np.isin(added_by, [one.snapshot_id for one in metadata.snapshots])
    found = np.flatnonzero((deletes.content == Content.EQUALITY_DELETES) & expired)
    if not len(found):
        return None
    newest = found[np.argmax(deletes.sequence_number[found])]
    return LiveWriter(int(deletes.spec_id[newest]), int(added_by[newest]), output_spec_id, expired=True)


def warn_of_equality_writers(head: SnapshotReader, specs: Collection[int], output_spec_id: int) -> list[PlanWarning]:
    """Warnings for rows that leave some specs: what it means for writers, and the live writer that was found."""
    leaving = sorted(set(specs) - {output_spec_id})
    if not leaving:
        return []
    warnings = [PlanWarning("late-equality-deletes", STOP_WRITERS, {"spec_ids": leaving})]
    writer = find_live_writer(head.metadata, head.snapshot, head.io, leaving, output_spec_id)
    if writer is not None:
        warnings.append(writer.warning("stop it, move and start it again, or keep the spec"))
    return warnings


def refuse_live_writers(warnings: Collection[PlanWarning]) -> None:
    """Refuse to move rows out of a spec with a live writer of equality deletes.

    Raises:
        UnsupportedError: There is one.
    """
    for warning in warnings:
        if warning.kind == _LIVE_WRITER:
            raise UnsupportedError(
                f"{warning.message} (--allow-late-equality-deletes moves them anyway)",
                kind=_LIVE_WRITER,
                context=warning.context,
            )


def warn_of_late_deletes(
    head: SnapshotReader, deletes: ScanDeletes, files: EntriesTable, matches: DeleteMatches, rows: Ints
) -> list[PlanWarning]:
    """A warning of equality deletes that came late and may have keys of files that are about to be rewritten.

    A delete applies to older files only: ``doctor`` cannot find duplicate rows in the new files.

    Args:
        head: The snapshot.
        deletes: All its delete files.
        files: Data files, with the bounds of equality keys.
        matches: The deletes that apply to each; a late one that was repaired is among them.
        rows: The data files to rewrite.
    """
    scoped = np.flatnonzero(deletes.kinds == DeleteKind.EQUALITY_PARTITION)
    late = scoped[came_late(head, deletes.entries.take(scoped), spec_moves(head))] if len(scoped) else scoped
    if not len(late):
        return []
    data, applied = files.take(rows), matches.take(rows)
    sources = source_types(head.metadata.schema(), head.metadata.schemas)
    meant = match(data, deletes.everywhere(late), head.union, sources)
    data_row, delete = meant.data_rows, late[meant.deletes]
    path = deletes.entries.path.dictionary_encode().indices.to_numpy()
    known = applied.data_rows * len(path) + path[applied.deletes]
    applies = np.isin(data_row * len(path) + path[delete], known)
    missing = delete[~applies & (deletes.entries.spec_id[delete] != data.spec_id[data_row])]
    count = len(np.unique(path[missing]))
    if not count:
        return []
    text = (
        f"{counted(count, 'equality delete file')} came after rows had left their spec and may match rows of these "
        "files: run doctor --repair first, because it cannot find duplicate rows in rewritten files"
    )
    return [PlanWarning("doubled-rows", text, {"delete_files": count})]


@dataclass(frozen=True, slots=True)
class SpecMove:
    """A snapshot that moved rows out of some specs; ``replaced`` are the specs of all files it rewrote, if it did."""

    snapshot: Snapshot
    left: frozenset[int]
    replaced: frozenset[int] | None


def spec_moves(head: SnapshotReader) -> list[SpecMove]:
    """The snapshots in the history of a head that moved rows between specs."""
    found, specs = [], frozenset(head.metadata.specs())
    for snapshot in ancestors_of(head.snapshot, head.metadata):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get("floeplan.operation") == "upgrade-spec":
            target = int(summary.get("floeplan.target-spec-id", head.metadata.default_spec_id))
            found.append(SpecMove(snapshot, specs - {target}, None))
        elif MOVED_FROM_SPECS in summary:
            left, replaced = (summary.get(key, "").split(",") for key in (MOVED_FROM_SPECS, REPLACED_SPECS))
            found.append(SpecMove(snapshot, frozenset(map(int, left)), frozenset(map(int, replaced))))
    return found


def came_late(head: SnapshotReader, deletes: EntriesTable, moves: Collection[SpecMove]) -> Mask:
    """Which equality deletes were added after rows had left their spec."""
    late = np.zeros(len(deletes), dtype=np.bool_)
    for move in moves:
        after = deletes.sequence_number > (move.snapshot.sequence_number or 0)
        late |= after & np.isin(deletes.spec_id, list(move.left))
    for spec_id, number in _other_rewrites(head).items():
        late |= (deletes.sequence_number > number) & (deletes.spec_id != spec_id)
    return late


def _other_rewrites(head: SnapshotReader) -> dict[int, int]:
    """By spec, the sequence number of the oldest rewrite of its files that recorded no move: expired, or of others."""
    data = head.entries(
        head.manifest_rows(DATA), EntryColumns(frozenset({"snapshot_id", "file_sequence_number"}), partition=False)
    )
    recording = [snapshot.snapshot_id for snapshot in head.metadata.snapshots if _records_moves(snapshot.summary)]
    written = data.ints("file_sequence_number")
    found = (data.sequence_number < written) & ~np.isin(data.ints("snapshot_id"), recording)
    return {
        spec_id: int(written[found & (data.spec_id == spec_id)].min()) for spec_id in set(data.spec_id[found].tolist())
    }


def _records_moves(summary: Summary | None) -> bool:
    """Whether a snapshot records that it moves rows between specs; rewrites of other engines do not."""
    if summary is None:
        return False
    return summary.operation is not Operation.REPLACE or "floeplan.operation" in summary.additional_properties
