"""Taking up a rewrite of everything that was cut short.

With ``rewrite-all`` every file is picked, those that the run itself has made too. So that a second run can tell them,
a commit that leaves groups of its run uncommitted states in its snapshot what was asked for, which run it was, and how
many groups are left. A run that is asked for the same, and finds that the newest such statement on its branch leaves
some, goes on with that run: files that it made are left as they are, unless deletes or another spec are a reason of
their own. Once none is left, or when something else is asked for, a run begins anew.

Fail-safe: where nothing is stated, all files are rewritten, once more than needed and no less right.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.snapshot.target import ScanTarget
from floeplan.vectors import Mask

_REQUEST, _RUN, _LEFT = (f"floeplan.rewrite-{name}" for name in ("request", "run", "groups-left"))
_DEFAULTS = RewriteOptions()
_HOW = (
    "strict",
    "trust_lists",
    "max_files_to_rewrite",
    "rewrite_job_order",
    "partial_progress_enabled",
    "partial_progress_max_commits",
    "partial_progress_max_failed_commits",
    "max_concurrent_file_group_rewrites",
    "task_memory_bytes",
)
"""Options that say how a run goes, not what it makes."""


@dataclass(frozen=True, slots=True)
class RewriteRun:
    """A rewrite of everything, in one go or in several.

    Attributes:
        request: What was asked for.
        run_id: The run.
        snapshot_ids: What it committed before.
    """

    request: str
    run_id: str
    snapshot_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, target: ScanTarget, options: RewriteOptions) -> RewriteRun | None:
        """The run to go on with, or a new one; none where files tell by themselves that they are done."""
        if not options.rewrite_all:
            return None
        request = _request(options)
        for snapshot in _ancestors(target):
            if _stated(snapshot, _REQUEST) == request:
                run_id = _stated(snapshot, _RUN)
                if run_id and _stated(snapshot, _LEFT) != "0":
                    done = (old.snapshot_id for old in _ancestors(target) if _stated(old, _RUN) == run_id)
                    return cls(request, run_id, frozenset(done))
                break
        return cls(request, uuid.uuid4().hex)

    def made(self, entries: EntriesTable) -> Mask:
        """Files that the run made; ``snapshot_id`` must have been read if it committed anything."""
        if not self.snapshot_ids:
            return np.zeros(len(entries), dtype=np.bool_)
        return np.isin(entries.ints("snapshot_id"), list(self.snapshot_ids))

    def statement(self, left: int, *, begun: bool) -> dict[str, str]:
        """What a commit states that leaves so many groups; nothing when it is the only one of its run."""
        if not left and not begun and not self.snapshot_ids:
            return {}
        return {_REQUEST: self.request, _RUN: self.run_id, _LEFT: str(left)}


def _request(options: RewriteOptions) -> str:
    what = replace(options, **{name: getattr(_DEFAULTS, name) for name in _HOW})
    return hashlib.sha256(repr(what).encode()).hexdigest()[:32]


def _ancestors(target: ScanTarget) -> Iterator[Snapshot]:
    """The snapshot planned on and those before it, as far as they are known."""
    known = {snapshot.snapshot_id: snapshot for snapshot in target.metadata.snapshots}
    snapshot = target.snapshot
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else known.get(parent)


def _stated(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
