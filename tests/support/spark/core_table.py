"""Every kind of operation on an evolved table, for any catalog, store and Spark.

The table is created unpartitioned, then partitioned by region, then by day and bucket; results are compared with a
dictionary of rows. Functions take the session first and run in a separate process (``tests.support.servers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.audit.job import audit
from floeplan.tasks import runner
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.scan_reports import leaf, own_report, write_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("ts", pa.timestamp("us")), ("v", pa.int64())])
CHANGES = ("", "ADD PARTITION FIELD region", "REPLACE PARTITION FIELD region WITH days(ts)")
QUIET = fp.ScanOptions(report=False)
Rows = dict[int, dict[str, Any]]


def rows_of(ids: Iterable[int]) -> Rows:
    start = datetime(2024, 3, 1)
    return {i: {"id": i, "region": "aeu"[i % 3], "ts": start + timedelta(hours=i), "v": i} for i in ids}


def arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(list(rows.values()), schema=SCHEMA)


def evolved(properties: Mapping[str, str], version: int) -> tuple[Table, Rows]:
    """A new table with files of three specs, and its rows."""
    catalog = load_catalog("core", **properties)
    catalog.create_namespace_if_not_exists("core")
    table = _create(catalog, f"core.v{version}", version)
    for number, change in enumerate(CHANGES):
        if change:
            fp.sql(None, f"ALTER TABLE core.v{version} {change}", catalog=catalog)
        for first in (number * 40, number * 40 + 20):
            fp.append(table.refresh(), arrow(rows_of(range(first, first + 20))))
    return table.refresh(), rows_of(range(120))


def _create(catalog: Catalog, name: str, version: int) -> Table:
    if catalog.table_exists(name):
        catalog.drop_table(name)
    writable = writable_metadata(catalog._load_file_io()) if isinstance(catalog, SqlCatalog) else nullcontext()
    with writable:
        return catalog.create_table(name, SCHEMA, properties={"format-version": str(version)})


def change_everything(spark: SparkSession, properties: Mapping[str, str], version: int, path: str) -> None:
    """Append, delete, update, merge, rewrite, upgrade; check the rows after each step in every read mode."""
    runner.LOCAL_BYTES = -1  # run everything on Spark, whatever its size
    table, rows = evolved(properties, version)
    check(spark, table, rows, path)
    more = rows_of(range(200, 220))
    fp.append(
        table, spark.createDataFrame(arrow(more)).selectExpr("id", "region", "CAST(ts AS TIMESTAMP_NTZ) AS ts", "v")
    )
    rows |= more
    check(spark, table, rows, path)
    fp.delete(table, "id % 7 = 3", spark=spark, mode="merge-on-read")
    rows = {i: row for i, row in rows.items() if i % 7 != 3}
    check(spark, table, rows, path)
    fp.update(table, {"v": "v + 1000"}, "id % 5 = 1 AND region = 'e'", spark=spark, mode="merge-on-read")
    rows = {i: row | {"v": i + 1000} if i % 5 == 1 and row["region"] == "e" else row for i, row in rows.items()}
    check(spark, table, rows, path)
    source = rows_of([5, 50, 500])
    merge = fp.merge(table, arrow({i: row | {"v": -i} for i, row in source.items()}), "id", spark=spark)
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert().execute()
    rows |= {i: rows.get(i, row) | {"v": -i} for i, row in source.items()}
    check(spark, table, rows, path)
    check_predicate(spark, table, rows)
    fp.rewrite_data_files(table, spark=spark, options={"rewrite-all": "true"})
    check(spark, table, rows, path)
    fp.upgrade_spec(table, spark=spark)
    assert {file.spec_id for file in fp.plan_scan(table.refresh(), options=QUIET).files} == {table.spec().spec_id}
    check(spark, table, rows, path)


def check(spark: SparkSession, table: Table, rows: Rows, path: str) -> None:
    """Compare all rows as read by this process and by Spark, which must use the expected read path."""
    expected = sorted(rows.values(), key=lambda row: row["id"])
    assert _sorted(fp.plan_scan(table.refresh(), options=QUIET).to_arrow()) == expected
    plan = fp.plan_read(spark, table, options=fp.ReadOptions(scan=QUIET))
    assert bool(plan.branches) == (path == "native"), plan.explain()
    assert _sorted(plan.dataframe().toArrow()) == expected


def check_predicate(spark: SparkSession, table: Table, rows: Rows) -> None:
    """Compare the rows of a predicate, read both ways, and of a join of two reads."""
    expected = sorted(i for i, row in rows.items() if row["region"] == "e" and i > 50)
    for path in ("auto", "arrow"):
        options = fp.ReadOptions(path=path, scan=QUIET)  # type: ignore[arg-type]
        shown, again = (
            fp.read(spark, table.refresh(), "region = 'e' AND id > 50", columns=["id"], options=options)
            for _ in range(2)
        )
        assert ids(shown) == ids(shown.join(again, "id")) == expected


def ids(frame: DataFrame) -> list[int]:
    return sorted(frame.toArrow().column("id").to_pylist())


def _sorted(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.select(SCHEMA.names).to_pylist(), key=lambda row: row["id"])


# --- every read API on Spark


def read_every_way(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """The data source, incremental reads, changelog reads and metadata tables."""
    table, rows = evolved(properties, 2)
    first = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    source = {"table": "core.v2", "catalog": "core", **{f"catalog.{key}": value for key, value in properties.items()}}
    fp.register(spark)
    shown = spark.read.format("floeplan").options(**source, where="id >= 100", columns="id").load()
    assert ids(shown) == list(range(100, 120))
    more = fp.read(spark, table, "id < 2").selectExpr("id + 700 AS id", "region", "ts", "v")
    more.write.format("floeplan").mode("append").options(**source).save()
    fp.delete(table.refresh(), "id = 5", spark=spark, mode="merge-on-read")
    second = table.refresh().metadata.snapshots[-2].snapshot_id
    assert ids(fp.incremental(spark, table, first, second)) == [700, 701]
    changes = fp.incremental(spark, table, first, changelog=True).toArrow().to_pylist()
    assert sorted((row["_change_type"], row["id"]) for row in changes) == [
        ("DELETE", 5), ("INSERT", 700), ("INSERT", 701)
    ]  # fmt: skip
    assert fp.metadata_table(spark, table, "snapshots").count() == len(table.metadata.snapshots)
    files = fp.metadata_table(spark, table, "files").where("content = 0").toArrow()
    assert sum(files.column("record_count").to_pylist()) == len(rows) + 2


def audit_reports(spark: SparkSession, folder: Path) -> list[str]:
    """The predicates an audit flags."""
    reports = [
        own_report(leaf("eq", "user", value), kept=90, total=100, why="values are spread over all files")
        for value in (7, 8)
    ]
    place = write_lines(folder / "reports/scan.jsonl", reports)
    return [finding.filter for finding in audit(spark, str(place)).flagged]


# --- tasks on a cluster whose executors lack the package


def seen_by_tasks(spark: SparkSession) -> tuple[bool, bool]:
    """Whether tasks can import the package, and whether they can load its compiled kernels."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        from importlib import import_module

        names = ("metadata.avro._avro_decode", "parquet.footer._thrift", "parquet.pages._page_values")
        try:
            load = import_module("floeplan.kernels").load_kernel
            package, kernels = True, all(load(f"floeplan.{name}") is not None for name in names)
        except ModuleNotFoundError:
            package = kernels = False
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"package": [package], "kernels": [kernels]})

    found = spark.range(1).mapInArrow(look, "package boolean, kernels boolean").toArrow().to_pylist()[0]
    return found["package"], found["kernels"]


def read_in_tasks(spark: SparkSession, properties: Mapping[str, str]) -> list[int]:
    """The ids of a table, read in Python tasks."""
    table, _ = evolved(properties, 2)
    shown = fp.read(spark, table, columns=["id"], options=fp.ReadOptions(path="arrow", scan=QUIET))
    return sorted(shown.toArrow().column("id").to_pylist())


def appended_in_tasks(spark: SparkSession, properties: Mapping[str, str]) -> list[int]:
    """The ids of rows that Python tasks have written."""
    runner.LOCAL_BYTES = -1  # whatever the number of rows
    table, _ = evolved(properties, 2)
    fp.append(table, spark.range(1000, 1010, 1, 2))
    added = fp.plan_scan(table, "id >= 1000", options=QUIET).to_arrow(columns=["id"])
    return sorted(added.column("id").to_pylist())


def failure(spark: SparkSession, properties: Mapping[str, str]) -> str:
    """The error when tasks lack a dependency of the package."""
    try:
        read_in_tasks(spark, properties)
    except fp.FloeplanError as error:
        return str(error)
    return "no error"
