"""The first two passes: which manifests, then which files, can hold a matching row.

Both ask the same question of the same evaluator. A leaf is answered from the partition values (lifted through every
spec at once, over the union partition tuple) and, for files, from the column bounds too; each answer is sound, so what
both admit is sound and tighter than either.

Fail-safe: a spec the table does not know is an error (its manifests cannot be judged or read); a leaf nothing is known
about keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan.metadata.manifests.entries import EntriesTable, Status
from floeplan.metadata.manifests.manifest_list import DELETES, ManifestListTable
from floeplan.metadata.manifests.stats import file_stats, manifest_stats, partition_stats
from floeplan.partition.fields import fields_on
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.projection import partition_answer
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.build import and_, column_of, conjuncts
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import Cmp, CmpOp, Column, InList, IrExpr, Not, Opaque, Or, StartsWith
from floeplan.predicate.tristate import Tri, kleene
from floeplan.vectors import Mask

# Answers about many containers with the part each conjunct had in them.
#
# The top-level AND is answered operand by operand, so that a plan can say which conjunct dropped what, and so that a
# container needs only those conjuncts evaluated on its rows that its statistics do not prove: its residual.


@dataclass(frozen=True, slots=True)
class ConjunctEffect:
    """What one operand of the top-level AND did in a pass.

    ``dropped`` counts the containers it would drop alone; ``why`` says why it dropped none, where that is known.
    """

    conjunct: IrExpr
    dropped: int
    why: str = ""

    @property
    def predicate(self) -> str:
        """The operand as it is written in SQL."""
        return str(self.conjunct)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"predicate": self.predicate, "dropped": self.dropped, "why": self.why}


_AT_A_TIME = 31
"""Operands folded together: their bits and the number of a pattern fit 64 bits."""

_COUNTED = 1 << 16
"""Patterns up to this number are found by counting."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a predicate and to each of its conjuncts."""

    tri: Tri
    conjuncts: tuple[IrExpr, ...]
    parts: tuple[Tri, ...]

    def effects(self, counted: Mask, why: Callable[[IrExpr], str]) -> tuple[ConjunctEffect, ...]:
        """How many of the counted containers each conjunct would drop alone, and why where it is few."""
        effects, total = [], int(np.count_nonzero(counted))
        for conjunct, part in zip(self.conjuncts, self.parts, strict=True):
            dropped = total - int(np.count_nonzero(part.keep & counted))
            reason = why(conjunct) if drops_little(dropped, total) else ""
            effects.append(ConjunctEffect(conjunct, dropped, reason))
        return tuple(effects)

    def proven(self, rows: npt.NDArray[np.intp]) -> Mask:
        """For each of these containers and each conjunct whether every row satisfies it."""
        if not self.parts:
            return np.zeros((len(rows), 0), dtype=np.bool_)
        return np.stack([part.all_match[rows] for part in self.parts], axis=1)


def drops_little(dropped: int, total: int) -> bool:
    """Whether so few containers are dropped that a reader asks why: fewer than one in ten."""
    return 10 * dropped < total


def judge(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Verdict:
    """Answer a predicate conjunct by conjunct."""
    operands = conjuncts(expr)
    parts = tuple(kleene(operand, nonempty, answer) for operand in operands)
    whole = reduce(Tri.__and__, parts) if parts else kleene(expr, nonempty, answer)
    return Verdict(whole, operands, parts)


def residuals(operands: tuple[IrExpr, ...], proven: Mask) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
    """The distinct residuals of containers and, for each container, which it needs.

    The pattern of proven conjuncts is folded into one number per container, a bit for each operand, some at a time.
    """
    codes = np.zeros(len(proven), dtype=np.intp)
    patterns: list[tuple[IrExpr, ...]] = [()]
    for start in range(0, len(operands), _AT_A_TIME):
        some = operands[start : start + _AT_A_TIME]
        bits = ~proven[:, start : start + _AT_A_TIME] @ (1 << np.arange(len(some)))
        known, codes = _renumbered((codes << len(some)) + bits)
        patterns = [
            patterns[code >> len(some)] + tuple(operand for at, operand in enumerate(some) if code >> at & 1)
            for code in known.tolist()
        ]
    return tuple(and_(*pattern) for pattern in patterns), codes


def _renumbered(numbers: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The distinct numbers in order, and the place of each number among them; small numbers need no sorting."""
    if not len(numbers) or numbers.max() > _COUNTED:
        return np.unique(numbers, return_inverse=True)
    there = np.bincount(numbers) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


# ---


@dataclass(frozen=True, slots=True)
class Predicate:
    """A compiled predicate with what it needs to be asked of a table: its columns and the table's partition fields."""

    expr: IrExpr
    columns: Mapping[int, Column]
    union: UnionPartitionType

    @property
    def fields(self) -> tuple[UnionField, ...]:
        """The partition fields that know anything about its columns."""
        return tuple(field for field in self.union.fields if field.bound.source_id in self.columns)


def judge_manifests(predicate: Predicate, manifests: ManifestListTable) -> Verdict:
    """Pass 1: partition summaries of all specs; manifests without live files hold nothing."""
    live = ~((manifests.added_files == 0) & (manifests.existing_files == 0))
    asked = predicate.fields
    stats, fields = manifest_stats(manifests, asked, live), [field.bound for field in asked]
    return judge(predicate.expr, live, lambda leaf: partition_answer(leaf, fields, stats))


def judge_entries(predicate: Predicate, entries: EntriesTable) -> Verdict:
    """Pass 2: union partition tuples and column bounds, all specs at once; files without rows hold nothing."""
    asked = predicate.fields
    bounds = file_stats(entries, predicate.columns.values())
    partitions, fields = partition_stats(entries, asked), [field.bound for field in asked]

    def answer(leaf: IrExpr) -> Tri:
        return answer_leaf(leaf, bounds).refine(partition_answer(leaf, fields, partitions))

    return judge(predicate.expr, bounds.nonempty, answer)


def why_little_dropped(predicate: Predicate, entries: EntriesTable, live: Mask, conjunct: IrExpr) -> str:
    """Why a conjunct dropped few live files: the way in which pruning failed, named as advice names it.

    A conjunct that partition values answer is excused: it did its part when manifests were dropped.
    """
    match conjunct:
        case Or(operands):
            sides = (judge_entries(replace(predicate, expr=operand), entries) for operand in operands)
            total = int(np.count_nonzero(live))
            dropped = [total - int(np.count_nonzero(side.tri.keep & live)) for side in sides]
            return "one side of OR matches everywhere" if any(drops_little(n, total) for n in dropped) else ""
        case Opaque() | Not(Opaque()):
            return "only rows can answer it"
        case Cmp(op=CmpOp.NE) | InList(negated=True) | StartsWith(negated=True):
            return "!= excludes almost nothing"
    column = column_of(conjunct)
    if column is None:
        return ""
    fields = fields_on(predicate.union.bound_fields, column.field_id)
    if any(lift(conjunct, field).exactness is not Exactness.CANNOT for field in fields):
        return ""
    if any(isinstance(field.transform, BucketTransform) for field in fields):
        return "range over bucket"
    known = file_stats(entries, [column]).columns.get(column.field_id)
    if known is None or known.lower is None or not known.lower.valid[live].any():
        return "no statistics"
    return "values are spread over all files"


def is_delete_manifest(manifests: ManifestListTable) -> Mask:
    """Manifests of delete files."""
    return np.asarray(manifests.content == DELETES)


# Data files after the second pass: those that are kept, what is known of each, and what was counted on the way.
#
# The pass works on any slice of the manifests, so that slices can be judged elsewhere and put together: the result is
# the same, and in the same order, as judging all of them at once.


@dataclass(frozen=True, slots=True)
class JudgedFiles:
    """Kept files with their tri-state and the conjuncts proven of them; ``total`` and ``effects`` count all files."""

    entries: EntriesTable
    states: npt.NDArray[np.int8]
    proven: Mask
    total: int
    effects: tuple[ConjunctEffect, ...]

    def narrowed(self, keep: Mask) -> JudgedFiles:
        """Without the files where the mask is false."""
        if keep.all():
            return self
        return JudgedFiles(self.entries.filter(keep), self.states[keep], self.proven[keep], self.total, self.effects)

    def residuals(self, predicate: IrExpr) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
        """The distinct residuals, and which of them each file needs."""
        return residuals(conjuncts(predicate), self.proven)


def judge_files(predicate: Predicate, entries: EntriesTable) -> JudgedFiles:
    """Judge data files. Entries of deleted files are judged too but neither kept nor counted: that copies no column."""
    verdict = judge_entries(predicate, entries)
    live = entries.status != Status.DELETED
    keep = verdict.tri.keep & live
    rows = np.flatnonzero(keep)
    return JudgedFiles(
        entries=entries if len(rows) == len(keep) else entries.filter(keep),
        states=verdict.tri.states()[rows],
        proven=verdict.proven(rows),
        total=int(np.count_nonzero(live)),
        effects=verdict.effects(live, partial(why_little_dropped, predicate, entries, live)),
    )


def concat_judged(parts: Sequence[JudgedFiles]) -> JudgedFiles:
    """Slices put together in their order."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.total for part in parts)
    return JudgedFiles(
        entries=_concat_entries([part.entries for part in parts]),
        states=np.concatenate([part.states for part in parts]),
        proven=np.concatenate([part.proven for part in parts]),
        total=total,
        effects=tuple(_together(effects, total) for effects in zip(*(part.effects for part in parts), strict=True)),
    )


def _concat_entries(parts: Sequence[EntriesTable]) -> EntriesTable:
    """Partition columns whose type only manifests can tell may be untyped in slices that hold none of them."""
    table = pa.concat_tables([part.table for part in parts], promote_options="default").combine_chunks()
    unknown = UnknownType()
    types: dict[int, PrimitiveType] = {}
    for part in parts:
        types |= {i: t for i, t in part.partition_types.items() if isinstance(types.get(i, unknown), UnknownType)}
    return EntriesTable(table, types)


def _together(effects: tuple[ConjunctEffect, ...], total: int) -> ConjunctEffect:
    """One conjunct over all slices; it needs an excuse only when it dropped little in all."""
    dropped = sum(effect.dropped for effect in effects)
    whys = [effect.why for effect in effects if effect.why]
    return ConjunctEffect(effects[0].conjunct, dropped, whys[0] if whys and drops_little(dropped, total) else "")
