"""Flink with Iceberg's runtime reads and writes through the proxy, whoever plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.flink import run_flink
from tests.support.rest_server import program
from tests.support.servers import rest_catalog

pytestmark = [pytest.mark.services, pytest.mark.foreign]

STATEMENTS = (
    "CREATE DATABASE lake.db",
    "CREATE TABLE lake.db.t (id BIGINT, region STRING) PARTITIONED BY (region)",
    "INSERT INTO lake.db.t VALUES (1, 'eu'), (2, 'us'), (3, 'eu'), (4, CAST(NULL AS STRING))",
    "INSERT INTO lake.db.t VALUES (5, 'eu'), (6, 'us')",
    "SELECT id, region FROM lake.db.t WHERE region = 'eu' AND id > 1",
    "SELECT -count(*), 'rows' FROM lake.db.t",
)
FOLLOWED = (
    *STATEMENTS[:3],
    "STREAM SELECT * FROM lake.db.t /*+ OPTIONS('streaming'='true', 'monitor-interval'='100ms') */ WHERE id > 1",
    "NEXT 3",
    "INSERT INTO lake.db.t VALUES (5, 'eu'), (1, 'us')",
    "NEXT 1",
)


@pytest.mark.parametrize("mode", ["client", "server"])
def test_flink_through_the_proxy(mode: str, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    plan = ("--plan", "*", "--replace-upstream-planning") if mode == "server" else ()
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "server", "--upstream", behind, *plan) as served,
    ):
        catalog = f"CREATE CATALOG lake WITH ('type'='iceberg', 'catalog-type'='rest', 'uri'='{served.uri}')"
        assert run_flink(tmp_path, catalog, *STATEMENTS) == ["+I[-6, rows]", "+I[3, eu]", "+I[5, eu]"]
        plans = served.events("plan")
    assert bool(plans) == (mode == "server")
    assert {event["engine"] for event in plans} <= {"Iceberg Java"}


def test_flink_follows_a_table_through_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "server", "--upstream", behind) as served,
    ):
        catalog = f"CREATE CATALOG lake WITH ('type'='iceberg', 'catalog-type'='rest', 'uri'='{served.uri}')"
        assert run_flink(tmp_path, catalog, *FOLLOWED) == ["+I[2, us]", "+I[3, eu]", "+I[4, null]", "+I[5, eu]"]
        assert not served.events("plan")
