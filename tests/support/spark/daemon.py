"""PySpark's daemon with Floeplan already imported: a worker that it forks runs its first task a second sooner.

Spark starts one daemon per kind of Python worker, and the tests use workers of many kinds. Sessions name this module in
``spark.python.daemon.module``; ``DAEMON`` has the settings for that.
"""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DAEMON = {"spark.python.daemon.module": __name__, "spark.executorEnv.PYTHONPATH": str(ROOT)}
USED_BY_TASKS = (
    "floeplan.datasource.source",
    "floeplan.dml.row_task",
    "floeplan.dml.spark_rows",
    "floeplan.rewrite.run.rewrite_group",
    "floeplan.spark.planning",
    "floeplan.spark.read.reader",
    "floeplan.spark.write",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
)

if __name__ == "__main__":
    for name in USED_BY_TASKS:
        importlib.import_module(name)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
