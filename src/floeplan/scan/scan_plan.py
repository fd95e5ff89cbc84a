"""The result of planning: files to read, numbers about them, and ways to look at or run the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from floeplan.predicate.compile import CompileResult
from floeplan.scan.model import PlannedFiles
from floeplan.scan.summary import PassSummary, PlanWarning, ScanPlanSummary, SpecSummary
from floeplan.scan.totals import Totals, summarise_specs
from floeplan.snapshot.target import ScanTarget, select

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan reads and why.

    Attributes:
        target: The table, its snapshot and schema.
        compiled: The predicate as compiled, with what could not be.
        schema: The columns that are read.
        files: The files to read, a sequence of ``FileScan`` over columns.
        summary: Totals at each pass.
        totals: What the numbers per partition spec are made of.
        passes: What every pass was given and kept.
        warnings: What a reader of the plan should know.
    """

    target: ScanTarget
    compiled: CompileResult
    schema: Schema
    files: PlannedFiles
    summary: ScanPlanSummary
    totals: Totals
    passes: tuple[PassSummary, ...]
    warnings: tuple[PlanWarning, ...]

    @property
    def specs(self) -> tuple[SpecSummary, ...]:
        """The summary per partition spec, with how the predicate was lifted through each; made anew when asked for."""
        return summarise_specs(self.totals, self.files)

    def explain(self) -> str:
        """The pruning pyramid and what did and did not prune, as plain text."""
        from floeplan.scan.explain import explain_text

        return explain_text(self)

    def to_arrow(self, columns: Sequence[str] | None = None, limit: int | None = None) -> pa.Table:
        """The matching rows: deletes applied, residuals evaluated, columns in the shape of the schema.

        Args:
            columns: Columns to show, in this order; those the plan was made for when not given.
            limit: Stop after so many rows.
        """
        from floeplan.scan.read import read_plan

        schema = self.schema if columns is None else select(self.target.schema, columns)
        return read_plan(self, schema, limit)

    def count(self) -> int:
        """The number of matching rows, from metadata where it can be."""
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
