"""``fp.advise``: estimate which partitioning, sort order or clustering lets the logged queries read fewer bytes.

Every idea is simulated on sample points (``layout``), split into files of the table's average size, and the logged
predicates are evaluated on these files as in scan planning. Bytes are those of whole files over all logged runs; row
groups and pages are ignored on both sides of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.transforms as pt
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table

from floeplan.audit.layout import Layout, Points, curve_keys, lay_out, points_from_bounds, points_from_rows
from floeplan.audit.reports import Workload, read_workload
from floeplan.catalog import load_table
from floeplan.maintain.rewrite_manifests import LEAST_ENTRIES, rewrite_manifests
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.partition.evolution import AddField, SpecChange, Term, drop_all
from floeplan.partition.fields import BoundField, bind_field, transform_name
from floeplan.partition.recover import recover_tuples
from floeplan.partition.transforms import Transform, can_apply
from floeplan.partition.union import partition_answer
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import kleene
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.rewrite.plan.options import CURRENT
from floeplan.rewrite.spec_upgrade.upgrade import upgrade_spec
from floeplan.snapshot.passes import Predicate, evaluate_entries, evaluate_manifests, is_delete_manifest
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.transaction.evolve_spec import evolve_spec
from floeplan.vectors import Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC, SORT, ZORDER, UPGRADE, MANIFESTS = KINDS = ("spec", "sort", "zorder", "upgrade-spec", "manifests")
MOST_COLUMNS = 4
"""The number of columns to try, those that most runs filter by."""

_FIRST_FREE_ID = 1 << 30
_TIME_UNITS: tuple[Transform, ...] = (pt.HourTransform(), pt.DayTransform(), pt.MonthTransform())
_TRANSFORMS: tuple[Transform, ...] = (
    pt.IdentityTransform(),
    *_TIME_UNITS,
    pt.BucketTransform(16),
    pt.TruncateTransform(4),
)

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
        self.filtered = workload.columns()
        reader = SnapshotReader.open(target.table, target.snapshot)
        self.union, self.manifests = reader.union, reader.manifests
        stats = {column.field_id for column in self.filtered} | {field.bound.source_id for field in self.union.fields}
        self.entries = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset(), stats=frozenset(stats)))
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
        """Every idea that saves bytes, and an upgrade of the files of older specs."""
        spec = self.union.spec(self.target.metadata.default_spec_id)
        named = [(field, self.target.schema.find_column_name(field.source_id)) for field in spec.fields]
        current = tuple(
            _Part(field, Term(tuple(name.split(".")), field.transform))
            for field, name in named
            if name is not None and not field.obstacle
        )
        sources = [Column(part.field.source_id, part.field.source_type, part.term.column) for part in current]
        columns = list({column.field_id: column for column in (*self.filtered, *sources)}.values())
        if self.options.sample is not None:
            points = points_from_rows(self.target.table, self.entries, columns, self.options.sample)
        else:
            number = max(POINTS, _POINTS_PER_FILE * len(self.entries))
            points = points_from_bounds(self.entries, columns, number)
        if any(part.field.source_id not in points.columns for part in current):
            current = ()
        # The bytes of each file that all runs read with the current layout.
        now = np.zeros(len(self.entries), dtype=np.int64)
        for expr, runs in self.workload.predicates:
            predicate = Predicate(expr, predicate_columns(expr), self.union)
            now += runs * evaluate_entries(predicate, self.entries).tri.keep * self.sizes
        # Savings below one file per run of the rarest predicate depend on where files happen to be split.
        least_saved = float(self.sizes.mean()) * min(runs for _, runs in self.workload.predicates)
        for idea in _ideas(points, self.filtered, current):
            layout = self._simulate(idea, points)
            if len(layout.bytes) <= _MAX_FILES_FACTOR * len(self.entries):
                candidate = self._candidate(idea, points, layout, int(now.sum()), int(self.sizes.sum()))
                if candidate.saved >= least_saved:
                    yield candidate
        old = self.entries.spec_id != self.target.metadata.default_spec_id
        if current and old.any():
            # A file whose bounds prove one partition of the current spec is moved by metadata, without cost.
            idea, old_points = _Idea(UPGRADE, current), points.of_files(old)
            proven = recover_tuples(idea.fields, file_stats(self.entries, sources))
            movable = np.logical_and.reduce([part.recovered for part in proven.values()])
            cost = int(self.sizes[old & ~movable].sum())
            yield self._candidate(idea, old_points, self._simulate(idea, old_points), int(now[old].sum()), cost)

    def _simulate(self, idea: _Idea, points: Points) -> Layout:
        chosen = [points.columns[column.field_id] for column in idea.by]
        keys = curve_keys(chosen) if idea.kind == ZORDER else [column.codes for column in chosen]
        file_bytes = max(float(self.sizes.mean()), _POINTS_PER_FILE * float(points.bytes.mean()))
        return lay_out(points, idea.fields, keys, file_bytes)

    def _candidate(self, idea: _Idea, points: Points, layout: Layout, before: int, cost: int) -> Candidate:
        after = sum(runs * layout.bytes_read(predicate) for predicate, runs in self.workload.predicates)
        name, by = self.target.name, ",".join(idea.columns)
        command = f"floeplan rewrite {name} --strategy {idea.kind} --by {by} --option rewrite-all=true"
        if idea.kind == UPGRADE:
            command = f"floeplan upgrade-spec {name}"
        elif idea.kind == SPEC:
            rewrite = f"floeplan rewrite {name} --spec current --option rewrite-all=true"
            command = f"evolve the spec to ({', '.join(idea.columns)}), then: {rewrite}"
        return Candidate(
            kind=idea.kind,
            columns=idea.columns,
            estimated_bytes_before=before,
            estimated_bytes_after=round(after),
            basis=f"{points.basis}, {self.workload.runs} runs",
            bytes_rewritten=cost,
            command=command,
            terms=tuple(part.term for part in idea.parts),
        )

    def _manifest_clustering(self) -> Iterator[Candidate]:
        """The bytes of data manifests that all runs read: now, and with entries sorted by partition."""
        data = ~is_delete_manifest(self.manifests)
        length = np.where(data, self.manifests.length, 0)
        partition = {str(i): array for i, array in self.entries.partition_columns().items()}
        keys = pa.table({"spec": pa.array(self.entries.spec_id)} | partition)
        partitions = keys.group_by(keys.column_names).aggregate([]).num_rows
        most = min(partitions, -(-len(self.entries) // LEAST_ENTRIES))
        number = max(int(-(-length.sum() // TARGET_BYTES)), min(int(data.sum()), most), 1)
        # Entries sorted by spec and partition, and split evenly.
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
        manifest = np.empty(len(self.entries), dtype=np.int64)
        manifest[order.to_numpy()] = np.arange(len(self.entries)) * number // max(len(self.entries), 1)
        before = after = 0
        for expr, runs in self.workload.predicates:
            predicate = Predicate(expr, predicate_columns(expr), self.union)
            before += runs * int(length[evaluate_manifests(predicate, self.manifests).tri.keep].sum())
            opened = np.bincount(manifest, _may_match(predicate, self.entries), number) > 0
            after += runs * round(int(length.sum()) * float(opened.mean()))
        if before > after:
            columns = tuple(dict.fromkeys(field.name for field in self.union.fields))
            basis = f"partition values of {len(self.entries)} files, {self.workload.runs} runs"
            command = f"floeplan rewrite-manifests {self.target.name}"
            yield Candidate(MANIFESTS, columns, before, after, basis, 0, command)


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition field of a layout, and its term."""

    field: BoundField
    term: Term

    def __str__(self) -> str:
        """The column of an identity, otherwise the transform around it: ``day(ts)``, ``bucket(16, id)``."""
        source, name = ".".join(self.term.column), transform_name(self.term.transform)
        match self.term.transform:
            case pt.IdentityTransform():
                return source
            case pt.BucketTransform(num_buckets=parameter) | pt.TruncateTransform(width=parameter):
                return f"{name}({parameter}, {source})"
        return f"{name}({source})"


@dataclass(frozen=True, slots=True)
class _Idea:
    """A layout to try: its partition fields, and the columns to sort or cluster by within partitions."""

    kind: str
    parts: tuple[_Part, ...]
    by: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns or transforms of the layout, as text."""
        return tuple(map(str, self.by or self.parts))

    @property
    def fields(self) -> tuple[BoundField, ...]:
        """The partition fields."""
        return tuple(part.field for part in self.parts)


def _ideas(points: Points, filtered: Sequence[Column], current: tuple[_Part, ...]) -> Iterator[_Idea]:
    """Sort orders and Z-orders within the current spec, specs of one field, and the current spec plus one field."""
    known = [column for column in filtered if column.field_id in points.columns][:MOST_COLUMNS]
    for column in known:
        yield _Idea(SORT, current, (column,))
    for number in (2, 3):
        for some in combinations(known, number):
            yield _Idea(ZORDER, current, some)
    for position, column in enumerate(known):
        for transform in _TRANSFORMS:
            if not can_apply(transform, column.type):
                continue
            field = PartitionField(column.field_id, _FIRST_FREE_ID + position, transform, str(column))
            bound = bind_field(field, {column.field_id: (column.type,)})
            part = _Part(bound, Term(column.path, transform))
            yield _Idea(SPEC, (part,))
            if current and column.field_id not in {old.field.source_id for old in current}:
                yield _Idea(SPEC, (*current, part))


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
    every_file = {"rewrite-all": "true"}
    if candidate.kind == SPEC:
        changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *(AddField(term) for term in candidate.terms))
        evolved = evolve_spec(table, changes)
        return dict(rewrite_data_files(evolved.table, spec=CURRENT, options=every_file, spark=spark).to_dict())
    done = rewrite_data_files(table, strategy=candidate.kind, by=candidate.columns, options=every_file, spark=spark)
    return dict(done.to_dict())
