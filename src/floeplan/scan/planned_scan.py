"""``PlannedScan``: the data of a scan plan, without the ways to explain or read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.recover import recover_tuples
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.ir import Column
from floeplan.scan.model import LeafNote, PassSummary, PlannedFiles, PlanWarning, ScanPlanSummary, SpecSummary
from floeplan.snapshot.passes import is_delete_manifest
from floeplan.snapshot.reader import ScanTarget
from floeplan.vectors import Mask

# Summaries of a plan: what the snapshot holds and what the plan reads, in total and per partition spec.


@dataclass(frozen=True, slots=True)
class Totals:
    """The inputs of the summaries; ``row_groups_total`` counts those of all opened files."""

    target: ScanTarget
    manifests: ManifestListTable
    kept: Mask
    union: UnionPartitionType
    compiled: CompileResult
    projected: frozenset[int] | None
    recover: bool
    row_groups_total: int | None


def summarise(run: Totals, files: PlannedFiles, planning_ms: float) -> ScanPlanSummary:
    """The summary of a plan."""
    data = ~is_delete_manifest(run.manifests)
    sizes = file_bytes(files, run.projected)
    row_groups_kept = sum(len(groups.kept) for groups in files.row_groups.values())
    return ScanPlanSummary(
        manifests_total=int(data.sum()),
        manifests_kept=int((data & run.kept).sum()),
        delete_manifests_total=int((~data).sum()),
        delete_manifests_kept=int((~data & run.kept).sum()),
        files_total=_live_total(run.manifests, data, "files", run, "total-data-files"),
        files_kept=len(files),
        row_groups_total=run.row_groups_total,
        row_groups_kept=None if run.row_groups_total is None else row_groups_kept,
        rows_total=_live_total(run.manifests, data, "rows", run, "total-records"),
        rows_kept=int(_rows_kept(files).sum()),
        bytes_total=_summary_number(run, "total-files-size"),
        bytes_kept=int(sizes.sum()),
        deletes_total=_live_total(run.manifests, ~data, "files", run, "total-delete-files"),
        deletes_kept=len(np.unique(files.matches.deletes)) if len(files.deletes) else 0,
        planning_ms=round(planning_ms, 3),
    )


def summarise_specs(run: Totals, files: PlannedFiles) -> tuple[SpecSummary, ...]:
    """The summary of every spec of the table."""
    sizes = file_bytes(files, run.projected)
    specs = sorted(run.target.metadata.partition_specs, key=lambda spec: spec.spec_id)
    return tuple(_spec_summary(run, files, sizes, spec) for spec in specs)


def file_bytes(files: PlannedFiles, projected: frozenset[int] | None) -> npt.NDArray[np.int64]:
    """Bytes to read of each file: its kept row groups, else its projected columns, else all of it."""
    sizes = np.array(files.entries.ints("file_size_in_bytes"))
    if projected is not None:
        parts = [files.entries.ints(f"column_size.{i}", 0) for i in sorted(projected)]
        known = np.sum([np.maximum(part, 0) for part in parts], axis=0) if parts else np.zeros_like(sizes)
        sizes = np.where(known > 0, np.minimum(known, sizes), sizes)
    for row, groups in files.row_groups.items():
        sizes[row] = groups.bytes
    return sizes


def _rows_kept(files: PlannedFiles) -> npt.NDArray[np.int64]:
    rows = np.array(files.entries.record_count)
    for row, groups in files.row_groups.items():
        rows[row] = groups.rows
    return rows


def _live_total(manifests: ManifestListTable, chosen: Mask, what: str, run: Totals, key: str) -> int | None:
    """Live files or rows by the manifest list's counts; by the snapshot's totals where counts were not written."""
    added, existing = getattr(manifests, f"added_{what}")[chosen], getattr(manifests, f"existing_{what}")[chosen]
    if (added < 0).any() or (existing < 0).any():
        return _summary_number(run, key)
    return int(added.sum()) + int(existing.sum())


def _summary_number(run: Totals, key: str) -> int | None:
    snapshot = run.target.snapshot
    if snapshot is None:
        return 0
    text = snapshot.summary[key] if snapshot.summary is not None else None
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _spec_summary(run: Totals, files: PlannedFiles, sizes: npt.NDArray[np.int64], spec: PartitionSpec) -> SpecSummary:
    of_spec = ~is_delete_manifest(run.manifests) & (run.manifests.spec_id == spec.spec_id)
    kept = files.entries.spec_id == spec.spec_id
    notes = run.union.spec(spec.spec_id).notes(run.compiled.predicate)
    return SpecSummary(
        spec_id=spec.spec_id,
        spec=describe(spec, run),
        manifests_total=int(of_spec.sum()),
        manifests_kept=int((of_spec & run.kept).sum()),
        files_total=_spec_files(run.manifests, of_spec),
        files_kept=int(kept.sum()),
        bytes_kept=int(sizes[kept].sum()),
        recovered=_recovered(run, files.entries.filter(kept), spec.spec_id) if run.recover else None,
        notes=tuple(LeafNote(str(n.leaf), n.field, n.exactness.value, n.reason) for n in notes),
    )


def _spec_files(manifests: ManifestListTable, of_spec: Mask) -> int | None:
    added, existing = manifests.added_files[of_spec], manifests.existing_files[of_spec]
    return None if (added < 0).any() or (existing < 0).any() else int(added.sum()) + int(existing.sum())


def describe(spec: PartitionSpec, run: Totals) -> str:
    """A spec as text: ``day(ts), bucket[8](id)``."""
    schema = run.target.metadata.schema()
    named = [(str(field.transform), schema.find_column_name(field.source_id) or field.name) for field in spec.fields]
    parts = [source if transform == "identity" else f"{transform}({source})" for transform, source in named]
    return ", ".join(parts) or "unpartitioned"


def _recovered(run: Totals, entries: EntriesTable, spec_id: int) -> int:
    """Files of another spec whose whole tuple under the default spec is provable from their bounds."""
    default = run.union.spec(run.target.metadata.default_spec_id)
    if spec_id == default.spec_id or default.unpartitioned or not len(entries):
        return 0
    wanted = [Column(f.source_id, f.source_type, (str(f.column),)) for f in default.fields if not f.obstacle]
    fields = [field for field in default.fields if not field.is_void]
    tuples = recover_tuples(fields, file_stats(entries, wanted))
    return int(np.logical_and.reduce([part.recovered for part in tuples.values()]).sum())


# The planned scan.


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
