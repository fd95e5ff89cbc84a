"""The oracle: slow and simple evaluation of a predicate on one row of canonical Python values.

Spark's semantics: three-valued logic with ``None`` for NULL; NaN equals NaN and is above everything; -0.0 equals 0.0;
strings are ordered by their UTF-8 bytes. Shares no code with the package beyond the nodes themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform, parse_transform
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from floeplan.predicate import ir

Row = Mapping[int, Any]
ORDER = {
    ir.CmpOp.EQ: operator.eq,
    ir.CmpOp.NE: operator.ne,
    ir.CmpOp.LT: operator.lt,
    ir.CmpOp.LE: operator.le,
    ir.CmpOp.GT: operator.gt,
    ir.CmpOp.GE: operator.ge,
}


def evaluate_row(expr: ir.IrExpr, row: Row) -> bool | None:
    """TRUE, FALSE or None; an ``Opaque`` node of the tests holds the predicate it replaces."""
    if isinstance(expr, ir.TrueExpr):
        return True
    if isinstance(expr, ir.FalseExpr):
        return False
    if isinstance(expr, ir.NullExpr):
        return None
    if isinstance(expr, ir.Opaque):
        return evaluate_row(expr.expression, row)
    if isinstance(expr, ir.Transformed):
        value = row[expr.column.field_id]
        apply = parse_transform(expr.transform).transform(expr.column.type)
        return evaluate_leaf(expr.leaf, None if value is None else apply(value))
    if isinstance(expr, ir.Not):
        inner = evaluate_row(expr.operand, row)
        return None if inner is None else not inner
    if isinstance(expr, ir.And):
        answers = [evaluate_row(operand, row) for operand in expr.operands]
        return False if False in answers else None if None in answers else True
    if isinstance(expr, ir.Or):
        answers = [evaluate_row(operand, row) for operand in expr.operands]
        return True if True in answers else None if None in answers else False
    return evaluate_leaf(expr, row[expr.column.field_id])


def evaluate_rows(expr: ir.IrExpr, rows: Sequence[Row]) -> list[bool | None]:
    return [evaluate_row(expr, row) for row in rows]


def evaluate_leaf(leaf: Any, value: Any) -> bool | None:
    if isinstance(leaf, ir.IsNull):
        return (value is None) != leaf.negated
    if isinstance(leaf, ir.IsNaN):
        return is_nan(value) != leaf.negated
    if isinstance(leaf, ir.Cmp) and leaf.op is ir.CmpOp.NULL_SAFE_EQ:
        return value is not None and order_key(value) == order_key(leaf.value)
    if value is None:
        return None
    key = order_key(value)
    if isinstance(leaf, ir.Cmp):
        return ORDER[leaf.op](key, order_key(leaf.value))
    if isinstance(leaf, ir.Between):
        low, high = order_key(leaf.low), order_key(leaf.high)
        return low <= key <= high if leaf.inclusive else low < key < high
    if isinstance(leaf, ir.StartsWith):
        return value.startswith(leaf.prefix) != leaf.negated
    if isinstance(leaf, ir.BloomEq):
        return key == order_key(leaf.value)
    listed = any(key == order_key(candidate) for candidate in leaf.values)
    return listed != getattr(leaf, "negated", False)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def order_key(value: Any) -> Any:
    """Sort key: NaN last among floats, text by its UTF-8 bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


# --- the partition of a row, by PyIceberg's transforms

TypedRow: TypeAlias = dict[str, Any]


def partition_of(row: TypedRow, spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """The partition tuple of a row under a spec, as text: NaN equals itself, -0.0 differs from 0.0."""
    values = []
    for field in spec.fields:
        if isinstance(field.transform, VoidTransform):
            continue
        source = schema.find_field(field.source_id)
        value = _internal(row[source.name])
        values.append(repr(None if value is None else field.transform.transform(source.field_type)(value)))
    return tuple(values)


def _internal(value: Any) -> Any:
    """A value as PyIceberg's transforms take it."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
    return value
