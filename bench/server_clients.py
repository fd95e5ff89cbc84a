"""Clients that plan scans of one table through a REST catalog, whoever plans: PyIceberg, Iceberg Java and Spark SQL.

Every scan has a number: a selective one reads the number's day of one region, and one of every file selects the
columns of the number's bits. So no two scans are equal, and none comes from a cache of plans.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.catalog.rest import RestCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "db.events"
REGION = "eu"
COLUMNS = ("id", "ts", "region", "amount")
_FIRST = datetime(2022, 1, 1, tzinfo=UTC)


def day(number: int) -> tuple[str, str]:
    """The first instant of a day, and of the next."""
    first = _FIRST + timedelta(days=number)
    return first.isoformat(), (first + timedelta(days=1)).isoformat()


def selected(number: int) -> list[str]:
    """The columns of the bits of a number."""
    return [name for bit, name in enumerate(COLUMNS) if (number % 15 + 1) >> bit & 1]


def request(number: int) -> dict[str, Any]:
    """A selective plan request as Spark sends it: timestamps in microseconds, and NOT NULL of every column."""
    start, micros = round(_FIRST.timestamp()) * 1_000_000 + number * 86_400_000_000, 86_400_000_000
    filter_: dict[str, Any] = {"type": "not-null", "term": "ts"}
    tests = (
        ("gt-eq", "ts", start),
        ("lt", "ts", start + micros),
        ("not-null", "region", None),
        ("eq", "region", REGION),
    )
    for kind, term, value in tests:
        leaf = {"type": kind, "term": term} | ({} if value is None else {"value": value})
        filter_ = {"type": "and", "left": filter_, "right": leaf}
    return {"filter": filter_, "case-sensitive": False, "select": ["id", "ts", "region"]}


class Client(Protocol):
    """Plans scans; returns the number of files, or of partitions of a query."""

    def selective(self, number: int) -> int: ...
    def every_file(self, number: int) -> int: ...


class PyIcebergClient:
    """PyIceberg's ``plan_files``."""

    def __init__(self, uri: str) -> None:
        self._table = RestCatalog("lake", uri=uri).load_table(TABLE)

    def selective(self, number: int) -> int:
        first, last = day(number)
        where = f"ts >= '{first}' and ts < '{last}' and region = '{REGION}'"
        return sum(1 for _ in self._table.scan(row_filter=where).plan_files())

    def every_file(self, number: int) -> int:
        return sum(1 for _ in self._table.scan(selected_fields=tuple(selected(number))).plan_files())


class JavaClient:
    """``planFiles`` of Iceberg's Java library, in the JVM of a Spark session."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._iceberg = jvm.org.apache.iceberg
        properties = jvm.java.util.HashMap()
        properties.put("uri", uri)
        catalog = self._iceberg.rest.RESTCatalog()
        catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
        catalog.initialize("lake", properties)
        self._table = catalog.loadTable(self._iceberg.catalog.TableIdentifier.parse(TABLE))
        self._names = lambda names: jvm.java.util.ArrayList(names)

    def selective(self, number: int) -> int:
        make = self._iceberg.expressions.Expressions
        first, last = day(number)
        tests = (make.greaterThanOrEqual("ts", first), make.lessThan("ts", last), make.equal("region", REGION))
        scan = self._table.newScan()
        for test in tests:
            scan = scan.filter(test)
        return self._drained(scan)

    def every_file(self, number: int) -> int:
        return self._drained(self._table.newScan().select(self._names(selected(number))))

    def _drained(self, scan: Any) -> int:
        tasks = scan.planFiles()
        files: int = self._iceberg.relocated.com.google.common.collect.Iterables.size(tasks)
        tasks.close()
        return files


class SparkClient:
    """Spark SQL from text to the partitions of the query; the files of the table do not exist, so none is read."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark, self._catalog = spark, f"rest_{uri.rpartition(':')[2]}"
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": uri}
        for key, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{key}", value)

    def selective(self, number: int) -> int:
        first, last = day(number)
        return self._partitions(
            f"SELECT id, ts FROM {self._catalog}.{TABLE} "
            f"WHERE ts >= TIMESTAMP '{first}' AND ts < TIMESTAMP '{last}' AND region = '{REGION}'"
        )

    def every_file(self, number: int) -> int:
        return self._partitions(f"SELECT {', '.join(selected(number))} FROM {self._catalog}.{TABLE}")

    def _partitions(self, query: str) -> int:
        frame: Any = self._spark.sql(query)
        found: int = frame._jdf.queryExecution().toRdd().getNumPartitions()
        return found
