"""Internal JVM APIs of classic Spark that have no public equivalent. The only module that uses them.

- ``with_settings`` runs one query with its own settings. PySpark offers ``newSession()``, which loses the temporary
  views, functions and cached tables that the query uses; ``cloneSession`` keeps them but is not public.
- ``collect_if_small`` collects DataFrames that are certain to be small, since a Spark job with Python tasks costs more.
  It needs the optimizer's size estimate (``optimized_plan``), which PySpark only prints (``explain(mode="cost")``).

A DataFrame is small if Spark's own estimate is small and its query consists of operators whose output is never larger
than their input, so that the estimate cannot be far too low. Spark estimates every string and list at a few bytes
however long it is, so a value that the query computes must be of a type of fixed width.

Fail-safe: without these APIs (Spark Connect, another version of Spark) queries run with the settings of their session,
and no DataFrame counts as small; nor does one with any other operator or type. ``tests/engines/test_spark_jvm.py``
fails when Spark changes the APIs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JavaObject: TypeAlias = Any
"""A py4j proxy of an object in the JVM."""

_SOURCES = ("DataSourceV2ScanRelation", "LocalRelation", "LogicalRelation", "Range")
_NEVER_GROW = frozenset((*_SOURCES, "Distinct", "Filter", "GlobalLimit", "LocalLimit", "Sort", "Union"))
"""Operators of a logical plan whose output is never larger than their input; they compute no values."""
_MAX_RESULT_SIZE = "spark.driver.maxResultSize"
"""The setting that Spark names in the error of a job whose tasks return too much."""
_NUMBERS = ("byte", "decimal", "double", "float", "integer", "long", "short")
FIXED_WIDTH = frozenset((*_NUMBERS, "boolean", "date", "timestamp", "timestamp_ntz"))
"""Types whose values all have the same size, by their Spark name."""


def with_settings(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The same query in a copy of its session with these settings; the query itself where that is not possible."""
    session: Any = frame.sparkSession
    try:
        copied = session._jsparkSession.cloneSession()
        for name, value in settings.items():
            copied.conf().set(name, value)
        datasets = session._jvm.org.apache.spark.sql.classic.Dataset
        # The analysed plan keeps references to views, variables and cached data that are resolved already.
        return type(frame)(datasets.ofRows(copied, frame._jdf.queryExecution().analyzed()), session)
    except Exception:  # py4j raises many classes; the settings are an optimisation
        return frame


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
    if name not in ("Aggregate", "Project"):
        return name in _NEVER_GROW
    for value in elements(node.expressions()):
        inner = value.child() if class_name(value) == "Alias" else value
        # Spark knows the size of a column of the input, of a type of fixed width, and of a short literal.
        if class_name(inner) == "AttributeReference" or inner.dataType().typeName().partition("(")[0] in FIXED_WIDTH:
            continue
        if class_name(inner) != "Literal" or len(str(inner.sql())) > inner.dataType().defaultSize():
            return False
    return True


def optimized_plan(frame: DataFrame) -> JavaObject | None:
    """The root of the optimized logical plan; ``None`` for Spark Connect, which has no JVM in this process."""
    query: Any = getattr(frame, "_jdf", None)
    return None if query is None else query.queryExecution().optimizedPlan()


def plan_nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """A node of a plan and all nodes below it."""
    yield plan
    for child in elements(plan.children()):
        yield from plan_nodes(child)


def elements(sequence: JavaObject) -> Iterator[JavaObject]:
    """The elements of a Scala sequence."""
    return (sequence.apply(at) for at in range(sequence.size()))


def class_name(node: JavaObject) -> str:
    """The simple name of a node's class, such as ``Project``."""
    return str(node.getClass().getSimpleName())
