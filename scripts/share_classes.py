"""Archive the classes that Spark loads in `.cache`, so that the JVMs of the tests start with half the CPU time.

This is the JVM's application class-data sharing. An archive is valid for one class path and one JVM; others ignore it.
It holds Spark's own classes only, so that sessions with Iceberg's jar, clusters and Connect servers share one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(__file__).resolve().parent.parent / ".cache"
ARCHIVE = CACHE / f"spark-{pyspark.__version__}.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM warns of every class that it cannot archive, and of an archive that it cannot use."""
SHARED_CLASSES = f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}"
"""The options of a JVM that uses the archive; it starts without one that is missing."""

# The statements of a usual test: what they load is what is archived.
_SESSION = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.createDataFrame(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
rows.createOrReplaceTempView("rows")
path = sys.argv[1]
spark.sql("SELECT a.id, b.name FROM rows a JOIN rows b ON a.id = b.id").write.partitionBy("name").parquet(path)
read = spark.read.parquet(path).where("id > 1")
read.mapInArrow(lambda batches: batches, "id long, name string").groupBy("name").count().orderBy("name").toArrow()
spark.stop()
"""


def ensure_class_archive() -> None:
    """Write the archive if it is missing; a JVM that cannot write one is not an error, because tests run without it."""
    if ARCHIVE.exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        made = Path(scratch) / ARCHIVE.name
        options = f"-XX:ArchiveClassesAtExit={made} {_QUIET}"
        submit = f'--driver-java-options "{options}" pyspark-shell'
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": submit}
        # The JVM holds the captured streams, so this waits until it has written the archive and exited.
        subprocess.run([sys.executable, "-c", _SESSION, f"{scratch}/rows"], env=environment, capture_output=True)
        if made.exists():
            made.rename(ARCHIVE)


if __name__ == "__main__":
    ensure_class_archive()
