"""Variant, geometry and unknown columns that Spark writes: read as Spark reads them, and carried by every change."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyspark.sql.types import VariantVal

import floeplan as fp
from floeplan.errors import UnsupportedError
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.source import open_source

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ALL = {"rewrite-all": "true"}
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")
JSON = (
    """concat('{"a": ', id, ', "b": {"c": "', repeat('x', CAST(id AS INT) * 20), '", "d": [1, "two", null, 4.5]}}')"""
)
CHANGES: tuple[Callable[[Table], object], ...] = (
    lambda table: fp.delete(table, "id = 4", mode="merge-on-read"),
    lambda table: fp.rewrite_data_files(table, options=ALL),
    lambda table: fp.update(table, {"note": "'seen'"}, "id = 2", mode="copy-on-write"),
    lambda table: fp.update(table, {"note": "'seen'"}, "id = 1", mode="merge-on-read"),
    lambda table: (
        fp.merge(table, pa.table({"k": [0, 3]}), "id = k").when_matched_update({"note": "'merged'"}).execute()
    ),
    lambda table: fp.rewrite_data_files(table, strategy="sort", by=["id DESC"], options=ALL),
)


def spark_rows(spark: SparkSession, name: str) -> dict[int, tuple[object, ...]]:
    rows = spark.table(f"local.variants.{name}").collect()
    return {row["id"]: (row["v"] and json.loads(row["v"].toJson()), row["x"], row["note"]) for row in rows}


def our_rows(table: Table) -> dict[int, tuple[object, ...]]:
    rows = fp.plan_scan(table.refresh()).to_arrow().to_pylist()
    found = {row["id"]: row["v"] and VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson() for row in rows}
    return {row["id"]: (found[row["id"]] and json.loads(found[row["id"]]), row["x"], row["note"]) for row in rows}


def variant_columns(table: Table) -> set[tuple[tuple[str, ...], ...]]:
    """The stored columns of the variant, for each layout among the files."""
    footers = [read_footer(open_source(file.path)) for file in fp.plan_scan(table.refresh()).files]
    return {tuple(leaf.path for leaf in footer.leaves if leaf.path[0] == "v") for footer in footers}


@pytest.mark.parametrize("name", ["plain", "shredded"])
def test_variants_and_nulls_of_unknown_type(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    """Every change keeps the rows, as Spark reads them, and the layout of shredded variants."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    spark.sql(
        f"CREATE TABLE local.variants.{name} (id BIGINT, v VARIANT, x VOID, note STRING) USING iceberg TBLPROPERTIES "
        f"('format-version' = '3', 'write.parquet.shred-variants' = '{str(name == 'shredded').lower()}')"
    )
    for first in (0, 6):
        values = f"SELECT id, IF(id = 3, NULL, parse_json({JSON})), NULL, 'n' FROM range({first}, {first + 6}, 1, 1)"
        spark.sql(f"INSERT INTO local.variants.{name} {values}")
    table = fp.load_table(f"variants.{name}", local_catalog)
    written = variant_columns(table)
    assert len(written) == 1
    assert (len(*written) > 2) == (name == "shredded")
    expected = spark_rows(spark, name)
    assert our_rows(table) == expected
    for change in CHANGES:
        change(table.refresh())
        spark.sql(f"REFRESH TABLE local.variants.{name}")
        rows = spark_rows(spark, name)
        assert our_rows(table) == rows
        assert {n: row[:2] for n, row in rows.items()} == {n: row[:2] for n, row in expected.items() if n != 4}
        assert variant_columns(table) == written
    assert {row[2] for row in rows.values()} == {"n", "seen", "merged"}
    if name == "plain":  # Iceberg 1.12 reads shredded variants, even those of Spark, only with the variant column
        spark.sql(f"UPDATE local.variants.{name} SET note = v:a::STRING WHERE id = 5")
        assert our_rows(table)[5][2] == "5"


def test_geometries_and_geographies(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Every change keeps the values, and Spark's session with geospatial types reads them."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    spark.conf.set("spark.sql.geospatial.enabled", "true")
    spark.sql(
        "CREATE TABLE local.variants.places (id BIGINT, g GEOMETRY(4326), h GEOGRAPHY(4326), note STRING) "
        "USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    point = f"X'{POINT.hex()}'"
    spark.sql(
        f"INSERT INTO local.variants.places SELECT id, IF(id = 3, NULL, ST_SetSrid(ST_GeomFromWKB({point}), 4326)), "
        f"ST_GeogFromWKB({point}), 'n' FROM range(0, 12, 1, 2)"
    )
    table = fp.load_table("variants.places", local_catalog)
    for change in CHANGES:
        change(table.refresh())
    found = spark.sql("SELECT id, ST_AsBinary(g) AS g, ST_AsBinary(h) AS h, note FROM local.variants.places").collect()
    ours = fp.plan_scan(table.refresh()).to_arrow().to_pylist()
    assert sorted((row.asDict() for row in found), key=itemgetter("id")) == sorted(ours, key=itemgetter("id"))
    assert {row["id"]: (row["g"], row["h"]) for row in ours} == {
        n: (None if n == 3 else POINT, POINT) for n in range(12) if n != 4
    }
    spark.sql("DELETE FROM local.variants.places WHERE id = 5")
    assert 5 not in fp.plan_scan(table.refresh(), columns=["id"]).to_arrow()["id"].to_pylist()


VALUES = (
    '{"n": 7, "x": 1.5, "s": "7", "b": true, "d": {"e": 7}, "l": [7, "7"]}',
    '{"n": -1, "x": 2e300, "s": "seven", "b": false, "d": {"e": "7"}, "l": []}',
    '{"n": 9223372036854775807, "x": -0.5, "s": "2024-01-02", "b": null, "d": 7, "l": 7}',
    '{"n": null, "x": 12345678901234567.89, "s": "true", "d": null}',
    '{"n": 300, "x": 0.1, "s": "1.5", "b": "x", "N": 8}',
    "7",
    "null",
    '"text"',
    "{}",
)
TYPES = ("int", "bigint", "smallint", "double", "float", "decimal(10, 2)", "string", "boolean", "date", "timestamp")
LITERALS = {
    "string": "'7'",
    "boolean": "true",
    "date": "DATE '2024-01-02'",
    "timestamp": "TIMESTAMP '2024-01-02 03:04:05'",
}
PATHS = ("$", "$.n", "$.x", "$.s", "$['b']", "$.d.e", "$.l[0]", "$.l[1]", "$.N", "$.none")

EVALUATED = {("$.n", "int"), ("$.n", "double"), ("$.x", "int"), ("$.x", "double"), ("$.s", "string"), ("$.d.e", "int")}
"""Paths and types of which no value is left to Spark."""


@pytest.mark.matrix
def test_variant_get_casts_as_spark(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Every value as every type: the same rows as Spark, or an error that leaves the cast to Spark."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    name = "local.variants.casts"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, v VARIANT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    rows = ", ".join(f"({at}, parse_json('{text}'))" for at, text in enumerate(VALUES))
    spark.sql(
        f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ * FROM (VALUES {rows}, (50, NULL), "
        "(51, to_variant_object(named_struct('n', 2.5D, 'x', 1.5F, 's', DATE '2024-01-02', "
        "'b', TIMESTAMP '2024-01-02 03:04:05'))), "
        "(52, to_variant_object(named_struct('n', double('NaN'), 'x', 3e9D, 's', X'41', "
        "'b', TIMESTAMP_NTZ '2024-01-02 03:04:05')))) AS t(id, v)"
    )
    table = fp.load_table("variants.casts", local_catalog)
    left_to_spark: set[tuple[str, str]] = set()
    different: list[object] = []
    for path in PATHS:
        quote = '"' if "'" in path else "'"
        conditions = {}
        for type_ in TYPES:
            extracted = f"try_variant_get(v, {quote}{path}{quote}, '{type_}')"
            literal = LITERALS.get(type_, "7")
            conditions |= {f"{extracted} {op}": type_ for op in (f"= {literal}", f"> {literal}", "IS NULL")}
        rows = spark.sql(f"SELECT id, {', '.join(conditions)} FROM {name}").collect()
        for at, (where, type_) in enumerate(conditions.items()):
            expected = sorted(row[0] for row in rows if row[at + 1])
            try:
                found = fp.plan_scan(table, where).to_arrow(columns=["id"])["id"].to_pylist()
            except UnsupportedError:
                left_to_spark.add((path, type_))
                continue
            if sorted(found) != expected:
                different.append((where, sorted(found), expected))
    assert not different
    assert EVALUATED.isdisjoint(left_to_spark)


@pytest.mark.matrix
def test_files_are_pruned_by_the_bounds_of_variants(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Bounds that Iceberg wrote for shredded variants drop files, and no file with a matching row."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    name = "local.variants.bounds"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT) USING iceberg TBLPROPERTIES "
        "('format-version' = '3', 'write.parquet.shred-variants' = 'true')"
    )
    texts = (
        """concat('{"a": ', id, ', "b": {"c": "k', id, '"}, "p": ', id, '.25}')""",
        """concat('{"a": ', id, ', "b": {"c": "k', id, '"}, "p": ', id, '.25}')""",
        """concat('{"a": "', id, '", "b": {"c": "k', id, '"}}')""",
        """concat('{"a": ', id, ', "b": 5}')""",
    )
    for at, text in enumerate(texts):
        spark.sql(f"INSERT INTO {name} SELECT id, parse_json({text}) FROM range({at * 100}, {at * 100 + 50}, 1, 1)")
    table = fp.load_table("variants.bounds", local_catalog)
    text = "SELECT id, to_json(v) AS v FROM {} ORDER BY id"
    read = fp.read(spark, table)
    read.createOrReplaceTempView("read_variants")
    assert spark.sql(text.format("read_variants")).collect() == spark.sql(text.format(name)).collect()
    kept = {}
    for where in (
        "variant_get(v, '$.a', 'int') > 120",
        "variant_get(v, '$.a', 'int') = 20",
        "v:a::int BETWEEN 90 AND 110",
        "v:a::int IN (1, 2, 305)",
        "v:a::string = '210'",
        "v:a::double < 30",
        "v:a::decimal(10, 2) < 30",
        "try_variant_get(v, '$.b.c', 'string') = 'k20'",
        "try_variant_get(v, '$.b.c', 'string') LIKE 'k12%'",
        "try_variant_get(v, '$.p', 'double') > 120.5",
        "try_variant_get(v, '$.p', 'double') IS NULL",
        "NOT (try_variant_get(v, '$.p', 'decimal(10, 2)') > 20.25)",
        "try_variant_get(v, '$.p', 'int') = 130",
    ):
        plan = fp.plan_scan(table, where)
        ids = sorted(plan.to_arrow(columns=["id"])["id"].to_pylist())
        assert ids == sorted(row[0] for row in spark.sql(f"SELECT id FROM {name} WHERE {where}").collect()), where
        assert sorted(row[0] for row in fp.read(spark, table, where=where, columns=["id"]).collect()) == ids, where
        kept[where] = plan.summary.files_kept
    assert kept["variant_get(v, '$.a', 'int') = 20"] == 3


@pytest.mark.matrix
def test_spark_computes_and_queries_variants(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """DataFrames with variants are appended and merged, expressions of Spark set them, and queries read them."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    name = "local.variants.computed"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT, note STRING) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    spark.sql(f"INSERT INTO {name} SELECT id, parse_json(concat('{{\"a\": ', id, '}}')), 'n' FROM range(0, 4, 1, 1)")
    table = fp.load_table("variants.computed", local_catalog)
    fp.append(
        table,
        spark.sql("SELECT id, to_variant_object(named_struct('z', array(id))) AS v, 'df' AS note FROM range(4, 6)"),
    )
    fp.update(table.refresh(), {"note": "reverse(concat(note, v:a::string))"}, "id = 1", spark=spark)
    fp.update(table.refresh(), {"v": "parse_json('{\"a\": 77}')"}, "id = 2", spark=spark)
    source = spark.sql("SELECT id, parse_json('{\"m\": 1}') AS v, 'm' AS note FROM range(5, 7)")
    fp.merge(table.refresh(), source, "id").when_matched_update({"note": "'mm'"}).when_not_matched_insert().execute()
    fp.delete(table.refresh(), "is_variant_null(v:a) OR v:a::int = 3", spark=spark)
    expected = {
        0: ('{"a":0}', "n"),
        1: ('{"a":1}', "1n"),
        2: ('{"a":77}', "n"),
        4: ('{"z":[4]}', "df"),
        5: ('{"z":[5]}', "mm"),
        6: ('{"m":1}', "m"),
    }
    spark.sql(f"REFRESH TABLE {name}")
    rows = spark.sql(f"SELECT id, to_json(v), note FROM {name}").collect()
    assert {row[0]: (row[1], row[2]) for row in rows} == expected
    query = "SELECT id, v:a::int AS a FROM variants.computed WHERE v:a::int > 0 ORDER BY id"
    found = fp.sql(query, spark=spark, catalog=local_catalog)
    assert [tuple(row) for row in found.collect()] == [(1, 1), (2, 77)]
