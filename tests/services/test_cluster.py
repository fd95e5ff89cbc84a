"""A standalone cluster of two workers: every operation, processes killed while tasks write, executors without Floeplan.

One cluster serves all tests of this module, and one driver those whose executors have Floeplan. A process is killed
when a task opens its output file: Spark runs the task again, and its rows must be committed once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import PY_IO_IMPL

import floeplan as fp
from tests.support.faults import killed_workers as killing_io
from tests.support.faults.killed_workers import NEW, change, own_pid
from tests.support.servers import BARE_PYTHON, DRIVER, LIBRARIES, Client, Places, client, spark_cluster
from tests.support.spark.core_table import (
    appended_in_tasks,
    audit_reports,
    change_everything,
    failure,
    read_every_way,
    read_in_tasks,
    seen_by_tasks,
)
from tests.support.tables.commits import create_table, fork, open_catalog, reachable, read_rows
from tests.support.tables.ranges import skewed_table, sort_in_ranges

pytestmark = pytest.mark.services

PLACES = [
    ("sqlite and files", 3),
    ("rest and s3", 3),
    ("rest and s3", 2),
]
BARE = DRIVER | {"spark.executorEnv.PYTHONPATH": "", "spark.python.daemon.module": "pyspark.daemon"}
"""Settings of a driver whose executors have neither Floeplan nor its dependencies."""
KILLED = [
    ("append", "task"),
    ("delete", "executor"),
    ("rewrite", "executor"),
    ("range-reads", "executor"),
    ("shuffle", "task"),
    ("shuffle", "executor"),
    ("rewrite", "worker"),
]
"""The worker is last, because nothing starts it again."""


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture(scope="module")
def cluster(cluster_url: str) -> Iterator[Client]:
    with client(cluster_url, DRIVER) as opened:
        yield opened


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    yield opened
    opened.close()


@pytest.mark.matrix
def test_executors_without_floeplan_receive_it(cluster_url: str, places: Places) -> None:
    """The first test of this module: the driver of the others keeps all cores of the cluster."""
    properties = places.properties("sqlite and files")
    with client(cluster_url, BARE | {"spark.executorEnv.PYTHONPATH": LIBRARIES}, python=BARE_PYTHON) as lacking_package:
        assert lacking_package.run(seen_by_tasks) == (False, False)
        assert lacking_package.run(appended_in_tasks, properties) == list(range(1000, 1010))
        assert lacking_package.run(seen_by_tasks) == (True, True)
        assert lacking_package.run(read_in_tasks, properties) == list(range(120))


@pytest.mark.matrix
def test_a_missing_dependency_of_executors_is_named(cluster_url: str, places: Places) -> None:
    with client(cluster_url, BARE, python=BARE_PYTHON) as lacking_everything:
        message = lacking_everything.run(failure, places.properties("sqlite and files"))
    assert "Spark's executors have no Python module" in message
    assert "install floeplan there" in message


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]} v{place[1]}")
def test_every_operation_on_an_evolved_table(cluster: Client, places: Places, place: tuple[str, int]) -> None:
    where, version = place
    path = "arrow" if where.endswith("s3") else "native"
    cluster.run(change_everything, places.properties(where), version, path)


@pytest.mark.matrix
def test_every_way_to_read(cluster: Client, places: Places, tmp_path: Path) -> None:
    cluster.run(read_every_way, places.properties("sqlite and files"))
    assert cluster.run(audit_reports, tmp_path) == ["user = ?"]


@pytest.mark.matrix
@pytest.mark.parametrize("by", [("v", "name"), ("id",)])
def test_a_large_group_is_sorted_in_ranges_by_both_workers(
    cluster: Client, tmp_path: Path, by: tuple[str, ...]
) -> None:
    """The rows and their order are those of one task."""
    table = skewed_table(tmp_path)
    alone = fork(table, "db.alone")
    fp.rewrite_data_files(alone, strategy="sort", by=by, options={"rewrite-all": "true"})
    ranges = cluster.run(sort_in_ranges, dict(table.catalog.properties), table.name(), by)
    assert [one["rows_by"] for one in ranges] == ["range-reads" if by == ("id",) else "shuffle"]
    assert ranges[0]["tasks"] > 2
    found, expected = (fp.plan_scan(one.refresh()).to_arrow().to_pylist() for one in (table, alone))
    assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.matrix
@pytest.mark.parametrize(("what", "killed"), KILLED)
def test_a_killed_task_runs_again_and_is_committed_once(
    cluster: Client, catalog: SqlCatalog, tmp_path: Path, what: str, killed: str
) -> None:
    name = f"db.t{uuid.uuid4().hex}"
    table = create_table(catalog, name=name)
    rows = read_rows(table)
    kill = tmp_path / "kill"
    kill.write_text(killed)
    killing = {
        PY_IO_IMPL: killing_io.NAME,
        killing_io.KILL: str(kill),
        killing_io.SPARED: str(cluster.run(own_pid)),
    }
    cluster.run(change, dict(catalog.properties) | killing, name, what)
    assert not list(tmp_path.iterdir()), "no process was killed"
    expected = {
        "append": rows + NEW,
        "delete": [row for row in rows if row[0] % 10 != 3],
        "rewrite": rows,
        "range-reads": rows,
        "shuffle": rows,
    }
    assert read_rows(table) == sorted(expected[what])
    assert len(table.refresh().metadata.snapshots) == 4
    assert all(table.io.new_input(path).exists() for path in reachable(table))
    assert [finding for finding in fp.doctor(table).findings if finding.severity == "error"] == []
