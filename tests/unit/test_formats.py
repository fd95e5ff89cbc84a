"""ORC and Avro files: every type and nesting, selected rows, statistics of stripes, codecs, and damage."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

import floeplan as fp
from floeplan.errors import CorruptFileError, FloeplanError, InvalidOptionError, TypeMismatchError, UnsupportedError
from floeplan.formats.files import open_stored
from floeplan.formats.stored import StoredFile
from floeplan.metadata.avro.decoder import load_decoder
from floeplan.parquet.prune.selection import RowSelection
from floeplan.rewrite.strategies.base import parse_order
from floeplan.scan.model import ScanOptions
from floeplan.scan.projection import project
from tests.support.tables.layouts import POSITIONS, Files, Layout
from tests.support.tables.other_formats import FIELD_ID, write_rows

pytestmark = pytest.mark.unit

FORMATS = ("orc", "avro")
QUIET = ScanOptions(report=False)
INNER = StructType(NestedField(31, "x", IntegerType()), NestedField(32, "y", ListType(33, IntegerType(), False)))
EVERYTHING = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "n", IntegerType()),
    NestedField(4, "f", FloatType()),
    NestedField(5, "v", DoubleType()),
    NestedField(6, "small", DecimalType(9, 2)),
    NestedField(7, "wide", DecimalType(38, 6)),
    NestedField(8, "day", DateType()),
    NestedField(9, "clock", TimeType()),
    NestedField(10, "ts", TimestampType()),
    NestedField(11, "tz", TimestamptzType()),
    NestedField(12, "s", StringType()),
    NestedField(13, "u", UUIDType()),
    NestedField(14, "b", BinaryType()),
    NestedField(15, "fixed", FixedType(3)),
    NestedField(16, "st", StructType(NestedField(17, "a", IntegerType()), NestedField(18, "b", StringType()))),
    NestedField(19, "tags", ListType(20, StringType(), False)),
    NestedField(21, "m", MapType(22, StringType(), 23, IntegerType(), False)),
    NestedField(24, "pairs", MapType(25, IntegerType(), 30, INNER, False)),
    NestedField(26, "deep", ListType(27, ListType(28, IntegerType(), False), False)),
)
FULL: dict[str, Any] = {
    "id": 0,
    "flag": True,
    "n": -(2**31),
    "f": 1.5,
    "v": float("-inf"),
    "small": Decimal("-1234567.89"),
    "wide": Decimal("-12345678901234567890123456789012.345678"),
    "day": date(1950, 2, 3),
    "clock": time(23, 59, 59, 999999),
    "ts": datetime(1969, 12, 31, 0, 0, 0, 999999),
    "tz": datetime(2024, 2, 29, 12, 30, 15, 1, tzinfo=UTC),
    "s": "é日",
    "u": UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"),
    "b": b"\x00\xff",
    "fixed": b"abc",
    "st": {"a": None, "b": "q"},
    "tags": ["x", None, ""],
    "m": [("k", 1), ("l", None)],
    "pairs": [(3, {"x": 1, "y": [1, None]}), (4, None)],
    "deep": [[1, None], None, []],
}
EMPTY = dict.fromkeys(FULL) | {"id": 1, "tags": [], "m": [], "pairs": [], "deep": [], "st": {"a": 1, "b": None}}
MISSING = dict.fromkeys(FULL) | {"id": 2}
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), schema_id=0)
PLAIN = PartitionSpec(spec_id=0)


def arrow(rows: list[dict[str, Any]], schema: Schema = EVERYTHING) -> pa.Table:
    stored = [row | ({"u": row["u"] and row["u"].bytes} if "u" in row else {}) for row in rows]
    return pa.Table.from_pylist(stored, schema=schema_to_pyarrow(schema))


def numbered(count: int) -> pa.Table:
    return arrow([{"id": n, "name": f"n{n:05d}"} for n in range(count)], SCHEMA)


def files_of(folder: Path, format_: str, schema: Schema, *tables: pa.Table, **options: Any) -> Files:
    """Data files in a format, with their manifest entries."""
    files = Files(folder)
    for number, table in enumerate(tables):
        path = folder / f"data{number}.{format_}"
        write_rows(table, path, **options)
        entry = {"file_path": str(path), "file_format": format_.upper(), "record_count": table.num_rows}
        files.entries.append(entry | {"file_size_in_bytes": path.stat().st_size, "sequence_number": 1})
    return files


def rows_of(table: Table, where: str | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return fp.plan_scan(table, where, options=QUIET).to_arrow(columns).to_pylist()


@pytest.mark.parametrize("format_", FORMATS)
def test_every_type_and_nesting(tmp_path: Path, format_: str) -> None:
    rows = [FULL, EMPTY, MISSING]
    table = files_of(tmp_path, format_, EVERYTHING, arrow(rows)).table(Layout(EVERYTHING, (PLAIN,)))
    assert rows_of(table) == rows
    for name in FULL:
        assert rows_of(table, columns=[name]) == [{name: row[name]} for row in rows]
    assert rows_of(table, "st.b = 'q'", ["id"]) == [{"id": 0}]
    assert fp.plan_scan(table, "id > 0", options=QUIET).count() == 2


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("rows", [[], [0], [2499], [5, 6, 900, 901, 1700], list(range(2500)), list(range(0, 2500, 3))])
def test_exactly_the_selected_rows(tmp_path: Path, format_: str, rows: list[int]) -> None:
    write_rows(numbered(2500), path := tmp_path / f"rows.{format_}", group=1000)
    file = open_stored(str(path), format_.upper(), None)
    found = file.read([1], RowSelection.from_rows(pa.array(rows, pa.int64()).to_numpy()))
    assert (found.column_names, found.column("id").to_pylist()) == (["id"], rows)
    assert int(file.row_group_rows.sum()) == file.num_rows == 2500
    assert file.read([], RowSelection.all_rows(7)).num_rows == 7
    assert len(file.group_bytes(None)) == len(file.row_group_rows)


def test_schema_changes_apply_to_other_formats(tmp_path: Path) -> None:
    """Renamed, promoted, added with a default, dropped: fields are found by id."""
    later = Schema(
        NestedField(2, "label", StringType()),
        NestedField(1, "id", LongType()),
        NestedField(3, "n", LongType()),
        NestedField(4, "extra", StringType(), initial_default="x", write_default="x"),
        schema_id=1,
    )
    first = Schema(
        NestedField(1, "id", IntegerType()), NestedField(2, "name", StringType()), NestedField(3, "n", IntegerType())
    )
    for format_ in FORMATS:
        folder = tmp_path / format_
        folder.mkdir()
        files = files_of(folder, format_, first, arrow([{"id": 5, "name": "a", "n": None}], first))
        table = files.table(Layout(later, (PLAIN,), version=3, older_schemas=(first,)))
        assert rows_of(table) == [{"label": "a", "id": 5, "n": None, "extra": "x"}]
        assert rows_of(table, "extra = 'x' AND id = 5", ["id"]) == [{"id": 5}]


@pytest.mark.parametrize("format_", FORMATS)
def test_columns_of_an_unknown_type_are_null(tmp_path: Path, format_: str) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(3, "x", UnknownType()))
    table = files_of(tmp_path, format_, SCHEMA, numbered(3)).table(Layout(schema, (PLAIN,), version=3))
    assert rows_of(table, "x IS NULL AND id < 1") == [{"id": 0, "name": "n00000", "x": None}]
    assert not rows_of(table, "x IS NOT NULL AND id < 1")
    with pytest.raises(TypeMismatchError, match="column x is unknown and cannot be compared with the string 'a'"):
        rows_of(table, "x = 'a'")
    with pytest.raises(InvalidOptionError, match="cannot sort by x: its type is unknown"):
        parse_order(["id", "x"], schema)


@pytest.mark.parametrize("format_", FORMATS)
def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path: Path, format_: str) -> None:
    files = files_of(tmp_path, format_, EVERYTHING, arrow([FULL]), ids=False)
    table = files.table(Layout(EVERYTHING, (PLAIN,)))
    with pytest.raises(UnsupportedError, match=r"no field ids.*schema\.name-mapping\.default"):
        rows_of(table)
    # Without attributes ORC stores times, UUIDs and fixed values as numbers and bytes.
    names = [name for name in FULL if name not in ("clock", "u", "fixed")]
    mapping = create_mapping_from_schema(EVERYTHING).model_dump_json()
    table.metadata.properties["schema.name-mapping.default"] = mapping
    assert rows_of(table, columns=names) == [{name: FULL[name] for name in names}]


@pytest.mark.parametrize("format_", FORMATS)
def test_deletes_in_every_format(tmp_path: Path, format_: str) -> None:
    """Position deletes, equality deletes and deletion vectors on and in the format."""
    files = files_of(tmp_path, format_, SCHEMA, numbered(6), numbered(4))
    first, second = (entry["file_path"] for entry in files.entries)
    for name, rows, schema, entry in (
        ("positions", [{"file_path": first, "pos": at} for at in (0, 3)], POSITIONS, {"content": 1}),
        ("keys", [{"name": "n00004"}, {"name": None}], Schema(SCHEMA.fields[1]), {"content": 2, "equality_ids": [2]}),
    ):
        path = tmp_path / f"{name}.{format_}"
        write_rows(arrow(rows, schema), path)
        known = {
            "file_path": str(path),
            "file_format": format_.upper(),
            "record_count": len(rows),
            "sequence_number": 2,
        }
        files.entries.append(known | entry)
    files.vector(second, [1, 2])
    table = files.table(Layout(SCHEMA, (PLAIN,), version=3))
    assert [row["id"] for row in rows_of(table)] == [1, 2, 5, 0, 3]
    assert fp.plan_scan(table, "id < 3", options=QUIET).count() == 3
    assert [row["id"] for row in fp.plan_scan(table, options=QUIET).to_arrow_batch_reader().read_all().to_pylist()] == [
        *(1, 2, 5, 0, 3)
    ]


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_stripes_are_dropped_by_their_statistics(tmp_path: Path, codec: str) -> None:
    # A stripe ends when its compressed bytes fill a buffer, so the rows need bytes that do not compress.
    noise = NestedField(3, "noise", BinaryType())
    schema = Schema(*SCHEMA.fields, noise)
    bytes_of = [Random(n).randbytes(300) for n in range(4000)]
    rows = numbered(4000).append_column(
        schema_to_pyarrow(Schema(noise)).field(0), [pa.array(bytes_of, pa.large_binary())]
    )
    files = files_of(tmp_path, "orc", schema, rows, group=1000, compression=codec)
    table = files.table(Layout(schema, (PLAIN,)))
    for where, expected in (
        ("id = 1500", [1500]),
        ("name >= 'n03998'", [3998, 3999]),
        ("id < 0", []),
        ("id IS NULL OR name = 'n02000'", [2000]),
    ):
        plan = fp.plan_scan(table, where, options=QUIET)
        assert [row["id"] for row in plan.to_arrow().to_pylist()] == expected
        kept = [len(file.row_groups or ()) for file in plan.files]
        assert kept == ([1] if expected else [])
    assert fp.plan_scan(table, "id >= 0", options=QUIET).files[0].residual == fp.plan_scan(table).files[0].residual
    assert not fp.why(table, files.entries[0]["file_path"], "id < 0").kept
    assert "1 of 4 stripes" in fp.why(table, files.entries[0]["file_path"], "id = 1500").reason


def test_avro_files_are_planned_without_a_warning(tmp_path: Path) -> None:
    table = files_of(tmp_path, "avro", SCHEMA, numbered(4)).table(Layout(SCHEMA, (PLAIN,)))
    plan = fp.plan_scan(table, "id = 1", options=QUIET)
    assert (len(plan.files), plan.warnings) == (1, ())
    assert "AVRO files have no statistics" in fp.why(table, plan.files[0].path, "id = 1").reason


@pytest.mark.parametrize("format_", FORMATS)
def test_damaged_files_are_named(tmp_path: Path, format_: str) -> None:
    """Cut or changed bytes are an error of Floeplan or harmless, and never a crash."""
    write_rows(numbered(50), path := tmp_path / f"rows.{format_}")
    whole, unnamed = path.read_bytes(), 0
    for at in range(0, len(whole), 7):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            try:
                file = open_stored(str(path), format_.upper(), None)
                file.read(None, RowSelection.all_rows(file.num_rows))
            except FloeplanError as error:
                unnamed += str(path) not in str(error)
    assert not unnamed
    path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match=str(path)):
        open_stored(str(path), format_.upper(), None)


FAR = (
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
    None,
    datetime(1, 1, 1),
    datetime(1500, 6, 1, 12, 34, 56, 999),
    datetime(2024, 2, 29, 1, 2, 3, 123_456),
)


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_orc_timestamps_beyond_nanoseconds_are_read(tmp_path: Path, codec: str) -> None:
    """Also beside stripes without them, which pyarrow decodes; a stripe has more rows than a run of the encoding."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()), NestedField(3, "tz", TimestamptzType())
    )
    chance = Random(7)
    near = [{"id": chance.getrandbits(60), "ts": datetime(2024, 1, 1), "tz": FAR[-1]} for at in range(9000)]
    rows = near + [{"id": at, "ts": FAR[at % 5], "tz": FAR[-1 - at % 5]} for at in range(1500)]
    write_rows(table := arrow(rows, schema), path := tmp_path / "far.orc", group=9000, compression=codec)
    file = open_stored(str(path), "ORC", None)
    assert len(file.row_group_rows) > 1
    assert project(file.read(None, RowSelection.all_rows(10_500)), schema, {}, "").equals(table)
    some = RowSelection.from_rows(np.array([3, 9001, 9002]))
    assert project(file.read([2], some), Schema(schema.fields[1]), {}, "").to_pylist() == [
        {"ts": rows[at]["ts"]} for at in (3, 9001, 9002)
    ]


def test_orc_timestamps_are_rounded_down_to_microseconds(tmp_path: Path) -> None:
    """Hive stores nanoseconds."""
    schema = Schema(NestedField(1, "ts", TimestampType()))
    field = pa.field("ts", pa.timestamp("ns"), True, {FIELD_ID: "1"})
    times = pa.array([1_999, -2_000_000_001], field.type)
    write_rows(pa.table([times], pa.schema([field])), path := tmp_path / "hive.orc")
    rows = open_stored(str(path), "ORC", None).read(None, RowSelection.all_rows(2))
    assert project(rows, schema, {}, "")["ts"].cast(pa.int64()).to_pylist() == [1, -2_000_001]


def local_times(path: Path, type_: IcebergType, *rows: Any) -> StoredFile:
    """A file with a column ``c`` of id 1, whose last stripe was written in another time zone than UTC."""
    table = arrow([{"c": row} for row in rows], Schema(NestedField(1, "c", type_)))
    write_rows(table, path, group=9000, compression="uncompressed")
    before, _, after = path.read_bytes().rpartition(b"GMT")
    path.write_bytes(before + b"EST" + after)
    return open_stored(str(path), "ORC", None)


def test_local_times_of_orc_are_no_instants(tmp_path: Path) -> None:
    """Hive stores them in the time zone of the writer, and Iceberg reads no ``timestamptz`` from them."""
    noon = datetime(2024, 1, 1, 12)
    file = local_times(tmp_path / "hive.orc", TimestampType(), *[noon] * 10_500)
    assert len(file.row_group_rows) > 1
    first = file.read([1], RowSelection.from_rows(np.array([0])))
    file.check_times(first, [Schema(NestedField(1, "c", TimestampType()))])
    message = r"column c of .*hive\.orc has timestamps without a time zone, written in EST, .* read as timestamptz"
    with pytest.raises(UnsupportedError, match=message):  # whichever stripes are read
        file.check_times(first, [Schema(NestedField(1, "c", TimestamptzType()))])


def test_local_times_in_structs_of_orc_are_no_instants(tmp_path: Path) -> None:
    def struct(type_: IcebergType) -> StructType:
        return StructType(NestedField(2, "t", type_))

    file = local_times(tmp_path / "nested.orc", struct(TimestampType()), {"t": datetime(2024, 1, 1)})
    rows = file.read([1], RowSelection.all_rows(1))
    with pytest.raises(UnsupportedError, match="column t of"):
        file.check_times(rows, [Schema(NestedField(1, "c", struct(TimestamptzType())))])


@pytest.mark.usefixtures("floeplan_home")
def test_a_scan_refuses_local_times_as_instants() -> None:
    schema = Schema(NestedField(1, "c", TimestamptzType()))
    fp.sql("CREATE NAMESPACE db")
    fp.create_table("db.t", schema, properties={"write.format.default": "orc"})
    fp.append("db.t", arrow([{"c": datetime(2024, 1, 1, tzinfo=UTC)}], schema))
    (file,) = fp.plan_scan("db.t").files
    local_times(Path(file.path.removeprefix("file://")), TimestampType(), datetime(2024, 1, 1))
    with pytest.raises(UnsupportedError, match="without a time zone, written in EST"):
        fp.plan_scan("db.t").to_arrow()


def test_a_damaged_stripe_footer_is_named_where_its_time_zone_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "damaged.orc"
    file = local_times(path, TimestampType(), datetime(2024, 1, 1))
    rows = file.read([1], RowSelection.all_rows(1))
    path.write_bytes(path.read_bytes().replace(b"\x03EST", b"\x7fEST"))  # longer than the footer
    with pytest.raises(CorruptFileError, match="the footer of a stripe cannot be decoded"):
        open_stored(str(path), "ORC", None).check_times(rows, [Schema(NestedField(1, "c", TimestamptzType()))])


def test_nested_orc_timestamps_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """The other columns of the file are read."""
    inside = StructType(NestedField(3, "ts", TimestampType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inside))
    write_rows(arrow([{"id": 7, "s": {"ts": FAR[0]}}], schema), path := tmp_path / "far.orc")
    file = open_stored(str(path), "ORC", None)
    with pytest.raises(UnsupportedError, match=r"column s of .*far\.orc has a timestamp before 1677 or after 2262"):
        file.read(None, RowSelection.all_rows(1))
    assert file.read([1], RowSelection.all_rows(1)).to_pylist() == [{"id": 7}]


def test_both_avro_decoders_read_nested_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(arrow([FULL, EMPTY, MISSING]), path := tmp_path / "rows.avro")
    found = []
    for pure_python in (False, True):
        decoder = load_decoder(pure_python)
        monkeypatch.setattr("floeplan.formats.avro.DECODER", decoder)
        file = open_stored(str(path), "AVRO", None)
        found.append(file.read(None, RowSelection.all_rows(3)))
    assert found[0].equals(found[1])
