"""Variant and unknown columns that Spark writes: read as Spark reads them, and carried by merge-on-read deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import VariantVal

import floeplan as fp
from floeplan.errors import UnsupportedError

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines


def test_variants_and_nulls_of_unknown_type(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.variants")
    for name, shredded in (("plain", False), ("shredded", True)):
        spark.sql(
            f"CREATE TABLE local.variants.{name} (id BIGINT, v VARIANT, x VOID) USING iceberg TBLPROPERTIES "
            f"('format-version' = '3', 'write.parquet.shred-variants' = '{str(shredded).lower()}')"
        )
        spark.sql(
            f"INSERT INTO local.variants.{name} SELECT id, IF(id = 3, NULL, parse_json(concat('{{\"a\":', id, '}}'))), "
            "NULL FROM range(0, 6, 1, 1)"
        )
    plain, shredded_table = (fp.load_table(f"variants.{name}", local_catalog) for name in ("plain", "shredded"))
    fp.delete(plain, "id = 4", mode="merge-on-read")
    expected = {row["id"]: row["v"] and row["v"].toJson() for row in spark.table("local.variants.plain").collect()}
    rows = fp.plan_scan(plain).to_arrow().to_pylist()
    found = {row["id"]: row["v"] and VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson() for row in rows}
    assert found == expected == {n: None if n == 3 else f'{{"a":{n}}}' for n in (0, 1, 2, 3, 5)}
    assert {row["x"] for row in rows} == {None}
    with pytest.raises(UnsupportedError, match="column v is a variant: such columns cannot be written yet"):
        fp.rewrite_data_files(plain, options={"rewrite-all": "true"})
    together = fp.plan_scan(shredded_table).to_arrow().to_pylist()
    found = {row["id"]: row["v"] and VariantVal(row["v"]["value"], row["v"]["metadata"]).toJson() for row in together}
    assert found == {n: None if n == 3 else f'{{"a":{n}}}' for n in range(6)}
    assert fp.plan_scan(shredded_table, columns=["id"]).to_arrow()["id"].to_pylist() == list(range(6))
