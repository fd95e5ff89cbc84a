"""``fp.advise``: estimate which partitioning, sort order or clustering lets the logged queries read fewer bytes.

Every idea is simulated on sample points (``layout``), split into files of the table's average size, and the logged
predicates are evaluated on these files as in scan planning. Bytes are those of whole files over all logged runs; row
groups and pages are ignored on both sides of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.audit.layout import (
    MANIFESTS,
    SPEC,
    UPGRADE,
    ZORDER,
    Idea,
    Layout,
    Part,
    Points,
    curve_keys,
    ideas,
    lay_out,
    points_from_bounds,
    points_from_rows,
    workload_columns,
)
from floeplan.audit.workload import Workload, read_workload
from floeplan.catalog import load_table
from floeplan.maintain.rewrite_manifests import LEAST_ENTRIES, rewrite_manifests
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.partition.evolution import AddField, SpecChange, Term, drop_all
from floeplan.partition.recover import recover_tuples
from floeplan.partition.union import UnionPartitionType, partition_answer
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import kleene
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.rewrite.plan.options import CURRENT
from floeplan.rewrite.spec_upgrade.upgrade import upgrade_spec
from floeplan.snapshot.passes import Predicate, evaluate_entries, evaluate_manifests, is_delete_manifest
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.transaction.evolve_spec import evolve_spec
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 8 * 2**20
"""Iceberg's default of ``commit.manifest.target-size-bytes``."""

POINTS = 40_000
_POINTS_PER_FILE = 20
_MAX_FILES_FACTOR = 4
"""Layouts with more than this factor times the table's files are ignored: their files would be tiny."""
_MAX_REMAINING = 0.95
"""A candidate must save at least 5 % of the bytes."""


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """Options of advice.

    Attributes:
        since: Ignore reports before this time.
        sample: Sample this many rows for the distribution of values; by default it is estimated from bounds.
        kind: Only candidates of this kind.
        most: Maximum number of candidates, best first.
    """

    since: datetime | None = None
    sample: int | None = None
    kind: str | None = None
    most: int = 10


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout change, and the bytes it is expected to save over all logged runs.

    ``bytes_rewritten`` is the cost of applying it; zero means metadata only. For kind ``manifests`` the estimated bytes
    are those of manifests, for ``upgrade-spec`` those of files of older specs, for all others those of all data files.
    """

    kind: str
    columns: tuple[str, ...]
    estimated_bytes_before: int
    estimated_bytes_after: int
    basis: str
    bytes_rewritten: int
    command: str
    terms: tuple[Term, ...] = ()

    @property
    def saved(self) -> int:
        """The bytes that would no longer be read."""
        return self.estimated_bytes_before - self.estimated_bytes_after

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        cost = {"bytes_rewritten": self.bytes_rewritten, "metadata_only": self.bytes_rewritten == 0}
        names = ("kind", "columns", "estimated_bytes_before", "estimated_bytes_after", "basis")
        return {name: getattr(self, name) for name in names} | {"cost": cost, "command": self.command}


@dataclass(frozen=True, slots=True)
class AdviceResult:
    """The useful candidates, best first, and the workload and files they are based on."""

    table: str
    runs: int
    unusable: int
    predicates: int
    files: int
    bytes: int
    candidates: tuple[Candidate, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        names = ("table", "runs", "unusable", "predicates", "files", "bytes")
        return {name: getattr(self, name) for name in names} | {"candidates": [c.to_dict() for c in self.candidates]}


def advise(
    table: Table | str, reports: str, options: AdviseOptions | None = None, *, catalog: str | None = None
) -> AdviceResult:
    """Estimate the bytes that other layouts would save.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        reports: A folder of JSON lines, a file, or an Iceberg table of reports.
        options: Options of the estimates.
        catalog: The catalog of the table and of a table of reports.

    Raises:
        BadInputError: There are no such reports, or no such table.
    """
    chosen = options or AdviseOptions()
    target = resolve_target(load_table(table, catalog))
    workload = read_workload(reports, target.name, target.schema, since=chosen.since, catalog=catalog)
    return _Advisor(target, workload, chosen).advise()


class _Advisor:
    """One run: the table's files and the workload."""

    def __init__(self, target: ScanTarget, workload: Workload, options: AdviseOptions) -> None:
        self.target, self.workload, self.options = target, workload, options
        self.filtered = workload_columns(workload)
        reader = SnapshotReader.open(target.table, target.snapshot)
        self.union, self.manifests = reader.union, reader.manifests
        self.entries = _data_entries(reader, self.filtered)
        self.sizes = self.entries.ints("file_size_in_bytes")

    def advise(self) -> AdviceResult:
        found: list[Candidate] = []
        if len(self.entries) > 1 and self.filtered:
            found = [*self._layouts(), *self._manifest_clustering()]
        of_kind = [one for one in found if self.options.kind in (None, one.kind)]
        useful = [one for one in of_kind if one.estimated_bytes_after <= _MAX_REMAINING * one.estimated_bytes_before]
        ranked = sorted(useful, key=lambda one: (-one.saved, one.bytes_rewritten, len(one.columns)))
        return AdviceResult(
            table=self.target.name,
            runs=self.workload.runs,
            unusable=self.workload.unusable,
            predicates=len(self.workload.predicates),
            files=len(self.entries),
            bytes=int(self.sizes.sum()),
            candidates=tuple(ranked[: self.options.most]),
        )

    def _layouts(self) -> Iterator[Candidate]:
        current = self._current_parts()
        columns = list({c.field_id: c for c in (*self.filtered, *map(_source, current))}.values())
        points = self._points(columns)
        if any(part.field.source_id not in points.columns for part in current):
            current = ()
        now = self._read_now()
        for idea in ideas(points, self.filtered, current):
            layout = self._try(idea, points)
            if len(layout.bytes) <= _MAX_FILES_FACTOR * len(self.entries):
                candidate = self._candidate(idea, points, layout, int(now.sum()), int(self.sizes.sum()))
                if candidate.saved >= self._least_saved():
                    yield candidate
        old = self.entries.spec_id != self.target.metadata.default_spec_id
        if current and old.any():
            yield self._spec_upgrade(current, points, old, now)

    def _least_saved(self) -> float:
        """One file per run of the rarest predicate: smaller savings depend on where files happen to be split."""
        return float(self.sizes.mean()) * min(runs for _, runs in self.workload.predicates)

    def _current_parts(self) -> tuple[Part, ...]:
        spec = self.union.spec(self.target.metadata.default_spec_id)
        named = [(field, self.target.schema.find_column_name(field.source_id)) for field in spec.fields]
        return tuple(
            Part(field, Term(tuple(name.split(".")), field.transform))
            for field, name in named
            if name is not None and not field.obstacle
        )

    def _points(self, columns: list[Column]) -> Points:
        if self.options.sample is not None:
            return points_from_rows(self.target.table, self.entries, columns, self.options.sample)
        return points_from_bounds(self.entries, columns, max(POINTS, _POINTS_PER_FILE * len(self.entries)))

    def _read_now(self) -> Ints:
        """The bytes of each file that all runs read with the current layout."""
        total = np.zeros(len(self.entries), dtype=np.int64)
        for predicate, runs in self.workload.predicates:
            bound = Predicate(predicate, predicate_columns(predicate), self.union)
            total += runs * evaluate_entries(bound, self.entries).tri.keep * self.sizes
        return total

    def _try(self, idea: Idea, points: Points) -> Layout:
        file_bytes = max(float(self.sizes.mean()), _POINTS_PER_FILE * float(points.bytes.mean()))
        return lay_out(points, idea.fields, _keys(idea, points), file_bytes)

    def _candidate(self, idea: Idea, points: Points, layout: Layout, before: int, cost: int) -> Candidate:
        after = sum(runs * layout.bytes_read(predicate) for predicate, runs in self.workload.predicates)
        return Candidate(
            kind=idea.kind,
            columns=idea.columns,
            estimated_bytes_before=before,
            estimated_bytes_after=round(after),
            basis=f"{points.basis}, {self.workload.runs} runs",
            bytes_rewritten=cost,
            command=_command(idea, self.target.name),
            terms=tuple(part.term for part in idea.parts),
        )

    def _spec_upgrade(self, current: tuple[Part, ...], points: Points, old: Mask, now: Ints) -> Candidate:
        """Files of older specs under the current spec; a file whose bounds prove one partition is moved by metadata."""
        idea, old_points = Idea(UPGRADE, current), points.of_files(old)
        proven = recover_tuples(idea.fields, file_stats(self.entries, map(_source, current)))
        movable = np.logical_and.reduce([part.recovered for part in proven.values()])
        cost = int(self.sizes[old & ~movable].sum())
        return self._candidate(idea, old_points, self._try(idea, old_points), int(now[old].sum()), cost)

    def _manifest_clustering(self) -> list[Candidate]:
        before, after = _clustered_manifests(self.manifests, self.entries, self.union, self.workload)
        if before <= after:
            return []
        columns = tuple(dict.fromkeys(field.name for field in self.union.fields))
        basis = f"partition values of {len(self.entries)} files, {self.workload.runs} runs"
        return [
            Candidate(MANIFESTS, columns, before, after, basis, 0, f"floeplan rewrite-manifests {self.target.name}")
        ]


def _keys(idea: Idea, points: Points) -> Sequence[npt.NDArray[Any]]:
    chosen = [points.columns[column.field_id] for column in idea.by]
    return curve_keys(chosen) if idea.kind == ZORDER else [column.codes for column in chosen]


def _command(idea: Idea, table: str) -> str:
    """The command that applies an idea."""
    if idea.kind == UPGRADE:
        return f"floeplan upgrade-spec {table}"
    if idea.kind == SPEC:
        by = ", ".join(idea.columns)
        return f"evolve the spec to ({by}), then: floeplan rewrite {table} --spec current --option rewrite-all=true"
    return f"floeplan rewrite {table} --strategy {idea.kind} --by {','.join(idea.columns)} --option rewrite-all=true"


def _source(part: Part) -> Column:
    """The source column of a partition field."""
    return Column(part.field.source_id, part.field.source_type, part.term.column)


def _data_entries(reader: SnapshotReader, filtered: list[Column]) -> EntriesTable:
    stats = {column.field_id for column in filtered} | {field.bound.source_id for field in reader.union.fields}
    columns = EntryColumns(frozenset(), stats=frozenset(stats))
    return reader.entries(reader.manifest_rows(DATA), columns)


def _clustered_manifests(
    manifests: ManifestListTable, entries: EntriesTable, union: UnionPartitionType, workload: Workload
) -> tuple[int, int]:
    """The bytes of data manifests that all runs read: now, and with entries sorted by partition."""
    data = ~is_delete_manifest(manifests)
    length = np.where(data, manifests.length, 0)
    most = min(_partitions(entries), -(-len(entries) // LEAST_ENTRIES))
    number = max(int(-(-length.sum() // TARGET_BYTES)), min(int(data.sum()), most), 1)
    manifest = _manifest_of(entries, number)
    before = after = 0
    for expr, runs in workload.predicates:
        predicate = Predicate(expr, predicate_columns(expr), union)
        before += runs * int(length[evaluate_manifests(predicate, manifests).tri.keep].sum())
        opened = np.bincount(manifest, _may_match(predicate, entries), number) > 0
        after += runs * round(int(length.sum()) * float(opened.mean()))
    return before, after


def _may_match(predicate: Predicate, entries: EntriesTable) -> Mask:
    """Entries whose partition values do not exclude a match."""
    stats = partition_stats(entries, predicate.fields)
    fields = [field.bound for field in predicate.fields]
    return kleene(predicate.expr, stats.nonempty, lambda leaf: partition_answer(leaf, fields, stats)).keep


def _cluster_keys(entries: EntriesTable) -> pa.Table:
    return pa.table(
        {"spec": pa.array(entries.spec_id)} | {str(i): array for i, array in entries.partition_columns().items()}
    )


def _partitions(entries: EntriesTable) -> int:
    keys = _cluster_keys(entries)
    return int(keys.group_by(keys.column_names).aggregate([]).num_rows)


def _manifest_of(entries: EntriesTable, number: int) -> Ints:
    """The manifest of each entry when entries are sorted by spec and partition and split evenly."""
    keys = _cluster_keys(entries)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    manifest = np.empty(len(entries), dtype=np.int64)
    manifest[order.to_numpy()] = np.arange(len(entries)) * number // max(len(entries), 1)
    return manifest


_ALL = {"rewrite-all": "true"}


def apply_candidate(table: Table, candidate: Candidate, spark: SparkSession | None = None) -> dict[str, Any]:
    """Apply a candidate; returns the result of the operation as JSON."""
    if candidate.kind == MANIFESTS:
        return dict(rewrite_manifests(table).to_dict())
    if candidate.kind == UPGRADE:
        return dict(upgrade_spec(table, spark=spark).to_dict())
    if candidate.kind == SPEC:
        changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *(AddField(term) for term in candidate.terms))
        evolved = evolve_spec(table, changes)
        return dict(rewrite_data_files(evolved.table, spec=CURRENT, options=_ALL, spark=spark).to_dict())
    done = rewrite_data_files(table, strategy=candidate.kind, by=candidate.columns, options=_ALL, spark=spark)
    return dict(done.to_dict())
