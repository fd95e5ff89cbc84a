"""Step 2 of planning: the filters of a rewrite, evaluated on manifests, partitions and files.

``partition_filter`` keeps or drops whole partitions. ``where`` does the same, and then drops files that provably have
no matching row, by partition value and column bounds together. Both are a ``MultiSpecPartitionFilter``.

Rule: the predicate is bound once to the table's schema; an invalid one is a hard error. It is projected through each
spec of the table (inclusive projection), and a partition is kept when the projected predicate may be true for it. A
partition is evaluated once.

Fail-safe: dropping a partition by mistake would leave work undone unnoticed, keeping one too many only costs time. So a
spec through which the predicate cannot be projected (*unevaluable*), and a partition whose evaluation fails, are kept
and counted. A spec id that the table does not have is corruption: a hard error.

A candidate file is *undecided* when its spec is partitioned and nothing could have excluded it: no part of the filter
projects through the spec, or evaluating its partition failed, and no bounds help. Undecided files are rewritten with a
warning; ``strict`` refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import partition_arrow_type
from floeplan.partition.fields import BoundField, fields_on
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.union import Projection, SpecProjection, UnionPartitionType
from floeplan.predicate.build import column_of, columns, push_not
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.evaluate import evaluate, physical
from floeplan.predicate.ir import And, Column, FalseExpr, IrExpr, Not, NullExpr, Or, TrueExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.rewrite.plan.candidates import Skip, SkipCodes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.passes import Predicate, evaluate_entries, evaluate_manifests
from floeplan.text import counted, reason
from floeplan.vectors import Ints, Mask


@dataclass(frozen=True, slots=True)
class FilterStats:
    """How often a filter could not be evaluated and files were included."""

    unevaluable_specs: int = 0
    """Specs through which the predicate cannot be projected."""
    eval_errors: int = 0
    """Partition keys whose evaluation failed."""
    fail_open_partitions: int = 0
    """Partition keys included for one of these two reasons."""
    fail_open_files: int = 0
    """Candidate files, after all thresholds, in these partitions."""

    def to_dict(self) -> dict[str, int]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SpecEvaluator:
    """The predicate on the partition values of one spec.

    Attributes:
        spec: The spec.
        projection: The predicate projected through it.
        obstacle: Why the spec is unevaluable; empty when it is not.
        decides: Whether partition values can exclude anything: some part of the predicate was projected.
    """

    spec: SpecProjection
    projection: Projection
    obstacle: str
    decides: bool

    @classmethod
    def of(cls, predicate: IrExpr, spec: SpecProjection) -> SpecEvaluator:
        """Project the predicate through a spec."""
        knows = decidable(predicate, 1, lambda leaf: np.array([lifts(leaf, spec.fields)]))
        decides = bool(knows[0])
        return cls(spec, spec.project(predicate), "" if decides else _obstacle(predicate, spec.fields), decides)

    def keep(self, keys: Sequence[PartitionKey]) -> Mask:
        """Which partitions of this spec may have a matching row; raises what evaluation raises."""
        if self.spec.unpartitioned:
            return np.ones(len(keys), dtype=np.bool_)
        return evaluate(self.projection.inclusive, _exact(self.spec, keys)).may_true


class MultiSpecPartitionFilter:
    """A predicate evaluated on partitions of any spec; every partition is evaluated once."""

    def __init__(self, compiled: CompileResult, union: UnionPartitionType) -> None:
        self.compiled = compiled
        self.union = union
        self.evaluators: Mapping[int, SpecEvaluator] = {
            spec_id: SpecEvaluator.of(compiled.predicate, spec) for spec_id, spec in union.specs.items()
        }
        self.errors: dict[PartitionKey, str] = {}
        self.fail_open_keys: set[PartitionKey] = set()
        self._answers: dict[PartitionKey, bool] = {}

    @classmethod
    def bind(
        cls, predicate: PredicateSource, schema: Schema, union: UnionPartitionType, *, case_sensitive: bool = True
    ) -> MultiSpecPartitionFilter:
        """Bind a predicate to the table's schema and project it through every spec.

        Raises:
            BadInputError: The predicate is invalid: an unknown column, a wrong type, no predicate at all.
        """
        return cls(compile_predicate(predicate, schema, case_sensitive=case_sensitive), union)

    @property
    def predicate(self) -> IrExpr:
        """The bound predicate."""
        return self.compiled.predicate

    @cached_property
    def columns(self) -> Mapping[int, Column]:
        """The columns of the predicate."""
        return columns(self.predicate)

    @property
    def unevaluable_specs(self) -> tuple[int, ...]:
        """Specs through which the predicate cannot be projected."""
        return tuple(spec_id for spec_id, found in self.evaluators.items() if found.obstacle)

    @property
    def stats(self) -> FilterStats:
        """The counters so far; files are counted when candidates are selected."""
        return FilterStats(len(self.unevaluable_specs), len(self.errors), len(self.fail_open_keys))

    def matches(self, key: PartitionKey) -> bool:
        """Whether a partition may have a matching row, or is included because the filter cannot be evaluated."""
        return bool(self.matches_all([key])[0])

    def matches_all(self, keys: Sequence[PartitionKey]) -> Mask:
        """``matches`` for many partitions; those not evaluated before are evaluated together, spec by spec."""
        fresh = sorted((key for key in dict.fromkeys(keys) if key not in self._answers), key=lambda key: key.spec_id)
        for spec_id, group in groupby(fresh, key=lambda key: key.spec_id):
            self.union.spec(spec_id)
            self._evaluate(self.evaluators[spec_id], list(group))
        return np.fromiter((self._answers[key] for key in keys), dtype=np.bool_, count=len(keys))

    def is_fail_open(self, key: PartitionKey) -> bool:
        """Whether a partition was included because the filter could not be evaluated."""
        return key in self.fail_open_keys

    def _evaluate(self, evaluator: SpecEvaluator, keys: Sequence[PartitionKey]) -> None:
        if evaluator.obstacle:
            self._include(keys)
            return
        try:
            self._answers |= zip(keys, evaluator.keep(keys).tolist(), strict=True)
        except Exception as error:  # fail open on any error
            if len(keys) > 1:
                # Evaluate one by one, so that a partition that fails does not affect the others.
                for key in keys:
                    self._evaluate(evaluator, [key])
            else:
                self.errors[keys[0]] = reason(error)
                self._include(keys)

    def _include(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self._answers[key] = True
            self.fail_open_keys.add(key)


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter under the name of its option; ``bounds`` says whether it also evaluates the bounds of files."""

    name: str
    partitions: MultiSpecPartitionFilter
    bounds: bool

    @property
    def scan_predicate(self) -> Predicate:
        """The predicate as the passes of a scan take it."""
        return Predicate(self.partitions.predicate, self.partitions.columns, self.partitions.union)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Candidate files of one spec that a filter could not decide, and why not."""

    filter: str
    spec_id: int
    kind: str
    reason: str
    files: int
    partitions: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """One line of text."""
        files = counted(self.files, "candidate file")
        return f"{self.filter} {_KINDS[self.kind]} spec {self.spec_id} ({self.reason}); {files} included"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self) | {"partitions": list(self.partitions)}


_KINDS = {
    "unevaluable-spec": "cannot be evaluated for",
    "evaluation-error": "failed on partitions of",
    "not-lifted": "does not restrict the partitions of",
}


@dataclass(frozen=True, slots=True)
class Screened:
    """Entries after the filters: a ``Skip`` and a partition number (index into ``keys``) for each."""

    skip: SkipCodes
    codes: Ints
    keys: Sequence[PartitionKey]
    fail_open: Mask
    """Per partition: included because a filter could not be evaluated."""

    def fail_open_files(self, rows: Ints) -> int:
        """How many of these files are in partitions included because a filter could not be evaluated."""
        return int(np.count_nonzero(self.fail_open[self.codes[rows]])) if len(self.keys) else 0


class RewriteFilters:
    """The filters of one plan."""

    def __init__(self, filters: Sequence[NamedFilter], union: UnionPartitionType) -> None:
        self.filters = tuple(filters)
        self.union = union

    @classmethod
    def bind(cls, options: RewriteOptions, schema: Schema, union: UnionPartitionType) -> RewriteFilters:
        """Bind the filters of the options to the table's schema; an invalid one is a hard error."""
        bind = partial(MultiSpecPartitionFilter.bind, schema=schema, union=union, case_sensitive=options.case_sensitive)
        given = (("partition-filter", options.partition_filter, False), ("where", options.where, True))
        return cls(
            [NamedFilter(name, bind(source), bounds) for name, source, bounds in given if source is not None], union
        )

    def report_compile_errors(self, warnings: WarningLog) -> None:
        """Warn about parts of the filters that could not be compiled."""
        for item in self.filters:
            for problem in item.partitions.compiled.errors:
                warnings.add("not-compiled", problem.message, problem.message, problem.to_dict())

    @property
    def stat_columns(self) -> frozenset[int]:
        """Columns whose bounds are evaluated."""
        return frozenset(field_id for item in self.filters if item.bounds for field_id in item.partitions.columns)

    def keep_manifests(self, manifests: ManifestListTable) -> Mask:
        """Data and delete manifests with live files that may have a file of a matching partition."""
        keep: Mask = ~((manifests.added_files == 0) & (manifests.existing_files == 0))
        for item in self.filters:
            keep &= evaluate_manifests(item.scan_predicate, manifests).tri.keep
        return keep

    def screen(self, entries: EntriesTable) -> Screened:
        """Evaluate the partitions of the entries, each once, and then the files in those that are kept."""
        skip = np.zeros(len(entries), dtype=np.int8)
        if not self.filters:
            return Screened(skip, np.zeros(0, dtype=np.int64), (), np.zeros(0, dtype=np.bool_))
        codes, keys = group_codes(self.union, entries.spec_id, entries.partition_columns())
        keep = np.ones(len(keys), dtype=np.bool_)
        fail_open = np.zeros(len(keys), dtype=np.bool_)
        for item in self.filters:
            keep &= item.partitions.matches_all(keys)
            fail_open |= _flags(keys, item.partitions.fail_open_keys)
        skip[~keep[codes]] = Skip.OUTSIDE_FILTER
        for item in self.filters:
            if item.bounds:
                rows = np.flatnonzero(skip == Skip.NONE)
                failed = _flags(keys, item.partitions.errors)[codes[rows]]
                skip[rows[~_may_match(item, entries.take(rows), failed)]] = Skip.NO_MATCHING_ROWS
        return Screened(skip, codes, keys, fail_open & keep)

    def stats(self, screened: Screened, candidates: Ints) -> FilterStats:
        """The counters over all filters; a spec or a partition counts once."""
        specs = {spec_id for item in self.filters for spec_id in item.partitions.unevaluable_specs}
        errors = {key for item in self.filters for key in item.partitions.errors}
        open_partitions = int(np.count_nonzero(screened.fail_open))
        return FilterStats(len(specs), len(errors), open_partitions, screened.fail_open_files(candidates))

    def undecided(self, entries: EntriesTable, screened: Screened, candidates: Ints) -> list[Undecided]:
        """The candidates that are included only because a filter could not decide, by filter and spec."""
        return [found for item in self.filters for found in _undecided(item, entries, screened, candidates)]


def _flags(keys: Sequence[PartitionKey], among: Container[PartitionKey]) -> Mask:
    return np.fromiter((key in among for key in keys), dtype=np.bool_, count=len(keys))


def _may_match(item: NamedFilter, entries: EntriesTable, failed: Mask) -> Mask:
    """Whether files may have a matching row; where evaluating the partition failed, by bounds alone."""
    keep = np.ones(len(entries), dtype=np.bool_)
    for rows, by_bounds in ((np.flatnonzero(~failed), False), (np.flatnonzero(failed), True)):
        if not len(rows):
            continue
        some = entries if len(rows) == len(entries) else entries.take(rows)
        if by_bounds:
            stats = file_stats(some, item.partitions.columns.values())
            keep[rows] = evaluate(item.partitions.predicate, stats).may_true
        else:
            keep[rows] = evaluate_entries(item.scan_predicate, some).tri.keep
    return keep


def _undecided(item: NamedFilter, entries: EntriesTable, screened: Screened, candidates: Ints) -> list[Undecided]:
    files = entries.take(candidates)
    codes, partitions = screened.codes[candidates], item.partitions
    failed = _flags(screened.keys, partitions.errors)[codes]
    partitioned = np.isin(files.spec_id, [i for i, spec in partitions.union.specs.items() if not spec.unpartitioned])
    knows = partial(_known, item, files, failed)
    rows = np.flatnonzero(partitioned & ~decidable(partitions.predicate, len(files), knows))
    found = []
    for spec_id in np.unique(files.spec_id[rows]).tolist():
        for errors in (False, True):
            some = rows[(files.spec_id[rows] == spec_id) & (failed[rows] == errors)]
            if len(some):
                keys = [screened.keys[code] for code in np.unique(codes[some])[:3].tolist()]
                found.append(_describe(item, spec_id, keys if errors else (), len(some)))
    return found


def _known(item: NamedFilter, files: EntriesTable, failed: Mask, leaf: IrExpr) -> Mask:
    """The files whose partition, or bounds where they are evaluated, restrict a leaf of the predicate."""
    specs = [i for i, spec in item.partitions.union.specs.items() if lifts(leaf, spec.fields)]
    known = np.isin(files.spec_id, specs) & ~failed
    column = column_of(leaf)
    if item.bounds and column is not None:
        for part in ("lower", "upper", "null_count"):
            known |= files.valid(f"{part}.{column.field_id}")
    return known


def _describe(item: NamedFilter, spec_id: int, failed: Sequence[PartitionKey], files: int) -> Undecided:
    evaluator = item.partitions.evaluators[spec_id]
    if failed:
        reason = item.partitions.errors[failed[0]]
        examples = tuple(str(key.partition) for key in failed)
        return Undecided(item.name, spec_id, "evaluation-error", reason, files, examples)
    if evaluator.obstacle:
        return Undecided(item.name, spec_id, "unevaluable-spec", evaluator.obstacle, files)
    reason = "; ".join(map(str, evaluator.projection.notes))
    return Undecided(item.name, spec_id, "not-lifted", reason, files)


def decidable(predicate: IrExpr, length: int, knows: Callable[[IrExpr], Mask]) -> Mask:
    """Where the predicate can be decided: AND needs one decidable operand, OR needs all.

    Args:
        predicate: A predicate.
        length: The number of rows of the result.
        knows: For one leaf, the rows in which it can be decided.
    """
    match push_not(predicate):
        case And(operands):
            return np.asarray(np.any([decidable(operand, length, knows) for operand in operands], axis=0))
        case Or(operands):
            return np.asarray(np.all([decidable(operand, length, knows) for operand in operands], axis=0))
        case TrueExpr() | FalseExpr() | NullExpr():
            return np.ones(length, dtype=np.bool_)
        case Not(leaf) | leaf:
            return knows(leaf)


def lifts(leaf: IrExpr, fields: Sequence[BoundField]) -> bool:
    """Whether the values of some partition field restrict a leaf of the predicate."""
    column = column_of(leaf)
    found = [] if column is None else fields_on(fields, column.field_id)
    return any(lift(leaf, field).exactness is not Exactness.CANNOT for field in found)


def _obstacle(predicate: IrExpr, fields: Sequence[BoundField]) -> str:
    """Why the columns of a predicate cannot be projected through the spec; a void field is ignored."""
    asked = columns(predicate)
    found = (field for field in fields if field.source_id in asked and not field.is_void and field.obstacle)
    return next((f"{field.column}: {field.obstacle}" for field in found), "")


def _exact(spec: SpecProjection, keys: Sequence[PartitionKey]) -> StatsTable:
    """Partition tuples as statistics: one container per partition, in which all rows have the same value."""
    tuples = [key.partition or () for key in keys]
    columns_ = {}
    for position, field in enumerate(spec.fields):
        if not field.is_void and not field.obstacle:
            values = [values[position] for values in tuples]
            columns_[field.column.field_id] = _column_stats(field, values)
    return StatsTable(len(keys), columns_)


def _column_stats(field: BoundField, values: Sequence[Value | None]) -> ColumnStats:
    type_ = field.column.type
    listed = [None if value is None else physical(type_, value) for value in values]
    array = pa.array(listed, partition_arrow_type(type_))
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        array = array.fill_null(0).to_numpy(zero_copy_only=False)
    return ColumnStats.exact(array, is_null)


MAX_WARNINGS = 20


class WarningLog:
    """Collects warnings without duplicates; beyond a limit they are only counted."""

    def __init__(self, most: int = MAX_WARNINGS) -> None:
        self._most = most
        self._found: dict[tuple[str, Hashable], PlanWarning] = {}

    def add(self, kind: str, about: Hashable, message: str, context: Mapping[str, Any]) -> None:
        """Add a warning, unless there is one of the same kind about the same thing."""
        self._found.setdefault((kind, about), PlanWarning(kind, message, context))

    def finish(self) -> tuple[PlanWarning, ...]:
        """The first warnings, and the number of omitted ones."""
        found = tuple(self._found.values())
        if len(found) <= self._most:
            return found
        more = len(found) - self._most
        return (*found[: self._most], PlanWarning("more", f"{more} more warnings omitted", {"warnings": more}))
