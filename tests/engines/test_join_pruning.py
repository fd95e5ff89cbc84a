"""Large tables are planned by the join keys of small ones, and the rows are those of Iceberg's own jar."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from floeplan.sql_text import join_pruning
from floeplan.sql_text.queries import PlannedQuery
from tests.support.spark.matrix import interpreted

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

MONTHS = 6


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> str:
    """Facts of six months in one file each, of days; days of quarters; quarters of years."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.joins")
    settings = "TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'write.distribution-mode'='none')"
    spark.sql(
        "CREATE TABLE local.joins.facts (id BIGINT, d DATE, part STRING, v INT) USING iceberg "
        f"PARTITIONED BY (months(d)) {settings}"
    )
    for month in range(1, MONTHS + 1):
        days = f"date_add(DATE '2024-0{month}-01', CAST(id AS INT) % 28)"
        rows = f"SELECT id + {month} * 1000, {days}, concat('p', id % 5), CAST(id AS INT) FROM range(0, 60, 1, 1)"
        spark.sql(f"INSERT INTO local.joins.facts {rows}")
    spark.sql("INSERT INTO local.joins.facts SELECT 9000 + id, NULL, NULL, 5 FROM range(0, 3, 1, 1)")
    spark.sql("DELETE FROM local.joins.facts WHERE id % 7 = 3")
    spark.sql(f"CREATE TABLE local.joins.days (d DATE, q INT, name STRING) USING iceberg {settings}")
    spark.sql(
        "INSERT INTO local.joins.days SELECT d, quarter(d), concat('day', dayofyear(d)) FROM "
        "(SELECT explode(sequence(DATE '2024-01-01', DATE '2024-12-31')) AS d) "
        "UNION ALL SELECT NULL, 1, 'none' UNION ALL SELECT NULL, 2, 'day32'"
    )
    spark.sql("DELETE FROM local.joins.days WHERE name = 'day33'")
    spark.sql(f"CREATE TABLE local.joins.quarters (q INT, label STRING, ends BIGINT) USING iceberg {settings}")
    spark.sql("INSERT INTO local.joins.quarters VALUES (1, 'first', 3010), (2, 'second', 6010), (3, 'third', 9100)")
    return "joins"


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few rows are planned by keys, too."""
    monkeypatch.setattr(join_pruning, "LEAST_BYTES", 0)
    monkeypatch.setattr(join_pruning, "LARGER", 0.001)


PRUNED = [
    ("SELECT f.id, q FROM {t}facts f JOIN {t}days USING (d) WHERE name = 'day40'", 1),
    ("SELECT count(*) FROM {t}facts f, {t}days e, {t}quarters r WHERE f.d = e.d AND e.q = r.q AND r.label = 'second'",
     3),
    ("SELECT id FROM {t}facts WHERE d IN (SELECT d FROM {t}days WHERE name IN ('day32', 'day33', 'none'))", 1),
    ("SELECT count(*), max(e.name) FROM {t}facts f JOIN {t}days e ON f.d = e.d WHERE e.name = 'nothing'", 0),
    ("WITH x AS (SELECT d, sum(v) AS s FROM {t}facts GROUP BY d) SELECT x.* FROM x JOIN {t}days e ON x.d = e.d "
     "WHERE e.name < 'day104' AND e.q = 2", 1),
    ("SELECT f.id FROM {t}facts f JOIN {t}quarters r ON f.id = r.ends WHERE r.label <> 'first'", 1),
    ("SELECT f.id FROM (SELECT * FROM {t}facts WHERE v > 7) f JOIN {t}days e ON f.d = e.d AND e.name = 'day70' "
     "WHERE EXISTS (SELECT 1 FROM {t}quarters r WHERE r.q = e.q AND r.ends > 0)", 1),
]  # fmt: skip
"""Queries, and how many of the seven files of facts they read."""

WHOLE = [
    "SELECT e.name, f.id FROM {t}facts f LEFT JOIN {t}days e ON f.d = e.d AND e.name = 'day40'",
    "SELECT e.name, f.id FROM {t}facts f FULL JOIN {t}days e ON f.d = e.d AND e.name = 'day40' AND f.v = 1",
    "SELECT id FROM {t}facts f WHERE NOT EXISTS (SELECT 1 FROM {t}days e WHERE e.d = f.d AND e.name = 'day40')",
    "SELECT id FROM {t}facts f JOIN {t}days e ON f.d <=> e.d WHERE e.name = 'none'",
    "SELECT id FROM {t}facts f JOIN {t}days e ON f.d = e.d OR f.v = e.q WHERE e.name = 'day40'",
    "SELECT id FROM {t}facts f JOIN {t}days e ON f.d = date_add(e.d, 1) WHERE e.name = 'day40'",
    "SELECT f.id FROM (SELECT * FROM {t}facts ORDER BY id LIMIT 90) f JOIN {t}days e ON f.d = e.d WHERE name = 'day40'",
    "SELECT f.r, f.id FROM (SELECT id, d, rank() OVER (ORDER BY id) AS r FROM {t}facts) f JOIN {t}days e ON f.d = e.d "
    "WHERE e.name = 'day40'",
    "WITH f AS (SELECT * FROM {t}facts) SELECT f.id FROM f JOIN {t}days e ON f.d = e.d WHERE e.name = 'day40' "
    "UNION ALL SELECT id FROM f",
    "SELECT f.id FROM (SELECT d, id FROM {t}facts UNION ALL SELECT d, 0 FROM {t}days) f JOIN {t}days e ON f.d = e.d "
    "WHERE e.name = 'day40'",
]
"""Queries in which a row of facts matters without a match, or the keys are not those of a small table."""


@pytest.mark.parametrize(
    ("query", "files"),
    [(query, files) for query, files in PRUNED[:2]]
    + [pytest.param(query, files, marks=pytest.mark.matrix) for query, files in PRUNED[2:]],
)
def test_join_keys_prune_files(
    query: str, files: int, tables: str, any_size: None, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    assert _files_of_facts(spark, local_catalog, tables, query) == files


@pytest.mark.matrix
@pytest.mark.parametrize("query", WHOLE)
def test_rows_that_may_matter_without_a_match_are_read(
    query: str, tables: str, any_size: None, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    # Null days are in a file of their own, which Spark's IS NOT NULL prunes in inner joins.
    assert _files_of_facts(spark, local_catalog, tables, query) >= MONTHS


@pytest.mark.matrix
def test_many_keys_are_a_range(
    tables: str, any_size: None, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    monkeypatch.setattr(join_pruning, "MOST_LISTED", 3)
    query = "SELECT f.id FROM {t}facts f JOIN {t}days e ON f.d = e.d WHERE e.q = 2"
    assert _files_of_facts(spark, local_catalog, tables, query) == 3
    planned = PlannedQuery.of(spark, query.format(t=f"{tables}."), local_catalog)
    assert planned.tables[0].plan is not None
    assert "BETWEEN DATE '2024-04-01' AND DATE '2024-06-30'" in str(planned.tables[0].plan.compiled.predicate)


@pytest.mark.matrix
def test_a_scan_is_reported_once(
    tables: str,
    any_size: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    local_catalog: SqlCatalog,
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(folder))
    PlannedQuery.of(spark, PRUNED[0][0].format(t=f"{tables}."), local_catalog)
    lines = [line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 2


def _files_of_facts(spark: SparkSession, catalog: SqlCatalog, namespace: str, query: str) -> int:
    """The files of facts that a query reads; its rows are those of Iceberg."""
    planned = PlannedQuery.of(spark, query.format(t=f"{namespace}."), catalog)
    (plan,) = [table.plan for table in planned.tables if table.reference.parts[-1] == "facts"]
    assert plan is not None
    with interpreted(spark):
        ours, theirs = (
            Counter(map(str, frame.collect()))
            for frame in (planned.dataframe(), spark.sql(query.format(t=f"local.{namespace}.")))
        )
    assert ours == theirs
    return len(plan.files)
