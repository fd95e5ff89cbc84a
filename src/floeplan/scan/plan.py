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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.fields import source_types
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE, Column
from floeplan.predicate.tristate import TriState
from floeplan.scan.footers import FooterPass, FooterRequest
from floeplan.scan.model import PlannedFiles, RowGroups
from floeplan.scan.options import ScanOptions
from floeplan.scan.projection import PartitionNames
from floeplan.scan.report import default_store, scan_report, store_report
from floeplan.scan.scan_plan import ScanPlan
from floeplan.scan.summary import PassSummary, PlanWarning
from floeplan.scan.totals import Totals, summarise
from floeplan.schemas import fields_by_id
from floeplan.snapshot.deletes import ScanDeletes, match
from floeplan.snapshot.passes import (
    ConjunctEffect,
    EvaluatedFiles,
    Predicate,
    concat_evaluated,
    evaluate_files,
    evaluate_manifests,
    is_delete_manifest,
)
from floeplan.snapshot.reader import SnapshotReader
from floeplan.snapshot.target import ScanTarget, resolve_target, select
from floeplan.vectors import Ints, Mask

FOOTERS = "footers"
_log = logging.getLogger(__name__)
_BYTES_A_TURN = 8 * 1024 * 1024
"""Manifests read before their entries are evaluated: enough for vectors to pay, few enough to use the memory again."""

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
        snapshot_id: The snapshot to read; the current one when no choice is made.
        ref: A branch or tag to read.
        timestamp_ms: The time to read the table as of, in milliseconds since 1970.
        case_sensitive: Whether column names must match exactly.
        options: What planning may use.

    Raises:
        BadInputError: An unknown column, snapshot or ref, or a predicate that cannot be meant.
        CorruptMetadataError: Metadata that contradicts itself or cannot be read.
    """
    chosen = options or ScanOptions()
    target = resolve_target(load_table(table), snapshot_id=snapshot_id, ref=ref, timestamp_ms=timestamp_ms)
    compiled = compile_predicate(TRUE if where is None else where, target.schema, case_sensitive=case_sensitive)
    shown = target.schema if columns is None else select(target.schema, columns, case_sensitive)
    return _Planner(target, compiled, shown, columns is not None, chosen).plan()


class _Planner:
    """One planning run; every step is a method, the passes themselves are functions elsewhere."""

    def __init__(
        self, target: ScanTarget, compiled: CompileResult, shown: Schema, projected: bool, options: ScanOptions
    ) -> None:
        self.target = target
        self.compiled = compiled
        self.shown = shown
        self.options = options
        self.projected = frozenset(fields_by_id(shown)) if projected else None
        self.sources = source_types(target.schema, target.metadata.schemas)
        self.reader = SnapshotReader.open(
            target.table, target.snapshot, cache=options.cache, root=options.root, max_workers=options.concurrency
        )
        self.union = self.reader.union
        self.predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), self.union)
        self.passes: list[PassSummary] = []
        self.warnings = [PlanWarning("not-compiled", e.message, e.to_dict()) for e in compiled.errors]

    def plan(self) -> ScanPlan:
        started = time.perf_counter()
        self._warn_of_truncation()
        manifests = self.reader.manifests
        keep = self._pass_manifests(manifests)
        deletes = self.reader.deletes(keep)
        kept = self._pass_entries(manifests, keep, deletes)
        opened: dict[int, RowGroups] = {}
        if self.options.footers and self.compiled.predicate != TRUE:
            kept, opened = self._pass_footers(kept)
        files = self._files(kept, deletes, opened)
        elapsed = (time.perf_counter() - started) * 1000
        totals = self._totals(manifests, keep)
        summary = summarise(totals, files, elapsed)
        passes, warnings = tuple(self.passes), tuple(self.warnings)
        return self._reported(
            ScanPlan(self.target, self.compiled, self.shown, files, summary, totals, passes, warnings)
        )

    def _totals(self, manifests: ManifestListTable, keep: Mask) -> Totals:
        opened = sum(step.total for step in self.passes if step.name == FOOTERS) or None
        return Totals(
            self.target, manifests, keep, self.union, self.compiled, self.projected, self.options.recover, opened
        )

    def _reported(self, plan: ScanPlan) -> ScanPlan:
        chosen = self.options.report
        store = (default_store() if chosen else None) if isinstance(chosen, bool) else chosen
        warning = None if store is None else store_report(store, lambda: scan_report(plan))
        return plan if warning is None else replace(plan, warnings=(*plan.warnings, warning))

    def _warn_of_truncation(self) -> None:
        truncated = None if self.reader.root is not None else self.reader.truncation()
        if truncated is not None:  # rows may be missing: logged too, for callers that never look at the plan
            _log.warning("%s", truncated.message)
            self.warnings.append(PlanWarning("short-manifest-list", truncated.message, truncated.to_dict()))

    def _pass_manifests(self, manifests: ManifestListTable) -> Mask:
        clock = time.perf_counter()
        evaluation = evaluate_manifests(self.predicate, manifests)
        data, keep = ~is_delete_manifest(manifests), evaluation.tri.keep
        kept, proven = int((keep & data).sum()), int((evaluation.tri.all_match & data).sum())
        effects = evaluation.effects(data, lambda _: "")
        self._record("manifest list", "manifests", int(data.sum()), kept, proven, effects, clock)
        return keep

    def _pass_entries(self, manifests: ManifestListTable, keep: Mask, deletes: ScanDeletes) -> EvaluatedFiles:
        clock = time.perf_counter()
        stats = frozenset(self.predicate.columns) | deletes.key_columns
        if self.options.recover:
            stats |= {field.bound.source_id for field in self.union.fields}
        columns = EntryColumns(_DATA_NAMES, stats=stats, sizes=self.projected or frozenset())
        rows = self.reader.manifest_rows(DATA, keep)
        elsewhere = self.options.planning
        if elsewhere is not None and len(rows) >= elsewhere.threshold:
            evaluated = elsewhere.evaluate(self.predicate, manifests, rows, columns, self.target.table.io)
        else:
            # Decoding drops DELETED entries for free; dropping cached ones would copy every column, and evaluation
            # leaves them out anyway.
            read = partial(self.reader.entries, columns=columns, live=self.reader.cache is None)
            parts = self._slices(manifests, rows)
            evaluated = concat_evaluated([evaluate_files(self.predicate, read(part)) for part in parts])
        proven = int((evaluated.states == TriState.TRUE).sum())
        self._record(
            "manifest entries", "files", evaluated.total, len(evaluated.entries), proven, evaluated.effects, clock
        )
        return evaluated

    def _slices(self, manifests: ManifestListTable, rows: Ints) -> list[Ints]:
        """The manifests in turns, so that entries which are dropped make room for the next ones.

        Fresh memory costs more than deciding about the entries in it. Where all are kept, or come from a file of
        columns, one turn is best.
        """
        if self.options.cache or self.reader.root is not None or self.compiled.predicate == TRUE:
            return [rows]
        turn = np.cumsum(manifests.length[rows]) // _BYTES_A_TURN
        return np.split(rows, np.flatnonzero(np.diff(turn)) + 1) if len(turn) and turn[-1] > turn[0] else [rows]

    def _pass_footers(self, kept: EvaluatedFiles) -> tuple[EvaluatedFiles, dict[int, RowGroups]]:
        clock = time.perf_counter()
        unproven = np.flatnonzero(kept.states != TriState.TRUE)
        requests = _requests(kept.entries, unproven, self.predicate.columns.values())
        footers = FooterPass(
            self.compiled, self.target.schema, self.projected, self.union, self.target.table.io, self.options
        )
        opened, warnings = footers.run(requests)
        self.warnings += warnings
        self._record_footers(opened, clock)
        keep = np.ones(len(kept.entries), dtype=np.bool_)
        keep[[row for row, groups in opened.items() if not groups.kept]] = False
        position = np.cumsum(keep) - 1
        return kept.narrowed(keep), {int(position[row]): groups for row, groups in opened.items() if groups.kept}

    def _files(self, kept: EvaluatedFiles, deletes: ScanDeletes, opened: dict[int, RowGroups]) -> PlannedFiles:
        residuals, codes = kept.residuals(self.predicate.expr)
        return PlannedFiles(
            entries=kept.entries,
            states=kept.states,
            residuals=residuals,
            residual_of=codes,
            deletes=deletes.entries,
            delete_kinds=deletes.kinds,
            matches=match(kept.entries, deletes, self.union, self.sources),
            row_groups=opened,
            names=PartitionNames(self.union, kept.entries.partition_types),
        )

    def _record_footers(self, opened: dict[int, RowGroups], clock: float) -> None:
        groups = opened.values()
        total, kept = sum(g.total for g in groups), sum(len(g.kept) for g in groups)
        proven = sum(len(g.kept) for g in groups if g.proven)
        self._record(FOOTERS, "row groups", total, kept, proven, (), clock)
        if pages := sum(g.pages_total for g in groups):
            self._record("page index", "pages", pages, sum(g.pages_kept for g in groups), 0, (), clock)

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


def _requests(entries: EntriesTable, rows: Any, asked: Iterable[Column]) -> list[FooterRequest]:
    picked = entries.take(rows)
    formats, paths = picked.array("file_format").to_pylist(), picked.path.to_pylist()
    sizes, specs = picked.ints("file_size_in_bytes").tolist(), picked.spec_id.tolist()
    free = _without_nan(picked, [column for column in asked if isinstance(column.type, FloatType | DoubleType)])
    return list(map(FooterRequest, rows.tolist(), paths, sizes, specs, formats, free))


def _without_nan(entries: EntriesTable, floats: Sequence[Column]) -> list[frozenset[int]]:
    """For each file the floating-point columns that hold no NaN by its manifest."""
    known = file_stats(entries, floats).columns
    found = [[i for i, stats in known.items() if not stats.may_nan[row]] for row in range(len(entries))]
    return [frozenset(fields) for fields in found]
