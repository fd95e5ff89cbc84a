"""Cases in which Spark's Parquet reader silently returns wrong rows, and that ``fp.read`` avoids them.

Where a bug of Spark is the reason for a guard, the bug itself is tested: once it is fixed, the guard can be removed.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType
from pyspark.sql import DataFrameReader

from floeplan.dml.append import append
from floeplan.dml.delete_update import delete
from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.spark.read import native as row_numbers
from floeplan.spark.read.columns import FIELD_ID
from floeplan.spark.read.deletes import cached_bitmap, cached_row_test, is_kept
from floeplan.spark.read.file_log import cached_frame, process_folder
from floeplan.spark.read.reader import ReadOptions, plan_read, read, read_plan_of
from floeplan.spark.read.reader_choice import FIELD_ID_CONF, MISSING_IDS_CONF, ZONE_CONF
from floeplan.transaction.metadata_json import writable_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from floeplan.scan.plan import ScanPlan

pytestmark = pytest.mark.spark

NUMBERS = count()
OPTIONS = ReadOptions(scan=ScanOptions(footers=False, report=False))
NATIVE = ReadOptions(path="native", scan=OPTIONS.scan)


@pytest.fixture
def name(local_catalog: SqlCatalog) -> str:
    local_catalog.create_namespace_if_not_exists("traps")
    return f"traps.table_{next(NUMBERS)}"


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(MISSING_IDS_CONF)
    yield
    spark.conf.set(MISSING_IDS_CONF, before)


def rows(frame: DataFrame) -> list[dict[str, object]]:
    return sorted(frame.toArrow().to_pylist(), key=repr)


def naive(spark: SparkSession, table: Table, ids: dict[str, int]) -> DataFrame:
    """The table's files read with field ids in the schema and without guards."""
    from pyspark.sql import types

    spark.conf.set(FIELD_ID_CONF, "true")
    schema = types.StructType(
        [types.StructField(name, types.LongType(), True, {FIELD_ID: i}) for name, i in ids.items()]
    )
    paths = [file.path for file in plan_scan(table, options=OPTIONS.scan).files]
    return spark.read.schema(schema).parquet(*paths)


def test_swapped_names(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    data = pa.table({"a": pa.array([1, 2, 3]), "b": pa.array([10, 20, 30])})
    table = local_catalog.create_table(name, data.schema)
    table.append(data)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    expected = [{"b": 2, "a": 20}]
    assert rows(read(spark, table, "a = 20", options=NATIVE)) == expected
    assert rows(read(spark, table, options=NATIVE).where("a = 20")) == expected
    assert naive(spark, table, {"b": 1, "a": 2}).where("a = 20").toArrow().to_pylist() != expected


def test_dropped_and_added_again(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64(), "b": pa.int64()}))
    table.append(pa.table({"a": [1, 2], "b": [10, 20]}))
    with table.update_schema() as update:
        update.delete_column("b")
    with table.update_schema() as update:
        update.add_column("b", table.schema().find_field("a").field_type)
    table.append(pa.table({"a": [3], "b": [20]}))
    assert rows(read(spark, table, options=NATIVE).where("b = 20")) == [{"a": 3, "b": 20}]
    assert rows(read(spark, table, "b IS NULL", columns=["a"], options=NATIVE)) == [{"a": 1}, {"a": 2}]


def test_names_differing_in_case_only(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64(), "b": pa.int64()}))
    table.append(pa.table({"a": [1, 2], "b": [10, 20]}))
    with table.update_schema() as update:
        update.rename_column("a", "c")
    with table.update_schema() as update:
        update.rename_column("b", "A")
    assert rows(read(spark, table, options=NATIVE).where("A = 20")) == [{"c": 2, "A": 20}]


def test_plainly_renamed_and_promoted_columns(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int32(), "f": pa.float32()}))
    table.append(pa.table({"a": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 1.5], pa.float32())}))
    with table.update_schema() as update:
        update.update_column("a", LongType())
        update.update_column("f", DoubleType())
        update.rename_column("a", "long")
    table.append(pa.table({"long": pa.array([2**40]), "f": pa.array([0.1])}))
    expected = [{"long": 2, "f": 1.5}, {"long": 2**40, "f": 0.1}]
    shown = read(spark, table, options=NATIVE)
    assert rows(shown.where("long > 1")) == sorted(expected, key=repr)
    assert not any(field.metadata for field in shown.schema), "the reader does not handle field ids and defaults"


def test_renamed_fields_of_structs_are_not_pruned_to_nulls(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    struct = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    data = pa.table({"s": pa.array([{"x": 1, "y": 2}, {"x": 3, "y": 4}, None], struct)})
    table = local_catalog.create_table(name, data.schema)
    table.append(data)
    for old, new in (("s.x", "z"), ("s.y", "x"), ("s.z", "y")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    shown = read(spark, table, options=NATIVE)
    assert rows(shown.selectExpr("s.x AS v").where("v IS NOT NULL")) == [{"v": 2}, {"v": 4}]
    assert rows(shown.where("s.y = 3").select("s.x")) == [{"x": 4}]
    assert rows(read(spark, table, "s.x = 2", columns=["s.x"], options=OPTIONS)) == [{"s": {"x": 2}}]


def test_files_without_ids_are_not_read_as_nulls(
    spark: SparkSession, local_catalog: SqlCatalog, name: str, tmp_path: Path, setting: None
) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    table.append(pa.table({"a": [3]}))
    table.add_files([str(path)])
    spark.conf.set(MISSING_IDS_CONF, "false")
    plan = plan_read(spark, table, options=OPTIONS)
    assert [len(branch.rows) for branch in plan.branches] == [1]
    assert plan.choice.reasons == (("they have no field ids", 1),)
    assert rows(plan.dataframe()) == [{"a": 1}, {"a": 2}, {"a": 3}]
    spark.conf.set(MISSING_IDS_CONF, "true")
    careless = plan_read(spark, table, options=OPTIONS)
    assert MISSING_IDS_CONF in careless.explain()
    assert rows(careless.dataframe()) == [{"a": 1}, {"a": 2}, {"a": 3}]


def moved(table: Table, file_name: str, without: str | None = None) -> tuple[ScanPlan, Path]:
    """The plan of a table with one file, after renaming the file and optionally dropping a column."""
    plan = plan_scan(table, options=OPTIONS.scan)
    place = Path(plan.files[0].path.removeprefix("file://"))
    target = place.parent / file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    stored = pq.ParquetFile(place).read()
    pq.write_table(stored if without is None else stored.drop_columns(without), target)
    return relocated(plan, str(target)), target


def relocated(plan: ScanPlan, path: str) -> ScanPlan:
    """The same plan with its file at another path."""
    entries = plan.files.entries
    column = entries.table.schema.get_field_index("file_path")
    table = entries.table.set_column(column, "file_path", pa.array([path], pa.large_string()))
    return replace(plan, files=replace(plan.files, entries=replace(entries, table=table)))


def test_identity_values_stand_in_for_missing_columns(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "p", StringType(), required=False),
        NestedField(3, "d", DateType(), required=False),
    )
    fields = [PartitionField(i, 998 + i, IdentityTransform(), f"by_{i}") for i in (2, 3)]
    table = local_catalog.create_table(name, schema, partition_spec=PartitionSpec(*fields))
    table.append(pa.table({"a": [1, 2], "p": ["x", "x"], "d": pa.array([19000, 19000], pa.int32()).cast(pa.date32())}))
    whole = rows(read(spark, table, options=NATIVE))
    for lacking in ("p", "d"):
        plan, _ = moved(table, f"without-{lacking}.parquet", without=lacking)
        assert rows(read_plan_of(spark, plan, "native").dataframe()) == whole
        assert rows(read_plan_of(spark, plan, "native").dataframe().where("p = 'x' AND a = 2")) == whole[1:]


@pytest.mark.parametrize("hidden", ["_x.parquet", ".x.parquet"])
def test_files_with_hidden_names_are_read(
    spark: SparkSession, local_catalog: SqlCatalog, name: str, hidden: str
) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    table.append(pa.table({"a": [1]}))
    plan, path = moved(table, hidden)
    chosen = read_plan_of(spark, plan)
    assert "skip them silently" in chosen.explain()
    assert rows(chosen.dataframe()) == [{"a": 1}]
    assert spark.read.schema("a long").parquet(str(path)).count() == 0, "Spark no longer hides such files"


def test_paths_are_taken_literally(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    table.append(pa.table({"a": [1]}))
    plan, _ = moved(table, "k=[a] {b,c}/*?#&;%41 +é\\\"'x.parquet")
    assert rows(read_plan_of(spark, plan, "native").dataframe()) == [{"a": 1}]


def test_deletes_apply_to_files_whose_paths_spark_escapes(
    spark: SparkSession, local_catalog: SqlCatalog, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema({"a": pa.int64()})
    table = local_catalog.create_table(name, schema, location=(tmp_path / "a b%41").as_uri().replace("%20", " "))
    append(table, pa.table({"a": range(10)}))
    delete(table.refresh(), "a < 8", mode="merge-on-read")
    plan = plan_read(spark, table.refresh(), options=NATIVE)
    assert [branch.describe() for branch in plan.branches] == ["position deletes as a bitmap"]
    assert rows(plan.dataframe()) == [{"a": 8}, {"a": 9}]
    monkeypatch.setattr(row_numbers, "KNOWN_TO_COUNT", "another Spark")
    assert rows(plan.dataframe()) == [{"a": 8}, {"a": 9}]
    (file,) = plan.plan.files
    reader = spark.read.option("__globPaths__", "false").schema("a long")
    row = reader.parquet(file.path.removeprefix("file://")).select("_metadata.file_path").first()
    assert row is not None
    assert row[0] != file.path, "Spark no longer escapes paths"


@pytest.fixture
def deleted(local_catalog: SqlCatalog, name: str) -> Table:
    """A file of ten rows, of which the last two are live."""
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    append(table, pa.table({"a": range(10)}))
    delete(table.refresh(), "a < 8", mode="merge-on-read")
    return table.refresh()


def test_row_indexes_come_from_the_reader_if_it_supports_them(spark: SparkSession, deleted: Table) -> None:
    session = spark.newSession()
    assert rows(read(session, deleted, options=NATIVE)) == [{"a": 8}, {"a": 9}]
    assert row_numbers.row_index_column(session) == row_numbers.ROW_INDEX


def test_a_reader_without_row_indexes_is_not_used(
    spark: SparkSession, deleted: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_numbers, "ROW_INDEX", "a_name_no_reader_fills")
    session = spark.newSession()
    assert rows(read(session, deleted, options=NATIVE)) == [{"a": 8}, {"a": 9}]
    assert row_numbers.row_index_column(session) == row_numbers.DOCUMENTED


def test_a_missing_row_index_is_an_error(spark: SparkSession, deleted: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    session = spark.newSession()
    monkeypatch.setattr(row_numbers, "ROW_INDEX", "a_name_no_reader_fills")
    monkeypatch.setitem(row_numbers._proven, session, True)
    with pytest.raises(Exception, match="missing or invalid row index in a file with deletes"):
        read(session, deleted, options=NATIVE).collect()


@pytest.mark.parametrize("version", ["2", "3"])
def test_cached_deletes_are_not_used_for_newer_snapshots(
    spark: SparkSession, local_catalog: SqlCatalog, name: str, version: str
) -> None:
    with writable_metadata(local_catalog._load_file_io()):
        table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}), properties={"format-version": version})
    append(table, pa.table({"a": range(5)}))
    for deleted in range(4):
        delete(table.refresh(), f"a = {deleted}", mode="merge-on-read")
        for _ in range(2):
            assert rows(read(spark, table.refresh(), options=NATIVE)) == [{"a": a} for a in range(deleted + 1, 5)]
    first = table.snapshots()[1].snapshot_id
    assert rows(read(spark, table, snapshot_id=first, options=NATIVE)) == [{"a": a} for a in range(1, 5)]


def test_deletes_are_read_once(spark: SparkSession, deleted: Table) -> None:
    plan = plan_read(spark, deleted, options=NATIVE)
    assert rows(plan.dataframe()) == [{"a": 8}, {"a": 9}]
    (delete_file,) = plan.plan.files[0].deletes
    Path(delete_file.path.removeprefix("file://")).unlink()
    assert rows(plan.dataframe()) == [{"a": 8}, {"a": 9}]
    other = spark.newSession()
    assert rows(plan_read(other, deleted, options=NATIVE).dataframe()) == [{"a": 8}, {"a": 9}]
    cached_bitmap.cache_clear()
    assert rows(plan.dataframe()) == [{"a": 8}, {"a": 9}]
    cached_row_test.cache_clear()
    with pytest.raises(FloeplanError, match="deletes"):
        plan.dataframe()


def test_cached_delete_bitmaps_are_sent_to_a_session_once(
    spark: SparkSession, deleted: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_row_test.cache_clear()
    sent = []
    create = type(spark).createDataFrame
    monkeypatch.setattr(
        type(spark), "createDataFrame", lambda *given, **named: sent.append(1) or create(*given, **named)
    )
    left, right = (read(spark, deleted, options=NATIVE) for _ in range(2))
    assert len(sent) == 1
    both = left.join(right.where("a > 8"), "a", "left").unionAll(read(spark, deleted, options=NATIVE))
    assert rows(both.orderBy("a")) == [{"a": 8}, {"a": 8}, {"a": 9}, {"a": 9}]


def test_cached_files_are_loaded_once_and_reads_are_distinguished(
    spark: SparkSession, local_catalog: SqlCatalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64(), "x": pa.float64()}))
    append(table, pa.table({"a": [1, 2, 3], "x": [0.5, 1.5, 2.5]}))
    loads = []
    load = DataFrameReader.load
    monkeypatch.setattr(DataFrameReader, "load", lambda *given, **named: loads.append(1) or load(*given, **named))
    left, right = (read(spark, table.refresh(), options=NATIVE) for _ in range(2))
    next_to = left.join(right, left["a"] == right["a"] + 1).select(left["a"], right["x"])
    assert rows(next_to.orderBy("a")) == [{"a": 2, "x": 0.5}, {"a": 3, "x": 1.5}]
    assert len(loads) == 1
    narrow = read(spark, table, "a > 1", options=NATIVE)
    assert [row["a"] for row in rows(narrow.join(left, narrow["a"] == left["a"]).select(left["a"]))] == [2, 3]
    assert len(loads) == 1
    append(table, pa.table({"a": [4], "x": [3.5]}))
    assert read(spark, table.refresh(), options=NATIVE).count() == 4
    assert read(spark.newSession(), table, options=NATIVE).count() == 4
    assert len(loads) == 3


def test_a_log_that_was_removed_is_written_again(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    append(table, pa.table({"a": [1]}))
    plan = plan_read(spark, table.refresh(), options=NATIVE)
    assert rows(plan.dataframe()) == [{"a": 1}]
    for folder in Path(process_folder()).iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    assert rows(plan.dataframe()) == [{"a": 1}]
    cached_frame.cache_clear()
    assert rows(plan.dataframe()) == [{"a": 1}]


@pytest.mark.parametrize("row", ["CAST(NULL AS BIGINT)", "128L", "-1L", "shiftleft(1L, 39)"])
def test_an_invalid_row_index_is_an_error(spark: SparkSession, row: str) -> None:
    words = spark.createDataFrame([([0b101, -(2**63)],)], "words array<long>").scalar()
    numbered = spark.range(128).selectExpr("id", "id AS row")
    kept = numbered.where(is_kept(words, "0L", "row")).select("id").collect()
    assert [number for (number,) in kept] == [number for number in range(128) if number not in (0, 2, 127)]
    with pytest.raises(Exception, match="missing or invalid row index in a file with deletes"):
        numbered.selectExpr("id", f"{row} AS row").where(is_kept(words, "0L", "row")).collect()


def test_vectors_are_found_although_pyiceberg_drops_their_offset(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    with writable_metadata(local_catalog._load_file_io()):
        table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}), properties={"format-version": "3"})
    for first in (0, 10):
        append(table.refresh(), pa.table({"a": range(first, first + 10)}))
    delete(table.refresh(), "a % 10 < 8", mode="merge-on-read")
    expected = [{"a": 18}, {"a": 19}, {"a": 8}, {"a": 9}]
    assert rows(read(spark, table.refresh(), options=NATIVE)) == expected
    vectors = [vector for file in plan_scan(table, options=OPTIONS.scan).files for vector in file.deletes]
    assert len({vector.content_offset for vector in vectors}) == 2
    manifests = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    entries = [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    forgotten = [file for file in entries if file.content != DataFileContent.DATA]
    assert len(forgotten) == 2
    for name_of in ("content_offset", "referenced_data_file"):
        assert not any(getattr(file, name_of, None) for file in forgotten), "PyIceberg keeps it now"


def test_stores_the_jvm_cannot_reach_are_read_in_python(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64()}))
    table.append(pa.table({"a": [1]}))
    plan = plan_scan(table, options=OPTIONS.scan)
    elsewhere = relocated(plan, "s3://bucket/a.parquet")
    chosen = read_plan_of(spark, elsewhere)
    assert not chosen.branches
    assert "Spark cannot read s3://bucket: " in chosen.explain()
    with pytest.raises(UnsupportedError, match=r"cannot read 1 of 1 files: Spark cannot read s3://bucket"):
        read_plan_of(spark, elsewhere, "native")


def test_selected_pages_and_other_time_zones_take_python_tasks(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64(), "at": pa.timestamp("us", "UTC")}))
    table.append(pa.table({"a": range(5), "at": pa.array(range(5), pa.timestamp("us", "UTC"))}))

    def reasons(where: str, scan: ScanOptions | None = None) -> list[str]:
        plan = plan_read(spark, table.refresh(), where, options=replace(OPTIONS, scan=scan or OPTIONS.scan))
        assert rows(plan.dataframe()) == sorted(plan.plan.to_arrow().to_pylist(), key=repr)
        return [reason for reason, _ in plan.choice.reasons]

    zone = spark.conf.get(ZONE_CONF)
    try:
        spark.conf.set(ZONE_CONF, "Asia/Tokyo")
        assert reasons("a = 3 AND at > TIMESTAMP '1970-01-01 00:00:00'") == []
        assert reasons("hour(at) = 0 AND a = 3") == [
            "the predicate computes values, and the session time zone is Asia/Tokyo, not UTC"
        ]
    finally:
        spark.conf.set(ZONE_CONF, zone)
    assert reasons("hour(at) = 0") == []
    many = range(10, 60_000)
    append(table, pa.table({"a": many, "at": pa.array(many, pa.timestamp("us", "UTC"))}))
    assert reasons("a IN (3, 30000)", ScanOptions(page_index=True, report=False)) == ["the plan selects pages"]


def test_floats_keep_the_rows_pushed_filters_lose(spark: SparkSession, local_catalog: SqlCatalog, name: str) -> None:
    values = [float("nan"), -0.0, 0.0, 1.0, None]
    struct = pa.array([{"g": value} for value in values], pa.struct([("g", pa.float64())]))
    data = pa.table({"k": pa.array(range(5)), "f": pa.array(values, pa.float64()), "s": struct})
    table = local_catalog.create_table(name, data.schema)
    table.append(data)

    def found(frame: DataFrame) -> list[object]:
        return sorted(frame.toArrow()["k"].to_pylist())

    for column in ("f", "s.g"):
        for where, expected in ((f"{column} > 24", [0]), (f"{column} = 0.0D", [1, 2]), (f"{column} < 1", [1, 2])):
            assert found(read(spark, table, where, options=NATIVE)) == expected
            assert found(read(spark, table, options=NATIVE).where(where)) == expected
    path = plan_scan(table, options=OPTIONS.scan).files[0].path
    assert spark.read.parquet(path).where("f > 24").count() == 0, "Spark's pushdown no longer loses NaN"


def test_every_column_is_renamed_if_a_past_schema_is_missing(
    spark: SparkSession, local_catalog: SqlCatalog, name: str
) -> None:
    table = local_catalog.create_table(name, pa.schema({"a": pa.int64(), "b": pa.int64()}))
    table.append(pa.table({"a": [1, 2], "b": [10, 20]}))
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    last = table.metadata.schemas[-1]
    table.metadata = table.metadata.model_copy(update={"schemas": [last]})
    assert rows(read(spark, table, options=NATIVE).where("a = 20")) == [{"b": 2, "a": 20}]
