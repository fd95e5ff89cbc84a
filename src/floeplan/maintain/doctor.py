"""``doctor``: check a table for problems, mostly from metadata, and repair some of them.

==============================  ========  ==========================================================================
finding                         severity  meaning
==============================  ========  ==========================================================================
unknown-spec                    error     manifests of a partition spec that the metadata does not have
short-manifest-list             warning   the manifest list has fewer files than its summary: perhaps truncated
duplicate-paths                 error     a data file is listed twice: its rows are read twice
wrong-summaries                 error     the manifest list excludes partitions that are there: plans lose their files
misfiled-values                 error     files are recorded in a partition that bounds or sampled rows disprove
missing-files                   error     sampled data files do not exist
stray-deletes                   error     deletes are not in the partition of their data file: engines fail or lose them
unreached-deletes               error     deletes do not apply to files that moved: deleted rows are back
several-vectors                 error     a data file has more than one deletion vector: engines refuse the table
late-equality-deletes           warning   equality deletes were added under an old spec after files were moved from it
dangling-deletes                warning   deletes of data files that no longer exist
missing-statistics              warning   files without column bounds cannot be pruned
filtered-without-bounds         warning   files without bounds of a column that queries filter by
small-files                     info      many files far below the target size
old-specs                       info      files under specs that are not the current one
many-manifests                  info      small manifests, or partitions spread over many of them
many-snapshots                  info      snapshots that could be expired
==============================  ========  ==========================================================================

Rule: every finding suggests a fix, with its command where there is one. ``repair`` fixes what metadata alone can fix:
misplaced deletes and wrong partition summaries. Fail-safe: only what is proven is reported. Only sampled data files are
read, and delete files whose data files may have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of

from floeplan.catalog import load_table
from floeplan.maintain.partition_check import denied_by_file, denied_by_list, denied_by_rows, repair_summaries
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, ManifestListTable
from floeplan.metadata.manifests.reader import TruncatedList
from floeplan.partition.key import partition_codes
from floeplan.predicate.names import Names
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.spec_upgrade.entry_moves import DeleteCheck, RepairResult, repair_deletes
from floeplan.snapshot.reader import SnapshotReader, branch_head
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.manifests import MergeOptions
from floeplan.vectors import Mask

MANY_SNAPSHOTS = 100
MANY_SMALL_FILES = 10
SPREAD = 4.0
"""Average number of manifests per partition from which it is reported."""

SAMPLED_FILES = 10
"""Default number of data files whose rows are compared with their partition."""

FIXES = {
    "wrong-summaries": "floeplan doctor {} --repair",
    "stray-deletes": "floeplan doctor {} --repair",
    "unreached-deletes": "floeplan doctor {} --repair",
    "several-vectors": "floeplan rewrite {} --option delete-file-threshold=1",
    "dangling-deletes": "floeplan rewrite {}",
    "missing-statistics": "floeplan rewrite {} --option rewrite-all=true",
    "filtered-without-bounds": "floeplan rewrite {} --option rewrite-all=true",
    "small-files": "floeplan rewrite {}",
    "old-specs": "floeplan upgrade-spec {} --dry-run",
    "many-manifests": "floeplan rewrite-manifests {}",
    "many-snapshots": "floeplan expire {}",
}
"""The command that fixes a finding; ``{}`` is the table name."""

_SHOWN = 5


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        severity: Its severity.
        kind: Its name.
        message: What it means, and how to fix it.
        spec_id: The spec of the files, if they have one in common.
        files: The number of files.
        examples: Paths of some of them.
        fix: The command that fixes it, if there is one.
    """

    severity: Severity
    kind: str
    message: str
    spec_id: int | None = None
    files: int = 0
    examples: tuple[str, ...] = ()
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"severity": self.severity.value, "examples": list(self.examples)}


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The findings, after the repair if one was requested."""

    findings: tuple[Finding, ...]
    repaired: RepairResult | None = None
    manifests_repaired: int = 0

    @property
    def healthy(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        repaired = None if self.repaired is None else dict(self.repaired.to_dict())
        if repaired is not None:
            repaired["manifests"] = self.manifests_repaired
        return {"findings": [finding.to_dict() for finding in self.findings], "repaired": repaired}


def doctor(
    table: Table | str,
    *,
    repair: bool = False,
    branch: str = MAIN_BRANCH,
    sample: int = SAMPLED_FILES,
    filtered: Sequence[str] = (),
    commit: CommitOptions | None = None,
) -> DoctorResult:
    """Check a branch for problems, and optionally repair those that metadata alone can repair.

    Args:
        table: The table, or its name.
        repair: Move misplaced deletes to the partition of their data, and rewrite wrong summaries.
        branch: The branch.
        sample: Data files whose rows are compared with their partition; 0 reads metadata only.
        filtered: Columns that queries filter by and that should have bounds.
        commit: Commit and retry options.
    """
    loaded = load_table(table)
    repaired, manifests = None, 0
    if repair:
        manifests = repair_summaries(loaded, branch=branch, options=commit)
        repaired = repair_deletes(loaded.refresh() if manifests else loaded, branch=branch, options=commit)
        loaded = loaded.catalog.load_table(loaded.name())
    examination = _Examination.of(loaded, branch, sample, tuple(filtered))
    return DoctorResult(tuple(map(_with_fix(loaded), examination.findings())), repaired, manifests)


def _with_fix(table: Table) -> Callable[[Finding], Finding]:
    name = table.metadata_location if isinstance(table, StaticTable) else ".".join(table.name())
    return lambda found: replace(found, fix=FIXES[found.kind].format(name)) if found.kind in FIXES else found


@dataclass(frozen=True, slots=True)
class _Examination:
    """One head and what was read of it, without manifests of unknown specs, which cannot be read."""

    table: Table
    branch: str
    sample: int
    filtered: tuple[str, ...]
    head: SnapshotReader
    unknown: ManifestListTable
    truncated: TruncatedList | None
    data: EntriesTable
    check: DeleteCheck

    @classmethod
    def of(cls, table: Table, branch: str, sample: int, filtered: tuple[str, ...]) -> _Examination:
        whole = SnapshotReader.of_branch(table, branch)
        known = np.isin(whole.manifests.spec_id, list(table.metadata.specs()))
        head = replace(whole, manifests=whole.manifests.take(np.flatnonzero(known)))
        data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset({"lower_bounds"})))
        unknown = whole.manifests.take(np.flatnonzero(~known))
        return cls(table, branch, sample, filtered, head, unknown, whole.truncation(), data, DeleteCheck.of(head))

    def findings(self) -> Iterator[Finding]:
        yield from self._listing()
        yield from self._partitions()
        yield from self._deletes()
        yield from self._data_files()
        yield from self._filtered_columns()
        yield from self._manifests()
        yield from self._snapshots()

    def _listing(self) -> Iterator[Finding]:
        """Problems of the manifest list and of manifests."""
        if self.truncated is not None:
            text = f"{self.truncated.message}; if rows are missing, restore it or roll back"
            missing, location = self.truncated.total - self.truncated.listed, self.truncated.manifest_list
            yield Finding(Severity.WARNING, "short-manifest-list", text, None, missing, (location,))
        for spec_id in np.unique(self.unknown.spec_id).tolist():
            paths = self.unknown.path.filter(pa.array(self.unknown.spec_id == spec_id)).to_pylist()
            text = (
                f"{counted(len(paths), 'manifest')} of a spec that the metadata does not have: their files cannot be "
                "read; roll back to a snapshot without them, or restore the spec"
            )
            yield Finding(Severity.ERROR, "unknown-spec", text, spec_id, len(paths), tuple(paths[:_SHOWN]))
        twice = _repeated(self.data.path, np.ones(len(self.data), dtype=np.bool_))
        yield from self._of_data(
            Severity.ERROR,
            "duplicate-paths",
            twice,
            "are listed twice and read twice: roll back to an earlier snapshot",
        )

    def _partitions(self) -> Iterator[Finding]:
        """Partition values that are disproven."""
        text = "are pruned by a wrong partition summary of their manifest: run doctor with --repair"
        deletes = self.head.entries(self.head.manifest_rows(DELETES), EntryColumns(frozenset()))
        for entries, noun in ((self.data, "file"), (deletes, "delete file")):
            lost = denied_by_list(self.head, entries)
            yield from _per_spec(Severity.ERROR, "wrong-summaries", entries, lost, (noun, text))
        entries, denied = denied_by_file(self.head, self.head.manifest_rows(DATA))
        sampled = denied_by_rows(self.table, self.branch, self.sample)
        denied |= _among(entries, sampled.denied)
        yield from _per_spec(
            Severity.ERROR,
            "misfiled-values",
            entries,
            denied,
            ("file", "are recorded in the wrong partition, so queries miss their rows: write the rows again"),
        )
        gone = f"of the {counted(self.sample, 'file')} sampled do not exist: restore them, or roll back"
        missing = _among(entries, sampled.missing)
        yield from _per_spec(Severity.ERROR, "missing-files", entries, missing, ("file", gone))

    def _filtered_columns(self) -> Iterator[Finding]:
        names = Names(self.head.metadata.schema(), False)
        for name in self.filtered:
            key = names.find_dotted(name).field_id
            entries = self.head.entries(
                self.head.manifest_rows(DATA), EntryColumns(frozenset(), stats=frozenset({key}))
            )
            nulls = entries.ints(f"null_count.{key}") == entries.record_count
            bare = ~entries.valid(f"lower.{key}") & ~nulls
            text = (
                f"have no bounds of {name}, which queries filter by: set write.metadata.metrics.column.{name}, rewrite"
            )
            yield from _per_spec(Severity.WARNING, "filtered-without-bounds", entries, bare, ("file", text))

    def _deletes(self) -> Iterator[Finding]:
        check, deletes = self.check, self.check.misplaced.deletes
        fix = "run doctor with --repair"
        yield from self._of_deletes(
            Severity.ERROR,
            "stray-deletes",
            check.misplaced.is_misplaced,
            f"are not in the partition of their data files: {fix}",
        )
        unreached = np.zeros(len(deletes.kinds), dtype=np.bool_)
        unreached[check.copies.delete_rows] = True
        yield from self._of_deletes(
            Severity.ERROR, "unreached-deletes", unreached, f"do not apply to data files that moved: {fix}"
        )
        several = _repeated(deletes.entries.delete_targets(), deletes.kinds == DeleteKind.VECTOR)
        yield from self._of_deletes(
            Severity.ERROR,
            "several-vectors",
            several,
            "reference data files that already have one: rewrite those files",
        )
        moved_at = self._moved_at()
        late = (deletes.kinds == DeleteKind.EQUALITY_PARTITION) & (deletes.entries.sequence_number > moved_at)
        late &= deletes.entries.spec_id != self.head.metadata.default_spec_id
        yield from self._of_deletes(
            Severity.WARNING,
            "late-equality-deletes",
            late,
            "were added under an old spec after files were moved from it and do not apply to those: check their rows",
        )
        yield from self._of_deletes(
            Severity.WARNING,
            "dangling-deletes",
            check.misplaced.dangling,
            "reference data files that no longer exist: rewrite removes them",
        )

    def _moved_at(self) -> int:
        """The sequence number of the first known spec upgrade; very high without any."""
        at = branch_head(self.head.metadata, self.branch)
        newest = None if at is None else self.head.metadata.snapshot_by_id(at)
        moves = [
            snapshot.sequence_number or 0
            for snapshot in ancestors_of(newest, self.head.metadata)
            if snapshot.summary is not None
            and snapshot.summary.additional_properties.get("floeplan.operation") == "upgrade-spec"
        ]
        return min(moves, default=2**62)

    def _data_files(self) -> Iterator[Finding]:
        sizes = FileSizes.of(RewriteOptions(), self.head.metadata.properties)
        bare = to_mask(pc.equal(pc.fill_null(pc.list_value_length(self.data.array("lower_bounds")), 0), 0))
        yield from self._of_data(
            Severity.WARNING, "missing-statistics", bare, "have no column bounds and cannot be pruned"
        )
        small = self.data.ints("file_size_in_bytes") < sizes.smallest
        if np.count_nonzero(small) >= MANY_SMALL_FILES:
            yield from self._of_data(Severity.INFO, "small-files", small, "are below the target size: run rewrite")
        old = self.data.spec_id != self.head.metadata.default_spec_id
        yield from self._of_data(Severity.INFO, "old-specs", old, "are under an old spec: run upgrade-spec")

    def _manifests(self) -> Iterator[Finding]:
        rows = self.head.manifest_rows(DATA)
        options = MergeOptions.of(self.head.metadata.properties)
        small = int(np.count_nonzero(self.head.manifests.length[rows] < options.target_bytes // 4))
        codes = partition_codes(self.head.union, self.data.spec_id, self.data.partition_columns())
        partitions = len(np.unique(codes))
        places = int(np.unique(np.stack([codes, self.data.ints("manifest")]), axis=1).shape[1])
        spread = places / max(1, partitions)
        if spread >= SPREAD or small >= max(options.min_count, 2 * partitions):
            yield Finding(
                Severity.INFO,
                "many-manifests",
                f"{counted(len(rows), 'manifest')}, {small:,} of them small, and a partition is in {spread:.1f} "
                "of them: run rewrite-manifests",
                files=len(rows),
            )

    def _snapshots(self) -> Iterator[Finding]:
        snapshots = len(self.head.metadata.snapshots)
        if snapshots >= MANY_SNAPSHOTS:
            text = f"{counted(snapshots, 'snapshot')} are kept: run expire"
            yield Finding(Severity.INFO, "many-snapshots", text)

    def _of_deletes(self, severity: Severity, kind: str, mask: Mask, text: str) -> Iterator[Finding]:
        return _per_spec(severity, kind, self.check.misplaced.deletes.entries, mask, ("delete file", text))

    def _of_data(self, severity: Severity, kind: str, mask: Mask, text: str) -> Iterator[Finding]:
        return _per_spec(severity, kind, self.data, mask, ("file", text))


def _per_spec(
    severity: Severity, kind: str, entries: EntriesTable, mask: Mask, words: tuple[str, str]
) -> Iterator[Finding]:
    """One finding per spec with affected files."""
    noun, text = words
    for spec_id in np.unique(entries.spec_id[mask]).tolist():
        rows = np.flatnonzero(mask & (entries.spec_id == spec_id))
        shown = tuple(entries.path.take(pa.array(rows[:_SHOWN])).to_pylist())
        yield Finding(severity, kind, f"{counted(len(rows), noun)} {text}", spec_id, len(rows), shown)


def _among(entries: EntriesTable, paths: Sequence[str]) -> Mask:
    return to_mask(pc.is_in(entries.path, value_set=pa.array(paths, entries.path.type)))


def _repeated(targets: pa.Array, among: Mask) -> Mask:
    """Rows whose target an earlier row has."""
    codes = targets.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(among & (codes >= 0))
    first = np.unique(codes[rows], return_index=True)[1]
    found = np.zeros(len(codes), dtype=np.bool_)
    found[np.delete(rows, first)] = True
    return found
