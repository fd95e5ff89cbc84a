"""Continuing an interrupted rewrite of all files.

With ``rewrite-all`` every file is a candidate, including those that the rewrite itself has made. So that a second run
can tell them, a commit that leaves groups of its run uncommitted records in the snapshot summary a hash of the options,
a run id, and the number of groups left. A run with the same options that finds such a summary, with groups left, on its
branch continues that run: it skips the files that the run made, unless they have deletes or another spec. When no group
is left, or the options differ, a new run starts.

Fail-safe: without such a summary all files are rewritten, which is more work than needed but correct.
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
from floeplan.snapshot.reader import ScanTarget
from floeplan.vectors import Mask

_REQUEST, _RUN, _LEFT = (f"floeplan.rewrite-{name}" for name in ("request", "run", "groups-left"))
_DEFAULTS = RewriteOptions()
_RUNTIME_OPTIONS = (
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
"""Options that change how a rewrite runs, not its result."""


@dataclass(frozen=True, slots=True)
class RewriteRun:
    """A rewrite of all files, in one or several runs.

    Attributes:
        request: A hash of the options.
        run_id: The id that its snapshots share.
        snapshot_ids: Its earlier snapshots.
    """

    request: str
    run_id: str
    snapshot_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, target: ScanTarget, options: RewriteOptions) -> RewriteRun | None:
        """The run to continue, or a new one; ``None`` without ``rewrite-all``, where file sizes show what is done."""
        if not options.rewrite_all:
            return None
        request = _request(options)
        for snapshot in _ancestors(target):
            if _property(snapshot, _REQUEST) == request:
                run_id = _property(snapshot, _RUN)
                if run_id and _property(snapshot, _LEFT) != "0":
                    done = (old.snapshot_id for old in _ancestors(target) if _property(old, _RUN) == run_id)
                    return cls(request, run_id, frozenset(done))
                break
        return cls(request, uuid.uuid4().hex)

    def made(self, entries: EntriesTable) -> Mask:
        """Files that earlier commits of the run added."""
        if not self.snapshot_ids:
            return np.zeros(len(entries), dtype=np.bool_)
        return np.isin(entries.ints("snapshot_id"), list(self.snapshot_ids))

    def summary(self, left: int, *, begun: bool) -> dict[str, str]:
        """Snapshot summary properties of a commit that leaves ``left`` groups; none for the only commit of a run."""
        if not left and not begun and not self.snapshot_ids:
            return {}
        return {_REQUEST: self.request, _RUN: self.run_id, _LEFT: str(left)}


def _request(options: RewriteOptions) -> str:
    what = replace(options, **{name: getattr(_DEFAULTS, name) for name in _RUNTIME_OPTIONS})
    return hashlib.sha256(repr(what).encode()).hexdigest()[:32]


def _ancestors(target: ScanTarget) -> Iterator[Snapshot]:
    """The planned snapshot and its known ancestors."""
    known = {snapshot.snapshot_id: snapshot for snapshot in target.metadata.snapshots}
    snapshot = target.snapshot
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else known.get(parent)


def _property(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
