"""DataFrames that are small for sure are taken into this process: a Spark job with Python tasks would cost more.

Rule: Spark's own estimate must be small, and the query made only of steps that never put out more than they take in, so
that the estimate cannot be far too low. Fail-safe: whatever cannot be asked (Spark Connect keeps its plans to itself)
or says anything else is not small, and stays in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEVER_GROW = frozenset(
    {
        "Aggregate",
        "DataSourceV2ScanRelation",
        "Distinct",
        "Filter",
        "GlobalLimit",
        "LocalLimit",
        "LocalRelation",
        "LogicalRelation",
        "Project",
        "Range",
        "Sort",
        "Union",
    }
)


def collected(frame: DataFrame, most_bytes: int) -> pa.Table | None:
    """The rows of a DataFrame that is no larger than so many bytes by Spark's estimate; ``None`` when it may be."""
    return frame.toArrow() if is_small(frame, most_bytes) else None


def is_small(frame: DataFrame, most_bytes: int) -> bool:
    """Whether Spark estimates so, from steps whose estimates can be believed."""
    query: Any = getattr(frame, "_jdf", None)
    if query is None:
        return False
    plan = query.queryExecution().optimizedPlan()
    estimate = int(str(plan.stats().sizeInBytes()))
    return estimate <= most_bytes and _NEVER_GROW.issuperset(_steps(plan))


def _steps(plan: Any) -> Iterator[str]:
    yield plan.getClass().getSimpleName()
    children = plan.children()
    for at in range(children.size()):
        yield from _steps(children.apply(at))
