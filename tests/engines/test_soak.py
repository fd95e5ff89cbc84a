"""Everybody at once: no row lost, none doubled, and Spark agrees. ``make soak`` runs it for minutes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import floeplan as fp
from tests.support.spark import soak
from tests.support.spark.lake import NAME, Lake
from tests.support.tables.commits import reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

SECONDS = float(os.environ.get("FLOEPLAN_SOAK_SECONDS", "0"))
STEPS = 1_000_000 if SECONDS else 4


@pytest.mark.parametrize(("version", "mode"), [(2, "merge-on-read"), (2, "copy-on-write"), (3, "merge-on-read")])
def test_history_is_serial(lake: Lake, spark: SparkSession, version: int, mode: str) -> None:
    catalog = lake.open_catalog()
    catalog.create_namespace_if_not_exists("soak")
    name = f"soak.v{version}_{mode.replace('-', '_')}"
    table = soak.create(catalog, name, version, mode)
    log = soak.run(catalog, name, steps=STEPS, seconds=SECONDS or float("inf"), seed=100 * version)
    expected = soak.verify(log, table)
    assert soak.read(table.refresh()) == expected
    assert {change for change, _ in log.changes.values()} >= {"append", "stream", "upsert", "delete", "update"}
    rows = spark.table(f"{NAME}.{name}").collect()
    assert sorted(map(tuple, rows)) == sorted((i, *row) for i, row in expected.items())
    assert [finding for finding in fp.doctor(table.refresh()).findings if finding.severity == "error"] == []
    assert all(table.io.new_input(path).exists() for path in reachable(table))
