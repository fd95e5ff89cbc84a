"""What each conjunct of a predicate decides in a pass, from which statistic, and why it does not decide more.

A conjunct decides a container when it drops it, or proves that every row matches. Partition values are counted first:
bounds get only what partition values leave open. What neither decides is read, and the reason is one of three: the
column has no bounds there, its bounds overlap the values of the predicate, or only rows can answer the conjunct.

``explain``, ``why``, scan reports and the audit all take their reasons from here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyiceberg.transforms import BucketTransform

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.partition.fields import fields_on
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.union import UnionField, UnionPartitionType, partition_answer
from floeplan.predicate.build import column_of, columns, conjuncts, has_opaque
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import Cmp, CmpOp, Column, InList, IrExpr, IsNaN, IsNull, Not, Opaque, Or, StartsWith
from floeplan.predicate.stats import Tri, kleene
from floeplan.text import counted
from floeplan.vectors import Mask

REPEATED = (Cmp, IsNull, IsNaN, StartsWith)
"""Leaves whose answers are remembered: engines repeat them, and hashing long lists would take as long as evaluation."""
BUCKET_RANGE = "range over bucket"
NO_STATISTICS = "no statistics"
NOT_EQUAL = "!= excludes almost nothing"
ONE_SIDE = "one side of OR matches everywhere"
SPREAD = "values are spread over all files"
ONLY_ROWS = "only rows can answer it"


@dataclass(frozen=True, slots=True)
class Predicate:
    """A compiled predicate with the columns it uses and the table's partition fields."""

    expr: IrExpr
    columns: Mapping[int, Column]
    union: UnionPartitionType
    fields: tuple[UnionField, ...] = field(init=False)
    """The partition fields derived from its columns."""

    def __post_init__(self) -> None:
        derived = tuple(one for one in self.union.fields if one.bound.source_id in self.columns)
        object.__setattr__(self, "fields", derived)


class LeafAnswers:
    """The answers of partition values and of column bounds to leaves, for manifest entries; each computed once."""

    def __init__(self, predicate: Predicate, entries: EntriesTable) -> None:
        self._predicate, self._entries = predicate, entries
        self.bounds = file_stats(entries, predicate.columns.values())
        self._partitions = partition_stats(entries, predicate.fields)
        self._fields = [field.bound for field in predicate.fields]
        # By identity, because the hash of a long IN list costs as much as its evaluation.
        self._known: dict[int, tuple[Tri, Tri]] = {}

    def by_partition(self, leaf: IrExpr) -> Tri:
        """What the partition values leave possible."""
        return self._answers(leaf)[0]

    def by_both(self, leaf: IrExpr) -> Tri:
        """What partition values and bounds together leave possible: tighter than either."""
        by_partition, by_bounds = self._answers(leaf)
        return by_bounds.refine(by_partition)

    def by_bounds(self, leaf: IrExpr) -> Tri:
        """What the bounds and counts of the column leave possible."""
        return self._answers(leaf)[1]

    def _answers(self, leaf: IrExpr) -> tuple[Tri, Tri]:
        found = self._known.get(id(leaf))
        if found is None:
            found = self._known[id(leaf)] = self._of_whole(leaf) or self._computed(leaf)
        return found

    def _computed(self, leaf: IrExpr) -> tuple[Tri, Tri]:
        return partition_answer(leaf, self._fields, self._partitions), answer_leaf(leaf, self.bounds)

    def _of_whole(self, leaf: IrExpr) -> tuple[Tri, Tri] | None:
        """The answers out of those for the table in memory that the entries are rows of, if the leaf is repeated."""
        part = self._entries.slice_of
        if part is None or not isinstance(leaf, REPEATED):
            return None

        def answer() -> tuple[Tri, Tri]:
            whole = replace(part.whole, slice_of=part._replace(start=0))
            return LeafAnswers(self._predicate, whole)._computed(leaf)

        found = part.remember(leaf, answer)
        if found is None:
            return None
        rows = slice(part.start, part.start + len(self._entries))
        by_partition, by_bounds = (Tri(*(mask[rows] for mask in one)) for one in found)
        return by_partition, by_bounds


def evaluate_conjuncts(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Evaluation:
    """Evaluate a predicate conjunct by conjunct."""
    operands = conjuncts(expr)
    parts = Tri.stacked([kleene(operand, nonempty, answer) for operand in operands], len(nonempty))
    whole = parts.conjunction() if operands else kleene(expr, nonempty, answer)
    return Evaluation(whole, operands, parts)


class Evaluation(NamedTuple):
    """The tri-state of a predicate, and in rows that of each of its conjuncts, for many containers.

    ``by_partition`` has the tri-state of each conjunct by partition values alone, if other statistics were used too.
    """

    tri: Tri
    conjuncts: tuple[IrExpr, ...]
    parts: Tri
    by_partition: Tri | None = None

    def proven(self, rows: npt.NDArray[np.intp]) -> Mask:
        """For each of these containers and each conjunct, whether every row satisfies it."""
        parts = self.parts
        return Tri(parts.may_true[:, rows], parts.may_false[:, rows], parts.may_null[:, rows]).all_match.T


class Decided(StrEnum):
    """What decides a conjunct."""

    PARTITION = "partition"
    """Partition values decide every container."""
    NARROWED = "narrowed"
    """Partition values decide some containers; bounds decide the others, or nothing does."""
    BOUNDS = "bounds"
    """Bounds decide containers, partition values none."""
    NOTHING = "nothing"
    """Every container is read."""


class Decisions(NamedTuple):
    """How many containers a conjunct decides and by what; what it leaves open is ``overlapping`` or without bounds.

    Attributes:
        total: Containers that were evaluated.
        dropped: Containers that it drops alone.
        by_partition: Containers that partition values decide.
        by_bounds: Further containers that bounds and counts decide.
        without_bounds: Undecided containers without bounds of a column of the conjunct.
    """

    total: int = 0
    dropped: int = 0
    by_partition: int = 0
    by_bounds: int = 0
    without_bounds: int = 0

    @staticmethod
    def of_all(parts: Iterable[Decisions]) -> Decisions:
        """The decisions on the containers of several parts together."""
        found = list(parts)
        return found[0] if len(found) == 1 else Decisions(*map(sum, zip(*found, strict=True)))

    @property
    def undecided(self) -> int:
        """Containers that are read because nothing decides them."""
        return self.total - self.by_partition - self.by_bounds

    @property
    def overlapping(self) -> int:
        """Undecided containers whose bounds overlap the values of the conjunct."""
        return self.undecided - self.without_bounds

    @property
    def decided(self) -> Decided:
        """What decides the conjunct."""
        if self.by_partition:
            return Decided.PARTITION if self.by_partition == self.total else Decided.NARROWED
        return Decided.BOUNDS if self.by_bounds else Decided.NOTHING

    @property
    def drops_few(self) -> bool:
        """Whether fewer than one in ten containers is dropped, and some could not be decided."""
        return 10 * self.dropped < self.total and self.undecided > 0


class ConjunctEffect(NamedTuple):
    """The effect of one operand of the top-level AND in a pass.

    Attributes:
        conjunct: The operand.
        by_spec: Its decisions on the containers of each partition spec.
        why: Why it drops few containers, as a key of ``scan.explain.CURES``; empty when it drops more.
    """

    conjunct: IrExpr
    by_spec: Mapping[int, Decisions]
    why: str = ""

    @property
    def predicate(self) -> str:
        """The operand as SQL."""
        return str(self.conjunct)

    @property
    def decisions(self) -> Decisions:
        """Its decisions on all containers."""
        return Decisions.of_all(self.by_spec.values())

    @property
    def dropped(self) -> int:
        """The containers it would drop alone."""
        return self.decisions.dropped

    def to_dict(self, text: Callable[[IrExpr], str] = str) -> dict[str, Any]:
        """The JSON form; ``text`` formats the operand."""
        found = self.decisions
        return {
            "predicate": text(self.conjunct),
            "dropped": found.dropped,
            "why": self.why,
            "decided": found.decided,
            "by_partition": found.by_partition,
            "by_bounds": found.by_bounds,
            "undecided": found.undecided,
            "without_bounds": found.without_bounds,
        }


def manifest_effects(evaluation: Evaluation, by_spec: Mapping[int, Mask]) -> tuple[ConjunctEffect, ...]:
    """The effects of pass 1 on live manifests of each spec: of summaries, and of bounds where manifests have them."""
    parts = evaluation.parts
    left = (parts if evaluation.by_partition is None else evaluation.by_partition).undecided
    counted_by_spec = _decisions(by_spec, ~parts.keep, ~left, left & ~parts.undecided)
    return tuple(map(ConjunctEffect, evaluation.conjuncts, counted_by_spec))


def entry_effects(
    predicate: Predicate, answers: LeafAnswers, evaluation: Evaluation, live: Mask, spec_id: npt.NDArray[Any]
) -> tuple[ConjunctEffect, ...]:
    """The effects of pass 2 on live entries."""
    parts, nonempty = evaluation.parts, answers.bounds.nonempty
    alone = [kleene(conjunct, nonempty, answers.by_partition) for conjunct in evaluation.conjuncts]
    left, undecided = Tri.stacked(alone, len(nonempty)).undecided, parts.undecided
    bare = undecided.copy()
    for row in np.logical_or.reduce(undecided, axis=1).nonzero()[0].tolist():
        bare[row] &= _without_bounds(evaluation.conjuncts[row], answers)
    counted_by_spec = _decisions(_masks_by_spec(spec_id, live), ~parts.keep, ~left, left & ~undecided, bare)
    found = []
    for conjunct, by_spec in zip(evaluation.conjuncts, counted_by_spec, strict=True):
        effect = ConjunctEffect(conjunct, by_spec)
        if effect.decisions.drops_few:
            effect = ConjunctEffect(conjunct, by_spec, _why_few_dropped(predicate, answers, live, conjunct))
        found.append(effect)
    return tuple(found)


def sum_effects(parts: Sequence[tuple[ConjunctEffect, ...]]) -> tuple[ConjunctEffect, ...]:
    """The effects over consecutive slices of the entries, with the first reason when few are dropped in total."""
    summed = []
    for effects in zip(*parts, strict=True):
        by_spec: dict[int, Decisions] = {}
        for effect in effects:
            for spec_id, found in effect.by_spec.items():
                by_spec[spec_id] = Decisions.of_all((by_spec.get(spec_id, Decisions()), found))
        whole = ConjunctEffect(effects[0].conjunct, by_spec)
        why = next((effect.why for effect in effects if effect.why), "") if whole.decisions.drops_few else ""
        summed.append(ConjunctEffect(whole.conjunct, by_spec, why))
    return tuple(summed)


def _masks_by_spec(spec_id: npt.NDArray[Any], chosen: Mask) -> dict[int, Mask]:
    """The chosen containers of each spec; -1 for manifests of several specs, which metadata trees have."""
    specs = (np.flatnonzero(np.bincount(spec_id + 1)) - 1).tolist() if len(spec_id) else []
    masks = {specs[0]: chosen} if len(specs) == 1 else {spec: chosen & (spec_id == spec) for spec in specs}
    return {spec: mask for spec, mask in masks.items() if mask.any()}


def _decisions(specs: Mapping[int, Mask], *masks: Mask) -> list[dict[int, Decisions]]:
    """For each conjunct, its decisions on the containers of each spec.

    The masks have a row per conjunct and are in the order of ``Decisions``.
    """
    # All masks at once, as bits: a call per mask and spec would take as long as evaluation.
    bits = np.packbits(np.concatenate(masks), axis=1)
    found: list[dict[int, Decisions]] = [{} for _ in masks[0]]
    for spec, of in specs.items():
        counts = np.bitwise_count(bits & np.packbits(of)).sum(axis=1, dtype=np.int64)
        total = _count(of)
        for by_spec, numbers in zip(found, counts.reshape(len(masks), -1).T.tolist(), strict=True):
            by_spec[spec] = Decisions(total, *numbers)
    return found


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _without_bounds(conjunct: IrExpr, answers: LeafAnswers) -> Mask:
    """Files that have values of a column of the conjunct, but no bound of it."""
    bare = np.zeros(answers.bounds.length, dtype=np.bool_)
    for field_id in columns(conjunct):
        known = answers.bounds.columns.get(field_id)
        if known is None:
            return ~bare
        ends = [bound.valid for bound in (known.lower, known.upper) if bound is not None]
        bare |= known.may_value & ~reduce(np.logical_or, ends, np.zeros_like(bare))
    return bare


def _why_few_dropped(predicate: Predicate, answers: LeafAnswers, live: Mask, conjunct: IrExpr) -> str:
    """Why a conjunct drops few live files, as a key of ``scan.explain.CURES``.

    Empty when a partition field answers it: what matters then happened in pass 1.
    """
    match conjunct:
        case Or(operands):
            total = _count(live)
            kept = [_count(kleene(side, answers.bounds.nonempty, answers.by_both).keep & live) for side in operands]
            return ONE_SIDE if any(10 * (total - n) < total for n in kept) else ""
        case Opaque() | Not(Opaque()):
            return ONLY_ROWS
        case Cmp(op=CmpOp.NE) | InList(negated=True) | StartsWith(negated=True):
            return NOT_EQUAL
    column = column_of(conjunct)
    if column is None:
        return ""
    on_column = fields_on(predicate.union.bound_fields, column.field_id)
    if any(lift(conjunct, field).exactness is not Exactness.CANNOT for field in on_column):
        return ""
    if any(isinstance(field.transform, BucketTransform) for field in on_column):
        return BUCKET_RANGE
    return SPREAD if (live & ~_without_bounds(conjunct, answers)).any() else NO_STATISTICS


def describe(conjunct: IrExpr, found: Decisions, noun: str = "file") -> str:
    """What decided a conjunct on some containers, and what it left open: ``bounds decide 4 files, overlap in 2``."""
    if not found.total:
        return f"no {noun} left to evaluate"
    everything = f"all {counted(found.total, noun)}" if found.total > 1 else counted(1, noun)
    sources = {"partition values": found.by_partition, "bounds": found.by_bounds}
    shown = {
        source: everything if number == found.total else counted(number, noun)
        for source, number in sources.items()
        if number
    }
    parts = [f"{source} decide {number}" for source, number in shown.items()]
    if shown and not found.dropped:  # decided because every row matches
        proven = counted(found.total - found.undecided, noun) if found.undecided else everything
        parts = [f"all rows match in {proven} ({' and '.join(shown)})"]
        parts[0] += "" if found.undecided else ", so none can be dropped"
    if found.undecided:
        parts += _left_open(conjunct, found, noun)
    return "; ".join(parts)


def _left_open(conjunct: IrExpr, found: Decisions, noun: str) -> Iterable[str]:
    if has_opaque(conjunct):
        yield f"only rows can answer it in {counted(found.undecided, noun)}"
        return
    if found.without_bounds:
        yield f"no statistics in {counted(found.without_bounds, noun)}"
    if found.overlapping:
        mixed = isinstance(conjunct, IsNull | IsNaN)
        yield f"{'some rows match' if mixed else 'bounds overlap'} in {counted(found.overlapping, noun)}"
