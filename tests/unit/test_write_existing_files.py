"""Existing files added as data files: proven partitions, matched columns, and errors."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, StructType, TimestampType

from floeplan.errors import BadInputError, FloeplanError, TypeMismatchError, UnsupportedError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.scan.plan import plan_scan
from floeplan.scan.projection import arrow_schema
from floeplan.write.data_files import write_data_files
from floeplan.write.existing_files import existing_file_entries
from floeplan.write.target import WriteTarget
from tests.support.tables.layouts import Layout

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "where", StructType(NestedField(6, "zone", StringType()))),
    NestedField(7, "kind", StringType(), initial_default="plain"),
)
MAPPING = json.dumps(
    [
        {"field-id": 1, "names": ["id", "key"]},
        {"field-id": 2, "names": ["region"]},
        {"field-id": 3, "names": ["ts"]},
    ]
)
PRICES = pa.array(["1.01", "1.99"]).cast(pa.decimal128(9, 2))


def spec(*fields: tuple[int, Any, str]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(s, 1000 + at, t, n) for at, (s, t, n) in enumerate(fields)), spec_id=1)


def table_of(folder: Path, own: PartitionSpec, mapping: str | None = None, version: int = 2) -> Table:
    layout = Layout(SCHEMA, (PartitionSpec(spec_id=0), own), version)
    table = layout.write_table(folder / "table", layout.entries([]))
    if mapping is not None:
        table.metadata.properties["schema.name-mapping.default"] = mapping
    return table


def file(path: Path, **columns: Any) -> str:
    """A file with the ids of the schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = arrow_schema(SCHEMA)
    given = {"id": [1, 2]} | columns
    fields = [layout.field(name) for name in given if given[name] is not None]
    pq.write_table(pa.table([given[field.name] for field in fields], schema=pa.schema(fields)), path)
    return str(path)


def at(*text: str) -> list[datetime]:
    return [datetime.fromisoformat(one) for one in text]


@pytest.mark.parametrize(
    ("own", "columns", "values"),
    [
        (spec((2, IdentityTransform(), "region")), {"region": ["eu", "eu"]}, ["eu"]),
        (spec((2, IdentityTransform(), "region")), {"region": pa.nulls(2, pa.large_string())}, [None]),
        (spec((2, IdentityTransform(), "region")), {}, [None]),
        (spec((7, IdentityTransform(), "kind")), {}, ["plain"]),
        (spec((2, TruncateTransform(2), "r")), {"region": ["eu1", "eu2"]}, ["eu"]),
        (spec((3, MonthTransform(), "m")), {"ts": at("2024-03-01", "2024-03-31")}, [650]),
        (spec((3, DayTransform(), "d")), {"ts": at("1969-12-31T00:00", "1969-12-31T23:59")}, [-1]),
        (spec((1, BucketTransform(8), "b")), {"id": [5, 5]}, [BucketTransform(8).transform(LongType())(5)]),
        (
            spec((4, TruncateTransform(100), "p")),
            {"price": PRICES},
            [100],
        ),
        (spec((2, VoidTransform(), "gone"), (1, TruncateTransform(10), "i")), {}, [0]),
    ],
)
def test_a_partition_is_proven_by_the_statistics_of_the_file(
    tmp_path: Path, own: PartitionSpec, columns: dict[str, Any], values: list[Any]
) -> None:
    entries = existing_file_entries(table_of(tmp_path, own), [file(tmp_path / "a.parquet", **columns)])
    (row,) = entries.table.to_pylist()
    assert [row[f"partition.{field_id}"] for field_id in sorted(entries.partition_types)] == values
    assert (row["spec_id"], row["record_count"], row["status"], row["content"]) == (1, 2, 1, 0)
    assert row["file_size_in_bytes"] == (tmp_path / "a.parquet").stat().st_size


@pytest.mark.parametrize(
    ("own", "columns", "why"),
    [
        (spec((2, IdentityTransform(), "region")), {"region": ["eu", "us"]}, "its values span several partitions"),
        (spec((2, IdentityTransform(), "region")), {"region": ["eu", None]}, "it may have nulls"),
        (spec((1, BucketTransform(8), "region")), {}, "only a single value proves a bucket"),
        (spec((3, DayTransform(), "region")), {"ts": at("2024-03-01", "2024-03-02")}, "span several partitions"),
    ],
)
def test_what_is_not_proven_is_refused(tmp_path: Path, own: PartitionSpec, columns: dict[str, Any], why: str) -> None:
    good = file(tmp_path / "good.parquet", id=[1, 1], region=["eu", "eu"], ts=at("2024-03-01", "2024-03-01"))
    bad = file(tmp_path / "bad.parquet", **columns)
    with pytest.raises(UnsupportedError, match=rf"bad\.parquet cannot be proven.*field region.*{why}"):
        existing_file_entries(table_of(tmp_path, own), [good, bad])


def test_files_are_imported_under_an_old_spec_as_well(tmp_path: Path) -> None:
    entries = existing_file_entries(
        table_of(tmp_path, spec((2, IdentityTransform(), "region"))), [file(tmp_path / "a.parquet")], spec_id=0
    )
    assert entries.spec_id.tolist() == [0]


def test_the_rows_of_imported_files_are_read(tmp_path: Path) -> None:
    own = spec((3, DayTransform(), "d"))
    path = file(tmp_path / "a.parquet", ts=at("2024-03-01", "2024-03-01T12:00"))
    entries = existing_file_entries(table_of(tmp_path, own), [path])
    read = Layout(SCHEMA, (PartitionSpec(spec_id=0), own)).write_table(tmp_path / "read", entries)
    found = plan_scan(read, "ts >= TIMESTAMP_NTZ '2024-03-01 12:00:00'").to_arrow()
    assert found.select(["id", "kind"]).to_pylist() == [{"id": 2, "kind": "plain"}]


@pytest.mark.parametrize(
    ("own", "folder", "value"),
    [
        (spec((2, IdentityTransform(), "region")), "region=a%2Fb", "a/b"),
        (spec((2, IdentityTransform(), "region")), "region=__HIVE_DEFAULT_PARTITION__", None),
        (spec((3, YearTransform(), "y")), "y=2024", 54),
        (spec((3, MonthTransform(), "m")), "m=2024-03", 650),
        (spec((3, DayTransform(), "d")), "d=1969-12-31", -1),
        (spec((3, HourTransform(), "h")), "h=1970-01-02-03", 27),
        (spec((1, BucketTransform(8), "b")), "b=3", 3),
        (spec((4, IdentityTransform(), "price")), "price=-1.5", -150),
    ],
)
def test_folder_names_replace_missing_statistics(tmp_path: Path, own: PartitionSpec, folder: str, value: Any) -> None:
    path = file(tmp_path / folder / "a.parquet", ts=[datetime(2020, 1, 1), None])
    entries = existing_file_entries(table_of(tmp_path, own), [path], hive_partitions=True)
    assert entries.array("partition.1000").to_pylist() == [value]


@pytest.mark.parametrize(
    ("own", "folder", "columns", "message"),
    [
        (spec((2, IdentityTransform(), "region")), "region=us", {"region": ["eu", "eu"]}, "its path has 'us', but its"),
        (
            spec((3, MonthTransform(), "m")),
            "m=March",
            {"ts": at("2024-03-01", "2024-04-01")},
            "m=March .* not a value",
        ),
        (spec((1, BucketTransform(8), "b")), "bb=3", {}, "cannot be proven"),
    ],
)
def test_folders_that_do_not_agree_or_cannot_be_read_are_refused(
    tmp_path: Path, own: PartitionSpec, folder: str, columns: dict[str, Any], message: str
) -> None:
    path = file(tmp_path / folder / "a.parquet", **columns)
    with pytest.raises(UnsupportedError, match=message):
        existing_file_entries(table_of(tmp_path, own), [path], hive_partitions=True)


def plain(path: Path, **columns: Any) -> str:
    """A file without ids."""
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_files_without_ids_need_a_name_mapping(tmp_path: Path) -> None:
    path = plain(tmp_path / "a.parquet", key=[1, 2], region=["eu", "eu"], other=[1, 2])
    own = spec((2, IdentityTransform(), "region"))
    with pytest.raises(UnsupportedError, match="carry no field ids and the table has no name mapping"):
        existing_file_entries(table_of(tmp_path / "without", own), [path])
    (row,) = existing_file_entries(table_of(tmp_path / "with", own, MAPPING), [path]).table.to_pylist()
    assert row["partition.1000"] == "eu"
    assert [pair["key"] for pair in row["lower_bounds"]] == [1, 2]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"key": [1], "ts": [1]}, TypeMismatchError, "column ts of .* is long, which cannot be read as timestamp"),
        ({"key": pa.array([1], pa.uint64())}, TypeMismatchError, "column key of .* cannot be read as long"),
        ({"key": [1], "ts": pa.array([datetime.now(UTC)])}, TypeMismatchError, "is timestamptz, which cannot be read"),
        ({"region": ["eu"]}, BadInputError, "column id is required, and .*a.parquet does not have it"),
    ],
)
def test_columns_that_cannot_be_the_tables_are_refused(
    tmp_path: Path, columns: dict[str, Any], error: type[FloeplanError], message: str
) -> None:
    with pytest.raises(error, match=message):
        existing_file_entries(table_of(tmp_path, spec(), MAPPING), [plain(tmp_path / "a.parquet", **columns)])


def test_narrower_columns_are_taken(tmp_path: Path) -> None:
    path = plain(tmp_path / "a.parquet", key=pa.array([1], pa.int32()))
    assert len(existing_file_entries(table_of(tmp_path, spec(), MAPPING), [path])) == 1


@pytest.mark.parametrize(("field_id", "known"), [("2", "region"), ("99", "no column")])
def test_ids_of_another_table_are_refused(tmp_path: Path, field_id: str, known: str) -> None:
    ours = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    theirs = pa.field("area", pa.string(), metadata={"PARQUET:field_id": field_id})
    pq.write_table(pa.table([[1], ["x"]], schema=pa.schema([ours, theirs])), tmp_path / "a.parquet")
    with pytest.raises(UnsupportedError, match=f"column area of .* has field id {field_id}, .* is {known}"):
        existing_file_entries(table_of(tmp_path, spec()), [tmp_path / "a.parquet"])


def test_a_file_is_imported_once(tmp_path: Path) -> None:
    layout = Layout(SCHEMA, (PartitionSpec(spec_id=0),))
    empty = layout.write_table(tmp_path / "table", layout.entries([]))
    path = file(tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match=re.escape("a.parquet is listed twice")):
        existing_file_entries(empty, [path, f"file://{path}"])
    full = layout.write_table(tmp_path / "full", existing_file_entries(empty, [f"file:{path}"]))
    with pytest.raises(BadInputError, match=re.escape(f"{path} is already a file of the table")):
        existing_file_entries(full, [path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FloeplanError, match=r"none\.parquet"):
        existing_file_entries(table_of(tmp_path, spec()), [tmp_path / "none.parquet"])


def test_files_floeplan_wrote_are_imported_as_they_were_written(tmp_path: Path) -> None:
    own = spec((2, IdentityTransform(), "region"))
    table = table_of(tmp_path, own)
    rows = pa.table({"id": [1, 2, 3], "region": ["eu", "us", "eu"], "where": [{"zone": "a"}, None, {"zone": None}]})
    written = write_data_files(WriteTarget.of(table), [rows], file_name_token="t")
    imported = existing_file_entries(table, written.path.to_pylist())
    names = ["file_path", "partition.1000", "record_count", "file_size_in_bytes", "split_offsets", "lower_bounds"]
    assert _columns(imported, names) == _columns(written, names)


def _columns(entries: EntriesTable, names: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = entries.table.select(names).to_pylist()
    return rows
