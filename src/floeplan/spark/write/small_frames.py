"""DataFrames that are certain to be small are collected here: a Spark job with Python tasks costs more.

Rule: Spark's own size estimate must be small, and the query must consist of operators whose output is never larger than
their input, so that the estimate cannot be far too low. Spark estimates every string and list at a few bytes however
long it is, so a value that the query computes must be of a type of fixed width.

Fail-safe: any other operator or type, and Spark Connect, whose plans cannot be inspected, stay in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from floeplan.spark.jvm import JavaObject, class_name, elements, optimized_plan, plan_nodes

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
"""Operators of a logical plan whose output is never larger than their input."""
_COMPUTE_VALUES = frozenset({"Aggregate", "Project"})
_MAX_RESULT_SIZE = "spark.driver.maxResultSize"
"""The setting that Spark names in the error of a job whose tasks return too much."""
FIXED_WIDTH = frozenset(
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
"""Types whose values all have the same size, by their Spark name."""


def collect_if_small(frame: DataFrame, max_bytes: int) -> pa.Table | None:
    """The rows of a DataFrame that Spark estimates at no more than ``max_bytes``; ``None`` when it may be larger.

    Spark estimates files by their stored size. Rows that exceed ``spark.driver.maxResultSize`` stay in Spark, too.
    """
    if not is_small(frame, max_bytes):
        return None
    try:
        return frame.toArrow()
    except Exception as error:
        if _MAX_RESULT_SIZE in str(error):
            return None
        raise


def is_small(frame: DataFrame, max_bytes: int) -> bool:
    """Whether Spark estimates a DataFrame at no more than ``max_bytes``, with reliable estimates."""
    plan = optimized_plan(frame)
    if plan is None:
        return False
    estimate = int(str(plan.stats().sizeInBytes()))
    return estimate <= max_bytes and all(map(_is_reliable, plan_nodes(plan)))


def _is_reliable(node: JavaObject) -> bool:
    """Whether the output of an operator is never larger than its input, values that it computes included."""
    name = class_name(node)
    if name not in _COMPUTE_VALUES:
        return name in _NEVER_GROW
    return all(map(_has_known_size, elements(node.expressions())))


def _has_known_size(value: JavaObject) -> bool:
    """Whether Spark knows the size of a value: a column of the input, a type of fixed width, or a short literal."""
    inner = value.child() if class_name(value) == "Alias" else value
    if class_name(inner) == "AttributeReference" or inner.dataType().typeName().partition("(")[0] in FIXED_WIDTH:
        return True
    return class_name(inner) == "Literal" and len(str(inner.sql())) <= inner.dataType().defaultSize()
