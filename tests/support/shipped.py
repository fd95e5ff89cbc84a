"""Work on a cluster whose executors lack the package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import floeplan as fp
from floeplan.tasks import runner
from tests.support.core_table import QUIET, evolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seen_by_tasks(spark: SparkSession) -> tuple[bool, bool]:
    """Whether tasks find the package, and whether they find its compiled kernels."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        from importlib.util import find_spec

        package = find_spec("floeplan") is not None
        kernels = package and find_spec("floeplan.metadata.avro._avro_decode") is not None
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"package": [package], "kernels": [kernels]})

    found = spark.range(1).mapInArrow(look, "package boolean, kernels boolean").toArrow().to_pylist()[0]
    return found["package"], found["kernels"]


def read_in_tasks(spark: SparkSession, properties: Mapping[str, str]) -> list[int]:
    """The ids of a table, read in Python tasks."""
    table, _ = evolved(properties, 2)
    shown = fp.read(spark, table, columns=["id"], options=fp.ReadOptions(path="arrow", scan=QUIET))
    return sorted(shown.toArrow().column("id").to_pylist())


def appended_in_tasks(spark: SparkSession, properties: Mapping[str, str]) -> list[int]:
    """The ids of rows that Python tasks have written."""
    runner.LOCAL_BYTES = -1  # however few rows there are
    table, _ = evolved(properties, 2)
    fp.append(table, spark.range(1000, 1010, 1, 2))
    added = fp.plan_scan(table, "id >= 1000", options=QUIET).to_arrow(columns=["id"])
    return sorted(added.column("id").to_pylist())


def failure(spark: SparkSession, properties: Mapping[str, str]) -> str:
    """What is said when tasks lack what the package stands on."""
    try:
        read_in_tasks(spark, properties)
    except fp.FloeplanError as error:
        return str(error)
    return "no error"
