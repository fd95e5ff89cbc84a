"""The first two passes: which manifests, then which files, can hold a matching row.

Both ask the same question of the same evaluator. A leaf is answered from the partition values (lifted through every
spec at once, over the union partition tuple) and, for files, from the column bounds too; each answer is sound, so what
both admit is sound and tighter than either.

Fail-safe: a spec the table does not know is an error (its manifests cannot be judged or read); a leaf nothing is known
about keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.transforms import BucketTransform

from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.manifest_list import DELETES, ManifestListTable
from floeplan.metadata.stats import file_stats, manifest_stats, partition_stats
from floeplan.partition.fields import fields_on
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.projection import partition_answer
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.build import column_of
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import Cmp, CmpOp, Column, InList, IrExpr, Not, Opaque, Or, StartsWith
from floeplan.predicate.tristate import Mask, Tri
from floeplan.scan.verdict import Verdict, drops_little, judge


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
