"""Internal JVM APIs of classic Spark that have no public equivalent. The only module that uses them.

- ``with_settings`` runs one query with its own settings. PySpark offers ``newSession()``, which loses the temporary
  views, functions and cached tables that the query uses; ``cloneSession`` keeps them but is not public.
- ``collect_if_small`` collects DataFrames that are certain to be small, since a Spark job with Python tasks costs more.
  It needs the optimizer's size estimate (``optimized_plan``), which PySpark only prints (``explain(mode="cost")``).
- ``with_size`` gives Spark the size and number of the rows it reads, by which it chooses and (with
  ``spark.sql.cbo.enabled``) orders joins; there is no public way to do so.
- ``select_texts`` selects expressions that are sent to the JVM once, since PySpark makes a call for each.
- ``unscaled`` sends decimals to Python tasks as integers. Spark makes a ``BigDecimal`` of each to write it to an Arrow
  vector, which takes 0.1 microseconds; its expression of unscaled values is no SQL function.
- ``pushdown`` reads the filters and columns of each table from the optimized plan, unless the query ``reads_clock``.

A DataFrame is small if Spark's own estimate is small and its query consists of operators whose output is never larger
than their input, so that the estimate cannot be far too low. Spark estimates every string and list at a few bytes
however long it is, so a value that the query computes must be of a type of fixed width.

Fail-safe: without these APIs (Spark Connect, another version of Spark) queries run with the settings of their session,
and no DataFrame counts as small; nor does one with any other operator or type. ``tests/engines/test_spark_jvm.py``
fails when Spark changes the APIs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def unscaled(frame: DataFrame, names: Sequence[str]) -> DataFrame | None:
    """The rows with some decimals of up to 18 digits as their unscaled values; ``None`` where that is not possible."""
    session: Any = frame.sparkSession
    try:
        from pyspark.sql.classic.column import Column

        from floeplan.spark.types import quoted  # needs pyspark, which this module does not

        sql, query = session._jvm.org.apache.spark.sql, frame._jdf
        utils, value = sql.classic.ExpressionUtils, sql.catalyst.expressions.UnscaledValue
        found: dict[str, Any] = {
            name: Column(utils.column(value(utils.expression(query.col(quoted(name)))))) for name in names
        }
        return frame.withColumns(found)
    except Exception:  # py4j raises many classes; integers are an optimisation
        return None


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


def with_size(frame: DataFrame, size: int, rows: int) -> DataFrame:
    """A DataFrame that only reads files, for which Spark estimates this size in bytes and number of rows; unchanged
    where that fails.

    Spark takes the size of files for that of their rows, unless the relation has statistics of a catalog table. It uses
    the number of rows, instead of the size, if the session enables ``spark.sql.cbo.enabled``.
    """
    session: Any = frame.sparkSession
    try:
        jvm, relation = session._jvm, frame._jdf.queryExecution().analyzed()
        tables = _sized_tables(jvm, session._sc._gateway)
        table = jvm.scala.Some(tables.of(size, rows))
        sized = relation.copy(relation.relation(), relation.output(), table, relation.isStreaming(), relation.stream())
        found = sized.stats()
        if found.rowCount().isEmpty() and int(str(found.sizeInBytes())) != size:
            return frame
        return type(frame)(tables.dataset.ofRows(session._jsparkSession, sized), session)
    except Exception:  # py4j raises many classes; the size is an estimate
        return frame


class _SizedTables:
    """Makes ``CatalogTable`` objects that only have a size and a number of rows.

    What they share is made once: a call of the JVM costs 0.3 ms, and a class takes one for each part of its name.
    """

    def __init__(self, jvm: JavaObject, gateway: JavaObject) -> None:
        catalog = jvm.org.apache.spark.sql.catalyst.catalog
        defaults = _scala_object(catalog, "CatalogTable")
        parameters = _java_class(jvm, "org.apache.spark.sql.catalyst.catalog.CatalogTable").getConstructors()[0]
        self._others = [
            getattr(defaults, f"apply$default${at}")() for at in range(5, parameters.getParameterCount() + 1)
        ]
        self._first = (
            jvm.org.apache.spark.sql.catalyst.TableIdentifier("floeplan"),
            _scala_object(catalog, "CatalogTableType").EXTERNAL(),
            _scala_object(catalog, "CatalogStorageFormat").empty(),
            jvm.org.apache.spark.sql.types.StructType(),  # estimates take the columns of the relation
        )
        self._table, self._some, self._arguments = catalog.CatalogTable, jvm.scala.Some, jvm.java.util.ArrayList
        self._statistics = self._statistics_of_numbers(jvm, gateway)
        self.dataset = jvm.org.apache.spark.sql.classic.Dataset

    def of(self, size: int, rows: int) -> JavaObject:
        arguments = self._arguments()
        arguments.add(size)
        arguments.add(rows)
        statistics = self._statistics.invokeWithArguments(arguments)
        others = [*self._others]
        others[8] = self._some(statistics)  # its parameter ``stats``
        return self._table(*self._first, *others)

    @staticmethod
    def _statistics_of_numbers(jvm: JavaObject, gateway: JavaObject) -> JavaObject:
        """A method handle that makes ``CatalogStatistics`` of a size and a number of rows.

        py4j turns Scala's big integers into Python's, so the JVM has to make the arguments.
        """
        big, option, some, map_, object_ = (
            _java_class(jvm, name)
            for name in (
                "scala.math.BigInt", "scala.Option", "scala.Some", "scala.collection.immutable.Map", "java.lang.Object"
            )
        )  # fmt: skip

        def method_type(returned: JavaObject, *taken: JavaObject) -> JavaObject:
            listed = jvm.java.util.ArrayList()
            for one in taken:
                listed.add(one)
            return jvm.java.lang.invoke.MethodType.methodType(returned, listed)

        handles, nothing = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.Void.TYPE
        lookup, statistics = handles.publicLookup(), "org.apache.spark.sql.catalyst.catalog.CatalogStatistics"
        constructor = lookup.findConstructor(_java_class(jvm, statistics), method_type(nothing, big, option, map_))
        number = lookup.findStatic(big, "apply", method_type(big, jvm.java.lang.Long.TYPE))
        known = lookup.findConstructor(some, method_type(nothing, object_)).asType(method_type(option, big))
        filters = gateway.new_array(jvm.java.lang.invoke.MethodHandle, 2)
        filters[0], filters[1] = number, handles.filterReturnValue(number, known)
        rest = gateway.new_array(jvm.java.lang.Object, 1)
        rest[0] = _scala_object(jvm.scala.collection.immutable, "Map").empty()
        return handles.insertArguments(handles.filterArguments(constructor, 0, filters), 2, rest)


@lru_cache(maxsize=1)
def _sized_tables(jvm: JavaObject, gateway: JavaObject) -> _SizedTables:
    return _SizedTables(jvm, gateway)


def _scala_object(package: JavaObject, name: str) -> JavaObject:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _java_class(jvm: JavaObject, name: str) -> JavaObject:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)


def select_texts(frame: DataFrame, texts: tuple[str, ...]) -> DataFrame:
    """``selectExpr`` whose expressions are sent to the JVM once: a call for each takes longer than Spark's part."""
    query: Any = getattr(frame, "_jdf", None)
    try:
        listed = _sequence(frame.sparkSession, texts)
    except Exception:  # Spark Connect has no JVM; py4j raises many classes
        return frame.selectExpr(*texts)
    return type(frame)(query.selectExpr(listed), frame.sparkSession)


@lru_cache(maxsize=512)
def _sequence(session: SparkSession, texts: tuple[str, ...]) -> JavaObject:
    """Texts as a Scala sequence."""
    jvm: Any = session._jvm
    return jvm.PythonUtils.toSeq([*texts])


def reads_clock(frame: DataFrame) -> bool:
    """Whether a query has a function of the current time, which Spark replaces whenever it optimizes the query."""
    session: Any = frame.sparkSession
    query: Any = frame._jdf
    return bool(query.queryExecution().analyzed().containsPattern(_clock_pattern(session._jvm)))


@lru_cache(maxsize=1)
def _clock_pattern(jvm: JavaObject) -> JavaObject:
    return jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()


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
