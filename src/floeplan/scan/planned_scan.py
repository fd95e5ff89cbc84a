"""``PlannedScan``: the data of a scan plan without the ways to explain or read it, and its numbers.

``ScanPlanSummary`` has what the snapshot holds and what the plan reads, ``PassSummary`` the same per pass, and
``SpecSummary`` per partition spec. A number that metadata does not give is ``None``, never a guess: row groups of files
whose footers were not opened, bytes of files whose manifests were skipped and whose snapshot has no totals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.schema import Schema

from floeplan.display import Displayed
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.manifest_list import LiveCounts, ManifestListTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.parquet.prune.selection import distinct
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.ir import Column, IrExpr
from floeplan.scan.model import PlannedFiles, PlanWarning
from floeplan.snapshot.effects import ConjunctEffect
from floeplan.snapshot.reader import ScanTarget
from floeplan.text import excerpt, human_bytes, parse_count
from floeplan.vectors import Ints, Mask


@dataclass(frozen=True, slots=True, repr=False)
class PlannedScan(Displayed):
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

    def __repr__(self) -> str:
        summary = self.summary
        of = "" if summary.files_total is None else f" of {summary.files_total:,}"
        read = f"{summary.files_kept:,}{of} files, {summary.rows_kept:,} rows, {human_bytes(summary.bytes_kept)}"
        where = excerpt(str(self.compiled.predicate), 200)
        return f"<{type(self).__name__} of {self.target.name} where {where}: {read}>"

    @property
    def specs(self) -> tuple[SpecSummary, ...]:
        """The summary per partition spec, with how the predicate was lifted through each; computed on each access."""
        return summarise_specs(self.totals, self.files)


@dataclass(frozen=True, slots=True)
class ScanPlanSummary:
    """Totals of the table's snapshot and what of it the plan reads.

    ``bytes_total`` counts data files, and the delete files of pruned manifests: a snapshot has the sum of both only.
    """

    manifests_total: int
    manifests_kept: int
    delete_manifests_total: int
    delete_manifests_kept: int
    files_total: int | None
    files_kept: int
    row_groups_total: int | None
    row_groups_kept: int | None
    rows_total: int | None
    rows_kept: int
    bytes_total: int | None
    bytes_kept: int
    deletes_total: int | None
    deletes_kept: int
    planning_ms: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pruning pass: how many containers it evaluated and kept, and the effect of each conjunct.

    ``unit`` names what is counted: manifests, files, row groups or pages. ``proven`` counts the kept containers in
    which every row matches.
    """

    name: str
    unit: str
    total: int
    kept: int
    proven: int
    effects: tuple[ConjunctEffect, ...]
    milliseconds: float

    def to_dict(self, text: Callable[[IrExpr], str] = str) -> dict[str, Any]:
        """The JSON form; ``text`` formats predicates."""
        return {**_plain(self), "effects": [effect.to_dict(text) for effect in self.effects]}


@dataclass(frozen=True, slots=True)
class LeafNote:
    """How one leaf of the predicate was lifted through a spec.

    ``field`` is the partition field that answers it best, if any does; ``how`` is exact, conservative or cannot.
    """

    predicate: str
    field: str | None
    how: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class SpecSummary:
    """One partition spec: its files, and how the predicate was lifted through it.

    ``recovered`` counts kept files of other specs whose tuple under the table's default spec is provable from their
    column bounds; ``None`` when it was not requested.
    """

    spec_id: int
    spec: str
    manifests_total: int
    manifests_kept: int
    files_total: int | None
    files_kept: int
    bytes_kept: int
    recovered: int | None
    notes: tuple[LeafNote, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**_plain(self), "notes": [note.to_dict() for note in self.notes]}


def _plain(numbers: ScanPlanSummary | PassSummary | LeafNote | SpecSummary) -> dict[str, Any]:
    """Fields by name. ``asdict`` would copy each value, and every scan is reported."""
    return {name: getattr(numbers, name) for name in numbers.__slots__}


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
    data, deletes = run.manifests.counts
    rows_kept = np.array(files.entries.record_count)
    for row, groups in files.row_groups.items():
        rows_kept[row] = groups.rows
    row_groups_kept = sum(len(groups.kept) for groups in files.row_groups.values())
    data_kept = int(np.count_nonzero(run.manifests.is_data & run.kept))
    return ScanPlanSummary(
        manifests_total=data.manifests,
        manifests_kept=data_kept,
        delete_manifests_total=deletes.manifests,
        delete_manifests_kept=int(np.count_nonzero(run.kept)) - data_kept,
        files_total=_total(run, data.files, "total-data-files"),
        files_kept=len(files),
        row_groups_total=run.row_groups_total,
        row_groups_kept=None if run.row_groups_total is None else row_groups_kept,
        rows_total=_total(run, data.rows, "total-records"),
        rows_kept=int(rows_kept.sum()),
        bytes_total=_data_bytes(run, files),
        bytes_kept=int(_file_bytes(files, run.projected).sum()),
        deletes_total=_total(run, deletes.files, "total-delete-files"),
        deletes_kept=len(distinct(files.matches.deletes)) if len(files.deletes) else 0,
        planning_ms=round(planning_ms, 3),
    )


def summarise_specs(run: Totals, files: PlannedFiles, *, noted: bool = True) -> tuple[SpecSummary, ...]:
    """The summary of every spec of the table; its notes are made only if they are ``noted``."""
    sizes, spec_of = _file_bytes(files, run.projected), files.entries.spec_id
    manifests, schema = run.manifests, run.target.metadata.schema()
    found = []
    for spec in sorted(run.target.metadata.partition_specs, key=lambda spec: spec.spec_id):
        # The spec as text: ``day(ts), bucket[8](id)``.
        named = [(str(f.transform), schema.find_column_name(f.source_id) or f.name) for f in spec.fields]
        parts = [source if transform == "identity" else f"{transform}({source})" for transform, source in named]
        counts = manifests.spec_counts.get(spec.spec_id, LiveCounts(0, 0, 0))
        kept = spec_of == spec.spec_id
        notes = run.union.spec(spec.spec_id).notes(run.compiled.predicate) if noted else ()
        summary = SpecSummary(
            spec_id=spec.spec_id,
            spec=", ".join(parts) or "unpartitioned",
            manifests_total=counts.manifests,
            manifests_kept=int(np.count_nonzero(manifests.by_spec[spec.spec_id] & run.kept)) if counts.manifests else 0,
            # A leaf of a metadata tree may have files of several specs, of which it counts only the sum.
            files_total=None if -1 in manifests.by_spec else counts.files,
            files_kept=int(np.count_nonzero(kept)),
            bytes_kept=int(sizes[kept].sum()),
            recovered=_recovered(run, files.entries.filter(kept), spec.spec_id) if run.recover else None,
            notes=tuple(LeafNote(str(n.leaf), n.field, n.exactness.value, n.reason) for n in notes),
        )
        found.append(summary)
    return tuple(found)


def _file_bytes(files: PlannedFiles, projected: frozenset[int] | None) -> Ints:
    """Bytes to read of each file: its kept row groups, else its projected columns, else all of it."""
    sizes = np.array(files.entries.ints("file_size_in_bytes"))
    if projected is not None:
        parts = [files.entries.ints(f"column_size.{i}", 0) for i in sorted(projected)]
        known = np.sum([np.maximum(part, 0) for part in parts], axis=0) if parts else np.zeros_like(sizes)
        sizes = np.where(known > 0, np.minimum(known, sizes), sizes)
    for row, groups in files.row_groups.items():
        sizes[row] = groups.bytes
    return sizes


def _total(run: Totals, counted: int | None, key: str) -> int | None:
    """Live files or rows by the manifest list's counts; by the snapshot's totals where counts were not written."""
    return _summary_number(run, key) if counted is None else counted


def _data_bytes(run: Totals, files: PlannedFiles) -> int | None:
    """Bytes of live data files: the snapshot's total, which counts delete files too, less the delete files read."""
    total = _summary_number(run, "total-files-size")
    if not total or not len(files.deletes):
        return total
    sizes, own = files.deletes.ints("file_size_in_bytes"), files.deletes.ints("content_size_in_bytes", missing=0)
    # Deletion vectors share a file, so a snapshot counts each by its own bytes.
    return max(0, total - int(np.where(files.delete_kinds == DeleteKind.VECTOR, own, sizes).sum()))


def _summary_number(run: Totals, key: str) -> int | None:
    snapshot = run.target.snapshot
    if snapshot is None:
        return 0
    return None if snapshot.summary is None else parse_count(snapshot.summary[key])


def _recovered(run: Totals, entries: EntriesTable, spec_id: int) -> int:
    """Files of another spec whose whole tuple under the default spec is provable from their bounds."""
    from floeplan.partition.recover import recover_tuples  # imported late: few plans request it

    default = run.union.spec(run.target.metadata.default_spec_id)
    if spec_id == default.spec_id or default.unpartitioned or not len(entries):
        return 0
    wanted = [Column(f.source_id, f.source_type, (str(f.column),)) for f in default.fields if not f.obstacle]
    fields = [field for field in default.fields if not field.is_void]
    tuples = recover_tuples(fields, file_stats(entries, wanted))
    return int(np.logical_and.reduce([part.recovered for part in tuples.values()]).sum())
