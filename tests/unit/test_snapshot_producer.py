"""Produced snapshots: per-spec manifests, statuses, sequence numbers, row ids, and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import BucketTransform

from floeplan.errors import BadInputError, CorruptMetadataError, FloeplanError, UnknownSpecError, UnsupportedError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable, Status
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, UNKNOWN
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.manifests import SnapshotManifests, TableShape, group_entries_by_spec
from tests.support.tables.layouts import Layout
from tests.support.tables.producing import (
    SCHEMA,
    SPECS,
    V1,
    V2,
    V3,
    Line,
    appending,
    data,
    deleting,
    new_files,
    positions,
    removing,
    superseded,
    vector,
)

pytestmark = pytest.mark.unit

ALL = [V1, V2, V3]
A, B, C, D = "a.parquet", "b.parquet", "c.parquet", "d.parquet"


def statuses(entries: EntriesTable) -> dict[str, tuple[str, int]]:
    """Status and snapshot id of all entries by path."""
    names = [Status(status).name for status in entries.status.tolist()]
    return dict(
        zip(entries.path.to_pylist(), zip(names, entries.ints("snapshot_id").tolist(), strict=True), strict=True)
    )


@pytest.mark.parametrize("layout", ALL)
def test_added_files_get_one_manifest_per_spec_in_rising_order(layout: Layout, tmp_path: Path) -> None:
    line = Line.start(layout, tmp_path)
    produced = line.commit(appending(layout, data(A, 2), data(B), data(C, 1), data(D, 2)))
    assert [(m.spec_id, m.content, m.entries) for m in produced.manifests_written] == [(0, 0, 1), (1, 0, 1), (2, 0, 2)]
    assert line.manifests().spec_id.tolist() == [0, 1, 2]
    assert line.entry_values("spec_id") == {A: 2, B: 0, C: 1, D: 2}
    assert superseded(produced) == set()


@pytest.mark.parametrize("layout", ALL)
def test_a_removed_file_is_deleted_and_its_neighbours_keep_what_they_had(layout: Layout, tmp_path: Path) -> None:
    line = Line.start(layout, tmp_path)
    line.commit(appending(layout, data(A), data(B)))
    line.commit(appending(layout, data(C)))
    kept = line.manifests().path[0].as_py()
    produced = line.commit(removing(A))
    assert statuses(line.entries()) == {A: ("DELETED", 102), B: ("EXISTING", 100), C: ("ADDED", 101)}
    expected = {B: (0, 0), C: (0, 0)} if layout.version == 1 else {B: (1, 1), C: (2, 2)}
    assert line.entry_values("sequence_number", "file_sequence_number") == expected
    assert kept in line.manifests().path.to_pylist(), "a manifest without a removed file stays"
    assert produced.removed.path.to_pylist() == [A]


@pytest.mark.parametrize("layout", ALL)
def test_entries_deleted_earlier_are_dropped_and_manifests_without_files_not_listed(
    layout: Layout, tmp_path: Path
) -> None:
    line = Line.start(layout, tmp_path)
    line.commit(appending(layout, data(A), data(B), data(C)))
    line.commit(removing(A))
    line.commit(removing(B))
    assert statuses(line.entries()) == {B: ("DELETED", 102), C: ("EXISTING", 100)}
    line.commit(removing(C))
    assert statuses(line.entries()) == {C: ("DELETED", 103)}
    line.commit(appending(layout, data(D)))
    assert statuses(line.entries()) == {D: ("ADDED", 104)}


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    line = Line.start(V3, tmp_path)
    line.commit(appending(V3, data(A)))
    line.commit(deleting(V3, vector("v.puffin", 4, A)))
    lost = DeleteFileId("v.puffin", 44)
    change = removing(B, removed_deletes=frozenset({DeleteFileId("v.puffin", 4), lost}))
    produced = line.commit(change)
    assert produced.missing_data == {B}
    assert produced.missing_deletes == {lost}
    assert line.live() == {A}


def test_a_replacement_keeps_the_sequence_number_it_was_planned_with(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data(A), data(B)))
    line.commit(appending(V2, data(C)))
    change = SnapshotChange(
        Operation.REPLACE,
        added_data=new_files(V2, [data(D, 1, sequence_number=1, record_count=20)]),
        removed_data=frozenset({A, B}),
    )
    line.commit(change)
    assert line.entry_values("sequence_number", "file_sequence_number") == {C: (2, 2), D: (1, 3)}
    assert line.manifests().min_sequence_number.min() == 1


def test_row_ids_are_assigned_once_and_kept(tmp_path: Path) -> None:
    line = Line.start(V3, tmp_path)
    first = line.commit(appending(V3, data(A, record_count=10), data(B, record_count=5), data(C, 1, record_count=7)))
    assert line.entry_values("first_row_id") == {A: 0, B: 10, C: 15}
    assert (first.snapshot.first_row_id, first.snapshot.added_rows, line.metadata.next_row_id) == (0, 22, 22)
    line.commit(removing(A))
    assert line.entry_values("first_row_id") == {B: 10, C: 15}
    line.commit(appending(V3, data(D, record_count=3)))
    row_ids = line.entry_values("first_row_id")
    assert {path: row_ids[path] for path in (B, C)} == {B: 10, C: 15}
    assert row_ids[D] == line.head.first_row_id >= 22
    assert line.metadata.next_row_id == line.head.first_row_id + line.head.added_rows


def test_the_vectors_of_removed_data_files_are_removed(tmp_path: Path) -> None:
    line = Line.start(V3, tmp_path)
    line.commit(appending(V3, data(A, 1), data(B, 1), data(C)))
    line.commit(deleting(V3, vector("v.puffin", 4, A, 1), vector("v.puffin", 44, B, 1), vector("w.puffin", 4, C)))
    untouched = line.manifests().path.to_pylist()
    produced = line.commit(removing(A))
    live = line.entries().live()
    assert list(zip(live.path.to_pylist(), live.ints("content_offset").tolist(), strict=True))[-2:] == [
        ("w.puffin", 4),
        ("v.puffin", 44),
    ]
    assert produced.snapshot.summary["removed-dvs"] == "1"
    assert len(set(untouched) & set(line.manifests().path.to_pylist())) == 2, "of spec 0 nothing is touched"


def test_deletes_older_than_all_data_are_dropped_when_their_manifest_is_rewritten(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data(A)))
    line.commit(deleting(V2, positions("p.parquet", A), positions("q.parquet", A)))
    line.commit(appending(V2, data(B)))
    line.commit(removing(A))
    assert line.live() == {B, "p.parquet", "q.parquet"}, "nothing touched their manifest"
    line.commit(deleting(V2, positions("r.parquet", B), removed_deletes=frozenset({DeleteFileId("p.parquet")})))
    assert line.live() == {B, "r.parquet"}


def test_deletes_of_all_kinds_are_in_delete_manifests_of_their_spec(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data(A, 1), data(B, 2)))
    equality = data("e.parquet", 0, content=2, equality_ids=[1])
    line.commit(deleting(V2, positions("p.parquet", A, 1), positions("q.parquet", B, 2), equality))
    listed = line.manifests()
    found = list(zip(listed.content.tolist(), listed.spec_id.tolist(), strict=True))
    assert found == [(DATA, 1), (DATA, 2), (DELETES, 0), (DELETES, 1), (DELETES, 2)]


@pytest.mark.parametrize(
    ("layout", "change", "error", "text"),
    [
        (V2, appending(V2, data(A), data(B, 9)), UnknownSpecError, "b.parquet is of partition spec 9"),
        (V1, deleting(V2, positions("p.parquet", A)), UnsupportedError, "p.parquet: format 1 has no delete files"),
        (V2, deleting(V3, vector("v.puffin", 4, A)), UnsupportedError, "v.puffin: format 2 has no deletion vectors"),
        (V3, deleting(V3, positions("p.parquet", A)), UnsupportedError, "p.parquet: format 3 takes deletion vectors"),
        (V2, appending(V2, data(A, content=1)), UnsupportedError, "a.parquet: it is not a data file"),
        (V2, deleting(V2, data(A)), UnsupportedError, "a.parquet: it is not a delete file"),
        (V2, replace(removing(A), operation=Operation.APPEND), BadInputError, "an append can only add data files"),
        (V2, appending(V2, data(A, status=0)), CorruptMetadataError, "a.parquet is not ADDED"),
        (V2, replace(appending(V2, data(A)), operation=Operation.REPLACE), BadInputError, "cannot add 10"),
        (V2, appending(V2, data(A), data(B), data(A, 1)), UnsupportedError, "a.parquet: it is added twice"),
        (
            V3,
            deleting(V3, vector("v.puffin", 4, A), vector("v.puffin", 44, B), vector("w.puffin", 4, A)),
            UnsupportedError,
            "w.puffin: its data file gets two deletion vectors",
        ),
    ],
)
def test_what_cannot_be_added_is_refused(
    layout: Layout, change: SnapshotChange, error: type[FloeplanError], text: str, tmp_path: Path
) -> None:
    line = Line.start(layout, tmp_path)
    producer = line.producer(change)
    with pytest.raises(error, match=text):
        producer.produce(line.metadata, line.head)
    assert sorted(str(path) for path in tmp_path.rglob("*.avro")) == sorted(producer.written)
    assert not any("snap-" in path for path in producer.written)


def test_a_spec_without_its_source_column_allows_removals_but_no_new_data(tmp_path: Path) -> None:
    gone = Layout(SCHEMA, (*SPECS, PartitionSpec(PartitionField(9, 1002, BucketTransform(4), "gone"), spec_id=3)), 2)
    line = Line.start(gone, tmp_path)
    old, also_old = ({"file_path": path, "spec_id": 3, "partition.1002": 1} for path in (A, B))
    with pytest.raises(UnknownSpecError, match="partition spec 3"):
        line.produce(appending(gone, data(C), old))
    assert list(tmp_path.rglob("*.avro")) == []
    writer = SnapshotManifests(7, "old", None)
    shape = TableShape.of(line.metadata)
    known = {"status": 0, "sequence_number": 1, "file_sequence_number": 1}
    rows = writer.write_existing_data_manifest([gone.entries([row | known for row in (old, also_old)])], shape)
    assert rows[0].spec_id.tolist() == [3]
    assert rows[0].existing_files.tolist() == [2]


def test_writers_of_one_status_refuse_others(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    writer, shape = SnapshotManifests(7, "x", None), TableShape.of(line.metadata)
    known = {"sequence_number": 1, "file_sequence_number": 1}
    deleted = V2.entries([data(A, 1, status=2, **known), data(B, status=2, **known)])
    groups = [(group, spec_id, DATA) for spec_id, group in group_entries_by_spec(deleted).items()]
    assert [row.deleted_files.tolist() for row in writer.write_each(groups, shape)] == [[1], [1]]
    for wrong in (deleted, new_files(V2, [data(A)])):
        with pytest.raises(CorruptMetadataError, match=r"a\.parquet is not EXISTING"):
            writer.write_existing_data_manifest([wrong], shape)
    with pytest.raises(CorruptMetadataError, match=r"a\.parquet is not ADDED"):
        writer.write_added_manifests(deleted, DATA, shape, 1)


def test_many_added_files_are_spread_over_manifests_of_the_target_size(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path, {"commit.manifest.target-size-bytes": "10000"})
    rows = [data(f"{'x' * 30}{number}.parquet", record_count=number) for number in range(12_000)]
    produced = line.commit(appending(V2, *rows, merge_manifests=False))
    assert len(produced.manifests_written) > 2
    assert sum(manifest.entries for manifest in produced.manifests_written) == 12_000
    assert line.manifests().length[1:].max() < 15_000
    assert len(line.live()) == 12_000


def test_files_are_named_after_the_commit_and_the_snapshot(tmp_path: Path) -> None:
    produced = Line.start(V2, tmp_path).produce(appending(V2, data(A)))
    uuid = Path(produced.snapshot.manifest_list).stem.removeprefix("snap-100-0-")
    assert produced.written == (f"{tmp_path}/metadata/{uuid}-m0.avro", f"{tmp_path}/metadata/snap-100-0-{uuid}.avro")


def test_a_file_of_format_1_without_a_spec_id_is_of_spec_0(tmp_path: Path) -> None:
    line = Line.start(V1, tmp_path)
    line.commit(appending(V1, data(A) | {"spec_id": None}, data(B, 1)))
    assert line.entry_values("spec_id") == {A: 0, B: 1}
    assert line.head.summary["changed-partition-count"] == "2"


def test_manifests_of_format_1_without_counts_are_written_again_in_later_formats(tmp_path: Path) -> None:
    line = Line.start(V1, tmp_path)
    line.commit(appending(V1, data(A), data(B, 1)))
    uncounted = replace(line.manifests(), deleted_rows=np.array([UNKNOWN, UNKNOWN]))
    write_manifest_list(str(tmp_path / "old.avro"), uncounted, ListedSnapshot(1, 100, None, 0))
    document = line.metadata.model_dump() | {"format-version": 2, "last-sequence-number": 0}
    document["snapshots"][0]["manifest-list"] = str(tmp_path / "old.avro")
    line = Line(V2, TableMetadataUtil.parse_obj(document))
    line.commit(appending(V2, data(C)))
    assert statuses(line.entries()) == {A: ("EXISTING", 100), B: ("EXISTING", 100), C: ("ADDED", 101)}
    assert line.entry_values("sequence_number") == {A: 0, B: 0, C: 1}
    assert line.manifests().deleted_rows.tolist() == [0, 0, 0]


def test_an_empty_change_makes_a_snapshot_with_the_same_manifests(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data(A), data(B, 1)))
    before = line.manifests().path.to_pylist()
    produced = line.commit(SnapshotChange(Operation.DELETE))
    assert line.manifests().path.to_pylist() == before
    assert produced.manifests_written == ()
    assert np.array_equal(line.manifests().added_snapshot_id, [100, 100])
