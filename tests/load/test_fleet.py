"""Many small tables in PostgreSQL's catalog: one run, two runs at once, and one that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Operation

import floeplan as fp
from floeplan.fleet.lease import live_claims
from floeplan.fleet.run import MaintainOptions, run_maintenance
from tests.support.servers import postgres

pytestmark = [pytest.mark.load, pytest.mark.matrix]

TABLES = 500 if os.environ.get("FLOEPLAN_LOAD") == "large" else 30
SMALL = TABLES // 10
"""Tables of many small files; the others are healthy."""
FILES = 12
SECONDS = 0.3
"""CPU time of a healthy table, at most."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("fleet")
    with postgres() as database:
        yield {"type": "sql", "uri": database, "warehouse": home.as_uri()}


@pytest.fixture(scope="module")
def lake(properties: dict[str, str]) -> Iterator[Catalog]:
    opened = load_catalog("fleet", **properties)
    opened.create_namespace("db")
    for number in range(TABLES):
        table = opened.create_table(f"db.t{number:04d}", pa.schema([("id", pa.int64())]))
        for at in range(FILES if number < SMALL else 1):
            fp.append(table, pa.table({"id": [at]}), fast=True)
    yield opened
    opened.close()


def small_tables(lake: Catalog) -> dict[str, tuple[list[int], int]]:
    """The rows of every table that had small files, and how often they were merged."""
    found = {}
    for number in range(SMALL):
        table = lake.load_table(f"db.t{number:04d}")
        ids = fp.plan_scan(table, options=fp.ScanOptions(report=False)).to_arrow()["id"].to_pylist()
        operations = [one.summary.operation for one in table.metadata.snapshots if one.summary]
        found[f"db.t{number:04d}"] = (sorted(ids), operations.count(Operation.REPLACE))
    return found


def start(properties: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.faults.fleet_process", json.dumps(properties), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_healthy_table_takes_little_time(lake: Catalog) -> None:
    healthy = tuple(f"db.t{number:04d}" for number in range(SMALL, TABLES))
    started = time.process_time()
    result = run_maintenance(MaintainOptions(tables=healthy, dry_run=True), catalog=lake)
    used = (time.process_time() - started) / len(healthy)
    assert {table.health for table in result.tables} == {"healthy"}
    assert not any(table.work for table in result.tables)
    sys.stdout.write(f"\n{len(healthy)} tables: {used:.3f} s of CPU, {result.seconds / len(healthy):.3f} s each\n")
    assert used < SECONDS


def test_two_runs_at_once_and_one_killed(lake: Catalog, properties: dict[str, str]) -> None:
    runs = [start(properties), start(properties, str(max(1, SMALL // 4)))]
    outputs = [run.communicate()[0] for run in runs]
    assert runs[0].returncode == 0
    first = json.loads(outputs[0])
    statuses = Counter(one["status"] for table in first["tables"] for one in table["work"] if one["kind"] == "compact")
    assert statuses.keys() <= {"done", "busy", "not-needed"}
    if runs[1].returncode == 0:  # it had less to do than what it is killed after
        assert json.loads(outputs[1])["left"] is not None
    after = time.time() + 3600
    last = run_maintenance(MaintainOptions(tables=("db.*",), clock=lambda: after), catalog=lake)
    assert last.exit_code == 0
    assert small_tables(lake) == {f"db.t{n:04d}": (list(range(FILES)), 1) for n in range(SMALL)}
    claims = [live_claims(lake.load_table(f"db.t{n:04d}").metadata.properties, after) for n in range(SMALL)]
    assert not any(claims)
