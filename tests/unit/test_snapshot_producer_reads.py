"""A commit reads and writes only the necessary manifests, also on a retry with a newer head.

Manifests that must not be read are listed but do not exist: reading one is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import NestedField, StringType, TimestampType

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    ManifestListTable,
    Summaries,
    concat_manifest_lists,
    read_manifest_list,
)
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.producer import SnapshotProducer
from tests.support.tables.layouts import Layout
from tests.support.tables.producing import Line, new_files, superseded

pytestmark = pytest.mark.unit

MANY = 10_000
NEAR_THE_TARGET = 8 * 1024 * 1024 - 100
SCHEMA = Schema(
    NestedField(1, "ts", TimestampType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    schema_id=0,
)
LAYOUT = Layout(
    SCHEMA,
    (
        PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"), spec_id=0),
        PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "region"), spec_id=1),
    ),
)


def day(path: str, number: int, **more: Any) -> dict[str, Any]:
    return {"file_path": path, "spec_id": 0, "partition.1000": number, **more}


def region(path: str, name: str, **more: Any) -> dict[str, Any]:
    return {"file_path": path, "spec_id": 1, "partition.1001": name, **more}


def written(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> ManifestListTable:
    """A manifest that exists."""
    entries = LAYOUT.entries([row | {"sequence_number": 3, "file_sequence_number": 3, "status": 0} for row in rows])
    spec = LAYOUT.spec(int(entries.spec_id[0]))
    options: dict[str, Any] = {"format_version": 2, "content": DATA, "snapshot_id": 5}
    row = write_manifest(str(folder / name), entries, spec, SCHEMA, union=LAYOUT.union, **options)
    return replace(row, sequence_number=np.array([4]))


def absent(like: ManifestListTable, count: int) -> ManifestListTable:
    """Manifests that do not exist, one for each day from 0 on."""
    many = like.take(np.zeros(count, dtype=np.int64))
    days = [int(number).to_bytes(4, "little") for number in range(count)]
    bounds = pa.array(days, pa.large_binary())
    return replace(
        many,
        path=pa.array([f"absent-{number}.avro" for number in range(count)], pa.large_string()),
        length=np.full(count, NEAR_THE_TARGET),
        summaries=Summaries(np.arange(count + 1), np.zeros(count, np.bool_), np.zeros(count, np.int8), bounds, bounds),
    )


def big_table(folder: Path) -> Line:
    """10,000 manifests of days, of which only that of day 20,000 exists, and one of a region."""
    one = written(folder, "day.avro", [day("a.parquet", 20_000), day("b.parquet", 20_000)])
    other = written(folder, "region.avro", [region("c.parquet", "eu"), region("d.parquet", "us")])
    manifests = concat_manifest_lists([other, absent(one, MANY), one])
    location = folder / "list.avro"
    write_manifest_list(str(location), manifests, ListedSnapshot(2, 70, None, 9))
    return Line(LAYOUT, TableMetadataUtil.parse_obj(LAYOUT.metadata(folder, location, None)))


def hinted(*rows: dict[str, Any]) -> SnapshotChange:
    entries = LAYOUT.entries(rows)
    paths = frozenset(row["file_path"] for row in rows)
    return SnapshotChange(Operation.DELETE, removed_data=paths, removed_entries=entries)


def test_an_append_to_many_manifests_reads_none_and_writes_one(tmp_path: Path) -> None:
    line = big_table(tmp_path)
    added = new_files(LAYOUT, [day("new.parquet", 3)])
    produced = line.produce(SnapshotChange(Operation.APPEND, added_data=added))
    assert len(produced.written) == 2
    assert len(read_manifest_list(produced.snapshot.manifest_list)) == MANY + 3


def test_a_removal_from_many_manifests_reads_those_its_partitions_allow(tmp_path: Path) -> None:
    line = big_table(tmp_path)
    produced = line.produce(hinted(day("a.parquet", 20_000), region("d.parquet", "us")))
    assert [(m.spec_id, m.entries) for m in produced.manifests_written] == [(1, 2), (0, 2)]
    assert not produced.missing_data
    assert produced.snapshot.summary["manifests-kept"] == str(MANY)


def test_without_a_hint_all_are_read(tmp_path: Path) -> None:
    with pytest.raises(CorruptMetadataError, match=r"absent-0\.avro does not exist"):
        big_table(tmp_path).produce(SnapshotChange(Operation.DELETE, removed_data=frozenset({"a.parquet"})))


def test_the_manifests_a_plan_came_from_are_read_first_and_suffice(tmp_path: Path) -> None:
    line = big_table(tmp_path)
    entries = LAYOUT.entries([day("a.parquet", 20_000)])
    where = pa.array([MANY + 1], pa.int32())
    no_tuples = entries.table.drop_columns(["partition.1000", "partition.1001"]).append_column("manifest", where)
    change = SnapshotChange(
        Operation.DELETE,
        removed_data=frozenset({"a.parquet"}),
        removed_entries=EntriesTable(no_tuples, {}),
        planned_on=70,
    )
    assert line.produce(change).removed.path.to_pylist() == ["a.parquet"]
    with pytest.raises(CorruptMetadataError, match="does not exist"):
        line.produce(replace(change, planned_on=None))


def small_table(folder: Path, layout: Layout = LAYOUT, properties: dict[str, str] | None = None) -> Line:
    line = Line.start(layout, folder, properties)
    for number in range(4):
        rows = [day(f"day{number}.parquet", number), region(f"region{number}.parquet", "eu")]
        line.commit(SnapshotChange(Operation.APPEND, added_data=new_files(layout, rows)))
    return line


@pytest.mark.parametrize(
    "wrong",
    [
        {"manifest": pa.array([99], pa.int32())},
        {"manifest": pa.array([0], pa.int32())},
        {"file_path": pa.array(["other.parquet"], pa.large_string())},
    ],
)
def test_a_wrong_hint_costs_only_reads(wrong: dict[str, pa.Array], tmp_path: Path) -> None:
    line = small_table(tmp_path)
    entries = LAYOUT.entries([day("day0.parquet", 0)])
    columns = {name: entries.table.column(name) for name in entries.table.schema.names} | wrong
    hints = EntriesTable(pa.table(columns), entries.partition_types)
    change = SnapshotChange(
        Operation.DELETE, removed_data=frozenset({"day0.parquet"}), removed_entries=hints, planned_on=103
    )
    produced = line.produce(change)
    assert not produced.missing_data
    assert produced.removed.path.to_pylist() == ["day0.parquet"]


def test_a_second_attempt_writes_only_what_differs(tmp_path: Path) -> None:
    line = small_table(tmp_path)
    change = SnapshotChange(
        Operation.OVERWRITE,
        added_data=new_files(LAYOUT, [day("new.parquet", 9)]),
        removed_data=frozenset({"day1.parquet", "region2.parquet"}),
    )
    producer = replace(line.producer(change), snapshot_id=900)
    first = producer.produce(line.metadata, line.head)
    assert len(first.written) == 4
    line.commit(SnapshotChange(Operation.APPEND, added_data=new_files(LAYOUT, [day("theirs.parquet", 7)])))
    second = producer.produce(line.metadata, line.head)
    assert len(second.written) == 5, "one manifest list more"
    assert superseded(second) == {first.snapshot.manifest_list}
    assert {m.path for m in second.manifests_written} == {m.path for m in first.manifests_written}
    line.accept(second)
    expected = {f"{kind}{number}.parquet" for kind in ("day", "region") for number in range(4)}
    assert line.live() == expected - {"day1.parquet", "region2.parquet"} | {"new.parquet", "theirs.parquet"}
    assert line.entry_values("sequence_number")["new.parquet"] == 6


def test_a_concurrently_rewritten_manifest_is_filtered_again(tmp_path: Path) -> None:
    line = Line.start(LAYOUT, tmp_path)
    rows = [day(f"{name}.parquet", 1) for name in "abc"]
    line.commit(SnapshotChange(Operation.APPEND, added_data=new_files(LAYOUT, rows)))
    mine = SnapshotChange(Operation.DELETE, removed_data=frozenset({"a.parquet", "b.parquet"}))
    producer = replace(line.producer(mine), snapshot_id=900)
    first = producer.produce(line.metadata, line.head)
    line.commit(SnapshotChange(Operation.DELETE, removed_data=frozenset({"b.parquet"})))
    second = producer.produce(line.metadata, line.head)
    assert second.missing_data == {"b.parquet"}
    assert first.missing_data == set()
    line.accept(second)
    assert line.live() == {"c.parquet"}
    assert superseded(second) > {first.snapshot.manifest_list}


def test_files_are_written_again_after_the_format_was_upgraded(tmp_path: Path) -> None:
    line = small_table(tmp_path)
    change = SnapshotChange(Operation.OVERWRITE, added_data=new_files(LAYOUT, [day("new.parquet", 9)]))
    producer = replace(line.producer(change), snapshot_id=900)
    producer.produce(line.metadata, line.head)
    upgraded = line.metadata.model_dump() | {"format-version": 3, "next-row-id": 0}
    line = Line(replace(LAYOUT, version=3), TableMetadataUtil.parse_obj(upgraded))
    line.accept(producer.produce(line.metadata, line.head))
    assert sorted(line.entry_values("first_row_id").values()) == list(range(0, 90, 10))


class ConcurrentWriteStore(FileIO):
    """A remote store in memory that completes manifest writes only in pairs."""

    def __init__(self) -> None:
        super().__init__({})
        self.files: dict[str, bytes] = {}
        self.barrier = Barrier(2)

    def new_output(self, location: str) -> Any:
        return SimpleNamespace(create=lambda: self._create(location))

    def new_input(self, location: str) -> Any:
        return SimpleNamespace(open=lambda: BytesIO(self.files[location]))

    def delete(self, location: Any) -> None:
        del self.files[location]

    @contextmanager
    def _create(self, location: str) -> Iterator[BytesIO]:
        if "snap-" not in location:
            self.barrier.wait(timeout=60)
        stream = BytesIO()
        yield stream
        self.files[location] = stream.getvalue()


def test_a_remote_store_gets_many_manifests_at_the_same_time(tmp_path: Path) -> None:
    line = Line.start(LAYOUT, tmp_path)
    line.metadata = line.metadata.model_copy(update={"location": "mem://lake/t"})
    io = ConcurrentWriteStore()
    rows = [day("day.parquet", 0), day("other.parquet", 1), region("region.parquet", "eu"), region("r.parquet", "us")]
    change = SnapshotChange(Operation.APPEND, added_data=new_files(LAYOUT, rows))
    line.accept(SnapshotProducer(change, 100, io).produce(line.metadata, None))
    removal = SnapshotChange(Operation.DELETE, removed_data=frozenset({"day.parquet", "region.parquet"}))
    produced = SnapshotProducer(removal, 101, io).produce(line.metadata, line.head)
    assert [manifest.entries for manifest in produced.manifests_written] == [2, 2]
    assert set(produced.written) <= io.files.keys()


def test_a_vector_is_looked_for_where_its_data_file_was(tmp_path: Path) -> None:
    layout = replace(LAYOUT, version=3)
    line = small_table(tmp_path, layout)
    vectors = [
        row
        | {
            "content": 1,
            "file_format": "PUFFIN",
            "referenced_data_file": target,
            "content_offset": 4,
            "content_size_in_bytes": 9,
            "record_count": 1,
        }
        for row, target in ((day("v.puffin", 1), "day1.parquet"), (region("w.puffin", "eu"), "region1.parquet"))
    ]
    line.commit(SnapshotChange(Operation.DELETE, added_deletes=new_files(layout, vectors)))
    listed = line.manifests()
    other = Path(listed.path[np.flatnonzero((listed.content == 1) & (listed.spec_id == 1))[0]].as_py())
    other.unlink()
    change = SnapshotChange(
        Operation.DELETE,
        removed_data=frozenset({"day1.parquet"}),
        removed_entries=layout.entries([day("day1.parquet", 1)]),
    )
    produced = line.produce(change)
    assert sorted(produced.removed.path.to_pylist()) == ["day1.parquet", "v.puffin"]
    with pytest.raises(CorruptMetadataError, match="does not exist"):
        line.produce(replace(change, removed_deletes=frozenset({DeleteFileId("elsewhere.puffin", 4)})))
