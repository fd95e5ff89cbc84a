"""What a change did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """A manifest the commit wrote."""

    path: str
    spec_id: int
    content: str
    entries: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"path": self.path, "spec_id": self.spec_id, "content": self.content, "entries": self.entries}


@dataclass(frozen=True, slots=True)
class DmlResult:
    """One append, delete, update, merge or overwrite.

    Attributes:
        operation: The command.
        mode: ``copy-on-write`` or ``merge-on-read``, of an append ``merge-append`` or ``fast-append``; ``metadata``
            when no data file was opened or written.
        snapshot_id: The snapshot that was committed; ``None`` when nothing had to change, so nothing was committed.
        rows_deleted: Live rows that are gone.
        rows_inserted: New rows.
        rows_updated: Rows with new values.
        data_files_added: Data files in the new snapshot that were not there.
        data_files_removed: Data files that left the table.
        delete_files_added: Position delete files and deletion vectors added.
        delete_files_removed: Those that were replaced or went with their data file.
        manifests_written: The manifests of the commit.
        attempts: How often committing was tried; 0 when nothing was committed.
    """

    operation: str
    mode: str
    snapshot_id: int | None
    rows_deleted: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    manifests_written: tuple[ManifestSummary, ...] = ()
    attempts: int = 0

    @property
    def committed(self) -> bool:
        """Whether there is a new snapshot."""
        return self.snapshot_id is not None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "operation": self.operation,
            "mode": self.mode,
            "snapshot_id": self.snapshot_id,
            "rows_deleted": self.rows_deleted,
            "rows_inserted": self.rows_inserted,
            "rows_updated": self.rows_updated,
            "data_files_added": self.data_files_added,
            "data_files_removed": self.data_files_removed,
            "delete_files_added": self.delete_files_added,
            "delete_files_removed": self.delete_files_removed,
            "manifests_written": [manifest.to_dict() for manifest in self.manifests_written],
            "attempts": self.attempts,
        }
