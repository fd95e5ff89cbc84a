"""Variant, geometry and geography columns: the table is usable without them, and errors name them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, NestedField, StructType

import floeplan as fp
from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.maintenance.doctor import doctor
from floeplan.opaque_types import OpaqueType
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.scan.model import ScanOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.commits import arrow, create_table, open_catalog, rows_of
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

TYPES = {"v": "variant", "g": "geometry(srid:3857)", "h": "geography(OGC:CRS84, karney)", "plain": "geometry"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table to which Java has added four columns of these types."""
    catalog = open_catalog(tmp_path)
    made = create_table(catalog, 3)
    path = Path(made.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    for at, (name, type_) in enumerate(TYPES.items(), 3):
        document["schemas"][0]["fields"].append({"id": at, "name": name, "type": type_, "required": False})
    document["last-column-id"] = 2 + len(TYPES)
    changed = path.with_name("00009-00000000-0000-4000-8000-000000000000.metadata.json")
    changed.write_text(json.dumps(document))
    catalog.register_table("db.opaque", str(changed))
    return load_table("db.opaque", catalog)


def test_types_are_kept_as_the_metadata_has_them(table: Table) -> None:
    """PyIceberg's parser accepts them: see floeplan/opaque_types.py if it does not any more."""
    types = {field.name: field.field_type for field in table.schema().fields}
    assert {name: str(types[name]) for name in TYPES} == TYPES
    assert types["v"] == OpaqueType("variant") != types["g"]
    again = pickle.loads(pickle.dumps(table.schema()))
    assert again == table.schema() == Schema.model_validate_json(table.schema().model_dump_json())
    fields = json.loads(table.schema().model_dump_json())["fields"]
    assert {field["name"]: field["type"] for field in fields} == {"id": "long", "part": "string", **TYPES}


def test_other_columns_are_planned_and_read(table: Table) -> None:
    plan = fp.plan_scan(table, "id < 10 AND part = 'a'")
    assert plan.summary.files_kept == 1
    assert plan.to_arrow(columns=["id", "part"]).to_pylist() == arrow(rows_of(0, 10)).to_pylist()
    assert fp.plan_scan(load_table(table.metadata_location), columns=["id"]).to_arrow().num_rows == 30


@pytest.mark.parametrize("name", TYPES)
def test_such_a_column_cannot_be_filtered_by(table: Table, name: str) -> None:
    assert fp.plan_scan(table, "id = 1").to_arrow(columns=["id", name]).to_pylist() == [{"id": 1, name: None}]
    with pytest.raises(TypeMismatchError, match=f"column {name} is a .* filter by another column"):
        fp.plan_scan(table, f"{name} = 1")


def test_commands_that_need_no_row_work(table: Table, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (["inspect"], ["plan", "--where", "id = 3"], ["doctor"], ["scan", "--columns", "id,part"]):
        assert main([command[0], table.metadata_location, *command[1:], "--json"]) == 0, command
        capsys.readouterr()
    assert main(["scan", table.metadata_location, "-o", str(tmp_path / "rows.jsonl"), "--limit", "1"]) == 0
    assert json.loads((tmp_path / "rows.jsonl").read_text())["v"] is None


def test_rows_are_deleted_and_files_moved_without_touching_the_types(table: Table) -> None:
    fp.delete(table, "id = 3", mode="merge-on-read")
    fp.delete(table, "part = 'b'")
    with writable_metadata(table.io), table.update_spec() as update:
        update.remove_field("part")
    moved = fp.upgrade_spec(table, options=UpgradeOptions(metadata_only=True, allow_coarser=True))
    assert moved.files_by_metadata == 2
    again = load_table("db.opaque", table.catalog)
    ids = fp.plan_scan(again, columns=["id"]).to_arrow()["id"].to_pylist()
    assert sorted(ids) == [i for i in range(30) if i != 3 and not 10 <= i < 20]
    assert {field.name: str(field.field_type) for field in again.schema().fields if field.name in TYPES} == TYPES
    assert doctor(again).healthy


def test_what_would_write_such_a_column_is_refused(table: Table) -> None:
    for write in (
        lambda: fp.append(table, arrow(rows_of(100, 110))),
        lambda: fp.delete(table, "id = 3", mode="copy-on-write"),
        lambda: fp.rewrite_data_files(table, options={"rewrite-all": "true"}),
    ):
        with pytest.raises(UnsupportedError, match="column v is a variant"):
            write()
    assert isinstance(table.catalog, SqlCatalog)
    assert fp.plan_scan(load_table("db.opaque", table.catalog), columns=["id"]).to_arrow().num_rows == 30


PLAIN = PartitionSpec(spec_id=0)
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")
PARTS = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}


def test_values_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """WKB, and the parts of variants, nested ones included; also where only some pages are read."""
    nested = StructType(NestedField(4, "w", OpaqueType("variant"), required=False))
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "g", OpaqueType("geometry(srid:3857)"), required=False),
        NestedField(3, "s", nested, required=False),
        NestedField(5, "v", OpaqueType("variant"), required=False),
        NestedField(6, "l", ListType(7, OpaqueType("variant"), False), required=False),
    )

    def stored(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})

    # pyarrow writes no annotation of variants, without which a column without an id makes the file one without ids.
    def parts(first: int) -> pa.DataType:
        return pa.struct([stored(name, pa.binary(), at).with_nullable(False) for at, name in enumerate(PARTS, first)])

    file_schema = pa.schema(
        [
            stored("id", pa.int64(), 1),
            stored("g", pa.binary(), 2),
            stored("s", pa.struct([stored("w", parts(100), 4)]), 3),
            stored("v", parts(102), 5),
            stored("l", pa.list_(stored("element", parts(104), 7)), 6),
        ]
    )
    rows = [
        {"id": 0, "g": POINT, "s": {"w": PARTS}, "v": PARTS, "l": [PARTS, None]},
        {"id": 1, "g": None, "s": {"w": None}, "v": None, "l": []},
        {"id": 2, "g": POINT, "s": None, "v": PARTS, "l": None},
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows, file_schema), path, write_page_index=True)
    files = Files(tmp_path)
    files.entries.append({"file_path": str(path), "record_count": 3, "sequence_number": 1})
    table = files.table(Layout(schema, (PLAIN,), version=3))
    assert fp.plan_scan(table).to_arrow().to_pylist() == rows
    for n in range(3):
        plan = fp.plan_scan(table, f"id = {n}", options=ScanOptions(page_index=True, report=False))
        assert plan.to_arrow().to_pylist() == rows[n : n + 1]


def test_a_shredded_variant_is_put_together(tmp_path: Path) -> None:
    """``{"a": …}``, whose field has a column of numbers; also where only some pages are read."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=False), NestedField(5, "v", OpaqueType("variant"), required=False)
    )

    def stored(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})

    a = pa.struct([stored("value", pa.binary(), 103), stored("typed_value", pa.int64(), 104)])
    parts = [stored("value", pa.binary(), 100), stored("typed_value", pa.struct([stored("a", a, 102)]), 101)]
    variant = pa.struct([stored("metadata", pa.binary(), 105).with_nullable(False), *parts])
    names, text = b"\x01\x01\x00\x01a", b"\x05x"
    rows = [
        {"id": 0, "v": {"metadata": names, "value": None, "typed_value": {"a": {"value": None, "typed_value": 7}}}},
        {"id": 1, "v": {"metadata": names, "value": None, "typed_value": {"a": {"value": text, "typed_value": None}}}},
        {"id": 2, "v": {"metadata": names, "value": text, "typed_value": None}},
        {"id": 3, "v": None},
    ]
    path = tmp_path / "rows.parquet"
    file_schema = pa.schema([stored("id", pa.int64(), 1), stored("v", variant, 5)])
    pq.write_table(pa.Table.from_pylist(rows, file_schema), path, write_page_index=True)
    files = Files(tmp_path)
    files.entries.append({"file_path": str(path), "record_count": 4, "sequence_number": 1})
    table = files.table(Layout(schema, (PLAIN,), version=3))
    number = b"\x02\x01\x00\x00\x09\x18\x07" + bytes(7)
    values = [number, b"\x02\x01\x00\x00\x02" + text, text]
    expected = [{"id": n, "v": {"metadata": names, "value": value}} for n, value in enumerate(values)]
    expected.append({"id": 3, "v": None})  # type: ignore[dict-item]
    assert fp.plan_scan(table).to_arrow().to_pylist() == expected
    for n in range(4):
        plan = fp.plan_scan(table, f"id = {n}", options=ScanOptions(page_index=True, report=False))
        assert plan.to_arrow().to_pylist() == expected[n : n + 1]
    assert fp.plan_scan(table, columns=["id"]).to_arrow().num_rows == 4
