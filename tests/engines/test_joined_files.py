"""Joined files of Iceberg's own writer, with copied or filtered pages: every reader sees the same rows, with and
without a filter.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

import floeplan as fp
from floeplan.metadata.files import local_path
from tests.support.parquet.facts import columns_encoded, facts_of

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ROWS, FILES = 12_000, 4
PROPERTIES = {
    "write.parquet.page-row-limit": "500",
    "write.parquet.row-group-size-bytes": "400000",
    "write.distribution-mode": "none",
    "write.delete.mode": "merge-on-read",
}
MADE = f"""
    SELECT id, concat('k', id % 7) AS few, xxhash64(id, 1) AS n,
        if(id % 11 = 0, null, concat('é', hex(xxhash64(id, 2)))) AS text,
        if(id BETWEEN 4000 AND 5499, null, cast(xxhash64(id, 3) / 7 AS DOUBLE)) AS d,
        cast(pmod(xxhash64(id, 4), 100000000) / 100 AS DECIMAL(12, 2)) AS price,
        cast(pmod(xxhash64(id, 5), 100000000) AS DECIMAL(38, 4)) AS wide,
        timestamp_seconds(pmod(xxhash64(id, 6), 100000000)) AS ts,
        unhex(hex(xxhash64(id, 7))) AS bytes, if(id % 5 = 0, null, id % 3 = 0) AS flag,
        if(id % 13 = 0, null, cast(pmod(xxhash64(id, 8), 300) AS INT)) AS some,
        date_add(DATE '2020-01-01', cast(id div 100 AS INT)) AS day, if(id < 4000, null, cast(id % 9 AS FLOAT) - 4) AS f
    FROM range(0, {ROWS}, 1, {FILES})
"""
TYPES = (
    "id BIGINT, few STRING, n BIGINT, text STRING, d DOUBLE, price DECIMAL(12, 2), wide DECIMAL(38, 4), "
    "ts TIMESTAMP, bytes BINARY, flag BOOLEAN, some INT, day DATE, f FLOAT"
)
WHERE = "id BETWEEN 3990 AND 4010 OR id = 11999"
FOUND = [*range(3990, 4011), 11999]
GONE = "id % 20 = 3 OR id BETWEEN 6000 AND 6999"
TEXTS = ["id", "few", "n", "text", "d", "flag", "some", "day", "f", "bytes"]


def is_gone(i: int) -> bool:
    return i % 20 == 3 or 6000 <= i <= 6999


def by_duckdb(path: str) -> pa.Table:
    return duckdb.sql(f"SELECT id, text, d FROM '{path}' WHERE {WHERE}").to_arrow_table()


def by_polars(path: str) -> pa.Table:
    return pl.scan_parquet(path).filter(pl.sql_expr(WHERE)).select("id", "text", "d").collect().to_arrow()


def by_datafusion(path: str) -> pa.Table:
    context = SessionContext()
    context.register_parquet("rows", path)
    return context.sql(f"SELECT id, text, d FROM rows WHERE {WHERE}").to_arrow_table()


def by_pyarrow(path: str) -> pa.Table:
    id_ = ds.field("id")
    wanted = ((id_ >= 3990) & (id_ <= 4010)) | (id_ == 11999)
    return ds.dataset(path).to_table(columns=["id", "text", "d"], filter=wanted)


def by_duckdb_all(path: str) -> pa.Table:
    return duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table()


def by_polars_all(path: str) -> pa.Table:
    return pl.read_parquet(path).to_arrow()


def by_datafusion_all(path: str) -> pa.Table:
    context = SessionContext()
    context.register_parquet("rows", path)
    return context.sql("SELECT * FROM rows").to_arrow_table()


def by_pyarrow_all(path: str) -> pa.Table:
    return pq.read_table(path)


READERS: tuple[Callable[[str], pa.Table], ...] = (by_duckdb, by_polars, by_datafusion, by_pyarrow)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_every_reader_sees_the_rows_of_joined_files(
    spark: SparkSession, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, version: int, deletes: bool
) -> None:
    name = f"joined.t{uuid.uuid4().hex[:8]}"
    listed = ", ".join(f"'{key}'='{value}'" for key, value in {**PROPERTIES, "format-version": str(version)}.items())
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.joined")
    spark.sql(f"CREATE TABLE local.{name} ({TYPES}) USING iceberg TBLPROPERTIES ({listed})")
    spark.sql(f"INSERT INTO local.{name} {MADE}")
    if deletes:
        spark.sql(f"DELETE FROM local.{name} WHERE {GONE}")
    before = by_iceberg(spark, name)
    table = local_catalog.load_table(name)
    old = [local_path(file.path) for file in fp.plan_scan(table).files]
    encoded = columns_encoded(monkeypatch)

    fp.rewrite_data_files(table, options={"rewrite-all": "true"})

    assert encoded <= {"_row_id", "_last_updated_sequence_number"}
    (new,) = [local_path(file.path) for file in fp.plan_scan(table.refresh()).files]
    assert deletes or {"id", "n", "text", "d", "price", "ts"} <= kept(old, new)
    assert by_iceberg(spark, name).equals(before)
    found = [i for i in FOUND if not (deletes and is_gone(i))]
    filtered = spark.sql(f"SELECT id FROM local.{name} WHERE {WHERE}").toArrow()
    assert sorted(filtered["id"].to_pylist()) == found
    for vectorized in ("true", "false"):
        options = f"'read.parquet.vectorization.enabled'='{vectorized}', 'read.split.target-size'='100000'"
        spark.sql(f"ALTER TABLE local.{name} SET TBLPROPERTIES ({options})")
        assert by_iceberg(spark, name).equals(before), "in splits of single row groups"
    few = before.select(["id", "text", "d"]).filter(pa.array([i in found for i in before["id"].to_pylist()]))
    for reader in READERS:
        assert sorted(reader(new).to_pylist(), key=itemgetter("id")) == few.to_pylist(), reader.__name__
    for whole in (by_duckdb_all, by_polars_all, by_datafusion_all, by_pyarrow_all):
        rows = sorted(whole(new).select(TEXTS).to_pylist(), key=itemgetter("id"))
        assert rows == before.select(TEXTS).to_pylist(), whole.__name__


def by_iceberg(spark: SparkSession, name: str) -> pa.Table:
    return spark.sql(f"SELECT * FROM local.{name} ORDER BY id").toArrow().combine_chunks()


def kept(old: list[str], new: str) -> set[str]:
    """Columns whose pages in the new file are all copied from old files."""
    pages = {page for path in old for fact in facts_of(Path(path)) for page in fact["pages"]}
    facts = facts_of(Path(new))
    assert max(fact["group"] for fact in facts) > 0, "the file has several row groups"
    columns = {fact["column"][0] for fact in facts}
    encoded = {fact["column"][0] for fact in facts if not pages.issuperset(fact["pages"])}
    return columns - encoded
