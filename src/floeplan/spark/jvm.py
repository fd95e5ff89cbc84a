"""Internal JVM APIs of classic Spark that have no public equivalent. The only module that uses them.

- ``with_settings`` runs one query with settings of its own. PySpark offers ``newSession()``, which loses the temporary
  views, functions and cached tables that the query uses; ``cloneSession`` keeps them but is not public.
- ``optimized_plan`` gives the optimizer's size estimate. PySpark only prints it (``explain(mode="cost")``).

Fail-safe: without these APIs (Spark Connect, another version of Spark) queries run with the settings of their session,
and no DataFrame counts as small. ``tests/engines/test_spark_jvm.py`` fails when Spark changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JavaObject: TypeAlias = Any
"""A py4j proxy of an object in the JVM."""


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
