"""The doctor finds no problems in any matrix table written by Spark and Iceberg."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from floeplan.maintenance.doctor import Severity, doctor
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import find_truncation
from tests.support.spark.matrix import Matrix, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("name", parametrized())
def test_a_table_of_spark_is_healthy(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    table = local_catalog.load_table(matrix.table(name).identifier)
    found = doctor(table, sample=200).findings
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []
    listed = [(one, read_manifest_list(one.manifest_list, table.io)) for one in table.metadata.snapshots]
    assert [short for one, manifests in listed if (short := find_truncation(one, manifests)) is not None] == []
