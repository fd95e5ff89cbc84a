"""One filter for the partitions of all specs: ``MultiSpecPartitionFilter``.

Rule: the predicate is bound once, to the table's schema; an invalid one is a hard error. It is lifted through each spec
of the table, and a partition is kept when the lifted predicate may be TRUE of it. A partition is judged once.

Fail-safe: leaving a partition out by mistake would leave work undone unnoticed, taking one too many costs only time.
So a spec through which the predicate cannot be projected (*unevaluable*) and a partition whose evaluation fails are
included, and counted. A spec id that the table does not know is no doubt but corruption: a hard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.partition.fields import BoundField, fields_on
from floeplan.partition.key import PartitionKey
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.projection import Projection, SpecProjection
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import column_of, columns, push_not
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.evaluate import evaluate, physical
from floeplan.predicate.ir import And, Column, FalseExpr, IrExpr, Not, NullExpr, Or, TrueExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.text import reason
from floeplan.vectors import Mask


@dataclass(frozen=True, slots=True)
class FilterStats:
    """Where a filter could not decide and therefore included."""

    unevaluable_specs: int = 0
    """Specs through which the predicate cannot be projected."""
    eval_errors: int = 0
    """Partitions (spec id and tuple) whose evaluation failed."""
    fail_open_partitions: int = 0
    """Partitions included for one of these two reasons."""
    fail_open_files: int = 0
    """Candidate files, after all thresholds, in such partitions."""

    def to_dict(self) -> dict[str, int]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SpecEvaluator:
    """The predicate on the partition values of one spec.

    Attributes:
        spec: The spec.
        projection: The predicate lifted through it.
        obstacle: Why the spec is unevaluable; empty when it is not.
        decides: Whether partition values can exclude anything: some part of the predicate was lifted.
    """

    spec: SpecProjection
    projection: Projection
    obstacle: str
    decides: bool

    @classmethod
    def of(cls, predicate: IrExpr, spec: SpecProjection) -> SpecEvaluator:
        """Lift the predicate through a spec."""
        knows = decidable(predicate, 1, lambda leaf: np.array([lifts(leaf, spec.fields)]))
        decides = bool(knows[0])
        return cls(spec, spec.project(predicate), "" if decides else _obstacle(predicate, spec.fields), decides)

    def keep(self, keys: Sequence[PartitionKey]) -> Mask:
        """Which partitions of this spec may hold a matching row; raises what evaluation raises."""
        if self.spec.unpartitioned:
            return np.ones(len(keys), dtype=np.bool_)
        return evaluate(self.projection.inclusive, _exact(self.spec, keys)).may_true


class MultiSpecPartitionFilter:
    """A predicate asked of partitions of any spec; every partition is judged once."""

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
        """Bind a predicate to the table's schema and lift it through every spec.

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
        """The columns the predicate asks about."""
        return columns(self.predicate)

    @property
    def unevaluable_specs(self) -> tuple[int, ...]:
        """Specs through which the predicate cannot be projected."""
        return tuple(spec_id for spec_id, found in self.evaluators.items() if found.obstacle)

    @property
    def stats(self) -> FilterStats:
        """What was counted so far; files are counted by who selects them."""
        return FilterStats(len(self.unevaluable_specs), len(self.errors), len(self.fail_open_keys))

    def matches(self, key: PartitionKey) -> bool:
        """Whether a partition may hold a matching row, or is included because nothing can tell."""
        return bool(self.matches_all([key])[0])

    def matches_all(self, keys: Sequence[PartitionKey]) -> Mask:
        """``matches`` of many partitions; those not judged before are judged together, spec by spec."""
        fresh = sorted((key for key in dict.fromkeys(keys) if key not in self._answers), key=lambda key: key.spec_id)
        for spec_id, group in groupby(fresh, key=lambda key: key.spec_id):
            self.union.spec(spec_id)
            self._judge(self.evaluators[spec_id], list(group))
        return np.fromiter((self._answers[key] for key in keys), dtype=np.bool_, count=len(keys))

    def is_fail_open(self, key: PartitionKey) -> bool:
        """Whether a partition was included because nothing could tell."""
        return key in self.fail_open_keys

    def _judge(self, evaluator: SpecEvaluator, keys: Sequence[PartitionKey]) -> None:
        if evaluator.obstacle:
            self._include(keys)
            return
        try:
            self._answers |= zip(keys, evaluator.keep(keys).tolist(), strict=True)
        except Exception as error:  # whatever evaluation trips over, the partition is included
            self._judge_one_by_one(evaluator, keys, error)

    def _judge_one_by_one(self, evaluator: SpecEvaluator, keys: Sequence[PartitionKey], error: Exception) -> None:
        """Find the partitions that cannot be evaluated, so that they do not take the others with them."""
        if len(keys) > 1:
            for key in keys:
                self._judge(evaluator, [key])
            return
        self.errors[keys[0]] = reason(error)
        self._include(keys)

    def _include(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self._answers[key] = True
            self.fail_open_keys.add(key)


def decidable(predicate: IrExpr, length: int, knows: Callable[[IrExpr], Mask]) -> Mask:
    """Where something can decide the predicate: for AND any operand will do, OR needs all of them.

    Args:
        predicate: A predicate.
        length: The number of things asked about.
        knows: For one leaf, what of these something is known about.
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
    """Whether the values of some partition field say something about a leaf."""
    column = column_of(leaf)
    found = [] if column is None else fields_on(fields, column.field_id)
    return any(lift(leaf, field).exactness is not Exactness.CANNOT for field in found)


def _obstacle(predicate: IrExpr, fields: Sequence[BoundField]) -> str:
    """What keeps the columns of a predicate from being seen through the spec; a void field is merely no field."""
    asked = columns(predicate)
    found = (field for field in fields if field.source_id in asked and not field.is_void and field.obstacle)
    return next((f"{field.column}: {field.obstacle}" for field in found), "")


def _exact(spec: SpecProjection, keys: Sequence[PartitionKey]) -> StatsTable:
    """Partition tuples as statistics: one container a partition, in which all rows have the same value."""
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
