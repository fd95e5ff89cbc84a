"""The result of a rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floeplan.errors import FloeplanError
from floeplan.rewrite.plan.model import RewriteDataFilesPlanningResult
from floeplan.text import counted


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """A group, or a part of one, that could not be rewritten, and why."""

    group_id: int
    error: FloeplanError
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"group_id": self.group_id, "kind": self.error.kind, "message": self.error.message}


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """One rewrite.

    Attributes:
        planning: The plan, and where its filters could not be evaluated.
        snapshot_ids: The committed snapshots, in order.
        files_rewritten: Data files that were removed.
        files_added: Data files that replace them.
        bytes_rewritten: Bytes of the removed files.
        bytes_added: Bytes of the added files.
        delete_files_removed: Removed delete files and deletion vectors.
        deletes_carried: Rows that other writers deleted from replaced files during the rewrite; the deletes were
        carried
            over to the new files.
        groups_stitched: Groups whose row groups were copied without decoding.
        failures: Groups that stay unchanged.
    """

    planning: RewriteDataFilesPlanningResult
    snapshot_ids: tuple[int, ...] = ()
    files_rewritten: int = 0
    files_added: int = 0
    bytes_rewritten: int = 0
    bytes_added: int = 0
    delete_files_removed: int = 0
    deletes_carried: int = 0
    groups_stitched: int = 0
    failures: tuple[GroupFailure, ...] = ()

    @property
    def groups_failed(self) -> int:
        """Groups that could not be rewritten."""
        return len({failure.group_id for failure in self.failures})

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return self.planning.to_dict() | {
            "snapshot_ids": list(self.snapshot_ids),
            "files_rewritten": self.files_rewritten,
            "files_added": self.files_added,
            "bytes_rewritten": self.bytes_rewritten,
            "bytes_added": self.bytes_added,
            "delete_files_removed": self.delete_files_removed,
            "deletes_carried": self.deletes_carried,
            "groups_stitched": self.groups_stitched,
            "groups_failed": self.groups_failed,
            "failures": [failure.to_dict() for failure in self.failures],
        }


class RewriteInterruptedError(FloeplanError):
    """Ctrl-C: what was committed stays, everything else is unchanged."""

    default_kind = "interrupted"
    default_safe_to_clean = True
    default_retryable = True
    exit_code = 130

    def __init__(self, result: RewriteResult) -> None:
        done = len(result.snapshot_ids)
        groups = len(result.planning.plan.groups)
        what = "nothing was committed"
        if done:
            what = f"{counted(result.files_rewritten, 'file')} rewritten in {counted(done, 'commit')} stay committed"
        super().__init__(
            f"interrupted while rewriting {counted(groups, 'group')}: {what}; run it again to continue",
            context={"snapshot_ids": list(result.snapshot_ids), "files_rewritten": result.files_rewritten},
            committed=bool(done),
        )
