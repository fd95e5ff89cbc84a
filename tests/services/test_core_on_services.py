"""One of everything on an evolved table of formats 2 and 3, on real catalogs, stores and kinds of Spark.

A set of places in which every catalog meets every store it is used with, and every kind of Spark both stores; the
whole matrix of tables is for the embedded catalog alone. ``make test`` changes a table on a cluster and with Spark
Connect, and reads in every way with Spark Connect: what a local session does is tested in ``tests/engines``, on an
object store in ``tests/faults``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.servers import (
    BUCKET,
    DRIVER,
    SETTINGS,
    Client,
    client,
    postgres,
    rest_catalog,
    s3_store,
    spark_cluster,
    spark_connect,
)
from tests.support.spark.core_table import audit_reports, change_everything, read_every_way

pytestmark = pytest.mark.services

KINDS = {
    "local": [("sqlite and s3", 2), ("sqlite and s3", 3), ("postgres and files", 2), ("postgres and files", 3)],
    "cluster": [("rest and s3", 3), ("rest and s3", 2), ("sqlite and files", 3)],
    "connect": [("sqlite and files", 2), ("rest and s3", 3)],
}
"""For each kind of Spark its places, each a catalog with a store, and the format version of the table there.

The first place is the representative one.
"""
TO_CHANGE_ON = [pytest.param("local", marks=pytest.mark.matrix), "cluster", "connect"]
TO_READ_ON = [*(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("local", "cluster")), "connect"]


class Places:
    """How PyIceberg reaches the catalog of each place; servers start when a place first needs them."""

    def __init__(self, home: Path, started: ExitStack) -> None:
        self._home, self._started = home, started

    @cached_property
    def _store(self) -> dict[str, str]:
        return self._started.enter_context(s3_store())

    @cached_property
    def _rest(self) -> str:
        return self._started.enter_context(rest_catalog(self._home, f"s3://{BUCKET}/warehouse", self._store))

    @cached_property
    def _database(self) -> str:
        return self._started.enter_context(postgres())

    def properties(self, place: str) -> dict[str, str]:
        files = {"type": "sql", "warehouse": (self._home / "warehouse").as_uri()}
        match place:
            case "sqlite and files":
                return files | {"uri": f"sqlite:///{self._home}/files.db"}
            case "postgres and files":
                return files | {"uri": self._database}
            case "sqlite and s3":
                bucket = {"uri": f"sqlite:///{self._home}/s3.db", "warehouse": f"s3://{BUCKET}/warehouse"}
                return files | bucket | self._store
            case "rest and s3":
                return {"type": "rest", "uri": self._rest, **self._store}
        raise AssertionError(place)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with ExitStack() as started:
        yield Places(tmp_path_factory.mktemp("places"), started)


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A process with each kind of Spark session in turn."""
    if request.param == "connect":
        with spark_connect(SETTINGS) as url, client(url) as opened:
            yield opened
    elif request.param == "cluster":
        with spark_cluster(tmp_path_factory.mktemp("cluster")) as url, client(url, DRIVER) as opened:
            yield opened
    else:
        with client("local[2]", DRIVER) as opened:
            yield opened


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("session", TO_CHANGE_ON, indirect=True)
def test_everything_works(session: Client, places: Places, others: bool, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["session"]
    for place, version in KINDS[kind][1:] if others else KINDS[kind][:1]:
        path = "arrow" if place.endswith("s3") else "native"
        session.run(change_everything, places.properties(place), version, path)


@pytest.mark.parametrize("session", TO_READ_ON, indirect=True)
def test_every_way_to_read(session: Client, places: Places, tmp_path: Path) -> None:
    session.run(read_every_way, places.properties("sqlite and files"))
    assert session.run(audit_reports, tmp_path) == ["user = ?"]
