"""When a query is worth a person's attention: the thresholds of the audit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from floeplan.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Thresholds, all of them per run on average.

    Attributes:
        since: Reports before this time are left out.
        min_ratio: A query that reads less than this share of the files is well pruned.
        min_factor: A query is excused while its share of files is below so many times the share of rows it wants.
        min_files: A query that reads fewer files is never flagged.
        min_bytes: A query that reads fewer bytes is never flagged.
        min_runs: A query that ran less often is never flagged.
        alert_bytes: A query that reads as many bytes is flagged whatever share of the table it is.
        deletes_per_file: Delete files for each data file from which on they are a reason.
        min_manifests: Manifests read from which on small ones are a reason.
        files_per_manifest: Manifests with fewer files on average are small.
        most: Findings shown, those that read most in all first.
    """

    since: datetime | None = None
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
            if field.name != "since" and value < 0:
                raise InvalidOptionError(
                    f"{field.name} is {value} but must not be negative", context={"option": field.name}
                )
