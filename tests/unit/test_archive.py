"""The generated archives are valid tables and deterministic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import StaticTable

from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from tests.support.tables.archive import mission_names, write_artemis_archive, write_evolved_archive

pytestmark = pytest.mark.unit


def load(metadata: Path) -> tuple[StaticTable, ManifestListTable, EntriesTable]:
    table = StaticTable.from_metadata(str(metadata))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = read_manifest_list(snapshot.manifest_list)
    columns = EntryColumns(stats=frozenset(range(1, 9)), sizes=frozenset({1}))
    return table, manifests, read_entries(manifests, UnionPartitionType.of_table(table.metadata), columns)


def test_the_evolved_archive_has_three_specs_and_deleted_files(tmp_path: Path) -> None:
    table, manifests, entries = load(write_evolved_archive(tmp_path / "events", manifests=12, entries=50))
    assert np.bincount(manifests.spec_id).tolist() == [4, 4, 4]
    assert len(entries) == 600
    assert int((entries.status == Status.DELETED).sum()) == 3
    assert len(set(entries.path.to_pylist())) == 600
    assert len(list(table.scan().plan_files())) == 597


def test_pyiceberg_reads_the_same_entries(tmp_path: Path) -> None:
    table, _, entries = load(write_evolved_archive(tmp_path / "events", manifests=6, entries=40))
    expected = {task.file.file_path: task.file for task in table.scan().plan_files()}
    rows = {row["file_path"]: row for row in entries.live().table.to_pylist()}
    assert rows.keys() == expected.keys()
    for path, file in expected.items():
        assert rows[path]["record_count"] == file.record_count
        assert {n: rows[path][f"lower.{n}"] for n in range(1, 9)} == file.lower_bounds
        assert {n: rows[path][f"value_count.{n}"] for n in range(1, 9)} == file.value_counts


def test_a_week_of_one_mission_is_in_few_manifests(tmp_path: Path) -> None:
    table, manifests, entries = load(write_artemis_archive(tmp_path / "artemis", missions=20, days=20))
    assert len(manifests) == 40
    assert len(set(entries.path.to_pylist())) == len(entries) == 20 * (20 * 6 + 19)
    week = And(
        EqualTo("mission_id", "apollo-7"),
        GreaterThanOrEqual("sample_timestamp_ns", "2022-01-05T00:00:00"),
        LessThan("sample_timestamp_ns", "2022-01-12T00:00:00"),
    )
    kept = {task.file.file_path for task in table.scan(row_filter=week).plan_files()}
    assert len(kept) == 7 * 7
    of_kept = [path in kept for path in entries.path.to_pylist()]
    assert len(np.unique(entries.ints("manifest")[of_kept])) == 8


def test_archives_are_the_same_every_time(tmp_path: Path) -> None:
    _, _, first = load(write_evolved_archive(tmp_path / "a", manifests=3, entries=5))
    _, _, second = load(write_evolved_archive(tmp_path / "a", manifests=3, entries=5))
    assert first.table.equals(second.table)
    assert mission_names(3) == ["apollo-1", "apollo-2", "apollo-3"]
