"""The memory of planning: 4 million files in 40,000 manifests with ``FLOEPLAN_LOAD=large``, for ``doctor`` 1 million.

A separate process plans. The kernel reports its peak memory, with the interpreter and all libraries. A scan is planned
on Spark with a driver of 1 GiB; the JVM has 1 GiB of its own, and the plan must be the one that is made without Spark.
The plan of a rewrite, and ``doctor``, keep a limit for each file, beside what the same work takes on a small table; it
is higher for few files, because allocators keep some MB whatever the size.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


REWRITE, DOCTOR = "RewriteDataFilesPlanner(table, cache=False).plan_with_stats()", "doctor(table)"
MEASURE = """
import sys
from pathlib import Path
from floeplan.maintenance.doctor import doctor
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

table = sys.argv[1]
{work}
Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
before, table = status("VmRSS"), sys.argv[2]
{work}
print(status("VmHWM") - before, status("VmHWM"))
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


@pytest.mark.parametrize(
    ("work", "manifests", "bytes_per_file"),
    [(REWRITE, 4000, 400), (DOCTOR, 10_000, 800)] if LARGE else [(REWRITE, 200, 600), (DOCTOR, 400, 1400)],
    ids=["rewrite", "doctor"],
)
def test_memory_per_file(
    work: str, manifests: int, bytes_per_file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_tables, "CACHE", tmp_path)
    make = planning_tables.tenfold if work == REWRITE else planning_tables.evolved
    files = manifests * planning_tables.ENTRIES * (10 if work == REWRITE else 1)
    tables = [str(planning_tables.evolved(5)), str(make(manifests))]
    command = [sys.executable, "-c", MEASURE.format(work=work), *tables]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken, most = map(int, done.stdout.split())
    assert taken <= bytes_per_file * files
    if LARGE and work == DOCTOR:
        assert most <= MOST_BYTES
