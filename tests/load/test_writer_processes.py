"""Many small writer processes on SQL and REST catalogs: every row once, no files left over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import floeplan as fp
from tests.support.faults.writer_processes import Writers
from tests.support.servers import postgres, rest_catalog
from tests.support.tables.commits import leftovers

pytestmark = [pytest.mark.load, pytest.mark.matrix]

NUMBER = 64 if os.environ.get("FLOEPLAN_LOAD") == "large" else 8
PATIENT = {
    "commit.retry.num-retries": "1000",
    "commit.retry.min-wait-ms": "10",
    "commit.retry.total-timeout-ms": "1800000",
}
HASTY = {"commit.retry.num-retries": "0"}


@pytest.fixture(scope="module", params=["postgres", "rest"])
def properties(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Properties of the catalog."""
    home: Path = tmp_path_factory.mktemp(request.param)
    warehouse = (home / "warehouse").as_uri()
    if request.param == "postgres":
        with postgres() as database:
            yield {"type": "sql", "uri": database, "warehouse": warehouse}
    else:
        with rest_catalog(home, warehouse, {}) as uri:
            yield {"type": "rest", "uri": uri}


@pytest.fixture(scope="module")
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    opened = load_catalog("many", **properties)
    opened.create_namespace("db")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def writers(properties: dict[str, str]) -> Iterator[Writers]:
    with Writers(properties, NUMBER) as started:
        yield started


def rows_written(catalog: Catalog, writers: Writers, name: str, retries: dict[str, str]) -> int:
    """The number of writers that succeeded: the table has exactly their rows, each from its own snapshot.

    The catalog leaves metadata files of failed attempts.
    """
    catalog.create_table(name, pa.schema([("id", pa.int64())]), properties=retries)
    through = writers.append_at_once(name)
    table = catalog.load_table(name)
    assert sorted(fp.plan_scan(table).to_arrow()["id"].to_pylist()) == through
    assert len(table.metadata.snapshots) == len(through)
    assert not [path for path in leftovers(table) if ".metadata.json" not in path]
    return len(through)


def test_processes_with_many_retries_all_commit(catalog: Catalog, writers: Writers) -> None:
    assert rows_written(catalog, writers, "db.patient", PATIENT) == NUMBER


def test_processes_that_give_up_leave_nothing_behind(catalog: Catalog, writers: Writers) -> None:
    assert 1 <= rows_written(catalog, writers, "db.hasty", HASTY) <= NUMBER
