"""A streaming query from one table into another whose driver is killed in its second batch.

``python -m tests.support.faults.killed_stream FOLDER STEP`` continues a query until the step; then the session's Python
process and its JVM are killed. Spark calls a data source in worker processes, so the killing source is a class that
they import.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floeplan.datasource.io import StreamAppends
from floeplan.datasource.source import FloeplanSource
from tests.support.spark.lake import QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

STEPS = ("writing", "written", "committed")
"""In a task after rows were read; after all files were written; after the commit, before Spark notes the batch."""
FIRST, MORE = range(10), range(10, 20)
_STEP, _DRIVER = "KILLED_STREAM_STEP", "KILLED_STREAM_DRIVER"


class KillingSource(FloeplanSource):
    """Floeplan's data source, with a writer that kills the driver."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KillingWriter:  # noqa: N802
        return KillingWriter(self._source_options, overwrite)


class KillingWriter(StreamAppends):
    """Kills the driver at the step that the environment names, in the second batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(map(_seen, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId:
            _reached("written")
        super().commit(messages, batchId)
        if batchId:
            _reached("committed")


def _seen(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(k in MORE for k in batch.column("k").to_pylist()):
        _reached("writing")
    return batch


def _reached(step: str) -> None:
    """Kill the driver's process group; Spark's workers are not in it."""
    if os.environ[_STEP] == step:
        os.killpg(int(os.environ[_DRIVER]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def catalog_options(folder: Path) -> dict[str, str]:
    """Stream options for the catalog of a folder."""
    return {
        "catalog": "streams",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder / 'catalog.db'}",
        "catalog.warehouse": folder.as_uri(),
    }


def open_catalog(folder: Path) -> SqlCatalog:
    options = catalog_options(folder)
    return SqlCatalog("streams", uri=options["catalog.uri"], warehouse=options["catalog.warehouse"])


def add(table: Table, numbers: range) -> None:
    table.append(pa.table({"k": pa.array(numbers, pa.int64())}))


def stream(spark: SparkSession, folder: Path, sink: str) -> None:
    """Run all available batches from ``db.source`` into ``db.sink`` with the given format."""
    options = catalog_options(folder)
    rows = spark.readStream.format("floeplan").options(**options, table="db.source").load()
    query = rows.writeStream.format(sink).options(**options, table="db.sink")
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def main(folder: Path, step: str) -> None:
    from pyspark.sql import SparkSession

    os.environ |= {_STEP: step, _DRIVER: str(os.getpid()), "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", QUICK_JVM)
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.dataSource.register(KillingSource)
    stream(spark, folder, "killing")


if __name__ == "__main__":
    from tests.support.faults import killed_stream  # the workers import the source from here, not from __main__

    killed_stream.main(Path(sys.argv[1]), sys.argv[2])
