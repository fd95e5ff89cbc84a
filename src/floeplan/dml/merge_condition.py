"""The ON condition of a merge taken apart: keys to join by, and what else must hold.

Rule: a conjunct ``target.a = source.b`` (or ``<=>``) is a key. A conjunct over one side alone is asked of that side
before joining. Everything else is asked of the pairs that the keys find. Together they are the condition, row for row.

For planning, the keys become predicates on the target: the values the source has, or their range when they are many.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlglot import exp

from floeplan.dml.merge_names import MergeNames, is_source
from floeplan.predicate.build import and_, conjuncts, field_ids
from floeplan.predicate.ir import FALSE, TRUE, Between, Column, InList, IrExpr, Opaque
from floeplan.predicate.opaque import SqlExpression
from floeplan.predicate.sql import compile_sql

LISTED_KEYS = 10_000
"""Up to so many keys a plan asks for each of them; beyond for their range."""


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of columns, by field id, that must be equal; ``null_safe`` when NULL equals NULL."""

    target: int
    source: int
    null_safe: bool


@dataclass(frozen=True, slots=True)
class MergeCondition:
    """What makes a target row and a source row meet."""

    keys: tuple[Key, ...]
    target_only: IrExpr
    source_only: IrExpr
    pairs: IrExpr


def compile_condition(on: str, names: MergeNames) -> MergeCondition:
    """Compile the text of an ON condition."""
    predicate, _ = compile_sql(on, names)
    keys: list[Key] = []
    sides: dict[str, list[IrExpr]] = {"target": [], "source": [], "pairs": []}
    for conjunct in conjuncts(predicate):
        key = _key(conjunct)
        if key is not None:
            keys.append(key)
        else:
            sides[_side(conjunct)].append(conjunct)
    return MergeCondition(tuple(keys), and_(*sides["target"]), and_(*sides["source"]), and_(*sides["pairs"]))


def _side(conjunct: IrExpr) -> str:
    of_source = {is_source(field_id) for field_id in field_ids(conjunct)}
    if not of_source:
        return "pairs"
    return "pairs" if len(of_source) == 2 else "source" if True in of_source else "target"


def _key(conjunct: IrExpr) -> Key | None:
    if not isinstance(conjunct, Opaque) or not isinstance(conjunct.expression, SqlExpression):
        return None
    tree = conjunct.expression.tree.unnest()
    if not isinstance(tree, exp.EQ | exp.NullSafeEQ):
        return None
    sides = [tree.this.unnest(), tree.expression.unnest()]
    if not all(isinstance(side, exp.Placeholder) for side in sides):
        return None
    left, right = (int(side.this) for side in sides)
    if is_source(left) == is_source(right):
        return None
    target, source = (right, left) if is_source(left) else (left, right)
    return Key(target, source, isinstance(tree, exp.NullSafeEQ))


def key_predicate(column: Column, values: pa.Array) -> IrExpr:
    """What every target row that meets one of these key values satisfies; TRUE when nothing useful can be said."""
    plain = _in_range(column.type, values.drop_null())
    if not len(plain):
        return FALSE
    if not _speaks_for(column.type, plain.type):
        return TRUE
    distinct = pc.unique(plain)
    if len(distinct) <= LISTED_KEYS:
        return InList(column, tuple(_canonical(distinct).to_pylist()))
    ends = pc.min_max(plain)
    low, high = (_canonical(pa.array([ends[end].as_py()], plain.type))[0].as_py() for end in ("min", "max"))
    return Between(column, low, high)


def _in_range(type_: PrimitiveType, keys: pa.Array) -> pa.Array:
    """Without keys that a column of 32 bits cannot hold: they meet nothing."""
    if not isinstance(type_, IntegerType) or not pt.is_int64(keys.type):
        return keys
    kept = keys.filter(pc.and_(pc.greater_equal(keys, -(2**31)), pc.less(keys, 2**31)))
    return kept.cast(pa.int32())


def _speaks_for(type_: PrimitiveType, keys: pa.DataType) -> bool:
    """Whether key values are, as they are, values of the column's type."""
    match type_:
        case IntegerType():
            return bool(pt.is_int32(keys))
        case LongType():
            return bool(pt.is_int64(keys) or pt.is_int32(keys))
        case StringType():
            return bool(pt.is_large_string(keys))
        case DateType():
            return bool(pt.is_date32(keys))
        case TimestampType() | TimestamptzType():
            return (
                bool(pt.is_timestamp(keys))
                and keys.unit == "us"
                and isinstance(type_, TimestamptzType) == bool(keys.tz)
            )
        case DecimalType(scale=scale):
            return bool(pt.is_decimal128(keys)) and keys.scale == scale
    return False


def _canonical(values: pa.Array) -> pa.Array:
    """Literal values as the IR has them: dates and timestamps are numbers."""
    if pt.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pt.is_timestamp(values.type) else values
