"""Position delete files and deletion vectors: content, partition, and that readers apply them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.transforms import IdentityTransform
from pyroaring import BitMap64

from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.scan.plan import plan_scan
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.tables.layouts import EVENTS, UNPARTITIONED, Layout, events

pytestmark = pytest.mark.unit

BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1)
BY_V = PartitionSpec(PartitionField(4, 1001, IdentityTransform(), "v"), spec_id=2)
PATH, POSITION = 2147483546, 2147483545


def layout(version: int) -> Layout:
    return Layout(EVENTS, (UNPARTITIONED, BY_REGION, BY_V), version)


def data(folder: Path, version: int) -> tuple[WriteTarget, EntriesTable]:
    """Two files of every region under an old spec, and one unpartitioned; a target for the newest spec."""
    table = layout(version).write_table(folder / "empty", layout(version).entries([]))
    rows = events(200)
    parts = [
        write_data_files(WriteTarget.of(table, spec_id=spec), [part], file_name_token="t")
        for spec, part in ((1, rows.slice(0, 80)), (1, rows.slice(80, 80)), (0, rows.slice(160)))
    ]
    entries = EntriesTable(pa.concat_tables([p.table for p in parts]).combine_chunks(), parts[0].partition_types)
    return WriteTarget.of(table), entries


def ids_left(folder: Path, version: int, *parts: EntriesTable) -> list[int]:
    entries = EntriesTable(pa.concat_tables([p.table for p in parts]).combine_chunks(), parts[0].partition_types)
    table = layout(version).write_table(folder / "full", entries)
    return sorted(plan_scan(table, None).to_arrow().column("id").to_pylist())


def expected_ids(entries: EntriesTable, positions: list[Any]) -> list[int]:
    left = []
    for path, gone in zip(entries.path.to_pylist(), positions, strict=True):
        ids = pq.read_table(local_path(path), columns=["id"]).column(0).to_pylist()
        left += [row for at, row in enumerate(ids) if at not in set(gone)]
    return sorted(left)


def some_positions(entries: EntriesTable) -> list[Any]:
    """Some rows of each file, unsorted, as arrays and as bitmaps; none of the second file."""
    found: list[Any] = [np.arange(0, count, at + 2)[::-1] for at, count in enumerate(entries.record_count.tolist())]
    found[1] = np.zeros(0, dtype=np.int64)
    found[2] = BitMap64(found[2].tolist())
    return found


@pytest.mark.parametrize("per_file", [True, False])
def test_position_deletes_belong_to_the_partition_of_their_data(tmp_path: Path, per_file: bool) -> None:
    target, entries = data(tmp_path, 2)
    gone = some_positions(entries)
    deletes = write_position_deletes(target, entries, gone, file_name_token="d", per_file=per_file)
    homes = {row["file_path"]: (row["spec_id"], row["partition.1000"]) for row in entries.table.to_pylist()}
    for row in deletes.table.to_pylist():
        table = pq.read_table(local_path(row["file_path"]))
        pairs = list(zip(table.column("file_path").to_pylist(), table.column("pos").to_pylist(), strict=True))
        assert pairs == sorted(pairs)
        assert {homes[path] for path, _ in pairs} == {(row["spec_id"], row["partition.1000"])}
        assert row["record_count"] == len(pairs)
        assert (row["content"], row["file_format"], row["sort_order_id"]) == (1, "PARQUET", None)
        assert row["file_path"].endswith("-deletes.parquet")
    assert ids_left(tmp_path, 2, entries, deletes) == expected_ids(entries, gone)


def test_a_file_for_one_data_file_references_it_in_full(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    only = entries.take(np.array([3]))
    (row,) = write_position_deletes(target, only, [np.array([7, 2])], file_name_token="d").table.to_pylist()
    path = only.path[0].as_py()
    bounds = [{pair["key"]: pair["value"] for pair in row[name]} for name in ("lower_bounds", "upper_bounds")]
    assert row["referenced_data_file"] == path
    assert [found[PATH] for found in bounds] == [path.encode()] * 2
    assert [int.from_bytes(found[POSITION], "little") for found in bounds] == [2, 7]
    schema = str(pq.ParquetFile(local_path(row["file_path"])).schema)
    assert f"required binary field_id={PATH} file_path (String)" in schema
    assert f"required int64 field_id={POSITION} pos" in schema


def test_a_file_for_several_names_none(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    ones = [np.array([0])] * len(entries)
    deletes = write_position_deletes(target, entries, ones, file_name_token="d", per_file=False)
    partitions = {(row["spec_id"], row["partition.1000"]) for row in entries.table.to_pylist()}
    assert len(deletes) == len(partitions) < len(entries)
    several = [row for row in deletes.table.to_pylist() if row["record_count"] > 1]
    assert several
    assert all(row["referenced_data_file"] is None and row["lower_bounds"] == [] for row in several)


def test_the_granularity_is_the_tables(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    by_partition = WriteTarget(**{**target.__getstate__(), "properties": {"write.delete.granularity": "partition"}})
    ones = [np.array([0])] * len(entries)
    assert len(write_position_deletes(target, entries, ones, file_name_token="d")) == len(entries)
    assert len(write_position_deletes(by_partition, entries, ones, file_name_token="d")) < len(entries)


def test_large_partitions_have_several_delete_files(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    small = WriteTarget(**{**target.__getstate__(), "properties": {"write.delete.target-file-size-bytes": "9"}})
    ones = [np.array([0])] * len(entries)
    assert len(write_position_deletes(small, entries, ones, file_name_token="d", per_file=False)) == len(entries)


def test_delete_files_have_a_codec_of_their_own(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    properties = {"write.delete.parquet.compression-codec": "snappy", "write.parquet.compression-codec": "gzip"}
    place = WriteTarget(**{**target.__getstate__(), "properties": properties})
    deletes = write_position_deletes(place, entries.take(np.array([0])), [np.array([0])], file_name_token="d")
    file = pq.ParquetFile(local_path(deletes.path[0].as_py()))
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"


def test_deletion_vectors_share_a_puffin_file(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 3)
    gone = some_positions(entries)
    deletes = write_deletion_vectors(target, entries, gone, file_name_token="d")
    homes = {row["file_path"]: (row["spec_id"], row["partition.1000"]) for row in entries.table.to_pylist()}
    rows = deletes.table.to_pylist()
    assert len(rows) == len(entries) - 1
    (path,) = {row["file_path"] for row in rows}
    encoded = Path(str(local_path(path))).read_bytes()
    puffin = PuffinFile(encoded)
    wanted = dict(zip(entries.path.to_pylist(), gone, strict=True))
    for row, blob in zip(rows, puffin.footer.blobs, strict=True):
        assert (row["spec_id"], row["partition.1000"]) == homes[row["referenced_data_file"]]
        assert row["record_count"] == len(wanted[row["referenced_data_file"]])
        assert (row["content"], row["file_format"], row["file_size_in_bytes"]) == (1, "PUFFIN", len(encoded))
        assert (blob.offset, blob.length) == (row["content_offset"], row["content_size_in_bytes"])
        assert blob.properties["referenced-data-file"] == row["referenced_data_file"]
        assert blob.properties["cardinality"] == str(row["record_count"])
        assert (blob.fields, blob.snapshot_id, blob.sequence_number) == ([2147483645], -1, -1)
    for vector in deletion_vectors_from_puffin_file(puffin):
        positions = wanted[vector.referenced_data_file]
        assert vector.to_vector().to_pylist() == sorted(int(at) for at in positions)
    assert ids_left(tmp_path, 3, entries, deletes) == expected_ids(entries, gone)


def test_nothing_to_delete_is_no_file(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 3)
    none = [np.zeros(0, dtype=np.int64)] * len(entries)
    assert len(write_deletion_vectors(target, entries, none, file_name_token="d")) == 0
    assert not list(tmp_path.rglob("*.puffin"))


@pytest.mark.parametrize(
    ("version", "write"),
    [
        (1, write_position_deletes),
        (3, write_position_deletes),
        (1, write_deletion_vectors),
        (2, write_deletion_vectors),
    ],
)
def test_a_format_takes_only_its_own_deletes(tmp_path: Path, version: int, write: Callable[..., EntriesTable]) -> None:
    target, entries = data(tmp_path, version)
    with pytest.raises(UnsupportedError, match=f"the table has format {version}"):
        write(target, entries, [np.array([0])] * len(entries), file_name_token="d")


class FullStore(PyArrowFileIO):
    """A store that accepts a limited number of files."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Semaphore(2)

    def new_output(self, location: str) -> PyArrowFile:
        if not self.room.acquire(blocking=False):
            raise OSError("no space left")
        return super().new_output(location)


def test_data_files_written_before_a_failure_are_removed(tmp_path: Path) -> None:
    target, _ = data(tmp_path, 2)
    before = set(tmp_path.rglob("*.parquet"))
    full = WriteTarget(**{**target.__getstate__(), "io": FullStore(), "spec_id": 1})
    with pytest.raises(FloeplanError, match="cannot be written: no space left"):
        write_data_files(full, [events(200)], file_name_token="t")
    assert set(tmp_path.rglob("*.parquet")) == before


def test_delete_files_written_before_a_failure_are_removed(tmp_path: Path) -> None:
    target, entries = data(tmp_path, 2)
    before = set(tmp_path.rglob("*.parquet"))
    full = WriteTarget(**{**target.__getstate__(), "io": FullStore()})
    with pytest.raises(FloeplanError, match="cannot be written: no space left"):
        write_position_deletes(full, entries, [np.array([0])] * len(entries), file_name_token="d")
    assert set(tmp_path.rglob("*.parquet")) == before


def test_positions_are_merged_beyond_32_bits() -> None:
    merged = merge_positions(np.array([3, 1, 3]), BitMap64([1, 2**33]), np.array([2**40], dtype=np.uint64))
    assert list(merged) == [1, 3, 2**33, 2**40]
