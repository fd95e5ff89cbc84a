"""``AuditOptions``: the thresholds of an audit; a module of its own because the command line shows them as defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from floeplan.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Thresholds of a finding, as averages per run.

    Attributes:
        since: Ignore reports before this time.
        table: Only queries of this table, given as ``namespace.name``; reports may name its catalog, too.
        min_ratio: A query that keeps a smaller fraction of the files is well pruned.
        min_factor: A query is flagged only if it keeps more than this factor times the fraction of rows that match.
        min_files: Minimum number of files read.
        min_bytes: Minimum number of bytes read.
        min_runs: Minimum number of runs.
        alert_bytes: A query that reads this many bytes is always flagged.
        deletes_per_file: Delete files per data file from which on they are a reason.
        min_manifests: Manifests read from which on small manifests are a reason.
        files_per_manifest: Manifests with fewer files on average are small.
        most: Maximum number of findings, largest readers first.
    """

    since: datetime | None = None
    table: str | None = None
    min_ratio: float = 0.25
    min_factor: float = 4.0
    min_files: int = 2
    min_bytes: int = 0
    min_runs: int = 1
    alert_bytes: int = 2**40
    deletes_per_file: float = 1.0
    min_manifests: int = 50
    files_per_manifest: float = 4.0
    most: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("since", "table") and value < 0:
                raise InvalidOptionError(
                    f"{field.name} is {value} but must not be negative", context={"option": field.name}
                )
