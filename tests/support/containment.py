"""The judge of statistics: whatever a container holds, its statistics must admit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pyiceberg.types import PrimitiveType

from floeplan.predicate.evaluate import physical
from floeplan.predicate.stats import Bound, ColumnStats


def assert_admits(stats: ColumnStats, containers: Sequence[int], values: Sequence[Any], type_: PrimitiveType) -> None:
    """Each value lies in the container beside it; nulls, NaN and values outside the bounds must not be ruled out."""
    lowers, uppers = listed(stats.lower), listed(stats.upper)
    for container, value in zip(containers, values, strict=True):
        if value is None:
            assert stats.may_null[container], f"a null in container {container} is ruled out"
        elif isinstance(value, float) and math.isnan(value):
            assert stats.may_nan[container], f"a NaN in container {container} is ruled out"
        else:
            number = physical(type_, value)
            assert stats.may_value[container], f"{value!r} in container {container} is ruled out"
            lower, upper = lowers[container] if lowers else None, uppers[container] if uppers else None
            assert lower is None or lower <= number, f"{value!r} is below the lower bound {lower!r} of {container}"
            assert upper is None or number <= upper, f"{value!r} is above the upper bound {upper!r} of {container}"


def listed(bound: Bound | None) -> list[Any]:
    """Bounds as Python values, None where there is none."""
    if bound is None:
        return []
    values = bound.values.tolist() if isinstance(bound.values, np.ndarray) else bound.values.to_pylist()
    return [value if valid else None for value, valid in zip(values, bound.valid.tolist(), strict=True)]
