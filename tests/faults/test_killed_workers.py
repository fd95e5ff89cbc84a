"""Tasks, executors and whole workers of a cluster killed while they write: the work is done again by others, once.

They are killed at the moment a task begins its file. A task that outlives its executor writes its file to the end, and
nobody takes it.
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
from tests.support.servers import DRIVER, Client, client, spark_cluster
from tests.support.tables.commits import create_table, open_catalog, reachable, read_rows

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    ("append", "task"),
    ("delete", "executor"),
    pytest.param("rewrite", "executor", marks=pytest.mark.matrix),
    ("rewrite", "worker"),
]
"""The worker comes last: it does not come back."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = DRIVER | {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as url, client(url, settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    yield opened
    opened.close()


@pytest.mark.parametrize(("what", "whom"), CASES)
def test_work_that_was_killed_is_done_again_and_counts_once(
    cluster: Client, catalog: SqlCatalog, tmp_path: Path, what: str, whom: str
) -> None:
    name = f"db.t{uuid.uuid4().hex}"
    table = create_table(catalog, name=name)
    rows = read_rows(table)
    kill = tmp_path / "kill"
    kill.write_text(whom)
    killing = {
        PY_IO_IMPL: killing_io.NAME,
        killing_io.KILL: str(kill),
        killing_io.SPARED: str(cluster.run(own_pid)),
    }
    cluster.run(change, dict(catalog.properties) | killing, name, what)
    assert not list(tmp_path.iterdir()), "somebody was killed"
    expected = {
        "append": rows + NEW,
        "delete": [row for row in rows if row[0] % 10 != 3],
        "rewrite": rows,
    }
    assert read_rows(table) == sorted(expected[what])
    assert len(table.refresh().metadata.snapshots) == 4
    assert all(table.io.new_input(path).exists() for path in reachable(table))
    assert [finding for finding in fp.doctor(table).findings if finding.severity == "error"] == []
