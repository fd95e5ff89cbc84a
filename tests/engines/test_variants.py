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
