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
late-equality-deletes           error     late equality deletes miss rows that moved; a warning if unproven
dangling-deletes                warning   deletes that apply to no data file
missing-statistics              warning   files without column bounds cannot be pruned
filtered-without-bounds         warning   files without bounds of a column that queries filter by
small-files                     info      many files below the target size that a rewrite merges
many-deletes                    info      files of which many rows are deleted, which a rewrite writes without them
over-partitioned                info      partitions far below the target size, which no rewrite can merge
old-specs                       info      files that can be brought from older specs to the current one
many-manifests                  info      small manifests, or partitions spread over many of them
many-snapshots                  info      snapshots that could be expired
==============================  ========  ==========================================================================

Rule: every finding suggests a fix, with its command where there is one. A command that reduces files, manifests or
snapshots is suggested only after its planner found something to reduce (``remedies``). ``repair`` fixes what metadata
alone can fix: misplaced deletes and wrong partition summaries. Fail-safe: only what is proven is reported. Only sampled
data files are read, and delete files whose data files may have moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.maintenance.coarser_spec import coarser_spec
from floeplan.maintenance.partition_check import denied_by_file, denied_by_list, denied_by_rows, repair_summaries
from floeplan.maintenance.remedies import (
    Remedy,
    apply_deletes,
    cluster_manifests,
    expire_old_snapshots,
    merge_small_files,
    plan_rewrite,
    rewrite_command,
    upgrade_old_specs,
    write_bounds,
)
from floeplan.maintenance.rewrite_manifests import manifests_per_partition
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.predicate.names import Names
from floeplan.predicate.stats import POOL, to_mask
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.spec_upgrade.entry_moves import DeleteCheck, RepairResult, repair_deletes
from floeplan.snapshot.reader import SnapshotReader, resolve_target
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.dangling import dangling_deletes, dangling_deletes_of_one_file
from floeplan.transaction.manifests import MergeOptions
from floeplan.vectors import Mask

MANY_SNAPSHOTS = 100
MANY_SMALL_FILES = 10
SPREAD = 4.0
"""Average number of manifests per partition from which it is reported."""

SAMPLED_FILES = 10
"""Default number of data files whose rows are compared with their partition."""

REPAIR = "floeplan doctor {} --repair"
FIXES = {
    "wrong-summaries": REPAIR,
    "stray-deletes": REPAIR,
    "unreached-deletes": REPAIR,
    "several-vectors": "floeplan rewrite {} --option delete-file-threshold=1",
    "dangling-deletes": "floeplan rewrite {}",
    "old-specs": "floeplan upgrade-spec {}",
    "many-manifests": "floeplan rewrite-manifests {}",
    "many-snapshots": "floeplan expire {} --yes",
}
"""The command that fixes a finding; ``{}`` is the table name."""

_SHOWN = 5
_WARNINGS = (
    "short-manifest-list",
    "dangling-deletes",
    "missing-statistics",
    "filtered-without-bounds",
)
_INFOS = ("small-files", "many-deletes", "over-partitioned", "old-specs", "many-manifests", "many-snapshots")


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


@dataclass(frozen=True, slots=True, repr=False)
class DoctorResult(Displayed):
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
        repaired = None if self.repaired is None else {**self.repaired.to_dict(), "manifests": self.manifests_repaired}
        return {"findings": [finding.to_dict() for finding in self.findings], "repaired": repaired}


def doctor(
    table: Table | str,
    *,
    repair: bool = False,
    branch: str = MAIN_BRANCH,
    sample: int = SAMPLED_FILES,
    filtered: Sequence[str] = (),
    rewrite: RewriteOptions | None = None,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> DoctorResult:
    """Check a branch for problems, and optionally repair those that metadata alone can repair.

    Args:
        table: The table, or its name.
        repair: Record misplaced deletes in the partition of their data, and late equality deletes where the rows are
            that they are proven to be meant for; rewrite wrong summaries.
        branch: The branch.
        sample: Data files whose rows are compared with their partition; 0 reads metadata only.
        filtered: Columns that queries filter by and that should have bounds.
        rewrite: Options of the rewrite whose planner finds small files and many deletes.
        commit: Commit and retry options.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    loaded = load_table(table, catalog)
    resolve_target(loaded, ref=branch)  # refuses a branch that does not exist
    repaired, manifests = None, 0
    if repair:
        manifests = repair_summaries(loaded, branch=branch, options=commit)
        newest = loaded.refresh() if manifests else loaded
        repaired = repair_deletes(newest, branch=branch, late=True, options=commit)
        loaded = loaded.catalog.load_table(loaded.name())
    found = _findings(loaded, branch, sample, filtered, rewrite or RewriteOptions())
    name = _name(loaded)
    fixes = {kind: fix.format(name) for kind, fix in FIXES.items()}
    with_fixes = (replace(one, fix=one.fix or fixes.get(one.kind)) for one in found)
    return DoctorResult(tuple(with_fixes), repaired, manifests)


def _findings(
    table: Table, branch: str, sample: int, filtered: Sequence[str], rewrite: RewriteOptions
) -> Iterator[Finding]:
    """All findings, from the manifest list down to rows."""
    whole = SnapshotReader.of_branch(table, branch)
    truncated = whole.truncation()
    if truncated is not None:
        text = f"{truncated.message}; if rows are missing, restore it or roll back"
        missing = truncated.total - truncated.listed
        yield _finding("short-manifest-list", text, None, missing, (truncated.manifest_list,))
    # Entries of an unknown spec have no partition type and cannot be decoded: the other checks leave them out.
    known = np.isin(whole.manifests.spec_id, list(table.metadata.specs()))
    unknown = whole.manifests.take(np.flatnonzero(~known))
    for spec_id in np.unique(unknown.spec_id).tolist():
        paths = unknown.path.filter(pa.array(unknown.spec_id == spec_id)).to_pylist()
        text = (
            f"{counted(len(paths), 'manifest')} of a spec that the metadata does not have: their files cannot be "
            "read; roll back to a snapshot without them, or restore the spec"
        )
        yield _finding("unknown-spec", text, spec_id, len(paths), tuple(paths[:_SHOWN]))
    head = replace(whole, manifests=whole.manifests.take(np.flatnonzero(known)))
    data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset({"key_metadata"})))
    yield from _partitions(head, data, table, sample)
    yield from _deletes(head, _name(table))
    yield from _missing_statistics(head, data, _name(table))
    # What follows names no files by this table; paths are most of its memory.
    data = EntriesTable(data.table.drop_columns(["file_path", "file_format", "key_metadata"]), data.partition_types)
    yield from _rewrites(head, data, table, branch, rewrite)
    yield from _sizes_and_specs(head, data, table, filtered)
    yield from _manifests_and_snapshots(head, data, table, branch)


def _partitions(head: SnapshotReader, data: EntriesTable, table: Table, sample: int) -> Iterator[Finding]:
    """Data files that are listed twice, and partition values that are disproven."""
    twice = _repeated(data.path, np.ones(len(data), dtype=np.bool_))
    text = "are listed twice and read twice: roll back to an earlier snapshot"
    yield from _per_spec("duplicate-paths", data, twice, text)
    text = "are pruned by a wrong partition summary of their manifest: run doctor with --repair"
    deletes = head.entries(head.manifest_rows(DELETES), EntryColumns(frozenset()))
    for entries, noun in ((data, "file"), (deletes, "delete file")):
        yield from _per_spec("wrong-summaries", entries, denied_by_list(head, entries), text, noun)
    denied_paths, missing_paths = denied_by_rows(table, head, data, sample)
    denied = denied_by_file(head, head.manifest_rows(DATA)) | _among(data, denied_paths)
    text = "are recorded in the wrong partition, so queries miss their rows: write the rows again"
    yield from _per_spec("misfiled-values", data, denied, text)
    text = f"of the {counted(sample, 'file')} sampled do not exist: restore them, or roll back"
    yield from _per_spec("missing-files", data, _among(data, missing_paths), text)


def _deletes(head: SnapshotReader, name: str) -> Iterator[Finding]:
    """Deletes that do not apply to the rows they were written for."""
    check = DeleteCheck.of(head)
    deletes = check.misplaced.deletes

    def found(kind: str, mask: Mask, text: str) -> Iterator[Finding]:
        return _per_spec(kind, deletes.entries, mask, text, "delete file")

    text = "are not in the partition of their data files: run doctor with --repair"
    yield from found("stray-deletes", check.misplaced.is_misplaced, text)
    unreached = np.zeros(len(deletes.kinds), dtype=np.bool_)
    unreached[check.copies.delete_rows] = True
    yield from found("unreached-deletes", unreached, "do not apply to data files that moved: run doctor with --repair")
    several = _repeated(deletes.entries.delete_targets(), deletes.kinds == DeleteKind.VECTOR)
    yield from found("several-vectors", several, "reference data files that already have one: rewrite those files")
    yield from _late_deletes(check, name)
    for entries in (dangling_deletes(head, by_keys=True), dangling_deletes_of_one_file(head)):
        every = np.ones(len(entries), dtype=np.bool_)
        yield from _per_spec("dangling-deletes", entries, every, "apply to no data file: run rewrite", "delete file")


def _late_deletes(check: DeleteCheck, name: str) -> Iterator[Finding]:
    """Equality deletes that a writer added under an old spec after rows had moved out of it.

    An error if rows are proven to be duplicates, a warning if keys could not be compared.
    """
    late, entries = check.late, check.misplaced.deletes.entries
    text = "were added under an old spec after rows were moved out of it"
    spec_ids, doubles = entries.spec_id[late.delete_rows], late.doubled > 0
    repair = REPAIR.format(name)
    for chosen, severity, what, fix in (
        (doubles & late.repairable, Severity.ERROR, "without deleting {} that moved: run doctor with --repair", repair),
        (doubles & ~late.repairable, Severity.ERROR, "without deleting {} that moved: delete those rows", None),
        (late.doubled < 0, Severity.WARNING, "and may not delete rows that moved: check their rows", None),
    ):
        for spec_id in np.unique(spec_ids[chosen]).tolist():
            some, mask = chosen & (spec_ids == spec_id), np.zeros(len(entries), dtype=np.bool_)
            mask[late.delete_rows[some]] = True
            means = f"{text} {what.format(counted(int(late.doubled[some].sum()), 'row'))}"
            for finding in _per_spec("late-equality-deletes", entries, mask, means, "delete file"):
                yield replace(finding, severity=severity, fix=fix)


def _missing_statistics(head: SnapshotReader, data: EntriesTable, name: str) -> Iterator[Finding]:
    """Files that cannot be pruned."""
    parts = head.entries_by_parts(head.manifest_rows(DATA), EntryColumns(frozenset({"lower_bounds"}), partition=False))
    bounds = [pc.fill_null(pc.list_value_length(part.array("lower_bounds")), 0) for part in parts]
    bare = np.concatenate([to_mask(pc.equal(found, 0)) for found in bounds])
    fix = write_bounds(name, head.metadata)
    for found in _per_spec("missing-statistics", data, bare, "have no column bounds and cannot be pruned"):
        yield replace(found, fix=fix)


def _rewrites(
    head: SnapshotReader, data: EntriesTable, table: Table, branch: str, options: RewriteOptions
) -> Iterator[Finding]:
    """Small files, and files of which many rows are deleted: of one plan, which is made only where there may be any."""
    small = data.ints("file_size_in_bytes") < FileSizes.of(options, head.metadata.properties).smallest
    if not len(head.manifest_rows(DELETES)) and np.count_nonzero(small) < MANY_SMALL_FILES:
        return
    plan = plan_rewrite(table, branch, options)
    found = dict[str, list[Remedy]]()
    if plan is not None:
        found["many-deletes"] = list(apply_deletes(plan, _SHOWN))
        found["small-files"] = list(merge_small_files(plan, MANY_SMALL_FILES, _SHOWN))
    del plan
    for kind, remedies in found.items():
        for finding in _remedies(kind, remedies):
            yield replace(finding, fix=rewrite_command(_name(table), options))


def _sizes_and_specs(
    head: SnapshotReader, data: EntriesTable, table: Table, filtered: Sequence[str]
) -> Iterator[Finding]:
    """Small partitions, files under old specs, and files without bounds of a column."""
    name = _name(table)
    coarser = coarser_spec(head.metadata, head.union, data)
    if coarser is not None:
        found = _finding("over-partitioned", coarser.message, head.metadata.default_spec_id, coarser.files[0])
        yield replace(found, fix=coarser.command(name))
    if (data.spec_id != head.metadata.default_spec_id).any():
        yield from _remedies("old-specs", upgrade_old_specs(head, _SHOWN))
    names = Names(head.metadata.schema(), False)
    for column in filtered:
        key = names.find_dotted(column).field_id
        entries = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), stats=frozenset({key})))
        # A column of nulls has no bounds, but its null count prunes the file.
        nulls = entries.ints(f"null_count.{key}") == entries.record_count
        bare = ~entries.valid(f"lower.{key}") & ~nulls
        text = f"have no bounds of {column}, which queries filter by"
        fix = write_bounds(name, head.metadata, column)
        for found in _per_spec("filtered-without-bounds", entries, bare, text):
            yield replace(found, fix=fix)


def _manifests_and_snapshots(head: SnapshotReader, data: EntriesTable, table: Table, branch: str) -> Iterator[Finding]:
    """Metadata that maintenance would reduce."""
    rows = head.manifest_rows(DATA)
    options = MergeOptions.of(head.metadata.properties)
    small = int(np.count_nonzero(head.manifests.length[rows] < options.target_bytes // 4))
    partitions, spread = manifests_per_partition(head, data, data.ints("manifest"))
    if spread >= SPREAD or small >= max(options.min_count, 2 * partitions):
        yield from _remedies("many-manifests", cluster_manifests(table, branch))
    if len(head.metadata.snapshots) >= MANY_SNAPSHOTS:
        yield from _remedies("many-snapshots", expire_old_snapshots(table))


def _remedies(kind: str, remedies: Iterable[Remedy]) -> Iterator[Finding]:
    """A finding for everything that a command would do."""
    for one in remedies:
        yield _finding(kind, one.message, one.spec_id, one.files, one.examples)
    pa.default_memory_pool().release_unused()  # the plan is freed, but Arrow's allocator would keep its memory


def _name(table: Table) -> str:
    return table.metadata_location if isinstance(table, StaticTable) else ".".join(table.name())


def _finding(
    kind: str, message: str, spec_id: int | None = None, files: int = 0, examples: tuple[str, ...] = ()
) -> Finding:
    severity = Severity.WARNING if kind in _WARNINGS else Severity.INFO if kind in _INFOS else Severity.ERROR
    return Finding(severity, kind, message, spec_id, files, examples)


_SINGULAR = {
    "are": "is",
    "were": "was",
    "do": "does",
    "have": "has",
    "apply": "applies",
    "reference": "references",
}
"""The verb of a message about one file."""


def _per_spec(kind: str, entries: EntriesTable, mask: Mask, text: str, noun: str = "file") -> Iterator[Finding]:
    """One finding per spec with affected files."""
    for spec_id in np.unique(entries.spec_id[mask]).tolist():
        rows = np.flatnonzero(mask & (entries.spec_id == spec_id))
        shown = tuple(entries.path.take(pa.array(rows[:_SHOWN])).to_pylist())
        verb, rest = text.split(" ", 1)
        verb = _SINGULAR.get(verb, verb) if len(rows) == 1 else verb
        yield _finding(kind, f"{counted(len(rows), noun)} {verb} {rest}", spec_id, len(rows), shown)


def _among(entries: EntriesTable, paths: Sequence[str]) -> Mask:
    return to_mask(pc.is_in(entries.path, value_set=pa.array(paths, entries.path.type)))


def _repeated(targets: pa.Array, among: Mask) -> Mask:
    """Rows whose target an earlier row has."""
    # The dictionary takes as much memory as all paths. The system returns it at once, Arrow's allocator would keep it.
    indices = pc.dictionary_encode(targets, memory_pool=POOL).indices
    codes = indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(among & (codes >= 0))
    first = np.unique(codes[rows], return_index=True)[1]
    found = np.zeros(len(codes), dtype=np.bool_)
    found[np.delete(rows, first)] = True
    return found
