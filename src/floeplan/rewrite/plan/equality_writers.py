"""Writers of equality deletes that a move to another partition spec would leave behind.

A streaming writer (Flink, RisingWave) keeps the spec it has loaded. Its equality deletes apply within their spec and
partition, so later upserts do not apply to rows that were moved to another spec: they double. The writer must be
stopped before the move and started again after it, or rows must keep their spec.

Rule: a spec has a live writer when a snapshot of the last ``RECENT_HOURS`` added equality deletes under it. Deletes of
an unpartitioned spec apply to all specs and do not count. Fail-safe: a writer that has ended recently counts too.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import islice, takewhile

import numpy as np
from pyiceberg.table.snapshots import ancestors_of

from floeplan.errors import UnsupportedError
from floeplan.metadata.manifests.manifest_list import DELETES, read_manifest_list
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.reader import SnapshotReader

RECENT_HOURS = 24
STOP_WRITERS = (
    "writers that add equality deletes under an old spec must be stopped: their deletes would not apply to moved rows"
)
_LIVE_WRITER = "live-equality-writer"
_MOST_LISTS = 50
"""Snapshots whose manifest list is read; a live writer has added the newest of them."""


def warn_of_equality_writers(head: SnapshotReader, specs: Collection[int], output_spec_id: int) -> list[PlanWarning]:
    """Warnings for rows that leave some specs: what it means for writers, and the live writer that was found."""
    leaving = sorted(set(specs) - {output_spec_id})
    if not leaving:
        return []
    warnings = [PlanWarning("late-equality-deletes", STOP_WRITERS, {"spec_ids": leaving})]
    partitioned = [spec_id for spec_id in leaving if not head.union.spec(spec_id).unpartitioned]
    since = (time.time() - RECENT_HOURS * 3600) * 1000
    recent = takewhile(lambda one: one.timestamp_ms >= since, ancestors_of(head.snapshot, head.metadata))
    adding = (one for one in recent if one.summary and "added-equality-deletes" in one.summary.additional_properties)
    for snapshot in islice(adding, _MOST_LISTS if partitioned else 0):
        manifests = read_manifest_list(snapshot.manifest_list, head.io)
        own = (manifests.content == DELETES) & (manifests.added_snapshot_id == snapshot.snapshot_id)
        found = np.intersect1d(manifests.spec_id[own & (manifests.added_files != 0)], partitioned).tolist()
        if found:
            text = (
                f"snapshot {snapshot.snapshot_id} of the last {RECENT_HOURS} hours added equality deletes under "
                f"partition spec {found[0]}: later upserts of that writer would double rows that move to spec "
                f"{output_spec_id}; stop it, move and start it again, or keep the spec"
            )
            context = {"spec_id": found[0], "snapshot_id": snapshot.snapshot_id}
            return [*warnings, PlanWarning(_LIVE_WRITER, text, context)]
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
