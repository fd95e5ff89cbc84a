"""Changes that Spark's tasks make, run in a process with a session on a cluster (``tests.support.clients``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.tasks import runner
from tests.support.commits import arrow, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEW = rows_of(100, 150, "a") + rows_of(150, 200, "b")


def own_pid(_: SparkSession) -> int:
    return os.getpid()


def change(spark: SparkSession, properties: Mapping[str, str], name: str, what: str) -> None:
    """Do it, in tasks however little there is to do."""
    runner.LOCAL_BYTES = -1
    catalog = SqlCatalog("local", **properties)
    table = catalog.load_table(name)
    if what == "append":
        fp.append(table, spark.createDataFrame(arrow(NEW)).repartition(2))
    elif what == "delete":
        fp.delete(table, "id % 10 = 3", spark=spark, mode="copy-on-write")
    else:
        fp.rewrite_data_files(table, spark=spark, strategy="sort", by=["id"], options={"rewrite-all": "true"})
    catalog.close()
