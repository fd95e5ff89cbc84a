"""One of everything on an evolved table of formats 2 and 3, on real catalogs, stores and kinds of Spark.

A set of places in which every catalog meets every store it is used with, and every kind of Spark both stores; the
whole matrix of tables is for the embedded catalog alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
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

PLACES = {
    "local": (("sqlite and s3", (2, 3)), ("postgres and files", (2, 3))),
    "cluster": (("rest and s3", (2,)), ("sqlite and files", (3,))),
    "connect": (("sqlite and files", (2,)), ("rest and s3", (3,))),
}
"""For each kind of Spark a representative place and another one, with the formats of its tables: files and objects."""


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """How PyIceberg reaches the catalog of each place."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    home = tmp_path_factory.mktemp("places")
    files, bucket = (home / "warehouse").as_uri(), f"s3://{BUCKET}/warehouse"
    sqlite = {"type": "sql", "uri": f"sqlite:///{home}/files.db", "warehouse": files}
    with postgres() as database, s3_store() as store, rest_catalog(home, bucket, store) as rest:
        yield {
            "sqlite and files": sqlite,
            "postgres and files": sqlite | {"uri": database},
            "sqlite and s3": sqlite | {"uri": f"sqlite:///{home}/s3.db", "warehouse": bucket, **store},
            "rest and s3": {"type": "rest", "uri": rest, **store},
        }


@pytest.fixture(scope="module", params=PLACES)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Client]]:
    """A process with each kind of Spark session in turn."""
    kind: str = request.param
    if kind == "connect":
        with spark_connect(SETTINGS) as url, client(url) as opened:
            yield kind, opened
    elif kind == "cluster":
        with spark_cluster(tmp_path_factory.mktemp("cluster")) as url, client(url, DRIVER) as opened:
            yield kind, opened
    else:
        with client("local[2]", DRIVER) as opened:
            yield kind, opened


@pytest.mark.parametrize(
    "number", [pytest.param(0, id="representative"), pytest.param(1, id="other", marks=pytest.mark.matrix)]
)
def test_everything_works(session: tuple[str, Client], catalogs: dict[str, dict[str, str]], number: int) -> None:
    kind, opened = session
    place, versions = PLACES[kind][number]
    for version in versions:
        opened.run(change_everything, catalogs[place], version, "arrow" if place.endswith("s3") else "native")


def test_every_way_to_read(session: tuple[str, Client], catalogs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    _, opened = session
    opened.run(read_every_way, catalogs["sqlite and files"])
    assert opened.run(audit_reports, tmp_path) == ["user = ?"]
