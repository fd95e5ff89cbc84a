"""Where reports are: files at a path or URI, or the rows of an Iceberg table."""

from __future__ import annotations

import os
from pathlib import Path

from floeplan.catalog import embedded_home
from floeplan.errors import BadInputError
from floeplan.scan.report_store import OFF


def default_reports() -> str:
    """Where plans put their reports when nobody says."""
    chosen = os.environ.get("FLOEPLAN_REPORTS", "")
    return chosen if chosen and chosen.lower() != OFF else str(embedded_home() / "reports")


def are_files(reports: str) -> bool:
    """Whether a place names files; otherwise it names a table.

    Raises:
        BadInputError: It is a path, and nothing is there.
    """
    if "://" in reports or Path(reports).exists():
        return True
    if "/" in reports or "." not in reports:
        raise BadInputError(
            f"there are no reports at {reports}; name a folder of them, or a table as namespace.name",
            context={"reports": reports},
        )
    return False
