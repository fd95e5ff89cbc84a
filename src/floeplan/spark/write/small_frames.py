"""DataFrames that are small for sure are taken into this process: a Spark job with Python tasks would cost more.

Rule: Spark's own estimate must be small, and the query made only of steps that never put out more than they take in, so
that the estimate cannot be far too low. Spark counts every text and every list as a few bytes however long it is, so a
value that a step makes must be of a type whose values are all of one width. Fail-safe: whatever cannot be asked (Spark
Connect keeps its plans to itself) or says anything else is not small, and stays in Spark.
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
_MOST_RESULTS = "spark.driver.maxResultSize"
"""Named by the error that ends a job when all tasks together return more."""
_MAKE_VALUES = frozenset({"Aggregate", "Project"})
ONE_WIDTH = frozenset(
    {
        "boolean",
        "byte",
        "date",
        "decimal",
        "double",
        "float",
        "integer",
        "long",
        "short",
        "timestamp",
        "timestamp_ntz",
    }
)


def collected(frame: DataFrame, most_bytes: int) -> pa.Table | None:
    """The rows of a DataFrame that is no larger than so many bytes by Spark's estimate; ``None`` when it may be.

    Spark estimates files as they are stored. Rows that turn out to be more than the driver takes stay in Spark too.
    """
    if not is_small(frame, most_bytes):
        return None
    try:
        return frame.toArrow()
    except Exception as error:
        if _MOST_RESULTS in str(error):
            return None
        raise


def is_small(frame: DataFrame, most_bytes: int) -> bool:
    """Whether Spark estimates so, from steps whose estimates can be believed."""
    query: Any = getattr(frame, "_jdf", None)
    if query is None:
        return False
    plan = query.queryExecution().optimizedPlan()
    estimate = int(str(plan.stats().sizeInBytes()))
    return estimate <= most_bytes and all(map(_is_believed, _steps(plan)))


def _steps(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _steps(child)


def _is_believed(step: Any) -> bool:
    name = _class(step)
    return name in _NEVER_GROW and (name not in _MAKE_VALUES or all(map(_is_counted, _each(step.expressions()))))


def _is_counted(value: Any) -> bool:
    """Whether Spark's size of a value is no guess: passed on as it came, of one width, or a short constant."""
    inner = value.child() if _class(value) == "Alias" else value
    if _class(inner) == "AttributeReference" or inner.dataType().typeName().partition("(")[0] in ONE_WIDTH:
        return True
    return _class(inner) == "Literal" and len(str(inner.sql())) <= inner.dataType().defaultSize()


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(at) for at in range(items.size()))


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())
