"""Metadata trees: plans equal those from manifests, and manifests written back hold the same entries."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import parse_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import decode_values
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.mumbling import MOST_POSITIONS, decode_positions, encode_positions
from floeplan.metadata.v4.to_manifests import write_manifests_from_tree
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.snapshot.reader import SnapshotReader
from tests.support.tables.layouts import SEQUENCE_NUMBER, SNAPSHOT_ID, Layout
from tests.support.tables.v4_tables import PREDICATES, located, primitives, tables

pytestmark = pytest.mark.property

OPTIONS = ScanOptions(footers=False, cache=False, report=False)
SHAPES: list[dict[str, Any]] = [{"leaf_entries": 0}, {"leaf_entries": 1}, {"leaf_entries": 3}, {"keep_manifests": True}]


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
@given(tables(), st.sampled_from(SHAPES[:3]))
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
