"""Planning on Spark with a driver of 1 GiB: 4 million files in 40,000 manifests with ``FLOEPLAN_LOAD=large``.

A separate process is the driver. The kernel reports its peak memory, with the interpreter and all libraries; the JVM
has 1 GiB of its own. The plan must be the one that is made without Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bench import planning_tables

import floeplan as fp

pytestmark = [pytest.mark.load, pytest.mark.matrix]

LARGE = os.environ.get("FLOEPLAN_LOAD") == "large"
MANIFESTS = 4000 if LARGE else 20
"""Each is listed 10 times and has 100 files."""
MOST_BYTES = 2**30
PLAN = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import floeplan as fp
from floeplan.spark.planning import SparkPlanning

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
options = fp.ScanOptions(footers=False, cache=False, report=False, planning=SparkPlanning(spark, threshold=1))
plan = fp.plan_scan(sys.argv[1], sys.argv[2], options=options)
status = Path("/proc/self/status").read_text().splitlines()
most = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(plan.summary.files_total, len(plan.files), most * 1024)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning_tables, "CACHE", tmp_path_factory.mktemp("archive"))
        return str(planning_tables.tenfold(MANIFESTS))


@pytest.mark.parametrize(
    "where",
    ["amount BETWEEN 500 AND 501", "ts >= '2021-03-01' AND ts < '2021-03-02'"],
    ids=["bounds", "one day"],
)
def test_a_driver_of_1_gib_plans_a_selective_query(archive: str, where: str) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", PLAN, archive, where]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    total, kept, taken = map(int, done.stdout.split())
    here = fp.plan_scan(archive, where, options=fp.ScanOptions(footers=False, cache=False, report=False))
    assert (total, kept) == (here.summary.files_total, len(here.files))
    assert 0 < kept < total / 10
    assert taken <= MOST_BYTES
