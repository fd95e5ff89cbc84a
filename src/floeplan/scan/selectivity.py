"""Which share of a table's rows a predicate is expected to want, by the bounds of the files that are kept.

Values are taken to be spread evenly between their bounds, and columns to be independent of each other. It is a guess
for people, never a reason to drop anything. What bounds say little about (strings, ``!=``, opaque pieces, nulls) is not
guessed: such a conjunct counts as wanting every row, and a predicate of nothing else has no estimate.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from floeplan.predicate.build import push_not
from floeplan.predicate.evaluate import physical
from floeplan.predicate.ir import And, Between, Cmp, CmpOp, InList, IrExpr, Or
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import ColumnStats, StatsTable

Shares = npt.NDArray[np.float64]


def selectivity(expr: IrExpr, files: StatsTable, rows: npt.NDArray[np.int64], rows_total: int) -> float | None:
    """The expected share of matching rows; ``None`` when bounds cannot tell.

    Args:
        expr: The predicate.
        files: Bounds of the kept files; the others hold no matching row.
        rows: Rows of each kept file.
        rows_total: Rows of the table.
    """
    shares = _shares(push_not(expr), files)
    if shares is None or not rows_total:
        return None
    return min(1.0, float((shares * rows).sum()) / rows_total)


def _shares(expr: IrExpr, files: StatsTable) -> Shares | None:
    match expr:
        case And(operands):
            known = [part for part in (_shares(operand, files) for operand in operands) if part is not None]
            return np.prod(known, axis=0) if known else None
        case Or(operands):
            parts = [_shares(operand, files) for operand in operands]
            given = [part for part in parts if part is not None]
            return np.minimum(np.sum(given, axis=0), 1.0) if len(given) == len(parts) else None
        case Cmp(column, op, value):
            return _within(files.columns.get(column.field_id), op, physical(column.type, value))
        case Between(column, low, high):
            known_column = files.columns.get(column.field_id)
            below = _within(known_column, CmpOp.LE, physical(column.type, high))
            above = _within(known_column, CmpOp.GE, physical(column.type, low))
            return None if below is None or above is None else np.maximum(below + above - 1.0, 0.0)
        case InList(column, values, False):
            found = [_within(files.columns.get(column.field_id), CmpOp.EQ, physical(column.type, v)) for v in values]
            given = [part for part in found if part is not None]
            return np.minimum(np.sum(given, axis=0), 1.0) if given else None
    return None


def _within(stats: ColumnStats | None, op: CmpOp, value: Value) -> Shares | None:
    """The share of each file's values on the wanted side; all of them where a file has no bounds."""
    if stats is None or stats.lower is None or stats.upper is None or not isinstance(value, int | float):
        return None
    lower, upper = stats.lower.values, stats.upper.values
    if not isinstance(lower, np.ndarray) or not isinstance(upper, np.ndarray):
        return None
    low, high = lower.astype(np.float64), upper.astype(np.float64)
    step = 1.0 if lower.dtype.kind == "i" else 0.0
    width = np.maximum(high - low + step, np.finfo(np.float64).tiny)
    match op:
        case CmpOp.LT | CmpOp.LE:
            share = (value - low + step * (op is CmpOp.LE)) / width
        case CmpOp.GT | CmpOp.GE:
            share = (high - value + step * (op is CmpOp.GE)) / width
        case CmpOp.EQ | CmpOp.NULL_SAFE_EQ if step:
            share = np.where((low <= value) & (value <= high), step / width, 0.0)
        case _:
            return None
    return np.where(stats.lower.valid & stats.upper.valid, np.clip(share, 0.0, 1.0), 1.0)
