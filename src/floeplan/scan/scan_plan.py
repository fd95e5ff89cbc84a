"""``ScanPlan``: the result of planning, with methods to explain it and to read its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floeplan.scan.planned_scan import PlannedScan
from floeplan.snapshot.reader import select

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ScanPlan(PlannedScan):
    """What a scan reads and why; see ``PlannedScan`` for the attributes.

    The imports in the methods save start-up time: many plans are neither drawn nor read in this process.
    """

    def explain(self) -> str:
        """The pruning pyramid and what did and did not prune, as plain text."""
        from floeplan.scan.explain import explain_text

        return explain_text(self)

    def to_arrow(self, columns: Sequence[str] | None = None, limit: int | None = None) -> pa.Table:
        """Read the matching rows: deletes applied, residuals evaluated, columns projected to the schema.

        Args:
            columns: Columns to read, in this order; those of the plan when not given.
            limit: Read at most this many rows.
        """
        from floeplan.scan.read import read_plan

        schema = self.schema if columns is None else select(self.target.schema, columns)
        return read_plan(self, schema, limit)

    def count(self) -> int:
        """The number of matching rows, from metadata where possible."""
        from floeplan.scan.read import count_rows

        return count_rows(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the plan."""
        snapshot = self.target.snapshot
        return {
            "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
            "compile": self.compiled.to_dict(),
            "summary": self.summary.to_dict(),
            "specs": [spec.to_dict() for spec in self.specs],
            "passes": [step.to_dict() for step in self.passes],
            "files": [file.to_dict() for file in self.files],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }
