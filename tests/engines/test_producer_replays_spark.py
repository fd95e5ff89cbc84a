"""Every snapshot that Spark wrote into the tables of the matrix is produced again, from the same metadata.

The files that Spark's snapshot added and removed become a change; Floeplan's snapshot of it on the same head must have
the same live files, sequence numbers and row ids, and the same summary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import ENTRY_TYPES, WHOLE, Content, EntriesTable, EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.producer import ProducedSnapshot, SnapshotProducer
from tests.support.spark.matrix import Matrix, parametrized
from tests.support.tables.layouts import rows_of

pytestmark = pytest.mark.engines

TABLES = (
    "evolving_v1",
    "voids_v1",
    "dropped_sources_v1",
    "imported_v1",
    "truncations_v2",
    "evolving_v2_equality",
    "evolving_v2_position_file",
    "dropped_sources_v2_position_partition",
    "voids_v1_to_v2_position_partition",
    "evolving_v2_to_v3_vectors",
    "voids_v1_to_v3_vectors",
    "dropped_sources_v3_vectors",
    "defaults_v3_vectors",
    "evolving_v3",
)
PARTITIONS = "changed-partition-count"
OF_THE_ENGINE = ("engine-", "app-", "iceberg-", "spark.", "floeplan.", "manifests-", PARTITIONS)
INHERITED = ("sequence_number", "file_sequence_number", "first_row_id", "snapshot_id")


def read_json(location: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(unquote(urlparse(location).path)).read_text())
    return document


def commits(latest: str) -> Iterator[tuple[TableMetadata, Snapshot]]:
    """The metadata before each snapshot in the metadata log, and the snapshot."""
    document = read_json(latest)
    locations = [entry["metadata-file"] for entry in document["metadata-log"]]
    history = [TableMetadataUtil.parse_obj(read_json(location)) for location in [*locations, latest]]
    for before, after in pairwise(history):
        known = {snapshot.snapshot_id for snapshot in before.snapshots}
        yield from ((before, snapshot) for snapshot in after.snapshots if snapshot.snapshot_id not in known)


def entries_of(manifests: ManifestListTable, union: UnionPartitionType) -> EntriesTable:
    return read_entries(manifests, union, EntryColumns(WHOLE))


def change_of(snapshot: Snapshot, entries: EntriesTable) -> SnapshotChange:
    """The snapshot as a change that is not committed yet."""
    assert snapshot.summary is not None
    own = entries.ints("snapshot_id") == snapshot.snapshot_id
    added, removed = (entries.filter(own & (entries.status == status)) for status in (Status.ADDED, Status.DELETED))
    is_data = removed.content == Content.DATA
    old = list(zip(removed.path.to_pylist(), removed.array("content_offset").to_pylist(), strict=True))
    return SnapshotChange(
        Operation(snapshot.summary.operation.value),
        added_data=new_files(added.filter(added.content == Content.DATA)),
        added_deletes=new_files(added.filter(added.content != Content.DATA)),
        removed_data=frozenset(path for (path, _), data in zip(old, is_data, strict=True) if data),
        removed_deletes=frozenset(DeleteFileId(*file) for file, data in zip(old, is_data, strict=True) if not data),
    )


def new_files(entries: EntriesTable) -> EntriesTable | None:
    """The same files without values that a snapshot assigns."""
    if not len(entries):
        return None
    table = entries.table.drop_columns(["manifest", "ordinal"])
    for name in INHERITED:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, [[None] * len(entries)]).cast(
            table.schema.set(at, table.schema.field(at).with_type(ENTRY_TYPES[name]))
        )
    return EntriesTable(table, entries.partition_types)


def live(entries: EntriesTable) -> dict[str, dict[str, Any]]:
    return {
        path: {name: value for name, value in row.items() if name not in ("status", "snapshot_id")}
        for path, row in rows_of(entries.live()).items()
    }


def numbers(snapshot: Snapshot) -> dict[str, str]:
    assert snapshot.summary is not None
    stated = snapshot.summary.additional_properties
    return {name: value for name, value in stated.items() if not name.startswith(OF_THE_ENGINE)}


def partition_count(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties[PARTITIONS])


def manifest_counts(snapshot: Snapshot) -> dict[str, str]:
    assert snapshot.summary is not None
    return {name: value for name, value in snapshot.summary.additional_properties.items() if "manifests-" in name}


def replayed(
    table: str, matrix: Matrix, catalog: SqlCatalog, folder: Path
) -> Iterator[tuple[TableMetadata, Snapshot, ProducedSnapshot]]:
    """Spark's snapshots and Floeplan's, whose files go to the folder."""
    latest = catalog.load_table(matrix.table(table).identifier).metadata_location
    for metadata, snapshot in commits(latest):
        union = UnionPartitionType.of_table(metadata)
        change = change_of(snapshot, entries_of(read_manifest_list(snapshot.manifest_list), union))
        head = None if snapshot.parent_snapshot_id is None else metadata.snapshot_by_id(snapshot.parent_snapshot_id)
        elsewhere = metadata.model_copy(update={"location": folder.as_uri()})
        yield metadata, snapshot, SnapshotProducer(change, snapshot.snapshot_id).produce(elsewhere, head)


@pytest.mark.parametrize("table", parametrized(TABLES))
def test_a_replayed_snapshot_has_the_same_files_and_summary(
    table: str, matrix: Matrix, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    seen = 0
    for metadata, theirs, ours in replayed(table, matrix, local_catalog, tmp_path):
        seen += 1
        union = UnionPartitionType.of_table(metadata)
        listed = read_manifest_list(theirs.manifest_list)
        again = read_manifest_list(ours.snapshot.manifest_list)
        expected, found = live(entries_of(listed, union)), live(entries_of(again, union))
        if metadata.format_version > 2:
            expected, found = without_row_ids(expected), without_row_ids(found)
        assert found == expected
        assert not ours.missing_data
        assert not ours.missing_deletes
        assert numbers(ours.snapshot) == numbers(theirs)
        assert partition_count(ours.snapshot) >= partition_count(theirs), "Java counts equal texts as one partition"
        assert ours.snapshot.sequence_number == (theirs.sequence_number or 0)
        assert ours.snapshot.schema_id == theirs.schema_id
        assert ours.snapshot.parent_snapshot_id == theirs.parent_snapshot_id
        assert ours.snapshot.first_row_id == theirs.first_row_id
        check_manifests(ours, union)
        if len(again) == len(listed):
            assert again.length.sum() <= 1.1 * listed.length.sum()
            assert manifest_counts(ours.snapshot) == manifest_counts(theirs)
    assert seen > 2


def without_row_ids(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """New row ids depend on the order of manifests, which differs from Spark's."""
    return {path: {name: value for name, value in row.items() if name != "first_row_id"} for path, row in rows.items()}


def check_manifests(produced: ProducedSnapshot, union: UnionPartitionType) -> None:
    """Each manifest has entries of one spec, and correct counts in the list."""
    manifests = read_manifest_list(produced.snapshot.manifest_list)
    entries = entries_of(manifests, union)
    for row in range(len(manifests)):
        here = entries.filter(entries.ints("manifest") == row)
        for status in Status:
            of_status = here.status == status
            name = status.name.lower()
            assert getattr(manifests, f"{name}_files")[row] == of_status.sum()
            assert getattr(manifests, f"{name}_rows")[row] == here.record_count[of_status].sum()
    new = np.flatnonzero(manifests.added_snapshot_id == produced.snapshot.snapshot_id)
    assert len(produced.manifests_written) == len(new)


@pytest.mark.parametrize(
    "table", parametrized(["evolving_v3", "dropped_sources_v3_vectors", "evolving_v2_to_v3_vectors"])
)
def test_row_ids_never_change_and_never_overlap(
    table: str, matrix: Matrix, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    for metadata, _, ours in replayed(table, matrix, local_catalog, tmp_path):
        if metadata.format_version < 3:
            continue
        union = UnionPartitionType.of_table(metadata)
        assert ours.snapshot.parent_snapshot_id is not None or ours.snapshot.first_row_id == 0
        entries = entries_of(read_manifest_list(ours.snapshot.manifest_list), union).live()
        data = entries.filter(entries.content == Content.DATA)
        first = data.ints("first_row_id")
        order = np.argsort(first)
        assert (first >= 0).all()
        assert (first[order][1:] >= (first + data.record_count)[order][:-1]).all()
        assert ours.snapshot.first_row_id is not None
        assert ours.snapshot.added_rows is not None
        after = ours.snapshot.first_row_id + ours.snapshot.added_rows
        assert (first + data.record_count).max() <= after
        parent = metadata.snapshot_by_id(ours.snapshot.parent_snapshot_id or -1)
        if parent is not None and parent.first_row_id is not None:
            before = entries_of(read_manifest_list(parent.manifest_list), union).live()
            known = dict(zip(before.path.to_pylist(), before.array("first_row_id").to_pylist(), strict=True))
            mine = dict(zip(data.path.to_pylist(), first.tolist(), strict=True))
            assert {path: mine[path] for path in mine.keys() & known.keys()} == {
                path: known[path] for path in mine.keys() & known.keys()
            }
