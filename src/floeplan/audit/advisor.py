"""``fp.advise``: estimate which partitioning, sort order or clustering lets the logged queries read less.

Every idea is simulated on sample points (``layout``), split into the files that a rewrite of this table would write,
and the logged predicates are evaluated on these files as in scan planning. Row groups and pages are ignored on both
sides of the comparison.

The cost of a layout is what all logged runs read: bytes of whole files, and for every data file and manifest that is
opened the table's ``read.split.open-file-cost``. So a layout pays for the files and manifests it creates. Candidates
are ranked by the cost they save; those within ``TIE`` of each other share a rank, the cheapest to apply first. A spec
that ``doctor`` would call over-partitioned is not a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.audit.candidates import (
    BINPACK,
    HIGH,
    LOW,
    MANIFESTS,
    MEDIUM,
    SORT,
    SPEC,
    UPGRADE,
    ZORDER,
    Candidate,
    Reads,
    ranked,
)
from floeplan.audit.ideas import Idea, Part, coarser_ideas, layout_ideas
from floeplan.audit.layout import (
    NULL,
    CodedColumn,
    Layout,
    Points,
    curve_keys,
    lay_out,
    points_from_bounds,
    points_from_rows,
)
from floeplan.audit.reports import Workload, default_reports, read_workload
from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.errors import FloeplanError
from floeplan.maintenance.coarser_spec import FAR_BELOW, MANY_PARTITIONS, CoarserSpec, coarser_spec
from floeplan.maintenance.rewrite_manifests import LEAST_ENTRIES, rewrite_manifests
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.partition.evolution import AddField, SpecChange, Term, drop_all
from floeplan.partition.recover import recover_tuples
from floeplan.partition.union import partition_answer
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import kleene
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.groups import reading_order
from floeplan.rewrite.plan.options import CURRENT, RewriteOptions
from floeplan.rewrite.spec_upgrade.upgrade import upgrade_spec
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import evaluate_entries, evaluate_manifests
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.text import counted, parse_count
from floeplan.transaction.evolve_spec import evolve_spec
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 8 * 2**20
"""Iceberg's default of ``commit.manifest.target-size-bytes``."""

POINTS = 40_000
SAMPLED_ROWS = 20_000
_POINTS_PER_FILE = 20
_OPEN_COST = "read.split.open-file-cost"
_DEFAULT_OPEN_COST = 4 * 2**20
_MAX_REMAINING = 0.95
"""A candidate must save at least 5 % of the cost."""


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """Options of advice.

    Attributes:
        since: Ignore reports before this time.
        sample: Sample about this many rows for the distribution of values; 0 estimates it from bounds.
        kind: Only candidates of this kind.
        most: Maximum number of candidates, best first.
    """

    since: datetime | None = None
    sample: int = SAMPLED_ROWS
    kind: str | None = None
    most: int = 10


@dataclass(frozen=True, slots=True, repr=False)
class AdviceResult(Displayed):
    """The useful candidates, best first, the workload and files they are based on, and the result of applying one."""

    table: str
    runs: int
    unusable: int
    predicates: int
    files: int
    bytes: int
    candidates: tuple[Candidate, ...]
    applied: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        names = ("table", "runs", "unusable", "predicates", "files", "bytes")
        found = {name: getattr(self, name) for name in names} | {"candidates": [c.to_dict() for c in self.candidates]}
        return found if self.applied is None else found | {"applied": dict(self.applied)}


def advise(
    table: Table | str, reports: str | None = None, options: AdviseOptions | None = None, *, catalog: str | None = None
) -> AdviceResult:
    """Estimate the bytes that other layouts would save.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        reports: A folder of JSON lines, a file, or an Iceberg table of reports; by default where plans are reported.
        options: Options of the estimates.
        catalog: The catalog of the table and of a table of reports.

    Raises:
        BadInputError: There are no such reports, or no such table.
    """
    chosen = options or AdviseOptions()
    target = resolve_target(load_table(table, catalog))
    found = reports or default_reports()
    workload = read_workload(found, target.name, target.schema, since=chosen.since, catalog=catalog)
    return _Advisor(target, workload, chosen).advise()


def read_cost(table: Table | str, reports: str, *, catalog: str | None = None) -> int:
    """What all logged runs cost on the table as it is, as ``Candidate.cost`` counts it."""
    target = resolve_target(load_table(table, catalog))
    workload = read_workload(reports, target.name, target.schema, catalog=catalog)
    advisor = _Advisor(target, workload, AdviseOptions())
    return round(advisor.now()[0].cost(advisor.open_cost))


class _Advisor:
    """One run: the table's files and the workload."""

    def __init__(self, target: ScanTarget, workload: Workload, options: AdviseOptions) -> None:
        self.target, self.workload, self.options = target, workload, options
        self.filtered = workload.columns()
        reader = SnapshotReader.open(target.table, target.snapshot)
        self.union, self.manifests = reader.union, reader.manifests
        stats = {column.field_id for column in self.filtered} | {field.bound.source_id for field in self.union.fields}
        self.entries = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset(), stats=frozenset(stats)))
        self.sizes = self.entries.ints("file_size_in_bytes")
        properties = target.metadata.properties
        self.target_bytes = FileSizes.of(RewriteOptions(), properties).target
        found = parse_count(properties.get(_OPEN_COST))
        self.open_cost = _DEFAULT_OPEN_COST if found is None else found
        self.data_manifests = np.where(self.manifests.is_data, self.manifests.length, 0)

    def advise(self) -> AdviceResult:
        found: list[Candidate] = []
        if len(self.entries) > 1 and self.filtered:
            found = [*self._layouts(), *self._manifest_clustering()]
        of_kind = [one for one in found if self.options.kind in (None, one.kind)]
        useful = [one for one in of_kind if one.cost[1] <= _MAX_REMAINING * one.cost[0] and one.gain >= self._least()]
        return AdviceResult(
            table=self.target.name,
            runs=self.workload.runs,
            unusable=self.workload.unusable,
            predicates=len(self.workload.predicates),
            files=len(self.entries),
            bytes=int(self.sizes.sum()),
            candidates=tuple(ranked(useful)[: self.options.most]),
        )

    def _layouts(self) -> Iterator[Candidate]:
        """Every idea with its estimate, and an upgrade of the files of older specs."""
        spec = self.union.spec(self.target.metadata.default_spec_id)
        fields = [field for field in spec.fields if not field.is_void]
        parts = tuple(
            Part(field, Term(tuple(name.split(".")), field.transform))
            for field in fields
            if (name := self.target.schema.find_column_name(field.source_id)) is not None and not field.obstacle
        )
        sources = [Column(part.field.source_id, part.field.source_type, part.term.column) for part in parts]
        columns = list({column.field_id: column for column in (*self.filtered, *sources)}.values())
        points = self._points(columns)
        known = len(parts) == len(fields) and all(part.field.source_id in points.columns for part in parts)
        current = parts if known else None
        now, opened = self.now()
        coarser = coarser_spec(self.target.metadata, self.union, self.entries)
        for idea in (*layout_ideas(points, self.filtered, current), *coarser_ideas(coarser, columns, points)):
            layout = lay_out(points, idea.fields, self._keys(idea, points), self.target_bytes, self._read_at(idea))
            same = len(layout.partition_bytes) == 1 and idea.kind == SPEC and idea.parts  # as if unpartitioned
            if not same and (idea.kind != SPEC or not self._over_partitioned(layout, coarser)):
                total = (len(self.entries), round(float(layout.files.sum())))
                yield self._candidate(idea, points, (now, self._reads(layout)), total, int(self.sizes.sum()))
        if current:
            yield from self._upgrade(Idea(UPGRADE, current), points, opened, sources)

    def _upgrade(self, idea: Idea, points: Points, opened: Ints, sources: Sequence[Column]) -> Iterator[Candidate]:
        """Files of older specs under the current one.

        A file whose bounds prove its partition is moved by metadata: it costs nothing, and is read as before, because
        these bounds prune it already. The others are rewritten.
        """
        old = self.entries.spec_id != self.target.metadata.default_spec_id
        proven = recover_tuples(idea.fields, file_stats(self.entries, sources))
        rewritten = old & ~np.logical_and.reduce([part.recovered for part in proven.values()])
        if not rewritten.any():
            return
        layout = lay_out(points.of_files(rewritten), idea.fields, (), self.target_bytes, self._read_at(idea))
        before, same = (
            Reads(float((opened * self.sizes)[some].sum()), float(opened[some].sum()))
            for some in (old, old & ~rewritten)
        )
        new = self._reads(layout)
        after = Reads(same.bytes + new.bytes, same.files + new.files)
        total = (len(self.entries), round(float(layout.files.sum()) + int((~rewritten).sum())))
        yield self._candidate(idea, points, (before, after), total, int(self.sizes[rewritten].sum()))

    def _read_at(self, idea: Idea) -> Ints:
        """The position at which the rewrite reads each file.

        It reads files of a known partition by age, and the others by the lowest partition value of their bounds first.
        """
        of_idea = idea.kind != SPEC and self.entries.spec_id == self.target.metadata.default_spec_id
        sources = [Column(field.source_id, field.source_type, (str(field.source_id),)) for field in idea.fields]
        found = recover_tuples(idea.fields, file_stats(self.entries, sources)).values()
        proven = np.logical_and.reduce([np.ones(len(self.entries), np.bool_), *(one.recovered for one in found)])
        unproven = pa.array(~(proven | of_idea))
        lowest = [pc.if_else(unproven, one.values, pa.scalar(None, pa.array(one.values).type)) for one in found]
        read_at = np.empty(len(self.entries), dtype=np.int64)
        read_at[reading_order(self.entries, np.arange(len(self.entries)), lowest)] = np.arange(len(self.entries))
        return read_at

    def _over_partitioned(self, layout: Layout, coarser: CoarserSpec | None) -> bool:
        """Whether the doctor would call a layout over-partitioned, and it is not a way out of a worse one."""
        number = len(layout.partition_bytes)
        if number < MANY_PARTITIONS or (coarser is not None and number < coarser.partitions[0]):
            return False
        return bool(np.median(layout.partition_bytes) * FAR_BELOW < self.target_bytes)

    def _least(self) -> float:
        """The gain below which it depends on where files happen to be split: a file at each end of a range."""
        rarest = min((runs for _, runs in self.workload.predicates), default=0)
        return 2 * (float(self.sizes.mean()) + self.open_cost) * rarest

    def _points(self, columns: Sequence[Column]) -> Points:
        """Rows where they can be read, else points between bounds."""
        rows = int(np.maximum(self.entries.record_count, 0).sum())
        number = max(min(POINTS, rows), _POINTS_PER_FILE * len(self.entries))
        if self.options.sample:
            with suppress(FloeplanError, OSError):
                return points_from_rows(self.target.table, self.entries, columns, self.options.sample, number)
        return points_from_bounds(self.entries, columns, number)

    def now(self) -> tuple[Reads, Ints]:
        """What all runs read of the table's files, and how often each file is opened."""
        opened = np.zeros(len(self.entries), dtype=np.int64)
        for expr, runs in self.workload.predicates:
            predicate = Predicate(expr, predicate_columns(expr), self.union)
            opened += runs * evaluate_entries(predicate, self.entries).tri.keep
        manifests = self._manifests(len(self.entries))
        return replace(manifests, bytes=float((opened * self.sizes).sum()), files=float(opened.sum())), opened

    def _reads(self, layout: Layout) -> Reads:
        """What all runs would read of a layout."""
        read = [(runs, layout.read(predicate)) for predicate, runs in self.workload.predicates]
        of_bytes, files = (sum(runs * found[at] for runs, found in read) for at in (0, 1))
        return replace(self._manifests(float(layout.files.sum())), bytes=of_bytes, files=files)

    def _manifests(self, files: float) -> Reads:
        """The manifests of this many files, full and all opened.

        Now and after a change alike: that the table's manifests may be small is not to the credit of a layout, because
        ``rewrite-manifests`` merges them without touching data.
        """
        length = files * float(self.data_manifests.sum()) / max(1, len(self.entries))
        number = max(1.0, float(np.ceil(length / TARGET_BYTES)))
        return Reads(manifests=self.workload.runs * number, manifest_bytes=self.workload.runs * length)

    def _keys(self, idea: Idea, points: Points) -> list[npt.NDArray[Any]]:
        chosen = [points.columns[column.field_id] for column in idea.by]
        return list(curve_keys(chosen)) if idea.kind == ZORDER else [column.codes for column in chosen]

    def _candidate(
        self, idea: Idea, points: Points, reads: tuple[Reads, Reads], total: tuple[int, int], cost: int
    ) -> Candidate:
        name = self.target.name
        rewrite = f"floeplan rewrite {name} --spec current --option rewrite-all=true"
        command = {
            UPGRADE: f"floeplan upgrade-spec {name}",
            BINPACK: rewrite,
            SPEC: f"evolve the spec to ({', '.join(idea.columns)}), then: {rewrite}",
        }.get(idea.kind, f"{rewrite} --strategy {idea.kind} --by {','.join(idea.columns)}")
        before, after = reads
        return Candidate(
            kind=idea.kind,
            columns=idea.columns,
            estimated_bytes_before=round(before.bytes),
            estimated_bytes_after=round(after.bytes),
            basis=f"{points.basis}, {counted(self.workload.runs, 'run')}",
            bytes_rewritten=cost,
            command=command,
            terms=tuple(part.term for part in idea.parts),
            files_opened=(round(before.files), round(after.files)),
            files_total=total,
            cost=(round(before.cost(self.open_cost)), round(after.cost(self.open_cost))),
            confidence=self._confidence(idea, points),
        )

    def _confidence(self, idea: Idea, points: Points) -> str:
        if points.basis != "bounds":
            return HIGH
        used = {column.field_id for column in self.filtered} | {part.field.source_id for part in idea.parts}
        known = [points.columns[i] for i in used if i in points.columns]
        if len(known) < len(used) or any(not isinstance(column.values, np.ndarray) for column in known):
            return LOW
        wide = any(_average_width(column, points.file) > _WIDE for column in known)
        return LOW if wide else MEDIUM

    def _manifest_clustering(self) -> Iterator[Candidate]:
        """The bytes of data manifests that all runs read: now, and with entries sorted by partition."""
        length, data = self.data_manifests, self.data_manifests > 0
        partition = {str(i): array for i, array in self.entries.partition_columns().items()}
        keys = pa.table({"spec": pa.array(self.entries.spec_id)} | partition)
        partitions = keys.group_by(keys.column_names).aggregate([]).num_rows
        most = min(partitions, -(-len(self.entries) // LEAST_ENTRIES))
        number = max(int(-(-length.sum() // TARGET_BYTES)), min(int(data.sum()), most), 1)
        # Entries sorted by spec and partition, and split evenly.
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
        manifest = np.empty(len(self.entries), dtype=np.int64)
        manifest[order.to_numpy()] = np.arange(len(self.entries)) * number // max(len(self.entries), 1)
        before, after = Reads(), Reads()
        for expr, runs in self.workload.predicates:
            predicate = Predicate(expr, predicate_columns(expr), self.union)
            kept = evaluate_manifests(predicate, self.manifests).tri.keep & data
            share = float((np.bincount(manifest, _may_match(predicate, self.entries), number) > 0).mean())
            before = Reads(before.bytes + runs * int(length[kept].sum()), before.files + runs * int(kept.sum()))
            after = Reads(after.bytes + runs * round(int(length.sum()) * share), after.files + runs * share * number)
        if before.cost(self.open_cost) > after.cost(self.open_cost):
            columns = tuple(dict.fromkeys(field.name for field in self.union.fields))
            yield Candidate(
                kind=MANIFESTS,
                columns=columns,
                estimated_bytes_before=round(before.bytes),
                estimated_bytes_after=round(after.bytes),
                basis=f"partition values of {counted(len(self.entries), 'file')}, {counted(self.workload.runs, 'run')}",
                bytes_rewritten=0,
                command=f"floeplan rewrite-manifests {self.target.name}",
                files_opened=(round(before.files), round(after.files)),
                files_total=(len(self.entries), len(self.entries)),
                cost=(round(before.cost(self.open_cost)), round(after.cost(self.open_cost))),
            )


_WIDE = 0.5


def _average_width(column: CodedColumn, file: Ints) -> float:
    """How much of a column's values the bounds of a file span, on average."""
    valid = column.codes != NULL
    if not valid.any():
        return 1.0
    number = int(file.max()) + 1
    low, high = np.full(number, len(column.values)), np.full(number, -1)
    np.minimum.at(low, file[valid], column.codes[valid])
    np.maximum.at(high, file[valid], column.codes[valid])
    return float((np.maximum(high - low, 0)[high >= 0] / max(1, len(column.values) - 1)).mean())


def _may_match(predicate: Predicate, entries: EntriesTable) -> Mask:
    """Entries whose partition values do not exclude a match."""
    stats = partition_stats(entries, predicate.fields)
    fields = [field.bound for field in predicate.fields]
    return kleene(predicate.expr, stats.nonempty, lambda leaf: partition_answer(leaf, fields, stats)).keep


def apply_candidate(table: Table, candidate: Candidate, spark: SparkSession | None = None) -> dict[str, Any]:
    """Apply a candidate; returns the result of the operation as JSON."""
    if candidate.kind == MANIFESTS:
        return dict(rewrite_manifests(table).to_dict())
    if candidate.kind == UPGRADE:
        return dict(upgrade_spec(table, spark=spark).to_dict())
    if candidate.kind == SPEC:
        changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *(AddField(term) for term in candidate.terms))
        table = evolve_spec(table, changes).table
    strategy, by = (candidate.kind, candidate.columns) if candidate.kind in (SORT, ZORDER) else (BINPACK, ())
    every_file = {"rewrite-all": "true"}
    done = rewrite_data_files(table, strategy=strategy, by=by, spec=CURRENT, options=every_file, spark=spark)
    return dict(done.to_dict())
