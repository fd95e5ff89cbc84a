"""Metadata trees: plans equal those from manifests, manifests written back are the same, histories of commits."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import LongType

from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, parse_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import decode_values
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.mumbling import MOST_POSITIONS, decode_positions, encode_positions
from floeplan.metadata.v4.to_manifests import write_manifests_from_tree
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.metadata.v4.writer import ManifestOptions
from floeplan.predicate.ir import Column
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.snapshot.reader import SnapshotReader
from tests.support.oracles.datasets import predicates
from tests.support.oracles.histories import histories
from tests.support.oracles.rows import evaluate_row
from tests.support.tables.layouts import SEQUENCE_NUMBER, SNAPSHOT_ID, Layout
from tests.support.tables.v4_tables import PREDICATES, TreeModel, located, primitives, tables

pytestmark = pytest.mark.property

STATS_OF_ID = EntryColumns(frozenset(), stats=frozenset({1}))
OPTIONS = ScanOptions(footers=False, cache=False, report=False)
SHAPES: list[dict[str, Any]] = [
    {"leaf_entries": 0},
    {"leaf_entries": 1},
    {"leaf_entries": 3},
    {"leaf_entries": 2, "options": ManifestOptions(dictionaries=False, statistics=False)},
    {"keep_manifests": True},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


def written(folder: str, found: tuple[Layout, list[dict[str, Any]]]) -> Table:
    layout, rows = found
    home = Path(folder) / "table"
    return layout.write_table(home, layout.entries(located(home, layout, rows)))


def planned(plan: ScanPlan) -> dict[str, Any]:
    """What a scan does with each file."""
    found = {}
    for number, file in enumerate(plan.files):
        deletes = sorted((delete.path, delete.content_offset, delete.record_count) for delete in file.deletes)
        tuple_ = repr(file.partition)
        row_id = int(plan.files.entries.ints("first_row_id")[number])
        found[file.path] = (file.spec_id, tuple_, file.record_count, file.tri_state, row_id, deletes)
    return found


@given(tables(), st.sampled_from(SHAPES), st.lists(st.sampled_from(PREDICATES), min_size=1, max_size=4, unique=True))
def test_a_plan_from_the_tree_equals_the_plan_from_manifests(
    found: tuple[Layout, list[dict[str, Any]]], shape: dict[str, Any], predicates: list[str | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = written(folder, found)
        root = write_tree(table, f"{folder}/tree", table.current_snapshot(), **shape).root
        for where in predicates:
            expected = plan_scan(table, where, options=OPTIONS)
            assert planned(plan_scan(table, where, options=replace(OPTIONS, root=root))) == planned(expected)


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(st.sampled_from(SHAPES[:4]), st.data())
def test_statistics_that_are_null_or_of_another_type_lose_no_row(
    root: Path, shape: dict[str, Any], data: st.DataObject
) -> None:
    """Judged by the rows: contradicting statistics keep a file of the manifests that fewer of them rightly drop."""
    history = data.draw(histories(root))
    table = StaticTable.from_metadata(str(history.metadata))
    with tempfile.TemporaryDirectory() as folder:
        summary = write_tree(table, f"{folder}/tree", table.current_snapshot(), **shape)
        for path in (summary.root, *(leaf for leaf in summary.leaves if leaf.endswith(".parquet"))):
            without_some_stats(path, data)
        snapshot = history.snapshots[-1]
        dataset = history.dataset(snapshot, history.schema)
        for where in data.draw(st.lists(predicates(dataset, max_leaves=4), min_size=1, max_size=3)):
            rows = history.live(snapshot, history.schema)
            needed = {file.path for file, _, row in rows if evaluate_row(where, row) is True}
            kept = {file.path for file in plan_scan(table, where, options=replace(OPTIONS, root=summary.root)).files}
            assert kept >= needed


def without_some_stats(path: str, data: st.DataObject) -> None:
    """Write a manifest again with the statistics of some columns replaced by null, or by values of another type."""
    table = pq.read_table(path)
    at = table.schema.get_field_index("content_stats")
    if at < 0:
        return

    def changed(how: str, values: pa.Array) -> pa.Array:
        match how:
            case "null":
                return pa.nulls(len(values), values.type)
            case "text" if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                return pa.array(["0"] * len(values), pa.string())
            case "text" | "number":
                return pa.array([0] * len(values), pa.int16())
        return values

    stats = table.column(at).combine_chunks()
    columns = []
    for number, column in enumerate(stats.type):
        how = data.draw(st.sampled_from(["", "null", "text", "number"]), label=column.name)
        metrics = [changed(how, stats.field(number).field(n)) for n in range(column.type.num_fields)]
        fields = [pa.field(f.name, m.type, True, f.metadata) for f, m in zip(column.type, metrics, strict=True)]
        columns.append(pa.StructArray.from_arrays(metrics, fields=fields))
    fields = [pa.field(f.name, c.type, True, f.metadata) for f, c in zip(stats.type, columns, strict=True)]
    made = pa.StructArray.from_arrays(columns, fields=fields)
    table = table.set_column(at, pa.field("content_stats", made.type, True, table.schema.field(at).metadata), made)
    properties = pq.read_metadata(path).metadata
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({k.decode(): v.decode() for k, v in properties.items()})


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(st.integers(0, 4), st.data())
def test_every_commit_of_a_history_has_each_file_once(inline_files: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = TreeModel(Path(folder), inline_files=inline_files)
        for step in range(data.draw(st.integers(1, 7))):
            known = sorted(model.files)
            kind = data.draw(st.sampled_from(["append", "delete", "vectors"] if known else ["append"]))
            if kind == "append":
                model.append(*(f"{'ab'[n % 2]}{step}-{n}" for n in range(data.draw(st.integers(1, 6)))))
            else:
                some = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
                (model.delete if kind == "delete" else model.set_vectors)(*some)
            tree = model.check()
            bounds = tree.leaf_stats({1: Column(1, LongType(), ("id",))}).columns.get(1)
            for row in np.flatnonzero(tree.manifests.content == DATA).tolist() if bounds is not None else ():
                files = tree.read_entries(tree.manifests, tree.types.union, STATS_OF_ID, rows=np.array([row])).live()
                for side, bound in (("lower", bounds.lower), ("upper", bounds.upper)):
                    if len(files) and bound is not None and bound.valid[row]:
                        ends = [int.from_bytes(end, "little") for end in files.array(f"{side}.1").to_pylist()]
                        assert bound.values[row] <= min(ends) if side == "lower" else bound.values[row] >= max(ends)


def values_of(entries: EntriesTable) -> dict[str, Any]:
    """Entries by path; bounds as the values they stand for, and without what v4 has no place for."""
    found = {}
    types = primitives()
    for row in entries.table.to_pylist():
        for name in STAT_MAPS:
            pairs = {pair["key"]: pair["value"] for pair in row.pop(name) or ()}
            if name.endswith("_bounds"):
                pairs = {key: _decoded(types[key], value) for key, value in pairs.items()}
            row[name] = repr(sorted(pairs.items()))
        for name in ("manifest", "ordinal", "status", "column_sizes"):
            row.pop(name, None)
        if row["file_format"] == "PUFFIN":
            row.pop("file_size_in_bytes")
        if row["content"] == 0:
            for name in ("content_offset", "content_size_in_bytes", "referenced_data_file"):
                assert row.pop(name) is None
        found[f"{row['content']} {row['file_path']} {row.get('content_offset')}"] = {
            name: repr(value) for name, value in row.items()
        }
    return found


def _decoded(type_: Any, value: bytes) -> Any:
    bound = decode_values(type_, pa.array([value], pa.large_binary()))
    assert bound is not None
    return repr(bound.values[0]) if bound.valid[0] else None


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(tables(), st.sampled_from(SHAPES[:4]))
def test_manifests_written_back_hold_the_same_entries(
    found: tuple[Layout, list[dict[str, Any]]], shape: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = written(folder, found)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        reader = SnapshotReader.open(table, snapshot)
        before = reader.entries(None, EntryColumns(WHOLE))
        summary = write_tree(table, f"{folder}/tree", snapshot, **shape)
        tree = MetadataTree(summary.root, table.metadata)
        version = min(table.metadata.format_version, 3)
        back = write_manifests_from_tree(
            tree, table.metadata, f"{folder}/back", snapshot_id=SNAPSHOT_ID, format_version=version
        )
        first_row_id = None if version < 3 else 0
        listed = ListedSnapshot(version, SNAPSHOT_ID, None, SEQUENCE_NUMBER if version > 1 else 0, first_row_id)
        rows = parse_manifest_list(encode_manifest_list(back, listed).data, "")
        after = read_entries(rows, reader.union, EntryColumns(WHOLE))
        found_back, expected = values_of(after), values_of(before)
        assert found_back.keys() == expected.keys()
        for key, value in expected.items():
            assert found_back[key] == value


@given(st.lists(st.integers(0, MOST_POSITIONS - 1), max_size=60), st.integers(0, 5000), st.integers(0, 700))
def test_bitmaps_round_trip(scattered: list[int], first: int, length: int) -> None:
    positions = np.unique(np.array([*scattered, *range(first, first + length)], dtype=np.int64))
    assert decode_positions(encode_positions(positions)).tolist() == positions.tolist()
