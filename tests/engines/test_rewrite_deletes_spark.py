"""Spark with Iceberg's own jar on tables whose position delete files were merged or became deletion vectors."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from tests.support.spark.matrix import Matrix, MatrixTable, interpreted

pytestmark = pytest.mark.engines


def contents(table: MatrixTable) -> dict[int, str]:
    """Every row by its key, as text, since NaN does not equal itself."""
    with interpreted(table.spark):
        return {row["pk"]: repr(row) for row in table.rows().to_pylist()}


@pytest.mark.parametrize("version", [2, 3])
def test_spark_reads_and_deletes_the_same_rows_afterwards(
    matrix: Matrix, local_catalog: SqlCatalog, version: int
) -> None:
    made = matrix.fork("truncations_v2_position_partition")
    rows = contents(made)
    if version == 3:
        fp.upgrade_format(local_catalog.load_table(made.identifier), 3)
    done = fp.rewrite_position_delete_files(local_catalog.load_table(made.identifier), rewrite_all=True)
    assert done.rewritten_delete_files > 0
    assert contents(made) == rows
    made.spark.sql(f"DELETE FROM {made.name} WHERE pk % 2 = 0")
    assert contents(made) == {key: row for key, row in rows.items() if key % 2}
