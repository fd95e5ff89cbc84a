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

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from floeplan.predicate.ir import And, FalseExpr, IrExpr, Not, NullExpr, Or, TrueExpr
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.rewrite.plan.candidates import Skip, SkipCodes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.scan.model import PlanWarning
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import evaluate_entries, evaluate_manifests
from floeplan.text import counted, reason
from floeplan.vectors import Ints, Mask

_KINDS = {
    "unevaluable-spec": "cannot be evaluated for",
    "evaluation-error": "failed on partitions of",
    "not-lifted": "does not restrict the partitions of",
}


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
        decides = bool(_decidable(predicate, 1, lambda leaf: np.array([_lifts(leaf, spec.fields)]))[0])
        obstacle = ""
        if not decides:
            # The first column of the predicate that cannot be projected; a void field is ignored.
            used = columns(predicate)
            found = (field for field in spec.fields if field.source_id in used and not field.is_void and field.obstacle)
            obstacle = next((f"{field.column}: {field.obstacle}" for field in found), "")
        return cls(spec, spec.project(predicate), obstacle, decides)

    def keep(self, keys: Sequence[PartitionKey]) -> Mask:
        """Which partitions of this spec may have a matching row; raises what evaluation raises."""
        if self.spec.unpartitioned:
            return np.ones(len(keys), dtype=np.bool_)
        # Partition tuples as statistics: one container per partition, in which all rows have the same value.
        tuples = [key.partition or () for key in keys]
        stats = {}
        for position, field in enumerate(self.spec.fields):
            if field.is_void or field.obstacle:
                continue
            type_ = field.column.type
            values = [None if (value := row[position]) is None else physical(type_, value) for row in tuples]
            array = pa.array(values, partition_arrow_type(type_))
            is_null = array.is_null().to_numpy(zero_copy_only=False)
            if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
                array = array.fill_null(0).to_numpy(zero_copy_only=False)
            stats[field.column.field_id] = ColumnStats.exact(array, is_null)
        return evaluate(self.projection.inclusive, StatsTable(len(keys), stats)).may_true


class MultiSpecPartitionFilter:
    """A predicate evaluated on partitions of any spec; every partition is evaluated once.

    Attributes:
        compiled: The predicate, bound to the table's schema, and what of it could not be compiled.
        union: The partition specs of the table.
        name: The option that it comes from.
        bounds: Whether it is also evaluated on the bounds of files.
        evaluators: The predicate on each spec, by spec id.
        errors: Why the evaluation of a partition failed.
        fail_open_keys: Partitions that were included because the filter could not be evaluated.
    """

    def __init__(
        self,
        compiled: CompileResult,
        union: UnionPartitionType,
        *,
        name: str = "partition-filter",
        bounds: bool = False,
    ) -> None:
        self.compiled, self.union, self.name, self.bounds = compiled, union, name, bounds
        self.evaluators: Mapping[int, SpecEvaluator] = {
            spec_id: SpecEvaluator.of(compiled.predicate, spec) for spec_id, spec in union.specs.items()
        }
        self.scan_predicate = Predicate(compiled.predicate, columns(compiled.predicate), union)
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
            self.union.spec(spec_id)  # refuses a spec id that the table does not have
            self._evaluate(self.evaluators[spec_id], list(group))
        return np.fromiter((self._answers[key] for key in keys), dtype=np.bool_, count=len(keys))

    def is_fail_open(self, key: PartitionKey) -> bool:
        """Whether a partition was included because the filter could not be evaluated."""
        return key in self.fail_open_keys

    def _evaluate(self, evaluator: SpecEvaluator, keys: Sequence[PartitionKey]) -> None:
        if not evaluator.obstacle:
            try:
                self._answers |= zip(keys, evaluator.keep(keys).tolist(), strict=True)
                return
            except Exception as error:  # fail open on any error
                if len(keys) > 1:
                    # Evaluate one by one, so that a partition that fails does not affect the others.
                    for key in keys:
                        self._evaluate(evaluator, [key])
                    return
                self.errors[keys[0]] = reason(error)
        self._answers |= dict.fromkeys(keys, True)
        self.fail_open_keys.update(keys)


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


@dataclass(frozen=True, slots=True)
class Screened:
    """Entries after the filters: a ``Skip`` and a partition number (index into ``keys``) for each."""

    skip: SkipCodes
    codes: Ints
    keys: Sequence[PartitionKey]
    fail_open: Mask
    """Per partition: included because a filter could not be evaluated."""


@dataclass(frozen=True, slots=True)
class RewriteFilters:
    """The filters of one plan."""

    filters: Sequence[MultiSpecPartitionFilter]
    union: UnionPartitionType

    @classmethod
    def bind(cls, options: RewriteOptions, schema: Schema, union: UnionPartitionType) -> RewriteFilters:
        """Bind the filters of the options to the table's schema; an invalid one is a hard error."""
        filters = []
        for name, source in (("partition-filter", options.partition_filter), ("where", options.where)):
            if source is not None:
                compiled = compile_predicate(source, schema, case_sensitive=options.case_sensitive)
                filters.append(MultiSpecPartitionFilter(compiled, union, name=name, bounds=name == "where"))
        return cls(filters, union)

    def compile_warnings(self) -> Iterable[PlanWarning]:
        """The parts of the filters that could not be compiled."""
        problems = (problem for one in self.filters for problem in one.compiled.errors)
        return (PlanWarning("not-compiled", problem.message, problem.to_dict()) for problem in problems)

    @property
    def stat_columns(self) -> frozenset[int]:
        """Columns whose bounds are evaluated."""
        return frozenset(field_id for one in self.filters if one.bounds for field_id in one.scan_predicate.columns)

    def keep_manifests(self, manifests: ManifestListTable) -> Mask:
        """Data and delete manifests with live files that may have a file of a matching partition."""
        keep: Mask = ~((manifests.added_files == 0) & (manifests.existing_files == 0))
        for one in self.filters:
            keep &= evaluate_manifests(one.scan_predicate, manifests).tri.keep
        return keep

    def screen(self, entries: EntriesTable) -> Screened:
        """Evaluate the partitions of the entries, each once, and then the files in those that are kept."""
        skip = np.zeros(len(entries), dtype=np.int8)
        if not self.filters:
            return Screened(skip, np.zeros(0, dtype=np.int64), (), np.zeros(0, dtype=np.bool_))
        codes, keys = group_codes(self.union, entries.spec_id, entries.partition_columns())
        keep = np.ones(len(keys), dtype=np.bool_)
        fail_open = np.zeros(len(keys), dtype=np.bool_)
        for one in self.filters:
            keep &= one.matches_all(keys)
            fail_open |= _flags(keys, one.fail_open_keys)
        skip[~keep[codes]] = Skip.OUTSIDE_FILTER
        for one in self.filters:
            if not one.bounds:
                continue
            # Drop files without a matching row; where evaluating the partition failed, by their bounds alone.
            rows = np.flatnonzero(skip == Skip.NONE)
            failed = _flags(keys, one.errors)[codes[rows]]
            usual, by_bounds = rows[~failed], rows[failed]
            if len(usual):
                some = entries if len(usual) == len(entries) else entries.take(usual)
                skip[usual[~evaluate_entries(one.scan_predicate, some).tri.keep]] = Skip.NO_MATCHING_ROWS
            if len(by_bounds):
                stats = file_stats(entries.take(by_bounds), one.scan_predicate.columns.values())
                may_match = evaluate(one.compiled.predicate, stats).may_true
                skip[by_bounds[~may_match]] = Skip.NO_MATCHING_ROWS
        return Screened(skip, codes, keys, fail_open & keep)

    def stats(self, screened: Screened, candidates: Ints) -> FilterStats:
        """The counters over all filters; a spec or a partition counts once."""
        specs = {spec_id for one in self.filters for spec_id in one.unevaluable_specs}
        errors = {key for one in self.filters for key in one.errors}
        files = np.count_nonzero(screened.fail_open[screened.codes[candidates]]) if len(screened.keys) else 0
        return FilterStats(len(specs), len(errors), int(np.count_nonzero(screened.fail_open)), int(files))

    def undecided(self, entries: EntriesTable, screened: Screened, candidates: Ints) -> list[Undecided]:
        """The candidates that are included only because a filter could not decide, by filter and spec."""
        return [found for one in self.filters for found in _undecided(one, entries, screened, candidates)]


def _undecided(
    one: MultiSpecPartitionFilter, entries: EntriesTable, screened: Screened, candidates: Ints
) -> list[Undecided]:
    files, codes = entries.take(candidates), screened.codes[candidates]
    failed = _flags(screened.keys, one.errors)[codes]

    def known(leaf: IrExpr) -> Mask:
        """The files whose partition, or bounds where they are evaluated, restrict a leaf of the predicate."""
        specs = [i for i, spec in one.union.specs.items() if _lifts(leaf, spec.fields)]
        found = np.isin(files.spec_id, specs) & ~failed
        column = column_of(leaf)
        if one.bounds and column is not None:
            for part in ("lower", "upper", "null_count"):
                found |= files.valid(f"{part}.{column.field_id}")
        return found

    partitioned = np.isin(files.spec_id, [i for i, spec in one.union.specs.items() if not spec.unpartitioned])
    rows = np.flatnonzero(partitioned & ~_decidable(one.compiled.predicate, len(files), known))
    found = []
    for spec_id in np.unique(files.spec_id[rows]).tolist():
        evaluator, of_spec = one.evaluators[spec_id], rows[files.spec_id[rows] == spec_id]
        some = of_spec[~failed[of_spec]]
        if len(some):
            kind = "unevaluable-spec" if evaluator.obstacle else "not-lifted"
            why = evaluator.obstacle or "; ".join(map(str, evaluator.projection.notes))
            found.append(Undecided(one.name, spec_id, kind, why, len(some)))
        some = of_spec[failed[of_spec]]
        if len(some):
            keys = [screened.keys[code] for code in np.unique(codes[some])[:3].tolist()]
            examples = tuple(str(key.partition) for key in keys)
            found.append(Undecided(one.name, spec_id, "evaluation-error", one.errors[keys[0]], len(some), examples))
    return found


def _flags(keys: Sequence[PartitionKey], among: Container[PartitionKey]) -> Mask:
    return np.fromiter((key in among for key in keys), dtype=np.bool_, count=len(keys))


def _decidable(predicate: IrExpr, length: int, knows: Callable[[IrExpr], Mask]) -> Mask:
    """Where the predicate can be decided: AND needs one decidable operand, OR needs all.

    Args:
        predicate: A predicate.
        length: The number of rows of the result.
        knows: For one leaf, the rows in which it can be decided.
    """
    match push_not(predicate):
        case And(operands):
            return np.asarray(np.any([_decidable(operand, length, knows) for operand in operands], axis=0))
        case Or(operands):
            return np.asarray(np.all([_decidable(operand, length, knows) for operand in operands], axis=0))
        case TrueExpr() | FalseExpr() | NullExpr():
            return np.ones(length, dtype=np.bool_)
        case Not(leaf) | leaf:
            return knows(leaf)


def _lifts(leaf: IrExpr, fields: Sequence[BoundField]) -> bool:
    """Whether the values of some partition field restrict a leaf of the predicate."""
    column = column_of(leaf)
    found = [] if column is None else fields_on(fields, column.field_id)
    return any(lift(leaf, field).exactness is not Exactness.CANNOT for field in found)
