"""The 22 queries of TPC-H, and RF1 and RF2, on evolved tables: rows equal to Iceberg's own jar and to DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from pyspark.sql import functions as F  # noqa: N812

import floeplan as fp
from tests.support.tpch.queries import QUERIES
from tests.support.tpch.tables import DELETED, build, generate, same_rows

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

SCALE = 0.002
FEW = {(21, 2)}
"""Correlated subqueries."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return generate(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def tables(files: dict[str, Path], local_catalog: SqlCatalog) -> dict[int, str]:
    """The namespace of the tables of each format version."""
    namespaces = {version: f"tpch{version}" for version in (2, 3)}
    for version, namespace in namespaces.items():
        build(local_catalog, namespace, files, version)
    return namespaces


@pytest.fixture(scope="module")
def oracle(files: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same rows in DuckDB, from the generated files."""
    with duckdb.connect() as connection:
        for name, path in files.items():
            kept = f"WHERE NOT ({DELETED[name]})" if name in DELETED else ""
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}' {kept}")
        yield connection


@pytest.mark.parametrize(
    ("number", "version"),
    [
        pytest.param(number, version, marks=() if (number, version) in FEW else pytest.mark.matrix)
        for number in QUERIES
        for version in (2, 3)
    ],
)
def test_rows_equal_iceberg_and_duckdb(
    number: int,
    version: int,
    tables: dict[int, str],
    oracle: duckdb.DuckDBPyConnection,
    spark: SparkSession,
    local_catalog: SqlCatalog,
) -> None:
    query = QUERIES[number]
    ours = fp.sql(query.format(t=f"{tables[version]}."), spark=spark, catalog=local_catalog).collect()  # type: ignore[union-attr]
    theirs = spark.sql(query.format(t=f"local.{tables[version]}.")).collect()
    assert same_rows(ours, theirs)
    assert same_rows(ours, oracle.execute(query.format(t="")).fetchall())


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.matrix)])
def test_refresh_functions(
    version: int, tables: dict[int, str], files: dict[str, Path], spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    """RF1 inserts orders with new keys and their line items; RF2 deletes them again, by key."""
    offset = 10_000_000
    names = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
    before = _counts(spark, tables[version])
    for name, key in names.items():
        rows = spark.read.parquet(str(files[name])).where(f"{key} <= 200").withColumn(key, F.col(key) + offset)
        fp.append(local_catalog.load_table(f"{tables[version]}.{name}"), rows, spark=spark)
        assert _counts(spark, tables[version])[name] == before[name] + rows.count()
    for name, key in names.items():
        statement = f"DELETE FROM {tables[version]}.{name} WHERE {key} > {offset}"
        fp.sql(statement, spark=spark, catalog=local_catalog, mode="merge-on-read")
    assert _counts(spark, tables[version]) == before


def _counts(spark: SparkSession, namespace: str) -> dict[str, int]:
    return {name: spark.table(f"local.{namespace}.{name}").count() for name in ("orders", "lineitem")}
