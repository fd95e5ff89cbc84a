"""What a rewrite did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floeplan.errors import FloeplanError
from floeplan.rewrite.plan.model import RewriteDataFilesPlanningResult
from floeplan.text import counted


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """A group, or a part of one, that stays as it was, and why."""

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
        planning: What was planned, and where filters could not decide.
        snapshot_ids: The snapshots that were committed, in order.
        files_rewritten: Data files that left the table.
        files_added: Data files that took their place.
        bytes_rewritten: Bytes of the former.
        bytes_added: Bytes of the latter.
        delete_files_removed: Delete files and deletion vectors that left the table.
        deletes_carried: Rows that other writers deleted meanwhile from files that were replaced, and whose deletion was
            carried over to the new files.
        groups_stitched: Groups whose row groups were copied as they are.
        failures: Groups that stay as they were.
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
        """How many groups stay as they were although they were to be rewritten."""
        return len({failure.group_id for failure in self.failures})

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: the plan's, and what was done."""
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
    """Ctrl-C: what was committed stays, everything else is as it was."""

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
            f"interrupted while rewriting {counted(groups, 'group')}: {what}; run it again to take up the rest",
            context={"snapshot_ids": list(result.snapshot_ids), "files_rewritten": result.files_rewritten},
            committed=bool(done),
        )
