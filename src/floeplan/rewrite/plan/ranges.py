"""Which groups of a plan become several Spark tasks, and how the rows of such a group reach their task.

A group that is sorted or clustered and has more bytes than ``range-task-bytes`` is divided into ranges of the order, a
task each (``rewrite.run.ranges``). The cheaper of two ways is chosen by the bounds in the manifests:

- *range reads*: the task of a range reads the files whose bounds overlap it, so a file may be read several times;
- *shuffle*: every file is read once, and Spark moves its rows, which costs about as much again.

Running the rewrite takes ranges from a sample of the rows. Without reading rows, the bounds of the files stand for it
(``expected_ranges``): half of the bytes of a file at its lower bound, half at its upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.opaque_types import is_variant
from floeplan.predicate.build import and_, or_
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, Cmp, CmpOp, Column, IrExpr, IsNull
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import Bound
from floeplan.rewrite.plan.model import GroupRanges, RewriteDataFilesPlan, RewriteFileGroup
from floeplan.rewrite.strategies.base import Cuts, RowOrder
from floeplan.rewrite.strategies.curves import CurveOrder
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.projection import arrow_schema

SHUFFLE, RANGE_READS = "shuffle", "range-reads"
SHUFFLE_COST = 2
"""Cost of a shuffle in reads of all files: one read, and as much again to write, move and read the rows."""
_INTEGERS = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)

RangeReads = Sequence[tuple[IrExpr, Sequence[int]]]
"""For each range a condition that its leading keys meet, and the files whose bounds admit one."""


def range_count(size: int, task_bytes: int, outputs: int | None) -> int:
    """How many tasks a group takes; each writes whole files, where their number is known."""
    tasks = -(-size // task_bytes)
    return max(1, tasks if outputs is None else min(tasks, outputs))


def can_be_divided(plan: RewriteDataFilesPlan, *, proven: bool) -> bool:
    """Whether ranges of the order can be written apart.

    A curve does not follow partitions: where these are computed from rows, every task would write to all of them. And
    the task of a range does not know whether all files of the group have the same layout of shredded variants.
    """
    has_variants = any(is_variant(field.field_type) for field in plan.target.schema.fields)
    return not has_variants and (proven or find_strategy(plan.options.strategy).partition_first)


def range_reads(entries: EntriesTable, cuts: Cuts) -> RangeReads:
    """What each range reads; empty where the bounds of files say nothing about the order."""
    leading = leading_column(cuts.order)
    if leading is None:
        return []
    bounds = file_stats(entries, [leading])
    conditions = range_conditions(cuts, leading)
    return [(condition, np.flatnonzero(evaluate(condition, bounds).keep).tolist()) for condition in conditions]


def choose(group_id: int, size: int, sizes: Sequence[int], reads: RangeReads, tasks: int) -> GroupRanges:
    """The cheaper way; ``sizes`` are those of the files of the group, ``size`` is their sum."""
    if not reads:
        return GroupRanges(group_id, tasks, SHUFFLE, size, size, "the bounds of files do not follow the order")
    read = sum(sizes[source] for _, sources in reads for source in sources)
    times = f"ranges read {read / max(1, size):.1f} times the bytes of the group; a shuffle costs {SHUFFLE_COST}"
    if read < SHUFFLE_COST * size:
        return GroupRanges(group_id, tasks, RANGE_READS, read, 0, times)
    return GroupRanges(group_id, tasks, SHUFFLE, size, size, times)


def expected_ranges(plan: RewriteDataFilesPlan, task_bytes: int) -> tuple[GroupRanges, ...]:
    """How groups will be divided on Spark, from metadata alone; those that one task can hold are left out."""
    found = []
    for group in plan.groups:
        tasks = range_count(group.bytes, task_bytes, group.expected_outputs if group.proven else None)
        if not plan.order.is_unsorted and tasks > 1 and can_be_divided(plan, proven=group.proven):
            sizes = plan.files.entries.ints("file_size_in_bytes")[group.rows].tolist()
            found.append(choose(group.group_id, group.bytes, sizes, _expected_reads(plan, group, tasks), tasks))
    return tuple(found)


def _expected_reads(plan: RewriteDataFilesPlan, group: RewriteFileGroup, tasks: int) -> RangeReads:
    """What ranges of equal bytes between the bounds of the files read."""
    order = find_strategy(plan.options.strategy).row_order(plan.target.schema, plan.order)
    leading = leading_column(order)
    if leading is None or not group.proven:  # else rows are sorted by partition first
        return []
    entries = plan.files.entries.take(group.rows)
    known = file_stats(entries, [leading]).columns.get(leading.field_id)
    if known is None or known.lower is None or known.upper is None:
        return []
    schema, (name,) = arrow_schema(order.key_schema), leading.path
    ends = pa.concat_arrays([_as_keys(bound, schema.field(name).type) for bound in (known.lower, known.upper)])
    columns = [ends if field.name == name else pa.nulls(len(ends), field.type) for field in schema]
    weights = np.tile(entries.ints("file_size_in_bytes") / 2, 2) * np.asarray(ends.is_valid())
    cuts = Cuts.of(order, pa.table(columns, schema=schema), np.arange(len(ends)), [1] * tasks, weights)
    return range_reads(entries, cuts)


def _as_keys(bound: Bound, type_: pa.DataType) -> pa.Array:
    """Bounds as values of a column."""
    if not isinstance(bound.values, np.ndarray):
        return pc.if_else(pa.array(bound.valid), bound.values, pa.scalar(None, bound.values.type)).cast(type_)
    values = pa.array(bound.values, mask=~bound.valid)
    if pa.types.is_date(type_) or pa.types.is_integer(type_):
        values = values.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    return values.cast(type_)


def leading_column(order: RowOrder) -> Column | None:
    """The first key, if the bounds of files compare as it does: a top-level column itself, of a type listed here."""
    first = order.order.fields[0]
    field = next((field for field in order.schema.fields if field.field_id == first.source_id), None)
    if isinstance(order, CurveOrder) or field is None or not isinstance(first.transform, IdentityTransform):
        return None
    type_ = field.field_type
    if not isinstance(type_, (*_INTEGERS, FloatType, DoubleType, StringType)):
        return None
    return Column(field.field_id, type_, (field.name,))


def range_conditions(cuts: Cuts, leading: Column) -> list[IrExpr]:
    """For each range a condition that holds for the leading key of all its rows."""
    key = cuts.order.order.fields[0]
    nulls_first = key.null_order is NullOrder.NULLS_FIRST
    below, above = (CmpOp.LE, CmpOp.GE) if key.direction is SortDirection.ASC else (CmpOp.GE, CmpOp.LE)
    values = cuts.firsts.column(leading.path[0]).combine_chunks()
    if isinstance(leading.type, _INTEGERS):  # dates and timestamps as the integers that bounds are compared as
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    firsts: list[Value | None] = values.to_pylist()
    conditions = []
    for number in range(len(cuts)):
        starts, ends = number > 0, number < len(firsts)
        first, last = firsts[number - 1] if starts else None, firsts[number] if ends else None
        # Nulls are at one end of the order; a range that starts or ends among them may have some.
        has_nulls = not starts or first is None if nulls_first else not ends or last is None
        only_nulls = ends and last is None if nulls_first else starts and first is None
        limits = [Cmp(leading, above, first)] if first is not None else []
        limits += [Cmp(leading, below, last)] if last is not None else []
        ordinary = FALSE if only_nulls else and_(*limits) if limits else IsNull(leading, negated=True)
        conditions.append(or_(ordinary, IsNull(leading)) if has_nulls else ordinary)
    return conditions
