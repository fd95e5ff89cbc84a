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
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.errors import StrictModeError
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest import read_entries
from floeplan.metadata.manifest_list import ManifestListTable, inline_manifest_list, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.tristate import Mask
from floeplan.rewrite.build import PlanBuilder
from floeplan.rewrite.candidates import Selection, candidate_reasons, unreadable
from floeplan.rewrite.options import STITCHING, RewriteOptions
from floeplan.rewrite.orders import rewrite_order
from floeplan.rewrite.output import check_writable, needed_stats
from floeplan.rewrite.plan import RewriteDataFilesPlan, RewriteDataFilesPlanningResult
from floeplan.rewrite.reasons import PRUNED_MANIFEST, STILL_A_REASON, Skip
from floeplan.rewrite.resume import RewriteRun
from floeplan.rewrite.screening import Screened, Screening, Undecided
from floeplan.rewrite.sizes import FileSizes
from floeplan.rewrite.warnings import WarningLog
from floeplan.scan.deletes import ScanDeletes, match, read_deletes
from floeplan.scan.passes import is_delete_manifest
from floeplan.scan.target import resolve_target
from floeplan.text import counted

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
        self.order = rewrite_order(self.options, self.target.table)
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
            CorruptMetadataError: Metadata that contradicts itself or cannot be read.
        """
        started = time.perf_counter()
        screening = Screening.bind(self.options, self.target.schema, self.union)
        warnings = WarningLog()
        for item in screening.filters:
            for problem in item.partitions.compiled.errors:
                warnings.add("not-compiled", problem.message, problem.message, problem.to_dict())
        manifests = self._manifests()
        keep = screening.keep_manifests(manifests)
        deletes = self._read_deletes(manifests, keep)
        entries = self._read_data(manifests, keep, screening, deletes)
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

    def _manifests(self) -> ManifestListTable:
        snapshot = self.target.snapshot
        if snapshot is None:
            return inline_manifest_list(())
        return read_manifest_list(snapshot.manifest_list, self.target.table.io)

    def _entries(
        self, manifests: ManifestListTable, rows: npt.NDArray[np.int64], columns: EntryColumns
    ) -> EntriesTable:
        read = EntriesCache().read_entries if self._cache else read_entries
        return read(manifests, self.union, columns, rows=rows, io=self.target.table.io)

    def _read_deletes(self, manifests: ManifestListTable, keep: Mask) -> ScanDeletes:
        rows = np.flatnonzero(keep & is_delete_manifest(manifests))
        return read_deletes(lambda columns: self._entries(manifests, rows, columns), self.union)

    def _read_data(
        self, manifests: ManifestListTable, keep: Mask, screening: Screening, deletes: ScanDeletes
    ) -> EntriesTable:
        stats = screening.stat_columns | deletes.key_columns | needed_stats(self.union, self.output_spec_id)
        if self.options.strategy in STITCHING:
            stats |= _floats(self.target.schema)
        rows = np.flatnonzero(keep & ~is_delete_manifest(manifests))
        return self._entries(manifests, rows, EntryColumns(_DATA_NAMES, stats=stats)).live()

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
    fields = schema._lazy_id_to_field.items()
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
