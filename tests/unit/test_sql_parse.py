"""Parsed statements, and one-line errors."""

from __future__ import annotations

import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)

from floeplan.dml.assign import SubqueryCondition
from floeplan.dml.merge.compile import WhenText
from floeplan.errors import BadInputError
from floeplan.partition.evolution import AddField, DropField, Term
from floeplan.sql_text.parse import parse_statement, parse_term
from floeplan.sql_text.statements import AlterPartitioning, Delete, Insert, Merge, TableName, Update

pytestmark = pytest.mark.unit
T = TableName(("db", "t"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DELETE FROM db.t", Delete(T)),
        ("delete from db.t where id = 1;", Delete(T, "id = 1")),
        ("DELETE FROM local.db.t WHERE TRUE", Delete(TableName(("local", "db", "t")), "TRUE")),
        ("DELETE FROM db.t.branch_audit WHERE id IN (1, 2)", Delete(TableName(("db", "t"), "audit"), "id IN (1, 2)")),
        ("DELETE FROM db.`odd name` AS x WHERE x.v > 1", Delete(TableName(("db", "odd name")), "v > 1")),
        ("DELETE FROM db.t x WHERE X.v > 1 AND v = 'x.v'", Delete(T, "v > 1 AND v = 'x.v'")),
        ("DELETE FROM db.t WHERE t.v > 1 OR db.t.v < 0 OR DB.T.s.f = 1", Delete(T, "v > 1 OR v < 0 OR s.f = 1")),
        ("DELETE FROM db.t AS x WHERE t.v > 1", Delete(T, "t.v > 1")),
        ("DELETE FROM db.t WHERE t.date = DATE '2024-01-01'", Delete(T, "`date` = DATE '2024-01-01'")),
        ("DELETE FROM db.t WHERE CASE WHEN v THEN t.w END -- why", Delete(T, "CASE WHEN v THEN w END")),
    ],
)
def test_delete(text: str, expected: Delete) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize(
    ("condition", "implied"),
    [
        ("id IN (SELECT id FROM s)", "TRUE"),
        ("t.v > 1 AND id IN (SELECT id FROM s) AND w BETWEEN 1 AND 2", "v > 1 AND w BETWEEN 1 AND 2"),
        ("v BETWEEN (SELECT 1) AND 2 AND w = 1", "w = 1"),
        ("v > 1 AND w = 2 OR id IN (SELECT id FROM s)", "TRUE"),
        ("(v > 1 OR EXISTS (SELECT 1)) AND (w = 2 OR w = 3)", "(w = 2 OR w = 3)"),
        ("NOT v = 1 AND NOT EXISTS (VALUES (1))", "NOT v = 1"),
        ("(SELECT a FROM b WHERE x AND y) AND w", "w"),
        ("CASE WHEN v AND w THEN x OR y END AND id = (TABLE s)", "CASE WHEN v AND w THEN x OR y END"),
    ],
)
def test_of_a_condition_with_subqueries_the_rest_chooses_files(condition: str, implied: str) -> None:
    expected = SubqueryCondition(condition, implied, "t")
    assert parse_statement(f"DELETE FROM db.t WHERE {condition}") == Delete(T, expected)
    updated = Update(T, {"`v`": "1"}, expected)
    assert parse_statement(f"UPDATE db.t SET v = 1 WHERE {condition}") == updated


def test_subqueries_call_the_table_by_its_alias() -> None:
    condition = "EXISTS (SELECT 1 FROM s WHERE s.id = x.id) AND x.v = 1"
    expected = Delete(T, SubqueryCondition(condition, "v = 1", "x"))
    assert parse_statement(f"DELETE FROM db.t AS x WHERE {condition}") == expected


def test_the_text_of_an_expression_is_kept_as_it_was_written() -> None:
    where = "date_format(d, 'yyyy') = '2024'  AND x  <=> 2.50BD /* odd */ AND name = 'it''s; WHERE'"
    assert parse_statement(f"DELETE FROM db.t WHERE {where}") == Delete(T, where)


def test_keywords_are_names_where_spark_takes_them_as_names() -> None:
    """sqlglot reserves them; Spark does not."""
    assert parse_statement("UPDATE db.when AS set SET set.end = when.x, values = 1") == Update(
        TableName(("db", "when")), {"`end`": "when.x", "`values`": "1"}
    )
    assert parse_statement("INSERT INTO db.values (from, table) SELECT when, end FROM s") == Insert(
        TableName(("db", "values")), "SELECT when, end FROM s", columns=("from", "table")
    )


def test_update() -> None:
    text = """
        UPDATE db.t AS x SET x.v = x.v + 1, s.f = concat(x.a, ',', 'WHERE'), w = CASE WHEN a THEN 1 ELSE 2 END
        WHERE x.id = 3
    """
    assert parse_statement(text) == Update(
        T,
        {
            "`v`": "v + 1",
            "`s`.`f`": "concat(a, ',', 'WHERE')",
            "`w`": "CASE WHEN a THEN 1 ELSE 2 END",
        },
        "id = 3",
    )
    assert parse_statement("UPDATE db.t SET v = NULL") == Update(T, {"`v`": "NULL"})


def test_merge_with_every_kind_of_clause() -> None:
    text = """
        MERGE INTO db.t.branch_b AS x USING (SELECT id, max(v) AS v FROM news GROUP BY id) AS n
        ON x.id = n.id AND x.day >= DATE '2024-01-01'
        WHEN MATCHED AND n.v IS NULL THEN DELETE
        WHEN MATCHED AND CASE WHEN x.a THEN n.b ELSE c END THEN UPDATE SET x.v = n.v, w = x.w + n.w
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED AND n.v > 0 THEN INSERT (x.id, v) VALUES (n.id, coalesce(n.v, 0))
        WHEN NOT MATCHED BY TARGET THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND x.v < 0 THEN UPDATE SET v = -x.v
        WHEN NOT MATCHED BY SOURCE THEN DELETE
    """
    assert parse_statement(text) == Merge(
        TableName(("db", "t"), "b"),
        "SELECT id, max(v) AS v FROM news GROUP BY id",
        "target.id = source.id AND target.day >= DATE '2024-01-01'",
        matched=(
            WhenText("source.v IS NULL", deletes=True),
            WhenText(
                "CASE WHEN target.a THEN source.b ELSE c END",
                {"`v`": "source.v", "`w`": "target.w + source.w"},
            ),
            WhenText(None),
        ),
        not_matched=(
            WhenText("source.v > 0", {"`id`": "source.id", "`v`": "coalesce(source.v, 0)"}),
            WhenText(None),
        ),
        not_matched_by_source=(
            WhenText("target.v < 0", {"`v`": "-target.v"}),
            WhenText(None, deletes=True),
        ),
    )


@pytest.mark.parametrize(
    ("using", "source", "columns", "on"),
    [
        ("db.s ON t.id = s.id", TableName(("db", "s")), None, "target.id = source.id"),
        ("db.s ON db.t.id = db.s.id", TableName(("db", "s")), None, "target.id = source.id"),
        (
            "parquet.`/a/b.parquet` p ON t.id = p.id",
            TableName(("parquet", "/a/b.parquet")),
            None,
            "target.id = source.id",
        ),
        ("news AS t ON db.t.id = 1", TableName(("news",)), None, "target.id = 1"),
        ("news ON flag", TableName(("news",)), None, "(flag)"),
        (
            "(VALUES (1, 'a')) AS s(id, v) ON t.id = s.id",
            "VALUES (1, 'a')",
            ("id", "v"),
            "target.id = source.id",
        ),
    ],
)
def test_merge_sources(using: str, source: object, columns: object, on: str) -> None:
    found = parse_statement(f"MERGE INTO db.t USING {using} WHEN MATCHED THEN DELETE")
    assert found == Merge(T, source, on, (WhenText(None, deletes=True),), source_columns=columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO db.t VALUES (1, 'a')", Insert(T, "VALUES (1, 'a')")),
        ("INSERT INTO TABLE db.t TABLE db.s", Insert(T, "TABLE db.s")),
        ("INSERT INTO db.t (a, `b c`) VALUES (1, 2)", Insert(T, "VALUES (1, 2)", columns=("a", "b c"))),
        ("INSERT INTO db.t (a) (SELECT 1)", Insert(T, "(SELECT 1)", columns=("a",))),
        ("INSERT INTO db.t (SELECT 1, 2)", Insert(T, "(SELECT 1, 2)")),
        ("INSERT INTO db.t BY NAME SELECT 1 AS a", Insert(T, "SELECT 1 AS a", by_name=True)),
        (
            "WITH n AS (SELECT 1) INSERT INTO db.t SELECT * FROM n",
            Insert(T, "WITH n AS (SELECT 1) SELECT * FROM n"),
        ),
        (
            "INSERT INTO db.t WITH n AS (SELECT 1) SELECT * FROM n",
            Insert(T, "WITH n AS (SELECT 1) SELECT * FROM n"),
        ),
        ("INSERT OVERWRITE db.t SELECT * FROM s", Insert(T, "SELECT * FROM s", overwrite=True)),
        (
            "INSERT OVERWRITE TABLE db.t PARTITION (r = 'e,u', d) (x) SELECT 1",
            Insert(
                T,
                "SELECT 1",
                overwrite=True,
                columns=("x",),
                partition=(("r", "'e,u'"), ("d", None)),
            ),
        ),
        (
            "INSERT INTO db.t REPLACE WHERE t.r = 'eu' AND d > 1 SELECT 1",
            Insert(T, "SELECT 1", replace_where="r = 'eu' AND d > 1"),
        ),
        ("INSERT INTO db.t.branch_b VALUES (1)", Insert(TableName(("db", "t"), "b"), "VALUES (1)")),
    ],
)
def test_insert(text: str, expected: Insert) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("region", Term(("region",), IdentityTransform())),
        ("identity(region)", Term(("region",), IdentityTransform())),
        ("s.`a b`", Term(("s", "a b"), IdentityTransform())),
        ("bucket(16, id)", Term(("id",), BucketTransform(16))),
        ("BUCKET(16, s.id)", Term(("s", "id"), BucketTransform(16))),
        ("truncate(4, name)", Term(("name",), TruncateTransform(4))),
        ("truncate(name, 4)", Term(("name",), TruncateTransform(4))),
        ("years(ts)", Term(("ts",), YearTransform())),
        ("year(ts)", Term(("ts",), YearTransform())),
        ("month(ts)", Term(("ts",), MonthTransform())),
        ("days(ts)", Term(("ts",), DayTransform())),
        ("date(ts)", Term(("ts",), DayTransform())),
        ("hours(ts)", Term(("ts",), HourTransform())),
        ("date_hour(ts)", Term(("ts",), HourTransform())),
    ],
)
def test_partition_terms(text: str, term: Term) -> None:
    assert parse_term(text) == term


def test_alter() -> None:
    days, bucket = Term(("ts",), DayTransform()), Term(("id",), BucketTransform(8))
    alter = "ALTER TABLE db.t "
    assert parse_statement(alter + "ADD PARTITION FIELD days(ts)") == AlterPartitioning(T, (AddField(days),))
    assert parse_statement(alter + "ADD PARTITION FIELD bucket(8, id) AS shard") == AlterPartitioning(
        T, (AddField(bucket, "shard"),)
    )
    assert parse_statement(alter + "DROP PARTITION FIELD ts_day") == AlterPartitioning(
        T, (DropField(Term(("ts_day",))),)
    )
    assert parse_statement(alter + "REPLACE PARTITION FIELD days(ts) WITH bucket(8, id) AS b") == AlterPartitioning(
        T, (DropField(days), AddField(bucket, "b"))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (";", "empty"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "WITH is not followed by INSERT"),
        ("SHOW TABLES", "SHOW is not supported"),
        ("TRUNCATE TABLE db.t", "TRUNCATE is not supported"),
        ("DROP TABLE db.t", "DROP is not supported"),
        ("CALL system.rewrite_data_files('db.t')", "CALL is not supported"),
        ("CREATE TABLE db.t (a INT)", "CREATE is not supported"),
        ("ALTER TABLE db.t ADD COLUMN a INT", "of ALTER only"),
        ("ALTER VIEW v AS SELECT 1", "of ALTER only"),
        ("ALTER TABLE db.t.branch_b ADD PARTITION FIELD a", "not to branch b"),
        ("ALTER TABLE db.t ADD PARTITION FIELD a AS b c", "should end here"),
        ("ALTER TABLE db.t ADD PARTITION FIELD zorder(a, b)", "zorder(a, b) is not a partition transform"),
        ("ALTER TABLE db.t ADD PARTITION FIELD bucket(0, a)", "above zero"),
        ("ALTER TABLE db.t ADD PARTITION FIELD bucket(a, b)", "above zero"),
        ("ALTER TABLE db.t ADD PARTITION FIELD days(a + 1)", "'a + 1' is not the name of a column"),
        ("ALTER TABLE db.t REPLACE PARTITION FIELD a", "WITH is expected"),
        ("DELETE FROM t WHERE a = 1", "write namespace.name"),
        ("DELETE FROM db.t.tag_v1", "cannot be changed"),
        ("DELETE FROM db.t.snapshot_id_5", "cannot be changed"),
        ("DELETE db.t", "DELETE FROM is expected"),
        ("DELETE FROM db.t VERSION AS OF 3 WHERE a = 1", "near 'AS OF 3 WHERE a = 1'"),
        ("DELETE FROM db.t WHERE", "an expression is expected"),
        ("DELETE FROM db.t, db.u WHERE a = 1", "with JOINS is not supported"),
        ("DELETE FROM db.t USING db.u WHERE a = 1", "with USING is not supported"),
        ("INSERT INTO db.t AS x SELECT 1", "takes no alias"),
        ("INSERT OR REPLACE INTO db.t SELECT 1", "is not supported"),
        ("DELETE FROM db.t WHERE (a = 1", "never closed"),
        ("DELETE FROM db.t WHERE a = 1)", "unexpected ')'"),
        ("DELETE FROM db.t WHERE a = 'x", "unterminated string"),
        ("DELETE FROM db.t; DELETE FROM db.u", "one statement at a time"),
        ("DELETE FROM db.t WHERE id IN (SELECT id FROM s WHERE x = ?)", "parameter"),
        ("DELETE FROM db.t WHERE id = ?", "parameter"),
        ("DELETE FROM db.t AS x WHERE exists(a, x -> x.b > 1)", "variable of a lambda"),
        ("DELETE FROM db.t AS x WHERE aggregate(a, 0, (y, X) -> y + 1) > 1", "variable of a lambda"),
        ("UPDATE db.t SET WHERE a = 1", "needs at least one column = expression"),
        ("UPDATE db.t SET a = 1, a = 2", "assigns a twice"),
        ("UPDATE db.t x SET x.a = 1, a = 2", "assigns a twice"),
        ("UPDATE db.t SET a = (SELECT 1)", "subquery"),
        ("UPDATE db.t SET *", "takes column = expression, not *"),
        ("INSERT INTO db.t", "a query is expected"),
        ("INSERT INTO db.t DELETE FROM x", "near 'DELETE FROM x'"),
        ("INSERT INTO db.t (a, a) VALUES (1, 2)", "names a twice"),
        ("INSERT INTO db.t (s.a) VALUES (1)", "top-level"),
        ("INSERT INTO db.t PARTITION () SELECT 1", "empty"),
        ("INSERT INTO db.t PARTITION (a > 1) SELECT 1", "PARTITION takes"),
        ("INSERT OVERWRITE db.t PARTITION (a = 1) IF NOT EXISTS SELECT 1", "IF NOT EXISTS"),
        ("INSERT OVERWRITE DIRECTORY '/x' SELECT 1", "DIRECTORY"),
        ("INSERT WITH SCHEMA EVOLUTION INTO db.t SELECT 1", "SCHEMA EVOLUTION"),
        ("MERGE WITH SCHEMA EVOLUTION INTO db.t USING s ON a THEN", "SCHEMA EVOLUTION"),
        ("MERGE INTO db.t USING s ON t.a = s.a", "at least one WHEN"),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN MATCHED THEN INSERT *", "takes UPDATE SET or DELETE"),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN NOT MATCHED THEN DELETE", "takes INSERT"),
        (
            "MERGE INTO db.t USING s ON t.a = s.a WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *",
            "takes column = expression, not *",
        ),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN MATCHED THEN DELETE WHEN MATCHED THEN DELETE", "only the last"),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (1, 2)", "1 columns and has 2"),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a, t.a) VALUES (1, 2)", "assigns a twice"),
        ("MERGE INTO db.t USING () s ON t.a = s.a WHEN MATCHED THEN DELETE", "a query is expected"),
        ("MERGE INTO db.t USING s ON t.a IN (SELECT 1) WHEN MATCHED THEN DELETE", "subquery"),
        ("MERGE INTO db.t USING s ON t.a = s.a WHEN MATCHED THEN DELETE RETURNING *", "RETURNING is not supported"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(BadInputError) as refused:
        parse_statement(text)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
