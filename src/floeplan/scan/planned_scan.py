"""``PlannedScan``: the data of a scan plan, without the ways to explain or read it."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.schema import Schema

from floeplan.predicate.compile import CompileResult
from floeplan.scan.model import PlannedFiles
from floeplan.scan.summary import PassSummary, PlanWarning, ScanPlanSummary, SpecSummary
from floeplan.scan.totals import Totals, summarise_specs
from floeplan.snapshot.target import ScanTarget


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """What planning found; ``scan.explain`` and ``scan.read`` work on it, and ``ScanPlan`` offers both as methods.

    Attributes:
        target: The table, its snapshot and schema.
        compiled: The compiled predicate, with the parts that could not be compiled.
        schema: The projected schema.
        files: The files to read, a sequence of ``FileScan`` over columns.
        summary: Totals of each pass.
        totals: The inputs of the summary per partition spec.
        passes: What each pass evaluated and kept.
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
        """The summary per partition spec, with how the predicate was lifted through each; computed on each access."""
        return summarise_specs(self.totals, self.files)
