"""``plan_scan``: three passes from a predicate to the files, row groups and deletes to read.

::

    manifest list ──pass 1──► manifests ──pass 2──► files ──pass 3──► row groups (pages)
      partition summaries       union partition tuple    footer statistics
      of every spec             and column bounds        (page index, bloom filters)

Each pass consumes only what the one before kept. The rule of all three: what cannot be proven absent is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.fields import source_types
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE
from floeplan.predicate.stats import TriState
from floeplan.scan.footers import FooterPass, FooterRequest
from floeplan.scan.model import PassSummary, PlannedFiles, PlanWarning, RowGroups, ScanOptions
from floeplan.scan.planned_scan import Totals, summarise
from floeplan.scan.projection import PartitionNames
from floeplan.scan.report import default_store, scan_report, store_report
from floeplan.scan.scan_plan import ScanPlan
from floeplan.schemas import fields_by_id
from floeplan.snapshot.passes import (
    ConjunctEffect,
    EvaluatedFiles,
    Predicate,
    ScanDeletes,
    concat_evaluated,
    evaluate_files,
    evaluate_manifests,
    is_delete_manifest,
    match,
)
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target, select
from floeplan.vectors import Ints, Mask

FOOTERS = "footers"
_log = logging.getLogger(__name__)
_SLICE_BYTES = 8 * 1024 * 1024
"""Manifests decoded before their entries are evaluated: enough for vectors to pay, few enough to reuse the memory."""

_DATA_NAMES = frozenset({"key_metadata", "first_row_id", "sort_order_id"})


def plan_scan(
    table: Table | str,
    where: PredicateSource | None = None,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    ref: str | None = None,
    timestamp_ms: int | None = None,
    case_sensitive: bool = True,
    options: ScanOptions | None = None,
) -> ScanPlan:
    """Plan a scan of one snapshot.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        where: Spark-SQL text, a PyIceberg expression, tuples or IR; every row when not given.
        columns: Columns to read; all when not given. Bytes are counted for these only.
        snapshot_id: The snapshot to read; the current one when none of the three is given.
        ref: A branch or tag to read.
        timestamp_ms: The time to read the table as of, in milliseconds since 1970.
        case_sensitive: Whether column names must match exactly.
        options: What planning may use.

    Raises:
        BadInputError: An unknown column, snapshot or ref, or an invalid predicate.
        CorruptMetadataError: Metadata that contradicts itself or cannot be read.
    """
    chosen = options or ScanOptions()
    target = resolve_target(load_table(table), snapshot_id=snapshot_id, ref=ref, timestamp_ms=timestamp_ms)
    compiled = compile_predicate(TRUE if where is None else where, target.schema, case_sensitive=case_sensitive)
    schema = target.schema if columns is None else select(target.schema, columns, case_sensitive)
    return _Planner(target, compiled, schema, columns is not None, chosen).plan()


class _Planner:
    """One planning run: a method per pass."""

    def __init__(
        self, target: ScanTarget, compiled: CompileResult, schema: Schema, projected: bool, options: ScanOptions
    ) -> None:
        self.target = target
        self.compiled = compiled
        self.schema = schema
        self.options = options
        self.projected = frozenset(fields_by_id(schema)) if projected else None
        self.reader = SnapshotReader.open(
            target.table, target.snapshot, cache=options.cache, root=options.root, max_workers=options.concurrency
        )
        self.union = self.reader.union
        self.predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), self.union)
        self.passes: list[PassSummary] = []
        self.warnings = [PlanWarning("not-compiled", e.message, e.to_dict()) for e in compiled.errors]

    def plan(self) -> ScanPlan:
        started = time.perf_counter()
        truncated = None if self.reader.root is not None else self.reader.truncation()
        if truncated is not None:  # rows may be missing: logged too, for callers that never look at the plan
            _log.warning("%s", truncated.message)
            self.warnings.append(PlanWarning("short-manifest-list", truncated.message, truncated.to_dict()))
        keep = self._pass_manifests()
        # Deletes come before data files: the bounds of their equality keys must be read from data entries too.
        deletes = self.reader.deletes(keep)
        kept = self._pass_entries(keep, deletes)
        opened: dict[int, RowGroups] = {}
        if self.options.footers and self.compiled.predicate != TRUE:
            kept, opened = self._pass_footers(kept)
        files = self._files(kept, deletes, opened)
        elapsed = (time.perf_counter() - started) * 1000
        totals = Totals(
            target=self.target,
            manifests=self.reader.manifests,
            kept=keep,
            union=self.union,
            compiled=self.compiled,
            projected=self.projected,
            recover=self.options.recover,
            row_groups_total=sum(step.total for step in self.passes if step.name == FOOTERS) or None,
        )
        summary = summarise(totals, files, elapsed)
        passes, warnings = tuple(self.passes), tuple(self.warnings)
        plan = ScanPlan(self.target, self.compiled, self.schema, files, summary, totals, passes, warnings)
        report = self.options.report
        store = (default_store() if report else None) if isinstance(report, bool) else report
        warning = None if store is None else store_report(store, lambda: scan_report(plan))
        return plan if warning is None else replace(plan, warnings=(*plan.warnings, warning))

    def _pass_manifests(self) -> Mask:
        clock = time.perf_counter()
        evaluation = evaluate_manifests(self.predicate, self.reader.manifests)
        data, keep = ~is_delete_manifest(self.reader.manifests), evaluation.tri.keep
        kept, proven = int((keep & data).sum()), int((evaluation.tri.all_match & data).sum())
        effects = evaluation.effects(data, lambda _: "")
        self._record("manifest list", "manifests", int(data.sum()), kept, proven, effects, clock)
        return keep

    def _pass_entries(self, keep: Mask, deletes: ScanDeletes) -> EvaluatedFiles:
        clock = time.perf_counter()
        stats = frozenset(self.predicate.columns) | deletes.key_columns
        if self.options.recover:
            stats |= {field.bound.source_id for field in self.union.fields}
        columns = EntryColumns(_DATA_NAMES, stats=stats, sizes=self.projected or frozenset())
        rows = self.reader.manifest_rows(DATA, keep)
        distributed = self.options.planning
        if distributed is not None and len(rows) >= distributed.threshold:
            files = distributed.evaluate(self.predicate, self.reader.manifests, rows, columns, self.target.table.io)
        else:
            # Decoding drops DELETED entries for free; dropping cached ones would copy every column, and evaluation
            # leaves them out anyway.
            read = partial(self.reader.entries, columns=columns, live=self.reader.cache is None)
            files = concat_evaluated([evaluate_files(self.predicate, read(part)) for part in self._slices(rows)])
        kept, proven = len(files.entries), int((files.states == TriState.TRUE).sum())
        self._record("manifest entries", "files", files.total, kept, proven, files.effects, clock)
        return files

    def _slices(self, rows: Ints) -> list[Ints]:
        """Split the manifests so that memory of dropped entries is reused: fresh memory costs more than evaluation.

        Where all entries are kept, or come from a columnar file, a single slice is fastest.
        """
        if self.options.cache or self.reader.root is not None or self.compiled.predicate == TRUE:
            return [rows]
        slice_of = np.cumsum(self.reader.manifests.length[rows]) // _SLICE_BYTES
        if not len(slice_of) or slice_of[-1] == slice_of[0]:
            return [rows]
        return np.split(rows, np.flatnonzero(np.diff(slice_of)) + 1)

    def _pass_footers(self, kept: EvaluatedFiles) -> tuple[EvaluatedFiles, dict[int, RowGroups]]:
        """Open the files that are not proven, and drop those without a matching row group."""
        clock = time.perf_counter()
        unproven = np.flatnonzero(kept.states != TriState.TRUE)
        footers = FooterPass(
            self.compiled, self.target.schema, self.projected, self.union, self.target.table.io, self.options
        )
        opened, warnings = footers.run(self._footer_requests(kept, unproven))
        self.warnings += warnings
        groups = opened.values()
        total, groups_kept = sum(g.total for g in groups), sum(len(g.kept) for g in groups)
        self._record(FOOTERS, "row groups", total, groups_kept, sum(len(g.kept) for g in groups if g.proven), (), clock)
        if pages := sum(g.pages_total for g in groups):
            self._record("page index", "pages", pages, sum(g.pages_kept for g in groups), 0, (), clock)
        keep = np.ones(len(kept.entries), dtype=np.bool_)
        keep[[row for row, groups in opened.items() if not groups.kept]] = False
        position = np.cumsum(keep) - 1
        return kept.narrowed(keep), {int(position[row]): groups for row, groups in opened.items() if groups.kept}

    def _footer_requests(self, kept: EvaluatedFiles, rows: Ints) -> list[FooterRequest]:
        entries = kept.entries.take(rows)
        # Parquet statistics do not count NaN; the manifest may prove that a file has none in a column.
        floats = [c for c in self.predicate.columns.values() if isinstance(c.type, FloatType | DoubleType)]
        known = file_stats(entries, floats).columns
        without_nan = [
            frozenset(i for i, stats in known.items() if not stats.may_nan[row]) for row in range(len(entries))
        ]
        return list(
            map(
                FooterRequest,
                rows.tolist(),
                entries.path.to_pylist(),
                entries.ints("file_size_in_bytes").tolist(),
                entries.spec_id.tolist(),
                entries.array("file_format").to_pylist(),
                without_nan,
            )
        )

    def _files(self, kept: EvaluatedFiles, deletes: ScanDeletes, opened: dict[int, RowGroups]) -> PlannedFiles:
        residuals, codes = kept.residuals(self.predicate.expr)
        sources = source_types(self.target.schema, self.target.metadata.schemas)
        return PlannedFiles(
            entries=kept.entries,
            states=kept.states,
            residuals=residuals,
            residual_of=codes,
            deletes=deletes.entries,
            delete_kinds=deletes.kinds,
            matches=match(kept.entries, deletes, self.union, sources),
            row_groups=opened,
            names=PartitionNames(self.union, kept.entries.partition_types),
        )

    def _record(
        self,
        name: str,
        unit: str,
        total: int,
        kept: int,
        proven: int,
        effects: tuple[ConjunctEffect, ...],
        clock: float,
    ) -> None:
        elapsed = round((time.perf_counter() - clock) * 1000, 3)
        self.passes.append(PassSummary(name, unit, total, kept, proven, effects, elapsed))
