"""Rows into Parquet files and entries: types, partitions, sizes, order, memory, failure."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampType,
    UnknownType,
)

from floeplan.errors import InvalidOptionError, TypeMismatchError, UnknownSpecError, UnsupportedError
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.partition.transforms import apply
from floeplan.predicate.literals import Value
from floeplan.scan.plan import plan_scan
from floeplan.write.data_files import WriterLimits, write_data_files
from floeplan.write.parquet_file import high_cardinality_columns
from floeplan.write.target import WriteTarget
from tests.support.tables import every_type as every_column
from tests.support.tables.layouts import EVENTS, UNPARTITIONED, Layout, events, target

pytestmark = pytest.mark.unit

EVOLVED = PartitionSpec(
    PartitionField(2, 1000, TruncateTransform(1), "r"),
    PartitionField(3, 1001, DayTransform(), "ts_day"),
    PartitionField(1, 1002, BucketTransform(3), "bucket of id"),
    PartitionField(4, 1003, IdentityTransform(), "v"),
    PartitionField(2, 1004, VoidTransform(), "gone"),
    spec_id=1,
)


def read_back(entries: EntriesTable, place: WriteTarget, folder: Path, *specs: PartitionSpec) -> pa.Table:
    """The rows as read from the table."""
    layout = Layout(place.schema, specs or (UNPARTITIONED,), place.format_version)
    return plan_scan(layout.write_table(folder / "read", entries), None).to_arrow()


def files(entries: EntriesTable) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(local_path(path)) for path in entries.path.to_pylist()]


def comparable(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_every_type_round_trips(tmp_path: Path) -> None:
    place = target(tmp_path, every_column.SCHEMA)
    rows = every_column.rows()
    entries = write_data_files(place, [rows], file_name_token="t")
    assert comparable(read_back(entries, place, tmp_path)) == comparable(rows)


def test_every_field_has_its_id_in_the_file_and_the_types_are_icebergs(tmp_path: Path) -> None:
    place = target(tmp_path, every_column.SCHEMA)
    (file,) = files(write_data_files(place, [every_column.rows()], file_name_token="t"))
    text = str(file.schema)
    for expected in (
        "field_id=1 id;",
        "field_id=6 small_price (Decimal(precision=9, scale=2))",
        "required group field_id=-1 schema",
        "optional binary field_id=21 element (String)",
        "optional double field_id=24 value",
        "required double field_id=42 x",
        "optional fixed_len_byte_array(16) field_id=51 key (UUID)",
        "optional int64 field_id=12 instant (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds",
        "optional int64 field_id=53 ns (Timestamp(isAdjustedToUTC=false, timeUnit=nanoseconds",
    ):
        assert expected in text
    assert file.metadata.row_group(0).column(5).physical_type == "INT32"
    assert file.metadata.metadata is None
    chunk = file.metadata.row_group(0).column(0)
    assert chunk.compression == "ZSTD"
    assert chunk.has_column_index
    assert chunk.has_offset_index


def test_rows_of_a_partition_share_a_file_and_no_other_rows_do(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS, UNPARTITIONED, EVOLVED)
    rows = events(500)
    entries = write_data_files(place, [rows.slice(0, 200), rows.slice(200)], file_name_token="t")
    expected: dict[str, set[int]] = {}
    for row in rows.cast(place.arrow_schema).to_pylist():
        expected.setdefault(repr(_tuple_of(row)), set()).add(row["id"])
    found: dict[str, set[int]] = {}
    for entry, file in zip(entries.table.to_pylist(), files(entries), strict=True):
        values = [entry[f"partition.{key}"] for key in (1000, 1001, 1002, 1003)]
        assert repr(values) not in found
        found[repr(values)] = set(file.read(columns=["id"]).column(0).to_pylist())
    assert found == expected
    assert comparable(read_back(entries, place, tmp_path, UNPARTITIONED, EVOLVED)) == comparable(
        rows.cast(place.arrow_schema)
    )


def _tuple_of(row: dict[str, Any]) -> list[Value | None]:
    """Row by row, according to the specification."""
    ts = None if row["ts"] is None else pa.scalar(row["ts"], pa.timestamp("us")).value
    canonical = {1: row["id"], 2: row["region"], 3: ts, 4: row["v"]}
    fields = [field for field in EVOLVED.fields if not isinstance(field.transform, VoidTransform)]
    return [apply(f.transform, EVENTS.find_type(f.source_id), canonical[f.source_id]) for f in fields]  # type: ignore[arg-type]


def test_the_location_names_the_partition_in_words_that_are_escaped(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS, UNPARTITIONED, EVOLVED)
    row = pa.table({"id": [7], "region": ["/x"], "ts": pa.array([-1], pa.timestamp("us")), "v": [0.5]})
    (path,) = write_data_files(place, [row], file_name_token="t").path.to_pylist()
    assert "/data/r=%2F/ts_day=1969-12-31/bucket+of+id=" in path
    assert "/v=0.5/gone=null/t-" in path
    assert place.operation_id in path


def test_an_object_store_layout_is_respected(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS, write__object_storage__enabled="true")
    (path,) = write_data_files(place, [events(3)], file_name_token="t").path.to_pylist()
    assert len(path.partition("/data/")[2].split("/")) == 5


def test_a_given_partition_is_used_for_any_spec(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS, EVOLVED, PartitionSpec(spec_id=2))
    key = PartitionKey(1, ("z", -5, 2, None, None))
    (entry,) = write_data_files(place, [events(9)], file_name_token="t", partition=key).table.to_pylist()
    assert [entry[name] for name in ("spec_id", "partition.1000", "partition.1001", "record_count")] == [1, "z", -5, 9]


def test_attempts_never_write_to_the_same_file(tmp_path: Path) -> None:
    place = pickle.loads(pickle.dumps(target(tmp_path, EVENTS)))
    first, second = (write_data_files(place, [events(3)], file_name_token="t").path.to_pylist() for _ in range(2))
    assert set(first).isdisjoint(second)


def test_files_end_near_the_target_size(tmp_path: Path) -> None:
    size = 200_000
    place = target(
        tmp_path, EVENTS, write__target_file_size_bytes=str(size), write__parquet__row_group_size_bytes="300000"
    )
    noise = pa.array([float(i * 7919 % 104729) for i in range(20_000)])
    batches = [events(20_000).set_column(3, "v", noise) for _ in range(12)]
    entries = write_data_files(place, batches, file_name_token="t")
    sizes = entries.ints("file_size_in_bytes").tolist()
    assert len(sizes) > 3
    assert all(0.6 * size < found < 1.4 * size for found in sizes[:-1]), sizes
    assert entries.record_count.sum() == 240_000
    for entry, file in zip(entries.table.to_pylist(), files(entries), strict=True):
        assert len(entry["split_offsets"]) == file.metadata.num_row_groups
        assert entry["file_size_in_bytes"] == Path(str(local_path(entry["file_path"]))).stat().st_size


@pytest.mark.parametrize("null_order", list(NullOrder))
@pytest.mark.parametrize("direction", list(SortDirection))
def test_each_file_is_in_the_order_of_the_table(
    tmp_path: Path, direction: SortDirection, null_order: NullOrder
) -> None:
    keys = [
        SortField(3, DayTransform(), direction, null_order),
        SortField(4, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST),
        SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST),
    ]
    unsorted = target(tmp_path, EVENTS)
    place = WriteTarget(**{**unsorted.__getstate__(), "sort_order": SortOrder(*keys, order_id=4)})
    entries = write_data_files(place, [events(300), events(100)], file_name_token="t", sort=True)
    (file,) = files(entries)
    rows = file.read().to_pylist()
    assert _ordered(rows, keys)
    assert entries.ints("sort_order_id").tolist() == [4]


def _ordered(rows: list[dict[str, Any]], keys: list[SortField]) -> bool:
    found = [[_order(row, key) for key in keys] for row in rows]
    return found == sorted(found)


def _order(row: dict[str, Any], key: SortField) -> tuple[int, Any]:
    """An ascending sort key: nulls first or last, NaN last, -0.0 before 0.0."""
    value = row[EVENTS.find_column_name(key.source_id) or ""]
    if value is None:
        return (0, 0) if key.null_order is NullOrder.NULLS_FIRST else (2, 0)
    if key.source_id == 3:
        days = apply(key.transform, TimestampType(), pa.scalar(value, pa.timestamp("us")).value)
        assert isinstance(days, int)
        return 1, days if key.direction is SortDirection.ASC else -days
    if key.source_id == 4:
        return 1, (1, 0.0, 0) if value != value else (0, value, 0 if str(value)[0] == "-" else 1)
    return 1, [-ord(letter) for letter in value] + [1]


def test_sorted_files_keep_within_memory_by_ending_early(tmp_path: Path) -> None:
    unsorted = target(tmp_path, EVENTS)
    order = SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST), order_id=1)
    place = WriteTarget(**{**unsorted.__getstate__(), "sort_order": order})
    limits = WriterLimits(buffered_bytes=20_000)
    entries = write_data_files(place, [events(900)] * 3, file_name_token="t", sort=True, limits=limits)
    assert len(entries) > 1
    for file in files(entries):
        ids = file.read().column("id").to_pylist()
        assert ids == sorted(ids, reverse=True)


def test_few_files_are_open_at_once_and_every_row_is_written(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(40), "b"), spec_id=0)
    place = target(tmp_path, EVENTS, spec)
    limits = WriterLimits(buffered_bytes=5_000, open_files=4)
    entries = write_data_files(place, [events(400)] * 5, file_name_token="t", limits=limits)
    assert len(entries) > 40
    assert entries.record_count.sum() == 2000


def test_memory_is_bounded_by_the_limits_not_by_the_stream(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    place = target(tmp_path, EVENTS, spec)
    batch = events(20_000)
    before, most = pa.total_allocated_bytes(), 0

    def stream() -> Iterator[pa.Table]:
        nonlocal most
        for _ in range(60):
            most = max(most, pa.total_allocated_bytes() - before)
            yield batch

    limits = WriterLimits(buffered_bytes=2_000_000)
    write_data_files(place, stream(), file_name_token="t", limits=limits)
    of_open_files = 5 * 1_500_000
    assert most < limits.buffered_bytes + of_open_files + 4 * batch.nbytes < 30 * batch.nbytes


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS, write__target_file_size_bytes="1000")
    broken = pa.table({"id": ["x"]})
    with pytest.raises(TypeMismatchError, match="column id is long"):
        write_data_files(place, [events(2000), events(10), broken], file_name_token="t")
    assert not list(tmp_path.rglob("*.parquet"))


def test_no_rows_are_no_files(tmp_path: Path) -> None:
    place = target(tmp_path, EVENTS)
    assert len(write_data_files(place, [events(0)], file_name_token="t")) == 0


@pytest.mark.parametrize("version", [2, 3])
def test_row_lineage_is_written_in_format_3_when_the_rows_carry_it(tmp_path: Path, version: int) -> None:
    place = target(tmp_path, EVENTS, version=version)
    rows = (
        events(3)
        .append_column("_row_id", pa.array([5, None, 7]))
        .append_column("_last_updated_sequence_number", pa.array([1, None, None], pa.int64()))
    )
    if version == 2:
        with pytest.raises(Exception, match="_row_id"):
            write_data_files(place, [rows], file_name_token="t")
        return
    (file,) = files(write_data_files(place, [rows], file_name_token="t"))
    assert file.read().column("_row_id").to_pylist() == [5, None, 7]
    assert "field_id=2147483540 _row_id" in str(file.schema)
    assert "field_id=2147483539 _last_updated_sequence_number" in str(file.schema)


def test_rows_with_and_without_lineage_go_to_different_files(tmp_path: Path) -> None:
    rows = events(3)
    batches = [rows, rows.append_column("_row_id", pa.array([5, 6, 7])), rows]
    entries = write_data_files(target(tmp_path, EVENTS), batches, file_name_token="t")
    assert ["_row_id" in file.schema.names for file in files(entries)] == [False, True, False]


def test_columns_of_unknown_type_are_in_no_file(tmp_path: Path) -> None:
    inner = StructType(NestedField(4, "u", UnknownType()), NestedField(5, "x", LongType()))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "nothing", UnknownType()), NestedField(3, "s", inner)
    )
    rows = pa.table({"id": [1], "nothing": pa.nulls(1), "s": [{"u": None, "x": 2}], "_row_id": [9]})
    (file,) = files(write_data_files(target(tmp_path, schema), [rows], file_name_token="t"))
    assert file.read().to_pylist() == [{"id": 1, "s": {"x": 2}, "_row_id": 9}]
    with pytest.raises(TypeMismatchError, match="column nothing is unknown"):
        write_data_files(target(tmp_path / "b", schema), [rows.set_column(1, "nothing", [[1]])], file_name_token="t")


def test_a_field_of_a_struct_can_partition(tmp_path: Path) -> None:
    inner = StructType(NestedField(3, "x", LongType()))
    spec = PartitionSpec(PartitionField(3, 1000, TruncateTransform(10), "x10"), spec_id=0)
    place = target(tmp_path, Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner)), spec)
    rows = pa.table({"id": [1, 2, 3, 4], "s": [{"x": 5}, None, {"x": 7}, {"x": -1}]})
    entries = write_data_files(place, [rows], file_name_token="t")
    assert entries.array("partition.1000").to_pylist() == [0, None, -10]
    assert entries.record_count.tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("type_", "value", "label"),
    [
        (IntegerType(), -(2**31), 2**31 - 2),
        (LongType(), -(2**63), 2**63 - 2),
        (DecimalType(9, 0), Decimal(-999_999_999), None),
        (DecimalType(38, 0), Decimal(1 - 10**38), None),
    ],
)
def test_truncation_at_the_end_of_a_type_wraps_or_is_refused(
    tmp_path: Path, type_: PrimitiveType, value: int | Decimal, label: int | None
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "t"), spec_id=0)
    place = target(tmp_path, Schema(NestedField(1, "n", type_)), spec)
    rows = pa.table({"n": pa.array([value], place.arrow_schema.field("n").type)})
    if label is None:
        with pytest.raises(UnsupportedError, match="1 rows have a decimal"):
            write_data_files(place, [rows], file_name_token="t")
    else:
        written = write_data_files(place, [rows], file_name_token="t")
        assert written.array("partition.1000").to_pylist() == [label]


def test_pyiceberg_reads_what_is_written(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(11, 1000, DayTransform(), "at_day"), spec_id=0)
    place = target(tmp_path, every_column.SPARK_SCHEMA, spec, version=2)
    rows = every_column.rows(every_column.SPARK_SCHEMA).drop_columns(["path", "point"])
    layout = Layout(every_column.SPARK_SCHEMA, (spec,))
    table = layout.write_table(tmp_path / "read", write_data_files(place, [rows], file_name_token="t"))
    found = table.scan(selected_fields=tuple(rows.column_names)).to_arrow()
    assert comparable(found.cast(rows.schema)) == comparable(rows)


def test_a_bloom_filter_is_written_for_the_columns_that_ask_for_one(tmp_path: Path) -> None:
    place = target(
        tmp_path,
        every_column.SCHEMA,
        **{
            "write.parquet.bloom-filter-enabled.column.text": "true",
            "write.parquet.bloom-filter-enabled.column.tags.element": "true",
            "write.parquet.bloom-filter-enabled.column.id": "false",
            "write.parquet.bloom-filter-fpp.column.text": "0.001",
        },
    )
    (file,) = files(write_data_files(place, [every_column.rows()], file_name_token="t"))
    group = file.metadata.row_group(0)
    with_filter = {
        group.column(at).path_in_schema
        for at in range(group.num_columns)
        if group.column(at).bloom_filter_offset is not None
    }
    assert with_filter == {"text", "tags.list.element"}


def test_values_that_hardly_repeat_have_no_dictionary(tmp_path: Path) -> None:
    rows = events(3000)
    (file,) = files(write_data_files(target(tmp_path, EVENTS), [rows], file_name_token="t"))
    group = file.metadata.row_group(0)
    encoded = {group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(4)}
    assert encoded == {"id": False, "region": True, "ts": True, "v": True}


@pytest.mark.parametrize(("rows", "has_dictionary"), [(100, False), (101, True)])
def test_few_rows_have_no_dictionary(tmp_path: Path, rows: int, has_dictionary: bool) -> None:
    (file,) = files(write_data_files(target(tmp_path, EVENTS), [events(rows)], file_name_token="t"))
    group = file.metadata.row_group(0)
    found = {group.column(at).has_dictionary_page for at in range(4) if group.column(at).path_in_schema == "region"}
    assert found == {has_dictionary}


def test_few_rows_of_long_values_have_a_dictionary(tmp_path: Path) -> None:
    rows = events(50)
    long = pa.array(["x" * 4000] * 50, rows.schema.field("region").type)
    rows = rows.set_column(rows.schema.get_field_index("region"), rows.schema.field("region"), long)
    (file,) = files(write_data_files(target(tmp_path, EVENTS), [rows], file_name_token="t"))
    group = file.metadata.row_group(0)
    assert {group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(2)}["region"]


def test_values_that_repeat_among_neighbours_alone_have_no_dictionary() -> None:
    in_pairs, of_few = np.repeat(np.arange(100_000), 2), np.arange(200_000) % 50
    assert high_cardinality_columns(pa.table({"sorted": in_pairs, "few": of_few})) == {"sorted"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "0"),
        ("write.parquet.compression-codec", "lzo"),
        ("write.parquet.compression-level", "high"),
        ("write.parquet.compression-level", "99"),
        ("write.parquet.bloom-filter-enabled.column.id", "yes"),
        ("write.parquet.bloom-filter-fpp.column.id", "1"),
        ("write.metadata.metrics.default", "truncate(0)"),
        ("write.metadata.metrics.column.id", "some"),
        ("write.delete.granularity", "row"),
    ],
)
def test_a_bad_property_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    properties = {name: value, "write.parquet.bloom-filter-enabled.column.id": "true"} | {name: value}
    with pytest.raises(InvalidOptionError, match=f"{name} is set to '{value}'".replace("(", r"\(").replace(")", r"\)")):
        target(tmp_path, EVENTS, **properties)


def test_an_unknown_spec_is_refused_by_number(tmp_path: Path) -> None:
    layout = Layout(EVENTS, (UNPARTITIONED,))
    table = layout.write_table(tmp_path, layout.entries([]))
    with pytest.raises(UnknownSpecError, match="no partition spec 7"):
        WriteTarget.of(table, spec_id=7)


@pytest.mark.parametrize(
    ("codec", "stored"), [("snappy", "SNAPPY"), ("uncompressed", "UNCOMPRESSED"), ("gzip", "GZIP")]
)
def test_the_codec_is_the_tables(tmp_path: Path, codec: str, stored: str) -> None:
    place = target(tmp_path, EVENTS, write__parquet__compression_codec=codec, write__parquet__compression_level="3")
    (file,) = files(write_data_files(place, [events(3)], file_name_token="t"))
    assert file.metadata.row_group(0).column(0).compression == stored
