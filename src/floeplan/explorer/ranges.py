"""A file's bounds beside what a condition wants, on one scale from 0 to 1: what a page draws of them.

Rule: only comparisons and intervals over numbers and times have a picture; the scale holds the bounds and the literals
with some room, and an interval without an end reaches the edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from floeplan.predicate.evaluate import physical
from floeplan.predicate.ir import Between, Cmp, CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import Bound, StatsTable

_ROOM = 0.2
_UPWARDS = (CmpOp.GT, CmpOp.GE)
_DOWNWARDS = (CmpOp.LT, CmpOp.LE)


def drawn_range(conjunct: IrExpr, stats: StatsTable) -> dict[str, Any] | None:
    """Where the first container lies, and where matching rows would; ``None`` where there is nothing to draw."""
    wanted = _wanted(conjunct)
    if wanted is None:
        return None
    column, low, high = wanted
    known = stats.columns.get(column.field_id)
    lower, upper = (None, None) if known is None else (_number(known.lower), _number(known.upper))
    ends = [_finite(physical(column.type, end)) for end in (low, high) if end is not None]
    numbers = [number for number in (lower, upper, *ends) if number is not None]
    if lower is None or upper is None or None in ends:
        return None
    room = (max(numbers) - min(numbers)) * _ROOM or 1.0
    start, width = min(numbers) - room, max(numbers) - min(numbers) + 2 * room
    places = [round((number - start) / width, 4) for number in numbers]
    wanted_low = places[2] if low is not None else 0.0
    wanted_high = places[-1] if high is not None else 1.0
    return {"file": places[:2], "wanted": [wanted_low, wanted_high]}


def _wanted(conjunct: IrExpr) -> tuple[Column, Value | None, Value | None] | None:
    """The column of a condition and the interval it asks for."""
    match conjunct:
        case Between(column, low, high):
            return column, low, high
        case Cmp(column, CmpOp.EQ | CmpOp.NULL_SAFE_EQ, value):
            return column, value, value
        case Cmp(column, op, value) if op in _UPWARDS:
            return column, value, None
        case Cmp(column, op, value) if op in _DOWNWARDS:
            return column, None, value
    return None


def _number(bound: Bound | None) -> float | None:
    if bound is None or not bound.valid[0] or not isinstance(bound.values, np.ndarray):
        return None
    return _finite(bound.values[0].item())


def _finite(value: Value) -> float | None:
    """A number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if np.isfinite(number) else None
