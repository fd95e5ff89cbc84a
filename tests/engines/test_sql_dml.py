"""Every statement run by ``fp.sql`` has the same result as Spark's own on a second table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException

import floeplan as fp
from floeplan.errors import FloeplanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

COLUMNS = "id BIGINT, region STRING, d DATE, v DOUBLE, n DECIMAL(9, 2), s STRUCT<city: STRING, zip: INT>"
_numbers = count()

STATEMENTS = (
    "INSERT INTO {t} VALUES (900, 'eu', DATE '2024-05-01', 1, 2.5, named_struct('city', 'x', 'zip', 7))",
    "INSERT INTO {t} (region, ID) VALUES ('xx', 901), (NULL, 902)",
    "INSERT INTO {t} BY NAME SELECT v * 2 AS v, id + 1000 AS id, 'by name' AS region FROM {s}",
    "INSERT INTO {t} PARTITION (region = 'zz') SELECT id, d, v, n, s FROM {s} WHERE id < 3",
    "WITH few AS (SELECT * FROM {s} LIMIT 0) INSERT INTO {t} SELECT * FROM few UNION ALL TABLE {s}",
    "INSERT INTO {t} SELECT a.* FROM {s} a, {s} AS b WHERE a.id = b.id AND a.id = 7",
    "DELETE FROM {t} WHERE id % 7 = 3",
    "DELETE FROM {t} AS x WHERE x.region = 'us' AND X.V > 10 OR x.s.zip = 4",
    "DELETE FROM {t} WHERE regexp_extract(region, '(.)$', 1) = 'p' AND id < 20",
    "UPDATE {t} SET v = v + 1, region = upper(region) WHERE id BETWEEN 5 AND 9 OR region IS NULL",
    "UPDATE {t} AS x SET x.s.city = concat(x.s.city, '!'), n = CASE WHEN x.id > 20 THEN 1 ELSE n END WHERE x.id > 15",
    "UPDATE {t} SET d = date_add(d, 40) WHERE month(d) = 3 AND id % 2 = 0",
    "MERGE INTO {t} AS t USING {s} AS s ON t.id = s.id WHEN MATCHED AND s.v IS NULL THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "MERGE INTO {t} t USING (SELECT id, max(v) AS w FROM {s} GROUP BY id) n ON t.id = n.id AND t.region <> 'ap' "
    "WHEN MATCHED AND n.w > 3 THEN UPDATE SET t.v = t.v + n.w, region = 'merged' "
    "WHEN NOT MATCHED AND n.id > 40 THEN INSERT (id, v) VALUES (n.id + 500, n.w) "
    "WHEN NOT MATCHED BY SOURCE AND t.id > 100 THEN UPDATE SET v = -1 "
    "WHEN NOT MATCHED BY SOURCE AND t.v < 5 THEN DELETE",
    "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'one'), (2, 'two') AS v(id, name)) AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET region = s.name",
    "MERGE INTO {t} t USING news ON t.id = news.id WHEN MATCHED THEN DELETE",
    "MERGE INTO {t} t USING parquet.`{file}` p ON t.id = p.id WHEN MATCHED THEN UPDATE SET region = p.name "
    "WHEN NOT MATCHED THEN INSERT (id, region) VALUES (p.id, p.name)",
    "INSERT OVERWRITE {t} PARTITION (region = 'zz') SELECT id + 5, d, v, n, s FROM {s} WHERE id < 2",
    "INSERT INTO {t} REPLACE WHERE region = 'zz' SELECT id, 'zz', d, v, n, s FROM {s} WHERE id = 6",
    "DELETE FROM {t} WHERE id IN (SELECT id FROM {s} WHERE v > 3) AND region <> 'ap'",
    "DELETE FROM {t} AS x WHERE EXISTS (SELECT 1 FROM {s} AS y WHERE y.id = x.id + 1) OR x.id IN (21, 22)",
    "DELETE FROM {t} WHERE d >= DATE '2024-03-05' AND id NOT IN (SELECT max(id) FROM {t} GROUP BY id % 9)",
    "UPDATE {t} AS x SET v = -2, x.s.city = 'sub' WHERE x.id BETWEEN 3 AND 40 AND "
    "(x.v < (SELECT avg(v) FROM {s}) OR x.v IN (SELECT v FROM {s} s WHERE s.region = x.region AND id > 10))",
    "DELETE FROM {t} WHERE FALSE",
    "INSERT OVERWRITE {t} SELECT * FROM {s}",
    "DELETE FROM {t}",
)
REFUSED = (
    "INSERT INTO {t} VALUES (1, 2)",
    "INSERT INTO {t} (id) VALUES ('text')",
    "INSERT INTO {t} (id, nope) VALUES (1, 2)",
    "INSERT INTO {t} PARTITION (v = 1) SELECT id, region, d, n, s FROM {s}",
    "INSERT INTO {t} SELECT * FROM nowhere",
    "UPDATE {t} SET nope = 1",
    "UPDATE {t} SET id = 'text'",
    "DELETE FROM {t} WHERE nope = 1",
    "DELETE FROM {t} WHERE id IN (SELECT nope FROM {s})",
    "DELETE FROM {t} WHERE id IN (SELECT id FROM nowhere.at_all)",
    "MERGE INTO {t} t USING {s} s ON t.region = s.region WHEN MATCHED THEN UPDATE SET v = s.v",
    "MERGE INTO {t} t USING {s} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = nope.v",
)


class Twins:
    """Two evolved tables with the same initial files."""

    def __init__(self, spark: SparkSession, catalog: SqlCatalog, version: int, file: Path) -> None:
        self.spark, self.catalog, self.file = spark, catalog, file
        number = next(_numbers)
        self.theirs, self.ours = f"local.sqltwins.spark_{number}", f"local.sqltwins.floeplan_{number}"
        self.source = f"local.sqltwins.source_{number}"
        mode = "copy-on-write" if version == 1 else "merge-on-read"
        modes = ", ".join(f"'write.{command}.mode'='{mode}'" for command in ("delete", "update", "merge"))
        spark.sql("CREATE NAMESPACE IF NOT EXISTS local.sqltwins")
        for name in (self.theirs, self.source):
            spark.sql(
                f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (months(d)) "
                f"TBLPROPERTIES ('format-version'='{version}', {modes})"
            )
        spark.sql(f"INSERT INTO {self.theirs} {rows('range(0, 30)')}")
        spark.sql(f"ALTER TABLE {self.theirs} REPLACE PARTITION FIELD d_month WITH region")
        spark.sql(f"INSERT INTO {self.theirs} {rows('range(30, 40)')}")
        spark.sql(f"DELETE FROM {self.theirs} WHERE id IN (4, 33)")
        spark.sql(f"INSERT INTO {self.source} {rows('range(0, 60, 6)')}")
        metadata = catalog.load_table(self.theirs.removeprefix("local.")).metadata_location
        spark.sql(f"CALL local.system.register_table(table => '{self.ours}', metadata_file => '{metadata}')")

    def text(self, statement: str, table: str) -> str:
        return statement.format(t=table, s=self.source, file=self.file)

    def run(self, statement: str, session: SparkSession | None) -> None:
        self.spark.sql(self.text(statement, self.theirs))
        fp.sql(session, self.text(statement, self.ours), catalog=self.catalog)
        assert self.rows(self.ours) == self.rows(self.theirs), statement

    def rows(self, table: str) -> Counter[object]:
        return Counter(self.spark.table(table).collect())


def rows(source: str) -> str:
    return (
        "SELECT id, element_at(array('eu', 'us', 'ap'), CAST(id % 3 AS INT) + 1), "
        "date_add(DATE '2024-03-01', CAST(id AS INT)), IF(id % 10 = 0, NULL, id / 2), CAST(id AS DECIMAL(9, 2)), "
        "named_struct('city', concat('c', id), 'zip', CAST(id AS INT)) "
        f"FROM {source}"
    )


@pytest.fixture(scope="module")
def file(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Parquet file, and a view called news."""
    path = tmp_path_factory.mktemp("sql") / "new.parquet"
    pq.write_table(pa.table({"id": [3, 800], "name": ["three", "eight hundred"]}), path)
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW news AS SELECT * FROM VALUES (12L), (13L) AS n(id)")
    yield path
    spark.catalog.dropTempView("news")


@pytest.mark.parametrize(
    ("version", "chosen"),
    [
        pytest.param(1, (2, 6, 9, 12, 13, 17, 19, 24), marks=pytest.mark.matrix),
        (2, range(0, len(STATEMENTS), 3)),
        pytest.param(2, range(len(STATEMENTS)), marks=pytest.mark.matrix),
        (3, (7, 10, 13, 20)),
        pytest.param(3, (3, 8, 12, 18, 22, 25), marks=pytest.mark.matrix),
    ],
)
def test_statements(
    spark: SparkSession, local_catalog: SqlCatalog, file: Path, version: int, chosen: Sequence[int]
) -> None:
    twins = Twins(spark, local_catalog, version, file)
    for number in chosen:
        twins.run(STATEMENTS[number], spark)
    assert not [table.name for table in spark.catalog.listTables() if table.name.startswith("floeplan_")]


IN_PROCESS = (1, 6, 7, 9, 10, 12, 16, 23, 25)


def test_statements_without_a_session(spark: SparkSession, local_catalog: SqlCatalog, file: Path) -> None:
    twins = Twins(spark, local_catalog, 2, file)
    for number in IN_PROCESS:
        twins.run(STATEMENTS[number], None)


def test_dynamic_overwrite_is_logical(spark: SparkSession, local_catalog: SqlCatalog, file: Path) -> None:
    """As in Spark if all files had the current spec: rows of the month spec in the same regions are replaced too."""
    twins = Twins(spark, local_catalog, 2, file)
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        text = twins.text("INSERT OVERWRITE {t} SELECT * FROM {s} WHERE id = 6", twins.ours)
        fp.sql(spark, text, catalog=local_catalog)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    left = spark.table(twins.ours).groupBy("region").count().collect()
    assert {row["region"]: row["count"] for row in left}["eu"] == 1
    assert {row["region"] for row in left} == {"eu", "us", "ap"}


@pytest.mark.parametrize("session", [True, False])
def test_what_spark_refuses_is_refused(
    spark: SparkSession, local_catalog: SqlCatalog, file: Path, session: bool
) -> None:
    twins = Twins(spark, local_catalog, 2, file)
    before = local_catalog.load_table(twins.ours.removeprefix("local.")).metadata_location
    for statement in REFUSED:
        with pytest.raises(PySparkException):
            spark.sql(twins.text(statement, twins.theirs)).collect()
        with pytest.raises(FloeplanError) as refused:
            fp.sql(spark if session else None, twins.text(statement, twins.ours), catalog=local_catalog)
        assert refused.value.exit_code == 2, statement
    assert local_catalog.load_table(twins.ours.removeprefix("local.")).metadata_location == before


def test_a_branch_by_name(spark: SparkSession, local_catalog: SqlCatalog, file: Path) -> None:
    twins = Twins(spark, local_catalog, 2, file)
    spark.sql(f"ALTER TABLE {twins.ours} CREATE BRANCH audit")
    branch = f"{twins.ours}.branch_audit"
    fp.sql(spark, f"DELETE FROM {branch} WHERE id < 10", catalog=local_catalog)
    fp.sql(spark, f"INSERT INTO {branch} SELECT * FROM {branch} WHERE id = 20", catalog=local_catalog)
    assert spark.table(branch).where("id < 10").count() == 0
    assert spark.table(branch).where("id = 20").count() == 2
    assert twins.rows(twins.ours) == twins.rows(twins.theirs)
