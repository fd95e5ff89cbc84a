"""CREATE TABLE and CREATE NAMESPACE, and `create_table` in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.errors import BadInputError, FloeplanError
from floeplan.sql_text.create import CreateResult

pytestmark = pytest.mark.unit

ROWS = pa.table({"id": [1, 2, 3], "d": [date(2024, 1, 1), date(2024, 1, 2), None], "region": ["eu", "us", None]})


@pytest.fixture
def catalog(floeplan_home: Path) -> Iterator[Catalog]:
    opened = open_catalog()
    opened.create_namespace("db")
    yield opened
    opened.close()


def create(statement: str) -> CreateResult:
    result = fp.sql(None, statement)
    assert isinstance(result, CreateResult)
    return result


def test_columns_types_partitions_and_properties(catalog: Catalog) -> None:
    result = create(
        """CREATE TABLE IF NOT EXISTS db.t (
             id BIGINT NOT NULL COMMENT 'the key', small SMALLINT, f FLOAT, d DECIMAL(9, 2), e DECIMAL(5), x DECIMAL,
             ts TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE, region STRING, b BINARY, `odd name` VARCHAR(5),
             s STRUCT<a: INT NOT NULL, b: ARRAY<STRING>>, m MAP<STRING, DOUBLE>, flag BOOLEAN)
           USING iceberg PARTITIONED BY (days(ts), bucket(16, id), region, truncate(2, `odd name`))
           TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = 3) COMMENT 'events'"""
    )
    assert (result.name, result.created, result.snapshot_id) == ("db.t", True, None)
    table = catalog.load_table("db.t")
    assert [f"{field.name} {field.field_type}" for field in table.schema().fields] == [
        *("id long", "small int", "f float", "d decimal(9, 2)", "e decimal(5, 0)", "x decimal(10, 0)"),
        *("ts timestamptz", "ntz timestamp", "day date", "region string", "b binary", "odd name string"),
        *("s struct<16: a: required int, 17: b: optional list<string>>", "m map<string, double>", "flag boolean"),
    ]
    assert table.schema().find_field("id").required
    assert table.schema().find_field("id").doc == "the key"
    assert [(one.name, str(one.transform)) for one in table.spec().fields] == [
        *(("ts_day", "day"), ("id_bucket", "bucket[16]"), ("region", "identity"), ("odd name_trunc", "truncate[2]"))
    ]
    assert [one.field_id for one in table.spec().fields] == [1000, 1001, 1002, 1003]
    assert (table.spec().spec_id, table.metadata.format_version) == (0, 3)
    assert table.properties["write.delete.mode"] == "merge-on-read"
    assert table.properties["comment"] == "events"
    assert not create("CREATE TABLE IF NOT EXISTS db.t (id INT)").created


def test_a_created_table_takes_rows(catalog: Catalog) -> None:
    create("CREATE TABLE local.db.t (id BIGINT, d DATE, region STRING) PARTITIONED BY (months(d))")
    fp.sql(None, "INSERT INTO db.t VALUES (1, DATE '2024-01-05', 'eu'), (2, DATE '2024-02-05', NULL)")
    assert fp.plan_scan("db.t", "d < DATE '2024-02-01'").summary.files_kept == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE db.t", "needs columns"),
        ("CREATE TABLE t (id INT)", "write namespace.name"),
        ("CREATE TABLE nope.t (id INT)", "no namespace 'nope'; create it with CREATE NAMESPACE nope"),
        ("CREATE TABLE db.t (id)", "column id has no type"),
        ("CREATE TABLE db.t (id NONSENSE)", "NONSENSE"),
        ("CREATE TABLE db.t (id INTERVAL)", "id"),
        ("CREATE TABLE db.t (id INT x)", "INT x is not a Spark type"),
        ("CREATE TABLE db.t (id INT NOT NULL x)", "a column is"),
        ("CREATE TABLE db.t (id INT) USING parquet", "only Iceberg tables"),
        ("CREATE TABLE db.t (id INT) CLUSTERED BY (id)", "is expected"),
        ("CREATE TABLE db.t (id INT) PARTITIONED BY (nope)", "nope"),
        ("CREATE TABLE db.t (id INT) PARTITIONED BY (days(id))", "day"),
        ("CREATE TABLE db.t (id INT) LOCATION x", "a string is expected"),
        ("CREATE TABLE db.t (id INT) COMMENT 'a' COMMENT 'b'", "given twice"),
        ("CREATE TABLE db.t (id INT) TBLPROPERTIES ('format-version' = '9')", "'9' but must be 1, 2, 3 or 4"),
        ("CREATE VIEW db.v AS SELECT 1", "only CREATE TABLE"),
        ("CREATE TABLE db.t AS SELECT 1 AS a", "needs a Spark session"),
        ("CREATE TABLE db.t (id INT) TBLPROPERTIES ('a' = 'b' 'c')", "a table property is"),
    ],
)
def test_bad_statements_create_nothing(catalog: Catalog, statement: str, message: str) -> None:
    with pytest.raises(FloeplanError, match=message):
        fp.sql(None, statement)
    assert catalog.list_tables("db") == []


def test_a_table_that_exists_is_refused(catalog: Catalog) -> None:
    create("CREATE TABLE db.t (id INT)")
    with pytest.raises(BadInputError, match="exists already"):
        create("CREATE TABLE db.t (id INT)")


def test_namespaces(catalog: Catalog) -> None:
    assert create("CREATE NAMESPACE a.b").created
    assert not create("CREATE SCHEMA IF NOT EXISTS a.b").created
    with pytest.raises(BadInputError, match="exists already"):
        create("CREATE DATABASE a.b")
    assert ("a", "b") in catalog.list_namespaces("a")


def test_create_from_arrow_rows_or_a_schema(catalog: Catalog) -> None:
    made = fp.create_table("db.rows", ROWS, partitioned_by=["month(d)", "region"], properties={"a": "b"})
    assert (made.rows_inserted, made.partitioned_by) == (3, ("d_month", "region"))
    assert fp.plan_scan("db.rows").to_arrow().sort_by("id").column("region").to_pylist() == ["eu", "us", None]
    assert fp.create_table("db.empty", ROWS.schema, catalog=catalog).snapshot_id is None
    schema = Schema(NestedField(1, "k", LongType(), required=True))
    assert fp.create_table("db.schema", schema).columns == ("k long",)
    assert not fp.create_table("db.schema", schema, if_not_exists=True).created
    with pytest.raises(BadInputError, match="cannot create a table from dict"):
        fp.create_table("db.x", {"a": 1})


def test_a_table_whose_rows_cannot_be_written_is_dropped(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        schema = ROWS.schema

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise OSError("the source failed")

    with pytest.raises(OSError, match="the source failed"):
        fp.create_table("db.t", Failing())
    assert catalog.list_tables("db") == []


def test_the_command_shows_what_was_created(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "CREATE TABLE db.t (id INT, d DATE) PARTITIONED BY (days(d))"]) == 0
    assert capsys.readouterr().out == "db.t created, partitioned by d_day\n"
    assert main(["sql", "CREATE TABLE IF NOT EXISTS db.t (id INT)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["created"] is False
    assert main(["sql", "CALL system.ancestors_of('db.t')"]) == 0
    assert "snapshot_id" in capsys.readouterr().out
