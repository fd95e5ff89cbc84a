"""``RewriteDataFilesPlanner``: which files of a table to rewrite, in which groups, and why.

Nine steps, each over columns of all files at once:

1. load the entries of data files, without manifests in which no partition can match the filter;
2. apply the filters (``screening``);
3. match delete files with the data files that are left;
4. select candidates, by size and by deletes (``candidates``);
5. group them by the partition they go to (``output``);
6. pack each partition into groups (``packing``);
7. leave out groups that are not worth it;
8. order the groups;
9. give each group the delete files that apply to it: the matches of step 3, no second pass.

Loading is the only I/O. Fail-safe: what the filters cannot decide is rewritten and said, unless ``strict`` forbids it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.errors import StrictModeError
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import TRUE
from floeplan.predicate.tristate import TriState
from floeplan.rewrite.plan.candidates import (
    PRUNED_MANIFEST,
    STILL_A_REASON,
    FileSizes,
    Selection,
    Skip,
    candidate_reasons,
    decision_texts,
    reason_counts,
    skip_counts,
    unreadable,
)
from floeplan.rewrite.plan.groups import (
    Groups,
    at_most,
    delete_counts,
    job_order,
    no_fewer_files,
    pack,
    worth_rewriting,
)
from floeplan.rewrite.plan.model import RewriteDataFilesPlan, RewriteDataFilesPlanningResult, RewriteFileGroup
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.output import OutputPartitions, check_writable, needed_stats, output_partitions
from floeplan.rewrite.plan.resume import RewriteRun
from floeplan.rewrite.plan.screening import Screened, Screening, Undecided, WarningLog
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.model import PlannedFiles
from floeplan.scan.projection import PartitionNames
from floeplan.schemas import fields_by_id
from floeplan.snapshot.deletes import ScanDeletes, match
from floeplan.snapshot.passes import is_delete_manifest
from floeplan.snapshot.reader import SnapshotReader
from floeplan.snapshot.target import ScanTarget, resolve_target
from floeplan.text import counted
from floeplan.vectors import Mask

# Steps 5 to 9 of planning: candidates into groups, and groups into what a plan shows of them.


@dataclass(frozen=True, slots=True)
class PlanBuilder:
    """What a plan is built for: a table, options, and what follows from both."""

    target: ScanTarget
    options: RewriteOptions
    sizes: FileSizes
    order: SortOrder
    output_spec_id: int | None
    union: UnionPartitionType

    def build(self, selection: Selection, deletes: ScanDeletes, pruned: Mapping[str, int]) -> RewriteDataFilesPlan:
        """The plan; ``pruned`` counts files that were not even looked at."""
        files = self._files(selection, deletes)
        output = output_partitions(selection.considered, self.union, self.output_spec_id)
        groups, skip = self._groups(selection, output)
        described = self._describe(groups, selection, output, files)
        order = job_order(groups, files.entries.ints("file_size_in_bytes"), self.options.rewrite_job_order)
        return RewriteDataFilesPlan(
            target=self.target,
            options=self.options,
            sizes=self.sizes,
            order=self.order,
            output_spec_id=self.output_spec_id,
            groups=tuple(described[number] for number in order.tolist()),
            files=files,
            decisions=_decisions(selection, groups, skip),
            skipped={**pruned, **skip_counts(skip)},
        )

    def _groups(self, selection: Selection, output: OutputPartitions) -> tuple[Groups, npt.NDArray[np.int8]]:
        """The groups that are rewritten, and for every entry why it is left."""
        reasons, size = selection.reasons[selection.rows], selection.considered.ints("file_size_in_bytes")
        packed = pack(selection.considered, np.flatnonzero(reasons), output, self.union, self.options)
        worth = worth_rewriting(packed, size, reasons, self.sizes, self.options.min_input_files)
        vain = no_fewer_files(packed, size, reasons, self.sizes)
        chosen = packed.select(np.flatnonzero(worth & ~vain))
        groups = at_most(chosen, self.options.max_files_to_rewrite)
        skip = selection.skip.copy()
        skip[selection.rows[packed.rows]] = Skip.GROUP_TOO_SMALL
        skip[selection.rows[packed.select(np.flatnonzero(worth & vain)).rows]] = Skip.NO_FEWER_FILES
        skip[selection.rows[chosen.rows]] = Skip.BEYOND_MAX_FILES
        skip[selection.rows[groups.rows]] = Skip.NONE
        return groups, skip

    def _files(self, selection: Selection, deletes: ScanDeletes) -> PlannedFiles:
        """The files as a scan has them: every row is wanted."""
        count = len(selection.considered)
        return PlannedFiles(
            entries=selection.considered,
            states=np.full(count, TriState.TRUE, dtype=np.int8),
            residuals=(TRUE,),
            residual_of=np.zeros(count, dtype=np.intp),
            deletes=deletes.entries,
            delete_kinds=deletes.kinds,
            matches=selection.matches,
            row_groups={},
            names=PartitionNames(self.union, selection.considered.partition_types),
        )

    def _describe(
        self, groups: Groups, selection: Selection, output: OutputPartitions, files: PlannedFiles
    ) -> list[RewriteFileGroup]:
        """All groups with their numbers, in the order of their partitions."""
        reasons, specs = selection.reasons[selection.rows], files.entries.spec_id
        total = groups.sums(files.entries.ints("file_size_in_bytes")).tolist()
        deletes = delete_counts(groups, files.matches, len(files)).tolist()
        first = groups.rows[groups.offsets[:-1]]
        values = {i: column.take(pa.array(first)).to_pylist() for i, column in output.columns.items()}
        described = []
        for number, key in enumerate(groups.keys):
            rows = groups.of(number)
            entry = {partition_column(i): listed[number] for i, listed in values.items()}
            expected, proven = self._after(total[number]), bool(output.proven[first[number]])
            described.append(
                RewriteFileGroup(
                    group_id=number,
                    key=key,
                    partition=files.names.readable(key.spec_id, entry) if proven else {},
                    proven=proven,
                    source_spec_ids=tuple(np.unique(specs[rows]).tolist()),
                    output_spec_id=key.spec_id if self.output_spec_id is None else self.output_spec_id,
                    rows=rows,
                    bytes=total[number],
                    expected_outputs=self.sizes.expected_outputs(expected),
                    split_size=self.sizes.split_size(expected),
                    delete_files=deletes[number],
                    reasons=reason_counts(reasons[rows]),
                )
            )
        return described

    def _after(self, size: int) -> int:
        """Expected bytes of the new files: sorting and clustering may change them."""
        strategy = find_strategy(self.options.strategy)
        factor = 1.0 if strategy.copies_bytes else self.options.compression_factor
        return max(1, int(size * factor)) if factor != 1.0 else size


def _decisions(selection: Selection, groups: Groups, skip: npt.NDArray[np.int8]) -> pa.Table:
    entries = selection.entries
    group = np.full(len(entries), -1, dtype=np.int64)
    group[selection.rows[groups.rows]] = np.repeat(np.arange(len(groups)), groups.counts)
    return pa.table(
        {
            "file_path": entries.path,
            "spec_id": entries.array("spec_id"),
            "file_size_in_bytes": entries.array("file_size_in_bytes"),
            "decision": decision_texts(selection.reasons, skip),
            "group_id": pa.array(group, mask=group < 0),
        }
    )


# ---

_DATA_NAMES = frozenset({"key_metadata", "first_row_id", "sort_order_id", "snapshot_id"})


class RewriteDataFilesPlanner:
    """Plans the rewrite of the data files of one snapshot.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        options: Which files are rewritten, into what, and in what portions.
        ref: The branch to plan on; the main one when not given.
        cache: Whether decoded manifests are kept on local disk.
        leave_specs: Files of these specs stay as they are.
    """

    def __init__(
        self,
        table: Table | str,
        options: RewriteOptions | None = None,
        *,
        ref: str | None = None,
        cache: bool = True,
        leave_specs: frozenset[int] = frozenset(),
    ) -> None:
        self.options = options or RewriteOptions()
        self.target = resolve_target(load_table(table), ref=ref)
        metadata = self.target.metadata
        self.union = UnionPartitionType.of_table(metadata)
        self.sources = source_types(self.target.schema, metadata.schemas)
        self.sizes = FileSizes.of(self.options, metadata.properties)
        self.output_spec_id = self.options.output_spec_id(metadata)
        check_writable(self.union, self.target.schema, self.output_spec_id)
        self.strategy = find_strategy(self.options.strategy)
        self.order = self.strategy.sort_order(
            self.options.by, self.target.table, case_sensitive=self.options.case_sensitive
        )
        self.run = RewriteRun.of(self.target, self.options)
        self._cache = cache
        self._leave_specs = leave_specs

    def plan(self) -> RewriteDataFilesPlan:
        """The plan alone."""
        return self.plan_with_stats().plan

    def plan_with_stats(self) -> RewriteDataFilesPlanningResult:
        """The plan, and where its filters could not decide.

        Raises:
            BadInputError: An invalid filter, option or spec id.
            StrictModeError: ``strict`` was asked for, and a candidate could not be decided.
            CorruptMetadataError: Metadata that contradicts itself or cannot be read, or a manifest list that may be
                truncated and is not trusted.
        """
        started = time.perf_counter()
        screening = Screening.bind(self.options, self.target.schema, self.union)
        warnings = WarningLog()
        for item in screening.filters:
            for problem in item.partitions.compiled.errors:
                warnings.add("not-compiled", problem.message, problem.message, problem.to_dict())
        reader = SnapshotReader.open(self.target.table, self.target.snapshot, cache=self._cache)
        if not self.options.trust_lists:
            reader.check_complete("rows whose delete files it does not list would be written back")
        manifests = reader.manifests
        keep = screening.keep_manifests(manifests)
        deletes = reader.deletes(keep)
        entries = self._read_data(reader, keep, screening, deletes)
        screened = screening.screen(entries)
        selection = self._select(entries, screened, deletes)
        self._report_undecided(screening.undecided(entries, screened, selection.candidates), warnings)
        _report_unreadable(selection.skip, warnings)
        builder = PlanBuilder(self.target, self.options, self.sizes, self.order, self.output_spec_id, self.union)
        plan = replace(builder.build(selection, deletes, _pruned(manifests, keep)), run=self.run)
        data = ~is_delete_manifest(manifests)
        return RewriteDataFilesPlanningResult(
            plan,
            screening.stats(screened, selection.candidates),
            warnings.finish(),
            manifests_total=int(np.count_nonzero(data)),
            manifests_kept=int(np.count_nonzero(data & keep)),
            planning_ms=round((time.perf_counter() - started) * 1000, 3),
        )

    def _read_data(
        self, reader: SnapshotReader, keep: Mask, screening: Screening, deletes: ScanDeletes
    ) -> EntriesTable:
        stats = screening.stat_columns | deletes.key_columns | needed_stats(self.union, self.output_spec_id)
        if self.strategy.copies_bytes:
            stats |= _floats(self.target.schema)
        return reader.entries(reader.manifest_rows(DATA, keep), EntryColumns(_DATA_NAMES, stats=stats))

    def _select(self, entries: EntriesTable, screened: Screened, deletes: ScanDeletes) -> Selection:
        """Steps 3 and 4: deletes are matched once, counted for the candidates, and kept for the groups."""
        skip = np.where(screened.skip == Skip.NONE, unreadable(entries), screened.skip)
        skip[(skip == Skip.NONE) & np.isin(entries.spec_id, list(self._leave_specs))] = Skip.KEEPS_SPEC
        rows = np.flatnonzero(skip == Skip.NONE)
        considered = entries if len(rows) == len(entries) else entries.take(rows)
        matches = match(considered, deletes, self.union, self.sources)
        reasons = np.zeros(len(entries), dtype=np.uint8)
        reasons[rows] = candidate_reasons(considered, deletes, matches, self.options, self.sizes, self.output_spec_id)
        skip[rows[reasons[rows] == 0]] = Skip.NO_REASON
        if self.run is not None:
            made = rows[self.run.made(considered)]
            reasons[made] &= np.uint8(STILL_A_REASON)
            skip[made[reasons[made] == 0]] = Skip.ALREADY_REWRITTEN
        return Selection(entries, considered, rows, matches, reasons, skip)

    def _report_undecided(self, undecided: list[Undecided], warnings: WarningLog) -> None:
        for found in undecided:
            warnings.add(found.kind, (found.filter, found.spec_id), found.message, found.to_dict())
        if undecided and self.options.strict:
            raise StrictModeError(
                "strict mode refuses files that nothing could decide: "
                + "; ".join(found.message for found in undecided),
                context={"undecided": [found.to_dict() for found in undecided]},
            )


def _floats(schema: Schema) -> frozenset[int]:
    """Columns whose NaN only manifests count: a file stitched together of others has the sum of theirs."""
    fields = fields_by_id(schema).items()
    return frozenset(i for i, field in fields if isinstance(field.field_type, FloatType | DoubleType))


def _pruned(manifests: ManifestListTable, keep: Mask) -> dict[str, int]:
    """Files in the data manifests that were not read; a manifest that does not count its files counts none."""
    gone = ~keep & ~is_delete_manifest(manifests)
    files = int(np.maximum(manifests.added_files[gone], 0).sum() + np.maximum(manifests.existing_files[gone], 0).sum())
    return {PRUNED_MANIFEST: files} if files else {}


def _report_unreadable(skip: npt.NDArray[np.int8], warnings: WarningLog) -> None:
    for code, what in ((Skip.NOT_PARQUET, "not Parquet"), (Skip.ENCRYPTED, "encrypted")):
        files = int(np.count_nonzero(skip == code))
        if files:
            warnings.add("unreadable", what, f"{counted(files, 'file')} left: {what}", {"files": files, "reason": what})
