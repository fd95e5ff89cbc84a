"""The doctor finds no problems in any matrix table of Spark and Iceberg, and what it recommends settles the matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from floeplan.maintenance import doctor as rules
from floeplan.maintenance.doctor import Severity, doctor
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import find_truncation
from tests.support.advice import follow_advice
from tests.support.spark.matrix import Matrix, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

    from tests.support.spark.lake import Lake

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("name", parametrized())
def test_a_table_of_spark_is_healthy(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    table = local_catalog.load_table(matrix.table(name).identifier)
    found = doctor(table, sample=200).findings
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []
    listed = [(one, read_manifest_list(one.manifest_list, table.io)) for one in table.metadata.snapshots]
    assert [short for one, manifests in listed if (short := find_truncation(one, manifests)) is not None] == []


@pytest.mark.parametrize("name", parametrized(few=("evolving_v2_position_file", "voids_v1_to_v2_equality")))
def test_advice_is_gone_once_it_is_followed(
    name: str, matrix: Matrix, local_catalog: SqlCatalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in lake.environment().items():
        monkeypatch.setenv(key, value)
    for limit, low in (("MANY_SMALL_FILES", 2), ("SPREAD", 1.5), ("MANY_SNAPSHOTS", 2)):
        monkeypatch.setattr(rules, limit, low)
    made = matrix.table(name)
    location = local_catalog.load_table(made.identifier).metadata_location
    follow_advice(local_catalog.register_table(f"{made.identifier}_advised", location))
