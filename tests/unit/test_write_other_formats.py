"""ORC and Avro files as tables ask for them: types, metrics, sizes, properties, changes and rewrites."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

import floeplan as fp
from floeplan.errors import InvalidOptionError, TypeMismatchError
from floeplan.formats import avro_rows
from floeplan.formats.files import open_stored
from floeplan.metadata.avro.encoder import load_encoder
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.tables import every_type
from tests.support.tables.commits import arrow, create_table, live_entries, open_catalog, read_rows, rows_of
from tests.support.tables.layouts import UNPARTITIONED, Layout, target

pytestmark = pytest.mark.unit

FORMATS = ("orc", "avro")
ALL = {"rewrite-all": "true"}
_ROW = StructType(NestedField(11, "a", IntegerType(), required=True), NestedField(12, "b", StringType()))
NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(10, "row", _ROW),
    NestedField(20, "rows", ListType(21, StructType(NestedField(22, "c", DecimalType(20, 3))), False)),
    NestedField(30, "by name", MapType(31, StringType(), 32, ListType(33, DateType(), False), False)),
    NestedField(40, "by_day", MapType(41, DateType(), 42, MapType(43, IntegerType(), 44, LongType(), False), False)),
    NestedField(
        50, "deep", StructType(NestedField(51, "x", StructType(NestedField(52, "y", ListType(53, LongType())))))
    ),
)


def to_format(folder: Path, schema: Schema, format_: str, version: int = 3, **properties: str) -> WriteTarget:
    return target(folder, schema, version=version, write__format__default=format_, **properties)


def formats(entries: EntriesTable) -> list[str]:
    return [str(name) for name in entries.array("file_format").to_pylist()]


def read_back(entries: EntriesTable, place: WriteTarget, folder: Path) -> pa.Table:
    layout = Layout(place.schema, (UNPARTITIONED,), place.format_version)
    return plan_scan(layout.write_table(folder / "read", entries), options=ScanOptions(report=False)).to_arrow()


def in_range(rows: pa.Table) -> pa.Table:
    """The rows with times that ORC returns as they are."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            ticks = pc.if_else(rows.column(at).is_valid(), pa.scalar(1_500_000_001_234_567), None).cast(field.type)
            rows = rows.set_column(at, field, ticks)
    return rows


def texts(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("format_", FORMATS)
def test_every_type_round_trips(tmp_path: Path, format_: str, pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_rows.AvroRows.__init__, "__defaults__", (load_encoder(pure),))
    place = to_format(tmp_path, every_type.SCHEMA, format_)
    rows = in_range(every_type.rows()) if format_ == "orc" else every_type.rows()
    entries = write_data_files(place, [rows], file_name_token="t")
    assert formats(entries) == [format_.upper()]
    assert entries.path[0].as_py().endswith(f".{format_}")
    assert texts(read_back(entries, place, tmp_path)) == texts(rows)


def test_times_that_orc_does_not_hold_are_written_to_parquet(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "ts", ListType(3, TimestampType(), False)))))
    place = to_format(tmp_path, schema, "orc", write__parquet__row_group_size_bytes="1")
    near = datetime(1969, 12, 31, 23, 59, 58)
    times = (near, near + timedelta(microseconds=7), datetime(1500, 1, 1), datetime(2300, 1, 1), datetime(2024, 1, 1))
    rows = [pa.table({"s": pa.array([{"ts": [None, time]}], place.arrow_schema.field("s").type)}) for time in times]
    entries = write_data_files(place, rows, file_name_token="t")
    assert formats(entries) == ["ORC", "PARQUET", "ORC"]
    assert entries.record_count.tolist() == [1, 3, 1]
    assert texts(read_back(entries, place, tmp_path)) == texts(pa.concat_tables(rows))


def value(type_: IcebergType, required: bool, chance: random.Random) -> Any:
    if not required and chance.random() < 0.3:
        return None
    match type_:
        case StructType(fields=fields):
            return {field.name: value(field.field_type, field.required, chance) for field in fields}
        case ListType():
            return [value(type_.element_type, type_.element_required, chance) for _ in range(chance.randint(0, 3))]
        case MapType():
            keys = {value(type_.key_type, True, chance) for _ in range(chance.randint(0, 3))}
            return [(key, value(type_.value_type, False, chance)) for key in sorted(keys)]
        case DecimalType():
            return Decimal(chance.randint(-(10**20) + 1, 10**20 - 1)).scaleb(-3)
        case DateType():
            return datetime(1970, 1, 1).date() + timedelta(chance.randint(-30_000, 30_000))
        case StringType():
            return "é" * chance.randint(0, 3)
    return chance.randint(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("format_", FORMATS)
def test_nested_values_of_slices_and_chunks_round_trip(tmp_path: Path, format_: str) -> None:
    """pyarrow's ORC writer takes the nulls of a sliced struct for those of the whole one."""
    place = to_format(tmp_path, NESTED, format_)
    for seed in range(10):
        chance = random.Random(seed)
        rows = [
            {field.name: value(field.field_type, field.required, chance) for field in NESTED.fields} for _ in range(90)
        ]
        whole = pa.Table.from_pylist(rows, schema=place.arrow_schema)
        parts = [whole.slice(0, 7), pa.concat_tables([whole.slice(7, 30), whole.slice(37, 1)]), whole.slice(38)]
        entries = write_data_files(place, parts, file_name_token=f"t{seed}")
        (path,) = entries.path.to_pylist()
        opened = open_stored(path, format_.upper(), None)
        found = opened.read(None, RowSelection.all_rows(opened.num_rows))
        assert [list(row.values()) for row in found.to_pylist()] == [list(row.values()) for row in whole.to_pylist()]
        if format_ == "avro":
            with Path(local_path(path) or "").open("rb") as file:
                assert sum(1 for _ in fastavro.reader(file)) == 90


@pytest.mark.parametrize("format_", FORMATS)
def test_metrics_are_those_of_parquet(tmp_path: Path, format_: str) -> None:
    """Counts and bounds in every mode; ORC and Avro files state no sizes of columns."""
    modes = {
        "write__metadata__metrics__default": "full",
        "write__metadata__metrics__column__text": "truncate(3)",
        "write__metadata__metrics__column__flag": "counts",
        "write__metadata__metrics__column__number": "none",
    }
    rows = in_range(every_type.rows())
    ours, parquet = (
        write_data_files(to_format(tmp_path / name, every_type.SCHEMA, name, **modes), [rows], file_name_token="t")
        for name in (format_, "parquet")
    )
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert ours.table.select([name]) == parquet.table.select([name]), name
    assert ours.record_count.tolist() == parquet.record_count.tolist()


@pytest.mark.parametrize("format_", FORMATS)
def test_files_have_about_the_target_size(tmp_path: Path, format_: str) -> None:
    properties = {"write__target_file_size_bytes": "200000", "write__orc__stripe_size_bytes": "50000"}
    place = to_format(tmp_path, Schema(NestedField(1, "id", LongType())), format_, **properties)
    rows = pa.table({"id": np.random.default_rng(1).integers(0, 2**62, 200_000)})
    entries = write_data_files(place, [rows.slice(at, 10_000) for at in range(0, 200_000, 10_000)], file_name_token="t")
    sizes = entries.table.column("file_size_in_bytes").to_pylist()
    assert 4 <= len(sizes) <= 16
    assert max(sizes) < 500_000
    assert sizes == [Path(local_path(path) or "").stat().st_size for path in entries.path.to_pylist()]
    assert read_back(entries, place, tmp_path).num_rows == 200_000


def test_codecs_are_those_of_the_properties(tmp_path: Path) -> None:
    schema, rows = Schema(NestedField(1, "id", LongType())), pa.table({"id": [n * n % 997 for n in range(5000)]})

    def file(name: str, format_: str, **properties: str) -> Path:
        place = to_format(tmp_path / name, schema, format_, **properties)
        entries = write_data_files(place, [rows], file_name_token="t")
        assert read_back(entries, place, tmp_path / name).num_rows == 5000
        return Path(local_path(entries.path[0].as_py()) or "")

    for stated, stored in (("gzip", "deflate"), ("zstd", "zstandard"), ("snappy", "snappy"), ("uncompressed", "null")):
        with file(stated, "avro", write__avro__compression_codec=stated).open("rb") as opened:
            assert fastavro.reader(opened).metadata["avro.codec"] == stored
    for codec in ("zlib", "zstd", "snappy", "lz4"):
        assert orc.ORCFile(file(f"orc{codec}", "orc", write__orc__compression_codec=codec)).compression == codec.upper()
    assert orc.ORCFile(file("none", "orc", write__orc__compression_codec="none")).compression == "UNCOMPRESSED"
    fast, small = (
        file(f"{level}", "avro", write__avro__compression_level=level).stat().st_size for level in ("1", "9")
    )
    assert small != fast


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("write.format.default", "csv", "parquet, orc, avro"),
        ("write.orc.compression-codec", "lzo", "zlib, snappy, lz4, zstd, none"),
        ("write.avro.compression-codec", "bzip2", "uncompressed, snappy, gzip, zstd"),
        ("write.avro.compression-level", "10", "a whole number from 1 to 9 for deflate"),
    ],
)
def test_other_values_are_refused_by_name(tmp_path: Path, name: str, value: str, allowed: str) -> None:
    table = with_properties(create_table(open_catalog(tmp_path)), **{name: value})
    with pytest.raises(InvalidOptionError, match=rf"{name} is set to '{value}', but must be .*{allowed}"):
        fp.append(table, arrow(rows_of(50, 60)))


def with_properties(table: Table, **properties: str) -> Table:
    with table.transaction() as change:
        change.set_properties(properties)
    return table.refresh()


@pytest.mark.parametrize("format_", FORMATS)
def test_changes_and_rewrites_write_the_format_of_the_table(tmp_path: Path, format_: str) -> None:
    """Data files and position deletes; files of other formats stay until they are rewritten."""
    own = format_.upper()
    table = create_table(open_catalog(tmp_path))
    table = with_properties(table, **{"write.format.default": format_, "write.delete.mode": "merge-on-read"})
    fp.append(table, arrow(rows_of(50, 80)))
    assert fp.delete(table, "id % 10 = 3").rows_deleted == 6
    fp.update(table, {"part": "'c'"}, "id IN (1, 51)", mode="merge-on-read")
    expected = [
        (i, "c" if i in (1, 51) else p)
        for i, p in (*rows_of(0, 10), *rows_of(10, 20, "b"), *rows_of(20, 30), *rows_of(50, 80))
    ]
    expected = sorted(row for row in expected if row[0] % 10 != 3)
    assert read_rows(table) == expected
    found = live_entries(table.refresh())
    kinds = Counter(zip(found.content.tolist(), formats(found), strict=True))
    assert kinds[0, "PARQUET"] == 3
    assert (kinds[0, own], kinds[1, own], kinds[1, "PARQUET"]) == (2, kinds[1, own], 0)
    assert kinds[1, own] >= 4
    for options in ({}, {"strategy": "sort", "by": ["id desc"]}):
        fp.rewrite_data_files(table.refresh(), **options, options=ALL)
        assert set(formats(live_entries(table.refresh()))) == {own}
        assert read_rows(table) == expected
    fp.delete(table.refresh(), "id < 5", mode="copy-on-write")
    assert read_rows(table) == [row for row in expected if row[0] >= 5]
    assert set(formats(live_entries(table.refresh()))) == {own}


def test_files_of_other_formats_are_rewritten_to_parquet(tmp_path: Path) -> None:
    table = with_properties(create_table(open_catalog(tmp_path)), **{"write.format.default": "avro"})
    fp.append(table, arrow(rows_of(50, 80)))
    table = with_properties(table, **{"write.format.default": "parquet"})
    before = read_rows(table)
    fp.rewrite_data_files(table, options=ALL)
    assert set(formats(live_entries(table.refresh()))) == {"PARQUET"}
    assert read_rows(table) == before


def test_delete_files_may_have_a_format_of_their_own(tmp_path: Path) -> None:
    schema, rows = Schema(NestedField(1, "id", LongType())), pa.table({"id": [1, 2, 3]})
    properties = {"write__delete__format__default": "avro", "write__delete__avro__compression_codec": "uncompressed"}
    place = target(tmp_path, schema, version=2, **properties)
    data = write_data_files(place, [rows], file_name_token="t")
    deletes = write_position_deletes(place, data, [np.array([0, 2])], file_name_token="d")
    assert (formats(data), formats(deletes)) == (["PARQUET"], ["AVRO"])
    with Path(local_path(deletes.path[0].as_py()) or "").open("rb") as opened:
        found = fastavro.reader(opened)
        assert [row["pos"] for row in found] == [0, 2]
        assert found.metadata["avro.codec"] == "null"
    both = EntriesTable(pa.concat_tables([data.table, deletes.table]).combine_chunks(), data.partition_types)
    assert read_back(both, place, tmp_path).to_pylist() == [{"id": 2}]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_failed_write_leaves_no_file(tmp_path: Path, format_: str) -> None:
    place = to_format(
        tmp_path, Schema(NestedField(1, "id", LongType())), format_, write__parquet__row_group_size_bytes="1"
    )
    with pytest.raises(TypeMismatchError):
        write_data_files(place, [pa.table({"id": [1]}), pa.table({"id": ["x"]})], file_name_token="t")
    assert not list(tmp_path.rglob(f"data/*.{format_}"))
