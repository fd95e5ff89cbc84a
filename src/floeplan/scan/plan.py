"""``plan_scan`` and its result ``ScanPlan``: from a predicate to the files, row groups and deletes to read.

::

    manifest list ──pass 1──► manifests ──pass 2──► files ──pass 3──► row groups (pages)
      partition summaries       union partition tuple    footer statistics
      of every spec             and column bounds        (page index, bloom filters)

Each pass consumes only what the one before kept. The rule of all three: what cannot be proven absent is read. A footer
that cannot be read, a file that is not Parquet, or one whose columns carry no field ids, is kept whole, with a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from floeplan.catalog import load_table
from floeplan.errors import BadInputError
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.metadata.manifests.stats import file_stats
from floeplan.parquet.source import is_local
from floeplan.partition.fields import source_types
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.stats import TriState
from floeplan.scan.metadata_columns import compile_where, names_metadata, select_columns
from floeplan.scan.model import PlannedFiles, PlanWarning, ReportStore, RowGroups, ScanOptions
from floeplan.scan.planned_scan import PassSummary, PlannedScan, Totals, summarise
from floeplan.scan.projection import PartitionNames
from floeplan.scan.report import default_store, scan_report
from floeplan.schemas import fields_by_id
from floeplan.snapshot.effects import Predicate, manifest_effects
from floeplan.snapshot.passes import (
    EvaluatedFiles,
    ScanDeletes,
    concat_evaluated,
    evaluate_files,
    evaluate_manifests,
    match,
)
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.times import epoch_ms
from floeplan.vectors import Mask

if TYPE_CHECKING:
    import datafusion
    import duckdb
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa
    from pyiceberg.catalog import Catalog

FOOTERS = "footers"
_log = logging.getLogger(__name__)
_SLICE_BYTES = 8 * 1024 * 1024
"""Manifests decoded before their entries are evaluated: enough for vectors to pay, few enough to reuse the memory."""

_EQUALITY_DELETES = "total-equality-deletes"
_DATA_NAMES = frozenset({"key_metadata", "first_row_id", "sort_order_id"})


def plan_scan(
    table: Table | str,
    where: PredicateSource | None = None,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    ref: str | None = None,
    as_of: datetime | None = None,
    timestamp_ms: int | None = None,
    case_sensitive: bool = True,
    options: ScanOptions | None = None,
    catalog: str | Catalog | None = None,
) -> ScanPlan:
    """Plan a scan of one snapshot.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        where: Spark-SQL text, a PyIceberg expression, tuples or IR; every row when not given.
        columns: Columns to read; all when not given. Bytes are counted for these only. Metadata columns such as
            ``_file`` and ``_pos`` can be named too.
        snapshot_id: The snapshot to read; the current one when none of the four is given.
        ref: A branch or tag to read.
        as_of: The time to read the table as of; UTC unless it has an offset.
        timestamp_ms: The same in milliseconds since 1970.
        case_sensitive: Whether column names must match exactly.
        options: What planning may use.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        BadInputError: An unknown column, snapshot or ref, or an invalid predicate.
        CorruptMetadataError: Metadata that contradicts itself or cannot be read.
    """
    chosen = options or ScanOptions()
    if as_of is not None:
        if timestamp_ms is not None:
            raise BadInputError("as_of and timestamp_ms exclude each other: give one of them")
        timestamp_ms = epoch_ms(as_of)
    target = resolve_target(load_table(table, catalog), snapshot_id=snapshot_id, ref=ref, timestamp_ms=timestamp_ms)
    source = TRUE if where is None else where
    # Changes read all deletes, and take no metadata columns in their conditions.
    if not isinstance(source, IrExpr) and not chosen.all_deletes and names_metadata(source, case_sensitive):
        compiled = compile_where(source, target, case_sensitive)
    else:
        compiled = compile_predicate(source, target.schema, case_sensitive=case_sensitive)
    schema = target.schema if columns is None else select_columns(target, columns, case_sensitive)
    return _Planner(target, compiled, schema, columns is not None, chosen).plan()


def plan_target(
    target: ScanTarget,
    compiled: CompileResult,
    options: ScanOptions,
    *,
    schema: Schema | None = None,
    reader: SnapshotReader | None = None,
    names: frozenset[str] = frozenset(),
) -> ScanPlan:
    """Plan a scan whose snapshot, schema and predicate are resolved already.

    Args:
        target: The table, its snapshot and the schema to read it with.
        compiled: The predicate, bound to the schema of the target.
        options: What planning may use.
        schema: The columns to read, for the report; bytes are counted for whole files.
        reader: The reader of the snapshot, if it is open.
        names: Further columns of the planned entries that the caller uses.
    """
    return _Planner(target, compiled, schema or target.schema, False, options, reader, names).plan()


@dataclass(frozen=True, slots=True, repr=False)
class ScanPlan(PlannedScan):
    """What a scan reads and why; see ``PlannedScan`` for the attributes.

    The imports in the methods save start-up time: many plans are neither drawn nor read in this process.
    """

    def explain(self) -> str:
        """The pruning pyramid and what did and did not prune, as plain text."""
        from floeplan.scan.explain import explain_text

        return explain_text(self)

    def _repr_html_(self) -> str:
        from floeplan.scan.explain import explain_html

        return explain_html(self)

    def to_arrow(self, columns: Sequence[str] | None = None, limit: int | None = None) -> pa.Table:
        """Read the matching rows: deletes applied, residuals evaluated, columns projected to the schema.

        Args:
            columns: Columns to read, in this order; those of the plan when not given.
            limit: Read at most this many rows.
        """
        schema = self._read_schema(columns)
        if limit is None:
            from floeplan.scan.read import read_plan

            return read_plan(self, schema)
        from floeplan.scan.read import one_table
        from floeplan.scan.stream import stream

        return one_table(stream(self, schema, limit=limit), schema)

    def to_arrow_batch_reader(
        self, columns: Sequence[str] | None = None, limit: int | None = None, *, in_order: bool = True
    ) -> pa.RecordBatchReader:
        """Stream the matching rows with bounded memory: a few row groups at a time.

        Args:
            columns: Columns to read, in this order; those of the plan when not given.
            limit: Read at most this many rows.
            in_order: Whether rows come in the order of the plan's files, or as they are read.
        """
        from floeplan.scan.stream import batch_reader

        return batch_reader(self, self._read_schema(columns), limit=limit, in_order=in_order)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the rows through Arrow's PyCapsule interface; a plan can be read more than once."""
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self, columns: Sequence[str] | None = None, limit: int | None = None) -> pd.DataFrame:
        """Read the matching rows into a pandas DataFrame; takes the arguments of ``to_arrow``."""
        return self.to_arrow(columns, limit).to_pandas()

    def to_polars(self) -> pl.LazyFrame:
        """The matching rows as a Polars LazyFrame, which reads only the columns and rows that a query needs."""
        from floeplan.scan.stream import lazy_frame

        return lazy_frame(self, self.schema)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """Register the plan as a view of a DuckDB connection; every query of the view streams the matching rows."""
        connection.register(name, self)
        return connection.table(name)

    def to_datafusion(self, context: datafusion.SessionContext, name: str) -> datafusion.DataFrame:
        """Read the matching rows into a table of a DataFusion context."""
        return context.from_arrow(self, name)

    def _read_schema(self, columns: Sequence[str] | None) -> Schema:
        return self.schema if columns is None else select_columns(self.target, columns)

    def count(self) -> int:
        """The number of matching rows, from metadata where possible."""
        from floeplan.scan.read import count_rows

        return count_rows(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the plan."""
        snapshot = self.target.snapshot
        return {
            "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
            "compile": self.compiled.to_dict(),
            "summary": self.summary.to_dict(),
            "specs": [spec.to_dict() for spec in self.specs],
            "passes": [step.to_dict() for step in self.passes],
            "files": [file.to_dict() for file in self.files],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }


class _Planner:
    """One planning run: a method per pass."""

    def __init__(
        self,
        target: ScanTarget,
        compiled: CompileResult,
        schema: Schema,
        projected: bool,
        options: ScanOptions,
        reader: SnapshotReader | None = None,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self.target = target
        self.compiled = compiled
        self.schema = schema
        self.options = options
        self.names = _DATA_NAMES | names
        self.projected = frozenset(fields_by_id(schema)) if projected else None
        self.reader = reader or SnapshotReader.open(
            target.table, target.snapshot, cache=options.cache, root=options.root, max_workers=options.concurrency
        )
        union = self.union = self.reader.union
        self.predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), union)
        self.passes: list[PassSummary] = []
        self.warnings = [PlanWarning("not-compiled", e.message, e.to_dict()) for e in compiled.errors]

    def plan(self) -> ScanPlan:
        started = time.perf_counter()
        truncated = None if self.reader.root is not None else self.reader.truncation()
        if truncated is not None:  # rows may be missing: logged too, for callers that never look at the plan
            _log.warning("%s", truncated.message)
            self.warnings.append(PlanWarning("short-manifest-list", truncated.message, truncated.to_dict()))
        keep = self._pass_manifests()
        deletes, kept = self._deletes_and_entries(keep)
        opened: dict[int, RowGroups] = {}
        if self.options.footers and self.compiled.predicate != TRUE:
            kept, opened = self._pass_footers(kept)
        misplaced = self.options.misplaced_deletes
        files = planned_files(self.target, self.predicate, kept, deletes, opened, misplaced=misplaced)
        elapsed = _milliseconds_since(started)
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
        return report_scan(plan, self.options.report)

    def _pass_manifests(self) -> Mask:
        clock = time.perf_counter()
        bounds = self.reader.manifest_bounds(self.predicate.columns)
        summaries = self.reader.manifest_summaries(self.predicate.fields)
        evaluation = evaluate_manifests(self.predicate, self.reader.manifests, bounds, summaries, self.reader.remember)
        manifests, keep = self.reader.manifests, evaluation.tri.keep
        data, total = manifests.is_data, manifests.counts[0].manifests
        kept, proven = (int(np.count_nonzero(mask & data)) for mask in (keep, evaluation.tri.all_match))
        effects = manifest_effects(evaluation, manifests.live_by_spec)
        elapsed = _milliseconds_since(clock)
        self.passes.append(PassSummary("manifest list", "manifests", total, kept, proven, effects, elapsed))
        return keep

    def _deletes_and_entries(self, keep: Mask) -> tuple[ScanDeletes, EvaluatedFiles]:
        """Delete files come first: the bounds of their equality keys must be read from data entries too.

        Where the snapshot seems to have no equality deletes, both kinds of manifests are fetched from a store at once.
        Its summary may be wrong: if there are keys, the data entries are read again.
        """
        admitted = None if self.options.misplaced_deletes or self.options.all_deletes else keep
        if not self._may_read_together(admitted):
            deletes = self.reader.deletes(admitted)
            return deletes, self._pass_entries(keep, deletes.key_columns)
        with ThreadPoolExecutor(1, "floeplan-deletes") as beside:
            # In the context of this thread, so that a guard sees what is read.
            reading = beside.submit(copy_context().run, self.reader.deletes, admitted)
            kept = self._pass_entries(keep, frozenset())
            deletes = reading.result()
        if deletes.key_columns:
            self.passes.pop()
            kept = self._pass_entries(keep, deletes.key_columns)
        return deletes, kept

    def _may_read_together(self, admitted: Mask | None) -> bool:
        """Whether delete manifests are fetched from a store, and the summary counts no equality deletes."""
        snapshot = self.target.snapshot
        if snapshot is None or snapshot.summary is None or self.reader.root is not None:
            return False
        if is_local(snapshot.manifest_list) or self.options.concurrency == 1:
            return False
        return snapshot.summary[_EQUALITY_DELETES] == "0" and len(self.reader.manifest_rows(DELETES, admitted)) > 0

    def _pass_entries(self, keep: Mask, keys: frozenset[int]) -> EvaluatedFiles:
        clock = time.perf_counter()
        stats = frozenset(self.predicate.columns) | keys
        if self.options.recover:
            stats |= {field.bound.source_id for field in self.union.fields}
        columns = EntryColumns(self.names, stats=stats, sizes=self.projected or frozenset())
        rows = self.reader.manifest_rows(DATA, keep)
        # A root manifest is one columnar file, and its leaves are not manifests that tasks could decode.
        distributed = None if self.reader.root is not None else self.options.planning
        if distributed is not None and len(rows) >= distributed.threshold:
            files = distributed.evaluate(self.predicate, self.reader.manifests, rows, columns, self.target.table.io)
        else:
            slices = [rows]
            # In slices the memory of dropped entries is reused: fresh memory costs more than evaluation. Where all
            # entries are kept, or come from a columnar file, a single slice is fastest.
            columnar = self.options.cache or self.reader.root is not None
            if not columnar and self.compiled.predicate != TRUE:
                slice_of = np.cumsum(self.reader.manifests.length[rows]) // _SLICE_BYTES
                slices = np.split(rows, np.flatnonzero(np.diff(slice_of)) + 1)
            read = partial(self.reader.entries, columns=columns)
            files = concat_evaluated([evaluate_files(self.predicate, read(part)) for part in slices])
        kept, proven = len(files.entries), int((files.states == TriState.TRUE).sum())
        elapsed = _milliseconds_since(clock)
        self.passes.append(PassSummary("manifest entries", "files", files.total, kept, proven, files.effects, elapsed))
        return files

    def _pass_footers(self, kept: EvaluatedFiles) -> tuple[EvaluatedFiles, dict[int, RowGroups]]:
        """Open the files that are not proven, and drop those without a matching row group."""
        from floeplan.scan.footers import FooterFile, FooterPruner  # imported late: many plans open no footer

        clock = time.perf_counter()
        rows = np.flatnonzero(kept.states != TriState.TRUE)
        entries = kept.entries.take(rows)
        # Parquet statistics do not count NaN, which sorts above every number; the manifest may prove that a file has
        # none in a column.
        floats = [c for c in self.predicate.columns.values() if isinstance(c.type, FloatType | DoubleType)]
        known = file_stats(entries, floats).columns.items()
        without_nan = [frozenset(i for i, stats in known if not stats.may_nan[at]) for at in range(len(rows))]
        paths, formats = entries.path.to_pylist(), entries.array("file_format").to_pylist()
        sizes, specs = entries.ints("file_size_in_bytes").tolist(), entries.spec_id.tolist()
        footers = FooterPruner(self.target, self.compiled, self.union, self.options, self.projected)
        answers = footers.open(list(map(FooterFile, paths, sizes, formats, specs, without_nan)))
        opened = {row: a for row, a in zip(rows.tolist(), answers, strict=True) if isinstance(a, RowGroups)}
        self.warnings += [answer for answer in answers if isinstance(answer, PlanWarning)]
        groups = opened.values()
        total, groups_kept = sum(g.total for g in groups), sum(len(g.kept) for g in groups)
        proven, elapsed = sum(len(g.kept) for g in groups if g.proven), _milliseconds_since(clock)
        self.passes.append(PassSummary(FOOTERS, "row groups", total, groups_kept, proven, (), elapsed))
        if pages := sum(g.pages_total for g in groups):
            pages_kept = sum(g.pages_kept for g in groups)
            self.passes.append(PassSummary("page index", "pages", pages, pages_kept, 0, (), elapsed))
        keep = np.ones(len(kept.entries), dtype=np.bool_)
        keep[[row for row, groups in opened.items() if not groups.kept]] = False
        position = np.cumsum(keep) - 1
        return kept.narrowed(keep), {int(position[row]): groups for row, groups in opened.items() if groups.kept}


def report_scan(plan: ScanPlan, report: bool | ReportStore = True) -> ScanPlan:
    """Append the scan report of a plan: to the default store, to this one, or not at all."""
    store = (default_store() if report else None) if isinstance(report, bool) else report
    try:
        if store is not None:
            store.append(scan_report(plan))
    except Exception as error:  # a warning only, because the scan itself is unaffected
        message = f"the scan report was not stored: {error}"
        warning = PlanWarning("report-not-stored", message, {"error": str(error)})
        return replace(plan, warnings=(*plan.warnings, warning))
    return plan


def _milliseconds_since(clock: float) -> float:
    return round((time.perf_counter() - clock) * 1000, 3)


def planned_files(
    target: ScanTarget,
    predicate: Predicate,
    kept: EvaluatedFiles,
    deletes: ScanDeletes,
    opened: dict[int, RowGroups],
    *,
    misplaced: bool = False,
) -> PlannedFiles:
    """The kept files with their residuals and the deletes that apply to them."""
    residuals, codes = kept.residuals(predicate.expr)
    sources = source_types(target.schema, target.metadata.schemas) if len(deletes.entries) else {}
    return PlannedFiles(
        entries=kept.entries,
        states=kept.states,
        residuals=residuals,
        residual_of=codes,
        deletes=deletes.entries,
        delete_kinds=deletes.kinds,
        matches=match(kept.entries, deletes, predicate.union, sources, misplaced=misplaced),
        row_groups=opened,
        names=PartitionNames(predicate.union, kept.entries.partition_types),
    )
