"""``RewriteDataFilesPlanner``: which data files to rewrite, in which groups, and why.

Nine steps, each over columns of all files at once:

1. load the manifest entries of data files, except from manifests in which no partition can match the filters;
2. apply ``partition_filter`` and ``where`` (``filter``);
3. match delete files with the remaining data files;
4. select candidates by size, deletes and spec (``candidates``);
5. group them by the partition they go to (``candidates.output_partitions``);
6. pack each partition into groups (``groups``);
7. drop groups that are not worth rewriting;
8. order the groups;
9. attach the delete files that apply to each group: the matches of step 3, without a second pass.

Loading is the only I/O. Fail-safe: files for which the filters cannot be evaluated are rewritten, with a warning,
unless ``strict`` forbids it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.errors import StrictModeError
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.candidates import (
    PRUNED_MANIFEST,
    REASONS_AFTER_REWRITE,
    FileSizes,
    OutputPartitions,
    Selection,
    Skip,
    candidate_reasons,
    check_writable,
    decision_texts,
    needed_stats,
    output_partitions,
    reason_counts,
    skip_counts,
    skip_unreadable,
    still_written,
    unreadable_deletes,
)
from floeplan.rewrite.plan.filter import RewriteFilters, Screened
from floeplan.rewrite.plan.groups import (
    Groups,
    delete_counts,
    job_order,
    limit_files,
    pack,
    rewrites_in_vain,
    worth_rewriting,
)
from floeplan.rewrite.plan.model import (
    RewriteDataFilesPlan,
    RewriteDataFilesPlanningResult,
    RewriteFileGroup,
    RewriteRun,
)
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.ranges import expected_ranges
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.model import PlannedFiles, PlanWarning
from floeplan.schemas import fields_by_id
from floeplan.snapshot.passes import ScanDeletes, match
from floeplan.snapshot.reader import SnapshotReader, resolve_target
from floeplan.text import counted
from floeplan.transaction.equality_writers import warn_of_equality_writers, warn_of_late_deletes
from floeplan.write.target import other_format

MAX_WARNINGS = 20
_UNREADABLE = {
    Skip.UNKNOWN_FORMAT: "neither Parquet, ORC nor Avro",
    Skip.ENCRYPTED: "encrypted",
    Skip.UNREADABLE_DELETES: "a delete file of an unknown format, or an encrypted one, applies to them",
}
_ENTRY_COLUMNS = frozenset({"key_metadata", "first_row_id", "snapshot_id", "file_sequence_number"})


class RewriteDataFilesPlanner:
    """Plans the rewrite of the data files of one snapshot.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        options: Which files are rewritten, and into what.
        ref: The branch to plan on; ``main`` by default.
        cache: Use the local manifest cache.
        leave_specs: Skip files of these specs.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """

    def __init__(
        self,
        table: Table | str,
        options: RewriteOptions | None = None,
        *,
        ref: str | None = None,
        cache: bool = True,
        leave_specs: frozenset[int] = frozenset(),
        catalog: str | Catalog | None = None,
    ) -> None:
        self.options = options or RewriteOptions()
        self.target = resolve_target(load_table(table, catalog), ref=ref)
        metadata = self.target.metadata
        self.union = UnionPartitionType.of_table(metadata)
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
        """Plan, and discard the statistics of the filters."""
        return self.plan_with_stats().plan

    def plan_with_stats(self) -> RewriteDataFilesPlanningResult:
        """Plan, and report where the filters could not be evaluated.

        Raises:
            BadInputError: An invalid filter, option or spec id.
            StrictModeError: With ``strict``, a filter could not be evaluated for a candidate.
            CorruptMetadataError: Metadata that contradicts itself or cannot be read, or a manifest list that may be
                truncated and is not trusted.
        """
        started = time.perf_counter()
        filters = RewriteFilters.bind(self.options, self.target.schema, self.union)

        # 1. Load manifest entries, with the bounds that the following steps read.
        reader = SnapshotReader.open(self.target.table, self.target.snapshot, cache=self._cache)
        if not self.options.trust_lists:
            reader.check_complete("rows whose delete files it does not list would be written back")
        manifests, keep = reader.manifests, filters.keep_manifests(reader.manifests)
        deletes = reader.deletes()  # a misplaced one, which makes Iceberg refuse the table, is in another manifest
        stats = filters.stat_columns | deletes.key_columns | needed_stats(self.union, self.output_spec_id)
        # Parquet footers have no NaN counts: a file copied from others has the sum of those in their entries.
        fields = fields_by_id(self.target.schema).items() if self.strategy.copies_bytes else ()
        nan_counts = frozenset(i for i, field in fields if isinstance(field.field_type, FloatType | DoubleType))
        if not self.order.is_unsorted:
            stats |= {self.order.fields[0].source_id}  # tells which files a range of the order overlaps
        entries = reader.entries(
            reader.manifest_rows(DATA, keep), EntryColumns(_ENTRY_COLUMNS, stats=stats, nan_counts=nan_counts)
        )
        is_data = manifests.content == DATA
        # Live files in manifests that were not read; a manifest without counts (-1) adds none.
        counts = (manifests.added_files, manifests.existing_files)
        pruned = sum(int(np.maximum(count[is_data & ~keep], 0).sum()) for count in counts)

        # 2. Apply the filters.
        screened = filters.screen(entries)

        # 3. Match delete files, and 4. select candidates.
        selection = self._select_candidates(entries, screened, deletes)
        warnings = self._warnings(filters, selection, screened)

        # 5. to 9. Group, pack, filter and order groups, attach deletes.
        plan = self._build_plan(selection, deletes, {PRUNED_MANIFEST: pruned} if pruned else {})
        if plan.groups and self.output_spec_id is not None:
            specs = {spec_id for group in plan.groups for spec_id in group.source_spec_ids}
            warnings += warn_of_equality_writers(reader, specs, self.output_spec_id)
        if plan.groups:
            rows = np.concatenate([group.rows for group in plan.groups])
            warnings += warn_of_late_deletes(reader, deletes, selection.considered, selection.matches, rows)
        return RewriteDataFilesPlanningResult(
            plan,
            filters.stats(screened, selection.candidates),
            tuple(warnings),
            manifests_total=int(np.count_nonzero(is_data)),
            manifests_kept=int(np.count_nonzero(is_data & keep)),
            planning_ms=round((time.perf_counter() - started) * 1000, 3),
            ranges=expected_ranges(plan, task_bytes) if (task_bytes := self.options.range_task_bytes) else (),
        )

    def _select_candidates(self, entries: EntriesTable, screened: Screened, deletes: ScanDeletes) -> Selection:
        """Steps 3 and 4: deletes are matched once, counted for the candidates, and kept for the groups."""
        skip = skip_unreadable(entries, screened.skip)
        skip[(skip == Skip.NONE) & np.isin(entries.spec_id, list(self._leave_specs))] = Skip.KEEPS_SPEC
        if self.options.min_partition_age_seconds:
            since_ms = int((time.time() - self.options.min_partition_age_seconds) * 1000)
            written = still_written(entries, self.target.metadata, self.union, since_ms)
            skip[(skip == Skip.NONE) & written] = Skip.STILL_WRITTEN
        rows = np.flatnonzero(skip == Skip.NONE)
        considered = entries if len(rows) == len(entries) else entries.take(rows)
        sources = source_types(self.target.schema, self.target.metadata.schemas)
        matches = match(considered, deletes, self.union, sources)
        reasons = np.zeros(len(entries), dtype=np.uint8)
        reasons[rows] = candidate_reasons(considered, deletes, matches, self.options, self.sizes, self.output_spec_id)
        skip[rows[reasons[rows] == 0]] = Skip.NO_REASON
        unreadable = rows[unreadable_deletes(deletes, matches)]
        reasons[unreadable], skip[unreadable] = 0, Skip.UNREADABLE_DELETES
        if self.run is not None:
            # A continued rewrite-all skips the files that it has already made, unless something else is wrong with
            # them.
            made = rows[self.run.made(considered)]
            reasons[made] &= np.uint8(REASONS_AFTER_REWRITE)
            skip[made[reasons[made] == 0]] = Skip.ALREADY_REWRITTEN
        return Selection(entries, considered, rows, matches, reasons, skip)

    def _warnings(self, filters: RewriteFilters, selection: Selection, screened: Screened) -> list[PlanWarning]:
        """Warn about files that were included undecided, or refuse them, and about files that cannot be read."""
        undecided = filters.undecided(selection.entries, screened, selection.candidates)
        if undecided and self.options.strict:
            raise StrictModeError(
                "strict mode refuses files for which a filter cannot be evaluated: "
                + "; ".join(found.message for found in undecided),
                context={"undecided": [found.to_dict() for found in undecided]},
            )
        warnings = list(filters.compile_warnings())
        warnings += [PlanWarning(found.kind, found.message, found.to_dict()) for found in undecided]
        for code, what in _UNREADABLE.items():
            files = int(np.count_nonzero(selection.skip == code))
            if files:
                text = f"{counted(files, 'file')} skipped: {what}"
                warnings.append(PlanWarning("unreadable", text, {"files": files, "reason": what}))
        if len(selection.candidates):
            warnings += self._unsupported_properties()
        # Without duplicates; beyond a limit they are only counted.
        unique = dict[tuple[str, str], PlanWarning]()
        for warning in warnings:
            unique.setdefault((warning.kind, warning.message), warning)
        shown, more = list(unique.values())[:MAX_WARNINGS], len(unique) - MAX_WARNINGS
        if more <= 0:
            return shown
        return [*shown, PlanWarning("more", f"{more} more warnings omitted", {"warnings": more})]

    def _unsupported_properties(self) -> Iterator[PlanWarning]:
        """Table properties for new files that this rewrite does not apply."""
        metadata = self.target.metadata
        text = other_format(metadata.properties, self.target.schema)
        if text is not None:
            yield PlanWarning("write-format", text, {"property": "write.format.default"})
        order = metadata.sort_order()
        if self.order.is_unsorted and not order.is_unsorted:
            text = f"{self.strategy.name} does not apply the sort order of the table: use strategy sort"
            yield PlanWarning("sort-order", text, {"sort_order_id": order.order_id})

    def _build_plan(
        self, selection: Selection, deletes: ScanDeletes, pruned: Mapping[str, int]
    ) -> RewriteDataFilesPlan:
        """Steps 5 to 9; ``pruned`` counts files in manifests that were not read."""
        considered, sizes = selection.considered, selection.considered.ints("file_size_in_bytes")
        reasons = selection.reasons[selection.rows]

        # 5. Group by output partition, and 6. pack each partition.
        output = output_partitions(considered, self.union, self.output_spec_id)
        packed = pack(considered, np.flatnonzero(reasons), output, self.union, self.options)

        # 7. Drop groups that are not worth rewriting. Later assignments override earlier ones.
        worth = worth_rewriting(packed, sizes, reasons, self.sizes, self.options.min_input_files)
        in_vain = rewrites_in_vain(packed, sizes, reasons, self.sizes)
        chosen = packed.select(np.flatnonzero(worth & ~in_vain))
        groups = limit_files(chosen, self.options.max_files_to_rewrite)
        skip = selection.skip.copy()
        skip[selection.rows[packed.rows]] = Skip.GROUP_TOO_SMALL
        skip[selection.rows[packed.select(np.flatnonzero(worth & in_vain)).rows]] = Skip.NO_FEWER_FILES
        skip[selection.rows[chosen.rows]] = Skip.BEYOND_MAX_FILES
        skip[selection.rows[groups.rows]] = Skip.NONE

        # 8. Order the groups, and 9. attach deletes. To a rewrite, as to a scan, every row of these files matters.
        files = PlannedFiles.whole(considered, deletes, selection.matches, self.union)
        described = self._describe(groups, selection, output, files)
        order = job_order(groups, sizes, self.options.rewrite_job_order)
        entries = selection.entries
        group_id = np.full(len(entries), -1, dtype=np.int64)
        group_id[selection.rows[groups.rows]] = np.repeat(np.arange(len(groups)), groups.counts)
        decisions = {
            "file_path": entries.path,
            "spec_id": entries.array("spec_id"),
            "file_size_in_bytes": entries.array("file_size_in_bytes"),
            "decision": decision_texts(selection.reasons, skip),
            "group_id": pa.array(group_id, mask=group_id < 0),
        }
        return RewriteDataFilesPlan(
            target=self.target,
            options=self.options,
            sizes=self.sizes,
            order=self.order,
            output_spec_id=self.output_spec_id,
            groups=tuple(described[number] for number in order.tolist()),
            files=files,
            decisions=pa.table(decisions),
            skipped={**pruned, **skip_counts(skip)},
            run=self.run,
        )

    def _describe(
        self, groups: Groups, selection: Selection, output: OutputPartitions, files: PlannedFiles
    ) -> list[RewriteFileGroup]:
        """All groups in the order of their partitions; a group's position is its id."""
        reasons, specs = selection.reasons[selection.rows], files.entries.spec_id
        total = groups.sums(files.entries.ints("file_size_in_bytes")).tolist()
        deletes = delete_counts(groups, files.matches, len(files)).tolist()
        first = groups.rows[groups.offsets[:-1]]
        is_proven = output.proven[first].tolist()
        values = {i: column.take(pa.array(first)).to_pylist() for i, column in output.columns.items()}
        # Sorting and clustering may change how well rows compress.
        factor = 1.0 if self.strategy.copies_bytes else self.options.compression_factor
        described = []
        for number, key in enumerate(groups.keys):
            rows = groups.of(number)
            entry = {partition_column(i): listed[number] for i, listed in values.items()}
            proven = is_proven[number]
            new_bytes = max(1, int(total[number] * factor)) if factor != 1.0 else total[number]
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
                    expected_outputs=self.sizes.expected_outputs(new_bytes),
                    split_size=self.sizes.split_size(new_bytes),
                    delete_files=deletes[number],
                    reasons=reason_counts(reasons[rows]),
                )
            )
        return described
