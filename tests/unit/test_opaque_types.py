"""Variant, geometry and geography columns: the table is usable without them, and errors name them."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, NestedField, StructType

import floeplan as fp
from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.errors import CorruptMetadataError, EvaluationError, FloeplanError, TypeMismatchError, UnsupportedError
from floeplan.maintenance.doctor import doctor
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.opaque_types import OpaqueType
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.footer.thrift import read_struct
from floeplan.parquet.source import open_source
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.scan.model import ScanOptions
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import arrow, create_table, live_entries, open_catalog, rows_of
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

PLAIN = PartitionSpec(spec_id=0)
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")
PARTS = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}
ALL = {"rewrite-all": "true"}
TYPES = {"v": "variant", "g": "geometry(srid:3857)", "h": "geography(OGC:CRS84, karney)", "plain": "geometry"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table to which Java has added four columns of these types, and two more of format 3."""
    catalog = open_catalog(tmp_path)
    made = create_table(catalog, 3)
    path = Path(made.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    for at, (name, type_) in enumerate({**TYPES, "ns": "timestamp_ns", "x": "unknown"}.items(), 3):
        document["schemas"][0]["fields"].append({"id": at, "name": name, "type": type_, "required": False})
    document["last-column-id"] = 4 + len(TYPES)
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
    assert {field["name"]: field["type"] for field in fields} == {
        "id": "long",
        "part": "string",
        **TYPES,
        "ns": "timestamp_ns",
        "x": "unknown",
    }


def test_statistics_of_other_engines_are_kept(tmp_path: Path) -> None:
    """Presto's ANALYZE writes such blobs; PyIceberg lists the types of two others."""
    catalog = open_catalog(tmp_path)
    made = create_table(catalog, 2)
    path = Path(made.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    theta = {"type": "apache-datasketches-theta-v1", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}
    blobs = [theta | {"properties": {"ndv": "3"}}, theta | {"type": "presto-sum-data-size-bytes-v1"}]
    sizes = {"file-size-in-bytes": 9, "file-footer-size-in-bytes": 4}
    statistics = [{"snapshot-id": 1, "statistics-path": f"{path}.stats", "blob-metadata": blobs, **sizes}]
    changed = path.with_name("00009-00000000-0000-4000-8000-000000000000.metadata.json")
    changed.write_text(json.dumps(document | {"statistics": statistics}))
    catalog.register_table("db.presto", str(changed))
    table = load_table("db.presto", catalog)
    fp.append(table, arrow(rows_of(50, 53)))
    written = json.loads(Path(table.refresh().metadata_location.removeprefix("file://")).read_text())
    assert written["statistics"] == statistics
    del blobs[1]["fields"]
    changed.write_text(json.dumps(document | {"statistics": statistics}))
    with pytest.raises(CorruptMetadataError, match="blob-metadata"):
        load_table(str(changed))


def test_defaults_of_times_are_read_and_kept(tmp_path: Path) -> None:
    """As Java writes them: without zeros at the end, and with nanoseconds, which PyIceberg does not parse."""
    catalog = open_catalog(tmp_path)
    made = create_table(catalog, 3)
    path = Path(made.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    times = {
        "time": "22:31:08.12",
        "timestamp": "2017-11-16T22:31:08.5",
        "timestamptz": "2017-11-16T22:31:08+00:00",
        "timestamp_ns": "1969-12-31T23:59:59.12345678",
        "timestamptz_ns": "2017-11-16T22:31:08.100000001+00:00",
    }
    for at, (type_, text) in enumerate(times.items(), 3):
        field = {"id": at, "name": type_, "type": type_, "required": False, "initial-default": text}
        document["schemas"][0]["fields"].append(field | {"write-default": text})
    document["last-column-id"] = 2 + len(times)
    changed = path.with_name("00009-00000000-0000-4000-8000-000000000000.metadata.json")
    changed.write_text(json.dumps(document))
    catalog.register_table("db.times", str(changed))
    table = load_table("db.times", catalog)
    found = fp.plan_scan(table, "timestamp_ns < TIMESTAMP_NTZ '1970-01-01 00:00:00'").to_arrow(columns=list(times))
    assert found.num_rows == 30
    nanos = [found.column(at).cast(pa.int64())[0].as_py() for at in (3, 4)]
    assert nanos == [-876_543_220, 1_510_871_468_100_000_001]
    fp.append(table, arrow(rows_of(50, 53)))
    written = json.loads(Path(table.refresh().metadata_location.removeprefix("file://")).read_text())
    fields = written["schemas"][0]["fields"][-5:]
    assert [one["initial-default"] for one in fields[-2:]] == list(times.values())[-2:]
    read_back = [field.initial_default for field in load_table("db.times", catalog).schema().fields[-5:]]
    assert read_back == [field.initial_default for field in table.schema().fields[-5:]]


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


@pytest.mark.parametrize("name", TYPES)
def test_files_are_pruned_by_the_nulls_of_such_a_column(table: Table, name: str) -> None:
    """The first three files were written without the column; then come one without nulls and a mixed one."""
    given = pa.schema(
        [
            ("id", pa.int64()),
            ("part", pa.string()),
            (name, pa.struct([(part, pa.binary()) for part in PARTS]) if name == "v" else pa.binary()),
        ]
    )
    for ids in ([30, 31], [40, 41]):
        some = [{"id": i, "part": "a", name: None if i == 41 else PARTS if name == "v" else POINT} for i in ids]
        fp.append(table.refresh(), pa.Table.from_pylist(some, given))
    table = load_table("db.opaque", table.catalog)
    is_null, not_null = (fp.plan_scan(table, f"{name} IS {kind} NULL") for kind in ("", "NOT"))
    assert sorted(is_null.to_arrow(columns=["id"])["id"].to_pylist()) == [*range(30), 41]
    assert sorted(not_null.to_arrow(columns=["id"])["id"].to_pylist()) == [30, 31, 40]
    # No nulls of a variant are counted when it is written.
    assert (is_null.summary.files_kept, not_null.summary.files_kept) == (5 if name == "v" else 4, 2)
    both = fp.plan_scan(table, f"{name} IS NULL AND id > 29 OR NOT isnull({name}) AND id = 40")
    assert sorted(both.to_arrow(columns=["id"])["id"].to_pylist()) == [40, 41]


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


CHANGES: dict[str, Callable[[Table], object]] = {
    "binpack": lambda table: fp.rewrite_data_files(table, options=ALL),
    "sort": lambda table: fp.rewrite_data_files(table, strategy="sort", by=["id DESC"], options=ALL),
    "zorder": lambda table: fp.rewrite_data_files(table, strategy="zorder", by=["id", "ns"], options=ALL),
    "delete": lambda table: fp.delete(table, "id = 999", mode="copy-on-write"),
    "update": lambda table: fp.update(table, {"part": "'a'"}, "id < 40", mode="merge-on-read"),
    "copy": lambda table: fp.update(table, {"part": "'a'"}, "id IN (31, 999)", mode="copy-on-write"),
    "merge": lambda table: (
        fp.merge(table, pa.table({"k": [30, 33, 999]}), "id = k").when_matched_update({"part": "'a'"}).execute()
    ),
    "spec": lambda table: fp.upgrade_spec(table),
}


def written_rows() -> list[dict[str, object]]:
    """Rows 30 to 33, and 999, with values of all types, nulls, and a value that is too long for statistics."""
    long = {"metadata": PARTS["metadata"], "value": b"\x40" + (5000).to_bytes(4, "little") + b"x" * 5000}
    values = [(PARTS, POINT, 1), (None, None, None), (long, POINT * 300, 3), (PARTS, POINT, None), (PARTS, None, 5)]
    return [
        {"id": n, "part": "a", "v": v, "g": g, "h": g, "plain": g, "ns": ns}
        for n, (v, g, ns) in zip([30, 31, 32, 33, 999], values, strict=True)
    ]


def test_a_format_that_does_not_hold_them_is_reported(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    with writable_metadata(table.io), table.transaction() as change:
        change.set_properties({"write.format.default": "orc"})
    text = "write.format.default is orc: not supported with column v of type variant, new files are Parquet"
    fp.append(table.refresh(), arrow(rows_of(50, 60)))
    assert caplog.messages == [text]
    done = fp.rewrite_data_files(table.refresh(), options=ALL)
    assert [w.message for w in done.planning.warnings if w.kind == "write-format"] == [text]
    assert set(live_entries(table.refresh()).array("file_format").to_pylist()) == {"PARQUET"}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_carried_unchanged(table: Table, change: str) -> None:
    """Rewritten, updated and merged rows keep values of these types, and files their annotations."""
    binary = pa.struct({"value": pa.binary(), "metadata": pa.binary()})
    names = ("g", "h", "plain")
    given = pa.schema({"id": pa.int64(), "part": pa.string(), "v": binary, **dict.fromkeys(names, pa.binary())})
    given = given.append(pa.field("ns", pa.timestamp("ns")))
    rows = written_rows()
    for some in (rows[:2], rows[2:]):
        fp.append(table.refresh(), pa.Table.from_pylist(some, given))
    if change == "spec":
        with writable_metadata(table.io), table.refresh().update_spec() as update:
            update.add_field("id", "bucket[2]", "bucket")
    before = {entry.path for entry in fp.plan_scan(table.refresh()).files}
    CHANGES[change](table.refresh())
    plan = fp.plan_scan(load_table("db.opaque", table.catalog), "id >= 30")
    read = plan.to_arrow()
    read = read.set_column(read.schema.get_field_index("ns"), "ns", read["ns"].cast(pa.int64()))
    found = sorted(read.to_pylist(), key=lambda row: row["id"])
    assert found == [row | {"x": None} for row in rows if change != "delete" or row["id"] != 999]
    new = [file.path for file in plan.files if file.path not in before]
    assert new
    for path in new:
        elements = {field.name: field for field in read_footer(open_source(path)).columns.root.children}
        encoded = {name: elements[name].encoded for name in TYPES}
        assert {name: logical_type(element) for name, element in encoded.items()} == {
            "v": (16, {1: 1}),
            "g": (17, {1: b"srid:3857"}),
            "h": (18, {1: b"OGC:CRS84", 2: 4}),
            "plain": (17, {}),
        }
    entries = live_entries(table.refresh())
    opaque_ids = {field.field_id for field in table.schema().fields if field.name in TYPES}
    for bounds in entries.table.column("lower_bounds").to_pylist():
        assert opaque_ids.isdisjoint(key for key, _ in bounds or ())


NAMES, TEXT = b"\x01\x01\x00\x01a", b"\x05x"


def shredded(values: dict[int, int | None]) -> pa.Table:
    """Rows whose variant is ``{"a": number}`` with a column of numbers, or null."""
    a = pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", pa.int64())])
    typed = pa.struct([pa.field("a", a, nullable=False)])
    parts = [pa.field("value", pa.binary()), pa.field("typed_value", typed)]
    variant = pa.struct([pa.field("metadata", pa.binary(), nullable=False), *parts])
    rows = [
        {"metadata": NAMES, "value": None, "typed_value": {"a": {"value": None, "typed_value": number}}}
        if number is not None
        else None
        for number in values.values()
    ]
    columns = [pa.array(list(values)), pa.array(["a"] * len(values)), pa.array(rows, variant)]
    return pa.Table.from_arrays(columns, names=["id", "part", "v"])


def numbers(table: Table) -> dict[int, int | None]:
    rows = fp.plan_scan(load_table("db.opaque", table.catalog), "id >= 30", columns=["id", "v"]).to_arrow().to_pylist()
    return {row["id"]: row["v"] and int.from_bytes(row["v"]["value"][6:], "little") for row in rows}


def layouts(table: Table) -> set[str]:
    """The parts of the variant and their repetition, in files that have the column."""
    plan = fp.plan_scan(load_table("db.opaque", table.catalog), "id >= 30")
    roots = [read_footer(open_source(file.path)).columns.root for file in plan.files]
    found = [field for root in roots for field in root.children if field.name == "v"]
    parts = [[node for child in field.children for node in child.walk()] for field in found]
    return {", ".join(f"{node.name} {node.repetition.name.lower()}" for node in nodes) for nodes in parts}


@pytest.mark.parametrize("change", CHANGES)
def test_shredded_variants_keep_the_layout_of_their_files(table: Table, change: str) -> None:
    values = {30: 7, 31: None, 32: 9, 33: 4, 999: 1}
    for first in (0, 3):
        some = dict(list(values.items())[first : first + 3])
        fp.append(table.refresh(), shredded(some))
    if change == "spec":
        with writable_metadata(table.io), table.refresh().update_spec() as update:
            update.add_field("id", "bucket[2]", "bucket")
    assert numbers(table) == values
    present = fp.plan_scan(load_table("db.opaque", table.catalog), "v IS NOT NULL", columns=["id"])
    assert sorted(present.to_arrow()["id"].to_pylist()) == [30, 32, 33, 999]
    CHANGES[change](table.refresh())
    assert numbers(table) == {n: value for n, value in values.items() if change != "delete" or n != 999}
    fields = "a required, value optional, typed_value optional"
    assert layouts(table) == {f"metadata required, value optional, typed_value optional, {fields}"}


def test_files_are_pruned_by_the_bounds_of_shredded_variants(table: Table) -> None:
    """Before and after a rewrite, which writes bounds too."""

    def found(where: str) -> tuple[int, list[int]]:
        plan = fp.plan_scan(load_table("db.opaque", table.catalog), f"id >= 30 AND {where}")
        return plan.summary.files_kept, sorted(plan.to_arrow(columns=["id"])["id"].to_pylist())

    fp.append(table, shredded({30: 7, 31: None}))
    fp.append(table.refresh(), shredded({32: 900, 33: 950}))
    opened = load_table("db.opaque", table.catalog)
    (second,) = fp.plan_scan(opened, "id >= 32").files
    why = fp.why(opened, second.path, "v:a::bigint < 100")
    assert (why.kept, why.statistic) == (False, "bounds of v: $['a'] 900 to 950")
    for _ in range(2):
        assert found("v:a::bigint < 100") == (1, [30])
        assert found("variant_get(v, '$.a', 'double') >= 950") == (1, [33])
        assert found("NOT v:a::int IN (7, 8, 9)") == (1, [32, 33])
        assert found("v:a::int = 500") == (0, [])
        assert found("v:a::string = '7'") == (2, [30]), "text is not in the order of numbers"
        assert found("try_variant_get(v, '$.b', 'int') > 5") == (2, []), "there are no bounds of the path"
        assert found("v:a::int IS NULL") == (2, [31])
        fp.rewrite_data_files(
            table.refresh(), where="id >= 30", options={"rewrite-all": "true", "max-file-group-size-bytes": "1"}
        )
    fp.delete(load_table("db.opaque", table.catalog), "v:a::int > 920 OR g IS NOT NULL")
    assert found("v:a::int > 0") == (2, [30, 32])


def test_files_are_pruned_by_the_boxes_of_geometries(table: Table) -> None:
    """Bounds as another engine writes them; Floeplan and Iceberg 1.12 write none."""
    places = {30: (1.0, 2.0), 31: None, 40: (8.0, 9.0)}
    for first in (30, 40):
        some = {n: place for n, place in places.items() if first <= n < first + 10}
        points = [None if place is None else POINT[:5] + struct.pack("<dd", *place) for place in some.values()]
        rows = pa.table({"id": list(some), "part": ["a"] * len(some), "g": pa.array(points, pa.binary())})
        entries = write_data_files(WriteTarget.of(table.refresh()), [rows], file_name_token=str(first))
        bound = {"key": 4, "value": struct.pack("<dd", *places[first])}
        made = entries.table
        for name in ("lower_bounds", "upper_bounds"):
            at = made.schema.get_field_index(name)
            pairs = [*made.column(at).to_pylist()[0], bound]
            made = made.set_column(at, made.schema.field(at), pa.array([pairs], made.schema.field(at).type))
        added = EntriesTable(made, entries.partition_types)
        commit_change(table.refresh(), SnapshotChange(Operation.APPEND, added_data=added))

    def found(where: str) -> tuple[int, list[int]]:
        plan = fp.plan_scan(load_table("db.opaque", table.catalog), f"id >= 30 AND {where}")
        return plan.summary.files_kept, sorted(plan.to_arrow(columns=["id"])["id"].to_pylist())

    assert found("ST_Intersects_Extent(g, ST_MakeEnvelope(0, 0, 2, 2))") == (1, [30])
    assert found("NOT ST_Intersects_Extent(g, ST_Point(1, 2))") == (2, [40])
    opened = load_table("db.opaque", table.catalog)
    (second,) = fp.plan_scan(opened, "id >= 40").files
    assert (
        fp.why(opened, second.path, "ST_Intersects_Extent(g, ST_Point(1, 2))").statistic
        == "bounds of g: 8.0 9.0 to 8.0 9.0"
    )
    assert found("ST_Intersects_Extent(g, ST_MakeEnvelope(3, 0, 5, 99))") == (0, [])
    with pytest.raises(UnsupportedError, match=r"st_intersects\(\)"):
        found("ST_Intersects(g, ST_Point(1, 2))")
    fp.delete(load_table("db.opaque", table.catalog), "ST_Intersects_Extent(g, ST_MakeEnvelope(7, 7, 9, 9))")
    assert found("g IS NOT NULL")[1] == [30]


def test_a_value_of_another_type_is_an_error_or_null(table: Table) -> None:
    fp.append(table, shredded({30: 2**40}))
    with pytest.raises(EvaluationError, match="1099511627776 in a variant cannot be cast to int32"):
        fp.plan_scan(load_table("db.opaque", table.catalog), "id = 30 AND v:a::int > 5").to_arrow()
    kept = fp.plan_scan(load_table("db.opaque", table.catalog), "id = 30 AND try_variant_get(v, '$.a', 'int') IS NULL")
    assert kept.to_arrow(columns=["id"])["id"].to_pylist() == [30]
    with pytest.raises(TypeMismatchError, match="variant_get"):
        fp.plan_scan(load_table("db.opaque", table.catalog), "variant_get(id, '$.a', 'int') > 5").to_arrow()


def test_variants_of_different_layouts_are_written_without_one(table: Table) -> None:
    fp.append(table, shredded({30: 7, 31: None}))
    number = {"metadata": NAMES, "value": b"\x02\x01\x00\x00\x09\x18\x08" + bytes(7)}
    fp.append(table.refresh(), pa.table({"id": [32], "part": ["a"], "v": [number]}))
    fp.rewrite_data_files(table.refresh(), options=ALL)
    assert layouts(table) == {"metadata required, value required"}
    found = fp.plan_scan(load_table("db.opaque", table.catalog), "id >= 30", columns=["id", "v"]).to_arrow().to_pylist()
    seven = number | {"value": b"\x02\x01\x00\x00\x09\x18\x07" + bytes(7)}
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 30, "v": seven},
        {"id": 31, "v": None},
        {"id": 32, "v": number},
    ]


def logical_type(element: bytes) -> tuple[int, dict[int, object]]:
    """The member of the LogicalType of a SchemaElement, and its fields."""
    ((member, fields),) = read_struct(element, 0, None, "element", "file")[0][10].items()
    return member, fields


def test_rows_that_are_no_variants_are_refused(table: Table) -> None:
    before = table.metadata_location
    for values, error in (
        (pa.array([1]), "column v is variant"),
        (pa.array([{"value": b"x"}]), "struct of metadata and value"),
        (pa.array([{"metadata": None, "value": b"x"}]), "whose metadata is null"),
    ):
        with pytest.raises(FloeplanError, match=error):
            fp.append(table, pa.table({"id": [1], "part": ["a"], "v": values}))
    assert load_table("db.opaque", table.catalog).metadata_location == before


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
    rows = [
        {"id": 0, "v": {"metadata": NAMES, "value": None, "typed_value": {"a": {"value": None, "typed_value": 7}}}},
        {"id": 1, "v": {"metadata": NAMES, "value": None, "typed_value": {"a": {"value": TEXT, "typed_value": None}}}},
        {"id": 2, "v": {"metadata": NAMES, "value": TEXT, "typed_value": None}},
        {"id": 3, "v": None},
    ]
    path = tmp_path / "rows.parquet"
    file_schema = pa.schema([stored("id", pa.int64(), 1), stored("v", variant, 5)])
    pq.write_table(pa.Table.from_pylist(rows, file_schema), path, write_page_index=True)
    files = Files(tmp_path)
    files.entries.append({"file_path": str(path), "record_count": 4, "sequence_number": 1})
    table = files.table(Layout(schema, (PLAIN,), version=3))
    number = b"\x02\x01\x00\x00\x09\x18\x07" + bytes(7)
    values = [number, b"\x02\x01\x00\x00\x02" + TEXT, TEXT]
    expected = [{"id": n, "v": {"metadata": NAMES, "value": value}} for n, value in enumerate(values)]
    expected.append({"id": 3, "v": None})  # type: ignore[dict-item]
    assert fp.plan_scan(table).to_arrow().to_pylist() == expected
    for n in range(4):
        plan = fp.plan_scan(table, f"id = {n}", options=ScanOptions(page_index=True, report=False))
        assert plan.to_arrow().to_pylist() == expected[n : n + 1]
    assert fp.plan_scan(table, columns=["id"]).to_arrow().num_rows == 4
