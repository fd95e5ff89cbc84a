"""Queries run by ``fp.sql`` return the rows of Spark with Iceberg's own jar, and plan only what they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import floeplan as fp
from floeplan.errors import BadInputError
from floeplan.predicate.ir import TRUE
from floeplan.spark.jvm import optimized_plan
from floeplan.sql_text.queries import PlannedQuery
from tests.support.spark.matrix import BRANCH, FEW, TAG, Matrix, interpreted, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.engines

QUERIES = (
    "SELECT a.pk, b.n, b.s FROM {t} a JOIN {t} b ON a.pk = b.pk AND b.n > 0 WHERE a.region = 'eu' AND b.pk < 4000",
    "SELECT a.pk, b.pk FROM {t} a LEFT JOIN {t} b ON a.pk = b.pk AND b.region = 'us' WHERE b.v IS NULL AND a.id > 0",
    "SELECT a.pk, b.pk FROM {t} a FULL JOIN {t} b ON a.pk = b.pk + 1 AND a.region = 'eu' WHERE b.region = 'us'",
    "WITH x AS (SELECT * FROM {t} WHERE day >= DATE '2024-02-29') SELECT pk FROM x WHERE region = 'eu' "
    "UNION ALL SELECT n FROM x WHERE region IS NULL",
    "SELECT pk FROM {t} WHERE id IN (SELECT id FROM {t} WHERE region = 'ap') EXCEPT SELECT pk FROM {t} WHERE n = 7",
    "SELECT region, count(*), max(s), sum(d) FROM {t} o WHERE EXISTS (SELECT 1 FROM {t} i WHERE i.id = o.id "
    "AND i.flag) GROUP BY region HAVING count(*) > 1",
    "SELECT pk, v FROM {t} WHERE v > (SELECT min(v) FROM {t} WHERE region = 'us') OR isnan(v)",
    "SELECT pk, nested.a FROM {t} WHERE nested.a = 3 OR s LIKE 'a long%' AND NOT (n IN (0, -1))",
    "SELECT count(*) FROM {t} WHERE ts >= '2024-02-29' AND ts < TIMESTAMP '2024-03-02' + INTERVAL 1 DAY",
    "SELECT x.pk FROM {t} x, LATERAL (SELECT max(pk) AS m FROM {t} y WHERE y.region = x.region) WHERE x.pk = m",
    "SELECT pk, rank() OVER (PARTITION BY region ORDER BY pk) AS r FROM {t} WHERE region = 'eu' AND id IS NOT NULL",
    "SELECT * FROM {t} WHERE ts_ntz < current_timestamp() AND region <> 'eu'",
    "SELECT pk, _file, _POS, _spec_id FROM {t} WHERE region = 'eu' AND `_pos` % 2 = 0 AND _file LIKE '%parquet'",
    "SELECT a._spec_id, count(*), max(b._pos), sum(a.pk * 2) FROM {t} a JOIN {t} b ON a.pk = b.pk AND a._pos >= 1 "
    "GROUP BY a._spec_id",
)


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_rows_equal_those_of_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    columns = set(made.columns)
    chosen = [query for query in QUERIES if columns.issuperset(_used(query))]
    assert chosen
    number = sorted(parametrized_names()).index(name)
    with interpreted(matrix.spark):
        for query in chosen[number % 5 :: 5]:  # a fifth of the queries on each table
            ours = fp.sql(query.format(t=made.identifier), spark=matrix.spark, catalog=local_catalog)
            assert _rows(ours) == _rows(matrix.spark.sql(query.format(t=made.name))), query


def parametrized_names() -> list[str]:
    return [str(parameters.values[0]) for parameters in parametrized(few=FEW)]


def _used(query: str) -> set[str]:
    """The columns of the matrix that a query may refer to."""
    known = ["pk", "id", "region", "ts", "ts_ntz", "day", "v", "f", "d", "n", "s", "flag", "nested"]
    words = set(query.replace(".", " ").replace("(", " ").replace(")", " ").replace(",", " ").split())
    return words & set(known)


def _rows(frame: object) -> Counter[str]:
    return Counter(map(str, _frame(frame).collect()))


def _frame(result: object) -> DataFrame:
    from pyspark.sql import DataFrame

    assert isinstance(result, DataFrame)
    return result


@pytest.fixture(scope="module")
def events(spark: SparkSession, local_catalog: SqlCatalog) -> str:
    """A table of five months in files of two specs, with position deletes."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.queries")
    name = "local.queries.events"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, region STRING, d DATE, ts TIMESTAMP, v DOUBLE) USING iceberg PARTITIONED BY "
        "(months(d)) TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    rows = (
        "SELECT id + {m} * 100, element_at(array('eu', 'us'), CAST(id % 2 AS INT) + 1), "
        "date_add(DATE '2024-0{m}-01', CAST(id AS INT) % 20), timestamp_seconds(id + 1700000000), id / 2 FROM range(40)"
    )
    for month in (1, 2, 3):
        spark.sql(f"INSERT INTO {name} {rows.format(m=month)}")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD region")
    for month in (4, 5):
        spark.sql(f"INSERT INTO {name} {rows.format(m=month)}")
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    spark.sql("CREATE TABLE local.queries.names (id BIGINT, name STRING) USING iceberg")
    spark.sql("INSERT INTO local.queries.names SELECT id * 7, concat('n', id) FROM range(100)")
    return "queries.events"


@pytest.mark.parametrize(
    ("query", "where", "columns"),
    [
        ("SELECT count(*) FROM {t} WHERE d >= DATE '2024-03-01' AND d < DATE '2024-03-01' + INTERVAL 1 MONTH",
         "d >= DATE '2024-03-01' AND d < DATE '2024-04-01'", ["d"]),
        ("SELECT v FROM {t} a JOIN queries.names b ON a.id = b.id WHERE b.id = 105", "id = 105", ["id", "v"]),
        ("SELECT b.name FROM queries.names b LEFT JOIN {t} a ON a.id = b.id WHERE a.region = 'eu'",
         "region = 'eu' AND id IS NOT NULL", ["id", "region"]),
        ("SELECT b.name FROM queries.names b LEFT JOIN {t} a ON a.id = b.id WHERE a.region IS NULL",
         "id IS NOT NULL", ["id", "region"]),
        ("WITH x AS (SELECT * FROM {t} WHERE v > 2) SELECT id FROM x WHERE region = 'eu' UNION SELECT id FROM x "
         "WHERE region = 'us'", "(v > 2.0 AND region = 'eu') OR (v > 2.0 AND region = 'us')", ["id", "region", "v"]),
        ("SELECT max(x.v) FROM (SELECT * FROM {t}) x WHERE x.id IN (7, 8) OR year(x.d) = 1999", None, ["id", "d", "v"]),
        ("SELECT * FROM {t} WHERE d = current_date()", "true", None),
        ("SELECT count(*) FROM {t}", "true", ["id"]),
        ("SELECT id FROM {t} WHERE rand() < 2", "true", ["id"]),
    ],
)  # fmt: skip
def test_a_table_is_planned_with_the_predicates_and_columns_of_the_query(
    query: str,
    where: str | None,
    columns: list[str] | None,
    events: str,
    spark: SparkSession,
    local_catalog: SqlCatalog,
) -> None:
    planned = PlannedQuery.of(spark, query.format(t=events), local_catalog)
    (plan,) = [table.plan for table in planned.tables if table.reference.parts == ("queries", "events")]
    assert plan is not None
    if where is not None:
        assert str(plan.compiled.predicate) == where
    if columns is not None:
        assert [field.name for field in plan.schema.fields] == columns
    assert _rows(planned.dataframe()) == _rows(
        spark.sql(query.format(t=f"local.{events}").replace(" queries.", " local.queries."))
    )


def test_references_with_equal_needs_share_a_plan(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    query = (
        f"SELECT a.id, c.n FROM {events} a JOIN {events} b ON a.id = b.id "
        f"JOIN (SELECT count(*) AS n FROM {events} WHERE id = 3) c "
        f"WHERE EXISTS (SELECT 1 FROM {events} d WHERE d.id = a.id) AND a.id > 2 AND b.id > 2"
    )
    planned = PlannedQuery.of(spark, query, local_catalog)
    first, second, counted, inner = planned.tables
    assert first.plan is second.plan is not counted.plan
    assert first.relation is second.relation is counted.relation is inner.relation  # one snapshot
    assert planned.frames["floeplan_0"] is planned.frames["floeplan_1"] is not planned.frames["floeplan_2"]
    assert _rows(planned.dataframe()) == _rows(spark.sql(query.replace(events, f"local.{events}")))


def test_metadata_columns_have_the_values_of_iceberg(
    events: str, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    for query in (
        "SELECT id, _file, _pos, _spec_id, _partition FROM {t} WHERE _pos > 3 AND _spec_id = 1 AND id >= 500",
        "SELECT x._file, count(*), sum(x._pos * 2) FROM {t} x GROUP BY x._file HAVING count(*) > 1",
        "SELECT id FROM (SELECT id, _file, _pos FROM {t}) WHERE _pos = 1",  # the optimizer leaves _file out
        "SELECT a.id FROM {t} a JOIN {t} b ON a._file = b._file AND a._pos > b._pos WHERE b._partition.region = 'eu'",
    ):
        planned = PlannedQuery.of(spark, query.format(t=events), local_catalog)
        assert _rows(planned.dataframe()) == _rows(spark.sql(query.format(t=f"local.{events}"))), query
    text = f"SELECT _pos FROM {events} WHERE _pos = 1 AND id < 150"
    (table,) = PlannedQuery.of(spark, text, local_catalog).tables
    assert table.plan is not None
    assert str(table.plan.compiled.predicate) == "id < 150"
    assert [field.name for field in table.plan.schema.fields] == ["id", "_pos"]
    for text in (
        "SELECT *, _file FROM {t}",
        "SELECT a.* FROM {t} a WHERE _pos = 0",
        "SELECT DISTINCT * FROM {t} ORDER BY _pos",
        "SELECT struct(*) FROM {t} WHERE _pos = 0",
        "FROM {t} |> WHERE _pos = 0",
    ):
        with pytest.raises(BadInputError, match="must list its columns"):
            fp.sql(text.format(t=events), spark=spark, catalog=local_catalog)
    with pytest.raises(BadInputError, match="_row_id"):  # format 2 has no row lineage
        fp.sql(f"SELECT _row_id FROM {events}", spark=spark, catalog=local_catalog)


def test_snapshots_branches_and_metadata_tables(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table("evolving_v1")
    first, *_, last = made.snapshots()
    milliseconds = local_catalog.load_table(made.identifier).snapshot_by_id(first).timestamp_ms  # type: ignore[union-attr]
    for query in (
        f"SELECT count(*), max(pk) FROM {{t}} VERSION AS OF {first}",
        f"SELECT count(*) FROM {{t}} FOR SYSTEM_VERSION AS OF '{TAG}' x JOIN {{t}} VERSION AS OF {last} y USING (pk)",
        f"SELECT count(*) FROM {{t}} TIMESTAMP AS OF timestamp_millis({milliseconds}) WHERE pk > 0",
        f"SELECT count(*) FROM {{t}}.branch_{BRANCH}",
        f"SELECT count(*) FROM {{t}}.snapshot_id_{first}",
        "SELECT snapshot_id, operation FROM {t}.snapshots s JOIN {t}.history h USING (snapshot_id)",
        "SELECT sum(record_count) FROM {t}.files WHERE content = 0",
        f"SELECT count(*), sum(record_count) FROM {{t}}.data_files VERSION AS OF {first}",
    ):
        ours = fp.sql(query.format(t=made.identifier), spark=matrix.spark, catalog=local_catalog)
        assert _rows(ours) == _rows(matrix.spark.sql(query.format(t=made.name))), query


def test_explain_shows_how_each_table_is_pruned(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    query = f"EXPLAIN FORMATTED SELECT v FROM {events} JOIN queries.names USING (id) WHERE d = DATE '2024-02-05'"
    (row,) = _frame(fp.sql(query, spark=spark, catalog=local_catalog)).collect()
    first, second, physical = (
        row.plan.index(text) for text in (f"== {events} ==", "== queries.names ==", "== Physical")
    )
    assert first < second < physical
    assert "where d = DATE '2024-02-05'" in row.plan[first:second]
    assert "files" in row.plan[first:second]
    with pytest.raises(BadInputError, match="EXPLAIN takes a query"):
        fp.sql(f"EXPLAIN DELETE FROM {events}", spark=spark, catalog=local_catalog)


def test_deletes_are_tested_after_the_comparisons_of_the_query(
    events: str, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    query = f"SELECT sum(v) FROM {events} WHERE id < 120 AND region = 'eu'"
    (row,) = _frame(fp.sql(f"EXPLAIN EXTENDED {query}", spark=spark, catalog=local_catalog)).collect()
    optimized = row.plan[row.plan.index("== Optimized") : row.plan.index("== Physical")]
    (condition,) = [line for line in optimized.splitlines() if " Filter " in line]
    assert condition.index("< 120") < condition.index("getbit")
    assert condition.count("< 120") == 1


def test_a_time_zone_moves_timestamps(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    query = (
        "SELECT id FROM {t} WHERE ts < TIMESTAMP '2023-11-14 14:13:30' AND hour(ts) = 14 "
        "AND CAST(ts AS DATE) = '2023-11-14'"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        ours = fp.sql(query.format(t=events), spark=spark, catalog=local_catalog)
        assert _rows(ours) == _rows(spark.sql(query.format(t=f"local.{events}")))
        assert ours.count() > 0  # type: ignore[operator]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_files_share_a_scan_where_that_is_cheaper(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Files with and without a partition value, and few files without deletes, are one branch."""
    table = local_catalog.load_table(events)
    assert [(b.positional, len(b.constants)) for b in fp.plan_read(spark, table).branches] == [(True, 1)]
    by_region = fp.plan_read(spark, table, "region = 'eu'").branches
    assert sorted(len(branch.constants) for branch in by_region) == [0, 1]
    spark.sql("CREATE TABLE local.queries.grown USING iceberg AS SELECT id, id % 7 AS v FROM range(100)")
    spark.sql("ALTER TABLE local.queries.grown SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql("DELETE FROM local.queries.grown WHERE v = 3")
    spark.sql("INSERT INTO local.queries.grown SELECT id, 3 FROM range(20)")
    grown = local_catalog.load_table("queries.grown")
    assert [branch.positional for branch in fp.plan_read(spark, grown).branches] == [True]
    assert fp.read(spark, grown).where("v = 3").count() == 20
    spark.sql("INSERT INTO local.queries.grown SELECT id, 3 FROM range(50)")
    grown = local_catalog.load_table("queries.grown")
    assert [branch.positional for branch in fp.plan_read(spark, grown).branches] == [False, True]
    assert fp.read(spark, grown).where("v = 3").count() == 70


def test_spark_estimates_rows_as_with_iceberg(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    query = "SELECT id, v FROM {t} WHERE d >= DATE '2024-04-01'"
    frames = (
        _frame(fp.sql(query.format(t=events), spark=spark, catalog=local_catalog)),
        spark.sql(query.format(t=f"local.{events}")),
    )
    ours, theirs = (int(str(optimized_plan(frame).stats().sizeInBytes())) for frame in frames)  # type: ignore[union-attr]
    assert theirs / 2 < ours < theirs * 2


@pytest.fixture
def attached(spark: SparkSession, local_catalog: SqlCatalog) -> Iterator[str]:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.attached")
    spark.sql("CREATE TABLE local.attached.Orders (id BIGINT, v STRING) USING iceberg")
    spark.sql("INSERT INTO local.attached.orders SELECT id, 'a' FROM range(10)".replace("orders", "Orders"))
    yield "attached"
    for view in ("Orders", "few"):
        spark.catalog.dropTempView(view)
    spark.sql("DROP TABLE local.attached.Orders")


def test_attached_tables_are_views_that_stay_fresh(
    attached: str, spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    def count(query: str) -> int:
        return int(_frame(fp.sql(query, spark=spark)).collect()[0][0])

    assert fp.attach(spark, local_catalog, attached) == ("Orders",)
    assert spark.table("orders").count() == 10
    spark.sql("CREATE OR REPLACE TEMP VIEW few AS SELECT * FROM Orders WHERE id < 1000")
    spark.sql("INSERT INTO local.attached.Orders SELECT id + 10, 'b' FROM range(5)")
    assert count("SELECT count(*) FROM ORDERS WHERE v = 'b'") == 5
    assert count("SELECT count(*) FROM few") == 15
    assert count("WITH orders AS (SELECT 1) SELECT count(*) FROM orders") == 1
    planned = PlannedQuery.of(spark, "SELECT o.id FROM orders o WHERE o.id = 3", None)
    assert planned.tables[0].plan is not None
    assert planned.tables[0].plan.compiled.predicate != TRUE
    spark.range(3).createOrReplaceTempView("Orders")  # the user's own view, from here on
    assert count("SELECT count(*) FROM orders") == 3
    with pytest.raises(BadInputError, match="no namespace 'nowhere'"):
        fp.attach(spark, local_catalog, "nowhere")
    with pytest.raises(BadInputError, match="name the namespace"):
        fp.attach(spark, local_catalog)


def test_errors_are_one_line(events: str, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    for query, message in (
        (f"SELECT nope FROM {events}", "nope"),
        (f"SELECT * FROM {events} WHERE", "Spark cannot run the query"),
        ("SELECT * FROM queries.nothing", "queries"),
        (f"SELECT * FROM {events} VERSION AS OF 5", "no snapshot 5"),
        (f"SELECT * FROM {events} TIMESTAMP AS OF '1999-01-01'", "no snapshot as old"),
        (f"SELECT * FROM {events} TIMESTAMP AS OF NULL", "is null"),
    ):
        with pytest.raises(BadInputError, match=message) as refused:
            fp.sql(query, spark=spark, catalog=local_catalog)
        assert "\n" not in refused.value.message
    with pytest.raises(BadInputError, match="takes one statement"):
        fp.sql(spark)
    with pytest.raises(BadInputError, match="a query does not take mode"):
        fp.sql("SELECT 1", spark=spark, mode="copy-on-write")
