"""Every operation on an evolved table of formats 2 and 3, on real catalogs and stores, locally and with Spark Connect.

``test_cluster`` does the same on a standalone cluster. Together they combine every catalog with every store it is used
with, and every kind of Spark with both stores. ``make test`` runs Spark Connect on local files: ``tests/engines`` tests
local sessions, ``tests/faults`` object stores and REST catalogs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import BARE_PYTHON, CONNECT, DRIVER, LIBRARIES, Client, Places, client, spark_connect
from tests.support.spark.core_table import (
    audit_reports,
    change_everything,
    read_every_way,
    read_in_tasks,
    seen_by_tasks,
)
from tests.support.spark.daemon import ROOT

pytestmark = [pytest.mark.services, pytest.mark.matrix]

KINDS = {
    "local": [("sqlite and s3", 2), ("sqlite and s3", 3), ("postgres and files", 2), ("postgres and files", 3)],
    "connect": [("sqlite and files", 2), ("rest and s3", 3)],
}
"""For each kind of Spark: a catalog with a store, and the format version of the table there."""


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A process with a Spark session of the requested kind."""
    if request.param == "connect":
        # A Connect server does not apply `spark.executorEnv` to the tasks of its clients.
        with spark_connect(CONNECT, {"PYTHONPATH": str(ROOT)}) as url, client(url) as opened:
            yield opened
    else:
        with client("local[2]", DRIVER) as opened:
            yield opened


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("session", ["local", "connect"], indirect=True)
def test_every_operation_on_an_evolved_table(
    session: Client, places: Places, others: bool, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["session"]
    for place, version in KINDS[kind][1:] if others else KINDS[kind][:1]:
        path = "arrow" if place.endswith("s3") else "native"
        session.run(change_everything, places.properties(place), version, path)


@pytest.mark.parametrize("session", ["local", "connect"], indirect=True)
def test_every_way_to_read(session: Client, places: Places, tmp_path: Path) -> None:
    session.run(read_every_way, places.properties("sqlite and files"))
    assert session.run(audit_reports, tmp_path) == ["user = ?"]


def test_workers_of_connect_receive_floeplan(places: Places) -> None:
    bare = {"PYSPARK_PYTHON": BARE_PYTHON, "PYTHONPATH": LIBRARIES}
    with spark_connect({}, bare) as url, client(url) as connected:
        assert connected.run(seen_by_tasks) == (False, False)
        assert connected.run(read_in_tasks, places.properties("sqlite and files")) == list(range(120))
        assert connected.run(seen_by_tasks) == (True, True)
