"""Metadata trees: manifests of format 4 with UUIDs, bad roots and leaves, the command, and commits."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import read_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, UUIDType

from floeplan.cli.main import main
from floeplan.errors import BadInputError, CorruptMetadataError, FloeplanError
from floeplan.metadata.manifests.entries import WHOLE, EntryColumns
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.commits import ScratchTree
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.manifest_file import ManifestFile
from floeplan.metadata.v4.mumbling import decode_positions, encode_positions
from floeplan.metadata.v4.stats import aggregate
from floeplan.metadata.v4.to_manifests import write_manifests
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.metadata.v4.writer import ManifestOptions
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader
from tests.support.tables.layouts import Layout, rows_of
from tests.support.tables.v4_tables import TreeModel

pytestmark = pytest.mark.unit

OPTIONS = ScanOptions(footers=False, cache=False, report=False)


def test_a_manifest_of_format_4_with_uuids_may_have_deleted_entries_only(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "key"), spec_id=0)
    layout = Layout(Schema(NestedField(1, "key", UUIDType())), (spec,), version=4)
    rows = [{"file_path": "file:/a", "partition.1000": bytes(16), "status": 2, "sequence_number": 3}]
    table = layout.write_table(tmp_path, layout.entries(rows))
    # The counts of the list keep a plan from opening the manifest; maintenance opens it.
    assert len(SnapshotReader.open(table, table.current_snapshot()).entries(None, EntryColumns())) == 0
    assert len(plan_scan(table, options=OPTIONS).files) == 0


def test_partition_fields_of_two_specs_may_have_one_name(tmp_path: Path) -> None:
    specs = [
        PartitionSpec(PartitionField(1, field_id, IdentityTransform(), "key"), spec_id=spec_id)
        for spec_id, field_id in ((0, 1000), (1, 1001))
    ]
    layout = Layout(Schema(NestedField(1, "id", LongType())), tuple(specs), version=3)
    rows: list[dict[str, Any]] = [
        {"file_path": f"file://{tmp_path}/{spec}", "spec_id": spec, f"partition.{1000 + spec}": 7 + spec}
        for spec in (0, 1)
    ]
    table = layout.write_table(tmp_path / "table", layout.entries(rows))
    root = write_tree(table, str(tmp_path / "tree"), table.current_snapshot()).root
    for value in (7, 8):
        expected = [file.path for file in plan_scan(table, f"id = {value}", options=OPTIONS).files]
        kept = plan_scan(table, f"id = {value}", options=replace(OPTIONS, root=root)).files
        assert [file.path for file in kept] == expected
        assert len(expected) == 1


# --- roots and leaves that are damaged, hostile or of another draft


@dataclass(frozen=True)
class Tree:
    """A table and a tree of it: two leaves of two files each."""

    table: Table
    root: str
    leaves: tuple[str, ...]

    def plan(self, where: str | None = None) -> list[str]:
        plan = plan_scan(self.table, where, options=replace(OPTIONS, root=self.root))
        return sorted(file.path.rpartition("/")[2] for file in plan.files)


def long(value: int) -> bytes:
    return struct.pack("<q", value)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    region = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
    layout = Layout(schema, (PartitionSpec(spec_id=0), region), version=4)
    rows: list[dict[str, Any]] = []
    for number in range(4):
        row = {"file_path": f"file://{tmp_path}/table/data/{number}", "sequence_number": 5, "first_row_id": 10 * number}
        row |= {"spec_id": 1, "partition.1000": "ab"[number // 2]} if number else {"spec_id": 0}
        row |= {"lower_bounds": {1: long(10 * number)}, "upper_bounds": {1: long(10 * number + 9)}}
        rows.append(row | {"value_counts": {1: 10}, "null_value_counts": {1: 0}})
    table = layout.write_table(tmp_path / "table", layout.entries(rows))
    summary = write_tree(table, str(tmp_path / "tree"), table.current_snapshot(), leaf_entries=2)
    return Tree(table, summary.root, summary.leaves)


def rewrite(path: str, change: Callable[[pa.Table], pa.Table], **properties: str) -> None:
    """Write a manifest again after a change of its rows or footer."""
    kept = {k.decode(): v.decode() for k, v in pq.read_metadata(path).metadata.items() if k != b"ARROW:schema"}
    table = change(pq.read_table(path))
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(kept | {name.replace("__", "-"): text for name, text in properties.items()})


def with_field(name: str, field: str, values: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    """A change of one field of a struct column."""

    def change(table: pa.Table) -> pa.Table:
        array = table.column(name).combine_chunks()
        fields, parts = [], []
        for one in array.type:
            part = values(array.field(one.name)) if one.name == field else array.field(one.name)
            parts.append(part)
            fields.append(pa.field(one.name, part.type, one.nullable, one.metadata))
        struct_ = pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
        at = table.schema.get_field_index(name)
        old = table.schema.field(at)
        return table.set_column(at, pa.field(name, struct_.type, old.nullable, old.metadata), struct_)

    return change


def with_column(name: str, values: Callable[[pa.Array], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, table.schema.field(at), values(table.column(at).combine_chunks()))

    return change


def constant(value: Any) -> Callable[[pa.Array], pa.Array]:
    return lambda array: pa.array([value] * len(array), array.type)


def first(value: Any) -> Callable[[pa.Array], pa.Array]:
    return lambda array: pa.array([value, *array.to_pylist()[1:]], array.type)


def removing(*positions: int) -> Callable[[pa.Table], pa.Table]:
    return with_field("manifest_info", "dv", first(encode_positions(np.array(positions))))


BAD_ROOTS: dict[str, tuple[Callable[[pa.Table], pa.Table], dict[str, str], str]] = {
    "unknown profile": (
        lambda t: t,
        {"floeplan.v4__profile": "v4-draft-9"},
        "profile v4-draft-9, supported is v4-draft",
    ),
    "another table": (lambda t: t, {"floeplan.table__uuid": "x"}, "of table x, not of"),
    "another snapshot": (lambda t: t, {"floeplan.snapshot__id": "71"}, "of snapshot 71"),
    "format 3": (lambda t: t, {"format__version": "3"}, "manifest of format 3, not a v4 root"),
    "no tracking": (lambda t: t.drop_columns("tracking"), {}, "lacks the columns with the field ids 0"),
    "other ids": (
        lambda t: t.cast(pa.schema([f.with_metadata({"PARQUET:field_id": f"{n}"}) for n, f in enumerate(t.schema)])),
        {},
        "lacks the columns with the field ids 0, 134",
    ),
    "unknown status": (with_field("tracking", "status", constant(5)), {}, "status is missing or unknown"),
    "unknown content": (with_column("content_type", constant(1)), {}, "unknown content type"),
    "equality deletes": (with_column("content_type", constant(2)), {}, "equality delete file"),
    "delete manifest": (with_column("content_type", constant(4)), {}, "a delete manifest of format 4"),
    "no sequence": (with_field("tracking", "sequence_number", first(None)), {}, "rows of a root do not inherit"),
    "unknown format": (
        with_column("format_version", constant(5)),
        {},
        "a manifest of format 5, which is not supported",
    ),
    "position beyond the leaf": (removing(0, 2), {}, "removes position 2 of .*, which has 1 rows"),
    "damaged vector": (
        with_field("manifest_info", "dv", first(b"\x01\x05")),
        {},
        "damaged deletion vector of .*: not a bitmap",
    ),
    "a leaf twice": (lambda t: pa.concat_tables([t, t]), {}, "refers to .*-leaf-0.parquet twice"),
    "an id twice": (
        lambda t: t.append_column(t.schema.field("location").with_name("other"), t.column("location")),
        {},
        "two columns have the field id 100",
    ),
    "no info": (with_column("manifest_info", lambda a: pa.nulls(len(a), a.type)), {}, "without manifest_info|no valid"),
    "other row count": (with_column("record_count", constant(7)), {}, "rows, and .* counts 7"),
    "status as text": (
        with_field("tracking", "status", lambda a: a.cast(pa.string())),
        {},
        "stores field 0 as (large_)?string, not as an integer",
    ),
    "column files": (
        lambda t: t.append_column(
            pa.field("column_files", pa.int32(), metadata={"PARQUET:field_id": "158"}),
            pa.array([1] * len(t), pa.int32()),
        ),
        {},
        "column files",
    ),
}


@pytest.mark.parametrize(("change", "properties", "message"), BAD_ROOTS.values(), ids=BAD_ROOTS)
def test_a_bad_root_is_an_error_that_names_it(
    tree: Tree,
    change: Callable[[pa.Table], pa.Table],
    properties: dict[str, str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewrite(tree.root, nullable(change), **properties)
    with pytest.raises(FloeplanError, match=message) as caught:
        tree.plan()
    assert tree.root in caught.value.message or any(leaf in caught.value.message for leaf in tree.leaves)
    metadata = str(tree.table.metadata_location)
    assert main(["plan", metadata, "--root", tree.root, "--no-footers"]) == caught.value.exit_code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"floeplan: {caught.value.message}\n")


def nullable(change: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    """Apply a change to rows whose fields may all be null, as hostile writers may declare them."""

    def loose(field: pa.Field) -> pa.Field:
        type_ = pa.struct([loose(one) for one in field.type]) if pa.types.is_struct(field.type) else field.type
        return pa.field(field.name, type_, True, field.metadata)

    def changed(table: pa.Table) -> pa.Table:
        return change(table.cast(pa.schema([loose(field) for field in table.schema])))

    return changed


def test_a_missing_leaf_is_an_error(tree: Tree) -> None:
    Path(tree.leaves[0]).unlink()
    with pytest.raises(CorruptMetadataError, match="does not exist although the table refers to it"):
        tree.plan()


def test_a_truncated_leaf_is_an_error(tree: Tree) -> None:
    leaf = Path(tree.leaves[0])
    leaf.write_bytes(leaf.read_bytes()[:-100])
    with pytest.raises(CorruptMetadataError, match="not a valid v4 manifest"):
        tree.plan()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_error_in_one_of_many_leaves_names_that_leaf(tree: Tree, at: int) -> None:
    rewrite(tree.leaves[at], with_column("spec_id", constant(77)))
    with pytest.raises(CorruptMetadataError, match=f"{tree.leaves[at]} has files of partition spec 77"):
        tree.plan()


def test_a_root_that_refers_to_itself_is_an_error(tree: Tree) -> None:
    rewrite(tree.root, with_column("location", first(f"file://{tree.root}")))
    rewrite(tree.root, with_column("record_count", first(pq.read_metadata(tree.root).num_rows)))
    with pytest.raises(CorruptMetadataError, match="is a leaf and refers to manifests: the tree has two levels"):
        tree.plan()


def test_a_file_of_a_spec_without_a_tuple_is_an_error_and_not_pruned(tree: Tree) -> None:
    """Iceberg 1.12.0 takes the tuple for all null and prunes the file."""
    of_spec_1 = tree.leaves[1]
    rewrite(of_spec_1, with_column("partition", lambda array: pa.nulls(len(array), array.type)))
    with pytest.raises(CorruptMetadataError, match="without a value of its partition field 'region'"):
        tree.plan("region = 'a'")
    rewrite(of_spec_1, lambda table: table.drop_columns("partition"))
    with pytest.raises(CorruptMetadataError, match="without a value of its partition field 'region'"):
        tree.plan("region = 'a'")


def test_a_value_of_a_field_that_the_spec_does_not_have_is_ignored(tree: Tree) -> None:
    """Only the spec tells a value that is null from a field that the spec does not have."""
    rewrite(tree.leaves[0], with_field("partition", "region", constant("a")))
    opened = MetadataTree(tree.root, tree.table.metadata)
    entries = opened.read_entries(opened.manifests, opened.types.union, EntryColumns()).live()
    assert entries.array("partition.1000").to_pylist() == [None, "a", "b", "b"]
    assert tree.plan("region = 'b'") == ["0", "2", "3"]


def test_nan_counts_are_read_without_other_statistics(tree: Tree) -> None:
    opened = MetadataTree(tree.root, tree.table.metadata)
    wanted = (EntryColumns(nan_counts=frozenset({1})), EntryColumns(stats=frozenset({1})))
    found, whole = (opened.read_entries(opened.manifests, opened.types.union, columns) for columns in wanted)
    assert found.array("nan_count.1") == whole.array("nan_count.1")
    assert "lower.1" not in found


def test_a_tuple_of_another_type_is_an_error(tree: Tree) -> None:
    rewrite(tree.leaves[1], with_field("partition", "region", lambda a: pa.array([1] * len(a), pa.int32())))
    with pytest.raises(CorruptMetadataError, match="stores partition field 'region' as int32, which does not fit"):
        tree.plan()


@pytest.mark.parametrize("of", ["root", "leaf"])
def test_statistics_of_another_type_keep_the_file(tree: Tree, of: str) -> None:
    assert tree.plan("id = 25") == ["2"]

    def as_text(table: pa.Table) -> pa.Table:
        bounds = table.column("content_stats").combine_chunks()
        column = bounds.field("id")
        parts, fields = [], []
        for one in column.type:
            part = column.field(one.name).cast(pa.string()) if one.name.endswith("bound") else column.field(one.name)
            parts.append(part)
            fields.append(pa.field(one.name, part.type, True, one.metadata))
        made = pa.StructArray.from_arrays(parts, fields=fields)
        outer = pa.field("id", made.type, True, bounds.type.field("id").metadata)
        stats = pa.StructArray.from_arrays([made], fields=[outer])
        at = table.schema.get_field_index("content_stats")
        return table.set_column(at, pa.field("content_stats", stats.type, True, table.schema.field(at).metadata), stats)

    for path in [tree.root] if of == "root" else tree.leaves:
        rewrite(path, as_text)
    # Without the root's statistics, those of files prune; without a file's, the leaf's prune its neighbours only.
    assert tree.plan("id = 25") == (["2"] if of == "root" else ["1", "2"])


def test_columns_are_found_by_id(tree: Tree) -> None:
    for path in (tree.root, *tree.leaves):
        rewrite(path, lambda t: t.select(t.column_names[::-1]).rename_columns([f"x{n}" for n in range(t.num_columns)]))
    assert tree.plan("region = 'b'") == ["0", "2", "3"]


def test_removed_positions_are_not_planned(tree: Tree) -> None:
    everything = tree.plan()
    rewrite(tree.root, removing(0))
    assert len(tree.plan()) == len(everything) - 1


def test_rows_that_are_deleted_or_replaced_are_not_planned(tree: Tree) -> None:
    for status, live in ((0, True), (1, True), (2, False), (3, False), (4, True)):
        rewrite(tree.leaves[0], with_field("tracking", "status", constant(status)))
        assert ("0" in tree.plan()) == live


def test_columns_without_values_are_known_from_statistics(tree: Tree, tmp_path: Path) -> None:
    vector, location = (ids.DELETION_VECTOR, ids.DV_OFFSET), (ids.LOCATION,)
    leaf = ManifestFile(tree.leaves[0], None)
    assert leaf.is_null(vector)
    assert not leaf.is_null(location)
    assert leaf.is_null((ids.COLUMN_FILES,))  # the file does not have it
    bare = ManifestOptions(statistics=False)
    written = write_tree(tree.table, str(tmp_path / "bare"), tree.table.current_snapshot(), options=bare)
    root = ManifestFile(written.root, None)
    assert not root.is_null(vector)  # unknown: the column is read
    assert not root.read([vector]).valid(vector).any()


def test_columns_of_one_value_are_known_from_statistics(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    usual = pq.ParquetFile.read

    def recorded(self: pq.ParquetFile, columns: list[str], **options: Any) -> pa.Table:
        read.extend(columns)
        return usual(self, columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read", recorded)
    columns, bare = EntryColumns(WHOLE), ManifestOptions(statistics=False)
    found = []
    for options in (None, bare):
        snapshot = tree.table.current_snapshot()
        written = write_tree(tree.table, str(tmp_path / "again"), snapshot, leaf_entries=2, options=options)
        opened = MetadataTree(written.root, tree.table.metadata)
        read.clear()
        found.append(rows_of(opened.read_entries(opened.manifests, opened.types.union, columns)))
        assert ("file_format" in read) == ("spec_id" in read) == (options is bare)
        assert {"location", "content_stats.id.lower_bound"} <= set(read)
    assert found[0] == found[1]


def test_the_command_writes_a_tree_that_plan_reads(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = str(tree.table.metadata_location)
    assert (
        main(["entries", metadata, "--layout", "v4", "-o", str(tmp_path / "out"), "--leaf-entries", "2", "--json"]) == 0
    )
    written = json.loads(capsys.readouterr().out)
    assert written["profile"] == "v4-draft-1.12.0"
    assert (written["entries"], len(written["leaves"])) == (4, 3)
    files = [written["root"], *written["leaves"]]
    assert written["bytes"] == sum(Path(path).stat().st_size for path in files)
    assert main(["plan", metadata, "--root", written["root"], "--where", "id = 35", "--no-footers", "--json"]) == 0
    assert [file["path"][-1] for file in json.loads(capsys.readouterr().out)["files"]] == ["3"]
    assert main(["entries", metadata, "-o", str(tmp_path / "root.parquet"), "--leaf-entries", "2"]) == 2
    assert "--layout v4" in capsys.readouterr().err
    assert main(["plan", metadata, "--root", str(tmp_path / "out")]) == 2
    assert f"is a folder: give the root manifest in it, {written['root']}" in capsys.readouterr().err


def test_the_layout_follows_from_the_path_and_plans_read_both(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata, single = str(tree.table.metadata_location), str(tmp_path / "entries.parquet")
    assert main(["entries", metadata, "-o", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    written = json.loads(captured.out)
    assert (written["profile"], captured.err) == ("v4-draft-1.12.0", "")
    assert main(["entries", metadata, "-o", single, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out).keys() >= {"entries", "specs", "partition_fields", "bytes"}
    assert captured.err.count("\n") == 1
    assert "deprecated" in captured.err
    for root in (written["root"], single):
        assert main(["plan", metadata, "--root", root, "--where", "id = 35", "--no-footers", "--json"]) == 0
        assert [file["path"][-1] for file in json.loads(capsys.readouterr().out)["files"]] == ["3"]


# --- statistics of leaves

WHOLE_FILE: dict[str, Any] = {"lower": 10.0, "upper": 19.0, "values": 10, "nulls": 3, "nans": 0, "records": 10}
UNKNOWN_COUNTS = {"value_count": None, "null_value_count": None, "nan_value_count": None}
UNKNOWN_BOUNDS = {"lower_bound": None, "upper_bound": None}


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        ({"lower": 0.0, "upper": 9.0}, {"lower_bound": 0.0}),
        ({"lower": None}, {"lower_bound": None}),
        ({"upper": None}, {"upper_bound": None}),
        ({"values": None}, UNKNOWN_COUNTS),
        ({"records": 11}, UNKNOWN_COUNTS),
        ({"nulls": None}, {"null_value_count": None}),
        ({"nans": None}, {"nan_value_count": None}),
        ({"lower": 20.0}, UNKNOWN_BOUNDS),
        ({"lower": math.nan}, UNKNOWN_BOUNDS),
        ({"upper": math.nan}, UNKNOWN_BOUNDS),
        ({"lower": None, "upper": None, "nulls": 10}, {"null_value_count": 13}),
        ({"lower": None, "upper": None, "nulls": 7, "nans": 3}, {"null_value_count": 10, "nan_value_count": 3}),
        ({"lower": None, "upper": None, "nulls": 9}, UNKNOWN_BOUNDS | {"null_value_count": 12}),
        ({"lower": None, "upper": None, "nulls": 10, "records": 11}, UNKNOWN_BOUNDS | UNKNOWN_COUNTS),
    ],
    ids=str,
)
def test_a_leaf_has_the_metrics_that_are_known_of_all_its_files(other: dict[str, Any], changed: dict[str, Any]) -> None:
    """A bound or count that one file lacks must not come from the others: the leaf would be pruned with that file."""
    files = [WHOLE_FILE, WHOLE_FILE | other]
    types = [
        *(pa.field(name, pa.float64()) for name in ("lower_bound", "upper_bound")),
        pa.field("tight_bounds", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in ("value_count", "null_value_count", "nan_value_count")),
    ]
    rows = [[f["lower"], f["upper"], False, f["values"], f["nulls"], f["nans"]] for f in files]
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), types, strict=True)]
    stats = pa.StructArray.from_arrays([pa.StructArray.from_arrays(arrays, fields=types)], names=["d"])
    (found,) = aggregate(stats, np.array([f["records"] for f in files])).to_pylist()
    counts = {"value_count": 20, "null_value_count": 6, "nan_value_count": 0}
    expected = {"lower_bound": 10.0, "upper_bound": 19.0, "tight_bounds": False} | counts | changed
    assert found["d"] == (None if other.get("records") == 11 and "nulls" in other else expected)


def test_a_vector_is_not_older_than_a_file_that_inherits_its_sequence_number(tmp_path: Path) -> None:
    """The vector's snapshot is expired, and the sequence number of its file is that of the leaf."""
    layout = Layout(Schema(NestedField(1, "id", LongType())), (PartitionSpec(spec_id=0),), version=3)
    home = f"file://{tmp_path}/table/data"
    rows: list[dict[str, Any]] = [{"file_path": f"{home}/{name}", "sequence_number": 5} for name in "ab"]
    place = {"content_offset": 4, "content_size_in_bytes": 40, "referenced_data_file": f"{home}/a", "snapshot_id": 3}
    rows.append({"file_path": f"{home}/v", "sequence_number": 9, "content": 1, "file_format": "PUFFIN"} | place)
    table = layout.write_table(tmp_path / "table", layout.entries(rows))
    tree = write_tree(table, str(tmp_path / "tree"), table.current_snapshot(), leaf_entries=1)
    for leaf in tree.leaves:
        for name in ("sequence_number", "file_sequence_number"):
            rewrite(leaf, with_field("tracking", name, constant(None)))
        rewrite(leaf, with_field("tracking", "status", constant(1)))
    files = plan_scan(table, options=replace(OPTIONS, root=tree.root)).files
    assert {file.path[-1]: [one.path[-1] for one in file.deletes] for file in files} == {"a": ["v"], "b": []}


# --- manifests from a tree


def relisted(table: Table, manifest_list: str, folder: Path, **changes: Any) -> Table:
    """The table with another manifest list."""
    metadata = json.loads(Path(str(table.metadata_location)).read_text()) | changes
    metadata["snapshots"][0]["manifest-list"] = f"file://{manifest_list}"
    path = folder / "relisted.metadata.json"
    path.write_text(json.dumps(metadata))
    return StaticTable.from_metadata(str(path))


def test_the_command_writes_manifests_from_a_tree(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata, out = str(tree.table.metadata_location), str(tmp_path / "back")
    assert main(["entries", metadata, "--layout", "v3", "--root", tree.root, "-o", out, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["format_version"], written["entries"], written["lost"]) == (3, 4, [])
    files = [written["manifest_list"], *written["manifests"]]
    assert written["bytes"] == sum(Path(path).stat().st_size for path in files)
    back = relisted(tree.table, written["manifest_list"], tmp_path)
    columns = EntryColumns(WHOLE)
    before, after = (SnapshotReader.open(t, t.current_snapshot()).entries(None, columns) for t in (tree.table, back))
    assert rows_of(after) == rows_of(before)
    # PyIceberg reads them too.
    io = load_file_io()
    listed = list(read_manifest_list(io.new_input(written["manifest_list"])))
    entries = [entry for one in listed for entry in one.fetch_manifest_entry(io)]
    assert sorted(entry.data_file.file_path for entry in entries) == sorted(before.path.to_pylist())
    assert main(["entries", metadata, "--layout", "v3", "--root", tree.root, "-o", out]) == 0
    assert "omitted    nothing" in capsys.readouterr().out


def test_what_manifests_cannot_hold_is_named(tree: Tree, tmp_path: Path) -> None:
    def lost() -> tuple[str, ...]:
        snapshot = tree.table.current_snapshot()
        opened = MetadataTree(tree.root, tree.table.metadata)
        return write_manifests(tree.table, opened, str(tmp_path / "back"), snapshot).lost

    def tight(array: pa.Array) -> pa.Array:
        parts = [pa.array([True] * len(array)) if f.name == "tight_bounds" else array.field(f.name) for f in array.type]
        return pa.StructArray.from_arrays(parts, fields=list(array.type))

    rewrite(tree.leaves[1], with_field("content_stats", "id", tight))
    assert lost() == ("whether bounds are tight",)
    rewrite(tree.leaves[0], with_field("tracking", "status", constant(3)))
    assert lost() == ("files that were deleted or replaced", "whether bounds are tight")


def test_vectors_become_delete_files_where_the_format_has_them(tmp_path: Path) -> None:
    layout = Layout(Schema(NestedField(1, "id", LongType())), (PartitionSpec(spec_id=0),), version=3)
    home = f"file://{tmp_path}/table/data"
    place = {"content_offset": 4, "content_size_in_bytes": 40, "referenced_data_file": f"{home}/a"}
    rows: list[dict[str, Any]] = [
        {"file_path": f"{home}/{name}", "sequence_number": 5, "file_sequence_number": 5} for name in "ab"
    ]
    rows.append({"file_path": f"{home}/v", "sequence_number": 9, "content": 1, "file_format": "PUFFIN"} | place)
    table = layout.write_table(tmp_path / "table", layout.entries(rows))
    root = write_tree(table, str(tmp_path / "tree"), table.current_snapshot()).root
    tree = MetadataTree(root, table.metadata)
    summary = write_manifests(table, tree, str(tmp_path / "back"), table.current_snapshot())
    assert (summary.entries, len(summary.manifests)) == (3, 2)
    assert summary.lost == ("file sizes of deletion vectors",)
    back = relisted(table, summary.manifest_list, tmp_path)
    deletes = {file.path[-1]: [one.path for one in file.deletes] for file in plan_scan(back, options=OPTIONS).files}
    assert deletes == {"a": [f"{home}/v"], "b": []}
    assert plan_scan(back, options=OPTIONS).files.entries.array("first_row_id").to_pylist() == [0, 10]
    older = relisted(table, summary.manifest_list, tmp_path, **{"format-version": 2})
    with pytest.raises(FloeplanError, match="format"):
        write_manifests(older, tree, str(tmp_path / "older"), older.current_snapshot())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layout", "v3"], "--layout v3 needs --root FILE"),
        (["--layout", "v4", "--root", "ROOT"], "--root needs --layout v3"),
        (["--layout", "v3", "--root", "ROOT", "--leaf-entries", "2"], "need --layout v4"),
        (["--layout", "v3", "--root", "gone.parquet"], "gone.parquet"),
        (["--layout", "v3", "--root", "ENTRIES"], "is not a metadata tree but one file of entries"),
    ],
)
def test_options_of_the_way_back_are_checked(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    metadata, single = str(tree.table.metadata_location), str(tmp_path / "entries.parquet")
    assert main(["entries", metadata, "-o", single]) == 0
    given = [{"ROOT": tree.root, "ENTRIES": single}.get(option, option) for option in options]
    out = tmp_path / "out"
    assert main(["entries", metadata, *given, "-o", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


# --- commits


def test_commits_keep_every_file_once(tmp_path: Path) -> None:
    model = TreeModel(tmp_path, inline_files=3)
    model.append("a1", "a2")
    model.check()
    model.append("b1", "b2")  # four files: they move to a leaf
    assert model.check().references == [0, 0]
    model.append("c1")
    model.set_vectors("a1", "c1")  # one from the leaf, one inline
    model.check()
    model.delete("a1", "b1")
    model.check()
    model.set_vectors("c1", "b2")
    model.append("d1", "d2", "d3", "d4")
    tree = model.check()
    assert [len(tree.removed[row]) for row in sorted(tree.removed)] == [3]
    model.delete("a2", "b2", "c1", "d1", "d2", "d3", "d4")
    model.check()
    model.append("e1")  # references to leaves without live files are dropped
    assert model.check().references == [-1]


def test_a_vector_is_a_replaced_and_a_modified_row_of_one_snapshot(tmp_path: Path) -> None:
    model = TreeModel(tmp_path)
    model.append("a1")
    model.set_vectors("a1")
    rows = pq.read_table(model.tree.root).column("tracking").to_pylist()
    assert [(row["status"], row["snapshot_id"], row["dv_snapshot_id"]) for row in rows] == [(3, 2, None), (4, 1, 2)]
    model.append("a2")
    rows = pq.read_table(model.tree.root).column("tracking").to_pylist()
    assert [(row["status"], row["snapshot_id"], row["dv_snapshot_id"]) for row in rows] == [(0, 1, 2), (1, 3, None)]


def test_the_positions_of_a_snapshot_are_in_its_root_only(tmp_path: Path) -> None:
    model = TreeModel(tmp_path, inline_files=1)
    model.append("a1", "a2", "a3")
    model.delete("a2")

    def reference() -> tuple[Any, ...]:
        table = pq.read_table(model.tree.root).to_pylist()
        row = next(one for one in table if one["content_type"] == 3)
        tracking, info = row["tracking"], row["manifest_info"]
        bits = (tracking["deleted_positions"], tracking["replaced_positions"], info["dv"])
        return tracking["status"], *(None if b is None else decode_positions(b).tolist() for b in bits)

    assert reference() == (4, [1], None, [1])
    model.set_vectors("a3")
    assert reference() == (4, None, [2], [1, 2])
    model.append("b1")
    assert reference() == (0, None, None, [1, 2])


def test_a_scratch_tree_is_not_inside_of_the_table(tmp_path: Path) -> None:
    model = TreeModel(tmp_path)
    with pytest.raises(BadInputError, match="inside of the table"):
        ScratchTree(model.table.metadata, str(tmp_path / "table" / "metadata"))
    with pytest.raises(BadInputError, match="local folder"):
        ScratchTree(model.table.metadata, "s3://bucket/tree")
    with pytest.raises(BadInputError, match="1 of the files to delete are not in the tree"):
        model.tree.delete(["gone"])
