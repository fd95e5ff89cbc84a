"""Writers of equality deletes that a move of rows to another partition spec would leave behind.

A streaming writer (Flink, RisingWave) keeps the spec it has loaded. Its equality deletes apply within their spec and
partition, so later upserts do not apply to rows that a rewrite or a change of rows has written under another spec: they
double. The writer must be stopped before the move and started again after it, or rows must keep their spec.

Rule: a spec has a live writer when a snapshot of the last ``RECENT_HOURS`` added equality deletes under it. Deletes of
an unpartitioned spec apply to all specs and do not count. Fail-safe: a writer that has ended recently counts too.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from floeplan.errors import UnsupportedError
from floeplan.metadata.manifests.manifest_list import DELETES, read_manifest_list
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.reader import SnapshotReader

RECENT_HOURS = 24
STOP_WRITERS = (
    "writers that add equality deletes under an old spec must be stopped: their deletes would not apply to moved rows"
)
_LIVE_WRITER = "live-equality-writer"
_MOST_LISTS = 50
"""Snapshots whose manifest list is read; a live writer has added the newest of them."""


@dataclass(frozen=True, slots=True)
class LiveWriter:
    """A writer of equality deletes under a spec that rows would leave."""

    spec_id: int
    snapshot_id: int
    output_spec_id: int

    def warning(self, fix: str) -> PlanWarning:
        """The warning of it; ``fix`` is what to do instead."""
        text = (
            f"snapshot {self.snapshot_id} of the last {RECENT_HOURS} hours added equality deletes under partition spec "
            f"{self.spec_id}: later upserts of that writer would double rows that move to spec {self.output_spec_id}; "
            f"{fix}"
        )
        return PlanWarning(_LIVE_WRITER, text, {"spec_id": self.spec_id, "snapshot_id": self.snapshot_id})


def find_live_writer(
    metadata: TableMetadata, snapshot: Snapshot | None, io: FileIO | None, specs: Collection[int], output_spec_id: int
) -> LiveWriter | None:
    """The newest writer of equality deletes under a partitioned spec that rows leave, in the history of a snapshot."""
    union = UnionPartitionType.of_table(metadata)
    leaving = [i for i in sorted(set(specs) - {output_spec_id}) if not union.spec(i).unpartitioned]
    since = (time.time() - RECENT_HOURS * 3600) * 1000
    recent = takewhile(lambda one: one.timestamp_ms >= since, ancestors_of(snapshot, metadata))
    adding = (one for one in recent if one.summary and "added-equality-deletes" in one.summary.additional_properties)
    for added in islice(adding, _MOST_LISTS if leaving else 0):
        manifests = read_manifest_list(added.manifest_list, io, table_location=metadata.location)
        own = (manifests.content == DELETES) & (manifests.added_snapshot_id == added.snapshot_id)
        found = np.intersect1d(manifests.spec_id[own & (manifests.added_files != 0)], leaving).tolist()
        if found:
            return LiveWriter(found[0], added.snapshot_id, output_spec_id)
    return None


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
