"""Deleted rows by position: position delete files for format 2, deletion vectors for format 3.

A delete belongs to the spec and the partition of the data file it refers to, whatever the table's default is by now.
A position delete file serves one data file (named in its entry and by both bounds of its path column) or, at partition
granularity, several of one partition, sorted by path and position. Deletion vectors share a Puffin file; each has an
entry of its own.

Fail-safe: format 1 has neither, format 2 no deletion vectors, and format 3 takes no new position delete files; asking
for them is an error before anything is written.
"""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.types import LongType
from pyroaring import BitMap, BitMap64

from floeplan.errors import UnsupportedError
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.files import write_file
from floeplan.metadata.manifests.entries import Content, EntriesTable
from floeplan.scan.delete_files import PATH_ID, POSITION_ID, encode_deletion_vector
from floeplan.scan.file_rows import FileRows
from floeplan.scan.model import FileScan
from floeplan.scan.projection import FIELD_ID
from floeplan.write.file_entries import FileEntry, added_entries
from floeplan.write.metrics import FileMetrics
from floeplan.write.parquet_file import ParquetFile, WrittenFile
from floeplan.write.partitioning import FilePartition, partitions_of
from floeplan.write.target import WriteTarget

# Puffin files: blobs of any kind one after the other, and a footer in JSON that says where each of them is.
#
# Layout: magic, blobs, then the footer: magic, payload, its length, four bytes of flags, magic; numbers little-endian.


_MAGIC = b"PFA1"
_NO_FLAGS = bytes(4)
_ROW_POSITION = 2147483645
DELETION_VECTOR = "deletion-vector-v1"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob with its metadata."""

    data: bytes
    type: str
    fields: tuple[int, ...]
    properties: Mapping[str, str]


def deletion_vector_blob(data: bytes, data_file: str, cardinality: int) -> Blob:
    """An encoded deletion vector, as the specification wants it described."""
    properties = {"referenced-data-file": data_file, "cardinality": str(cardinality)}
    return Blob(data, DELETION_VECTOR, (_ROW_POSITION,), properties)


def puffin_file(blobs: Sequence[Blob]) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a file, and offset and length of each blob in it; snapshot and sequence number are left open."""
    places = []
    offset = len(_MAGIC)
    for blob in blobs:
        places.append((offset, len(blob.data)))
        offset += len(blob.data)
    described = [
        {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": start,
            "length": length,
            "properties": dict(blob.properties),
        }
        for blob, (start, length) in zip(blobs, places, strict=True)
    ]
    footer = {"blobs": described, "properties": {"created-by": f"Floeplan {version('floeplan')}"}}
    payload = json.dumps(footer, separators=(",", ":")).encode()
    tail = _MAGIC + payload + struct.pack("<i", len(payload)) + _NO_FLAGS + _MAGIC
    return b"".join([_MAGIC, *(blob.data for blob in blobs), tail]), places


# ---

Positions: TypeAlias = "npt.NDArray[np.integer] | BitMap64"

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), False, {FIELD_ID: str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION_ID)}),
    ]
)
_BYTES_PER_POSITION = 8
_ONE_BITMAP = struct.pack("<QI", 1, 0)
"""What comes before a 32-bit bitmap in the portable format of a 64-bit one: how many there are, and its high bits."""
_THREADS = 8


def merge_positions(*parts: Positions) -> BitMap64:
    """All positions of several sets."""
    merged = BitMap64()
    for part in parts:
        merged |= part if isinstance(part, BitMap64) else _bitmap(part)
    return merged


def _bitmap(rows: npt.NDArray[np.integer]) -> BitMap64:
    """A bitmap of row numbers; those of 32 bits take the way through a bitmap of such, in half the time."""
    if (rows >> 32).any():
        return BitMap64(array.array("Q", rows.astype(np.uint64).tobytes()))
    low = BitMap(array.array("I", rows.astype(np.uint32).tobytes()))
    return BitMap64.deserialize(_ONE_BITMAP + low.serialize())


def write_position_deletes(
    target: WriteTarget,
    data: EntriesTable,
    positions: Sequence[Positions],
    *,
    file_name_token: str,
    per_file: bool | None = None,
) -> EntriesTable:
    """Write position delete files; their entries.

    Args:
        target: The table as writers see it.
        data: Entries of the data files: their paths, specs and partitions.
        positions: The rows to delete of each; files without any are passed over.
        file_name_token: The beginning of file names.
        per_file: One data file for each delete file; as the table's properties say when not given.
    """
    if target.format_version != 2:
        raise UnsupportedError(
            f"position delete files are for format 2, and the table has format {target.format_version}",
            context={"format-version": target.format_version},
        )
    alone = target.options.delete_per_file if per_file is None else per_file
    paths: list[str] = data.path.to_pylist()
    partitions = partitions_of(data, target.union)
    sets = [merge_positions(found) for found in positions]
    name = target.file_name(file_name_token)

    def write(number: int, rows: list[int]) -> FileEntry:
        location = target.new_location(f"{name}-{number:05d}-deletes.parquet", partitions[rows[0]].key)
        deletes = [(paths[row], sets[row]) for row in rows]
        return _entry(_write(target, location, deletes), partitions[rows[0]], deletes)

    groups = list(_together(target, partitions, paths, sets, alone))
    entries = _all_or_none(target, [partial(write, at + 1, rows) for at, rows in enumerate(groups)])
    return added_entries(entries, target.union, data.partition_types)


def _all_or_none(target: WriteTarget, jobs: Sequence[Callable[[], FileEntry]]) -> list[FileEntry]:
    """The entries of all jobs, several at a time; when one fails the files of the others are removed."""
    with ThreadPoolExecutor(_THREADS, "floeplan-deletes") as pool:
        futures = [pool.submit(job) for job in jobs]
        failed = next((future for future in futures if future.exception() is not None), None)
    if failed is not None:
        target.files.remove(future.result().path for future in futures if future.exception() is None)
        failed.result()
    return [future.result() for future in futures]


def write_deletion_vectors(
    target: WriteTarget, data: EntriesTable, positions: Sequence[Positions], *, file_name_token: str
) -> EntriesTable:
    """Write the deletion vectors of many data files into one Puffin file; an entry for each of them.

    Args:
        target: The table as writers see it.
        data: Entries of the data files: their paths, specs and partitions.
        positions: *All* deleted rows of each, those of earlier deletes included: a vector replaces them. Files without
            any are passed over.
        file_name_token: The beginning of the file name.
    """
    if target.format_version < 3:
        raise UnsupportedError(
            f"deletion vectors are for format 3, and the table has format {target.format_version}",
            context={"format-version": target.format_version},
        )
    paths: list[str] = data.path.to_pylist()
    partitions = partitions_of(data, target.union)
    sets = [merge_positions(found) for found in positions]
    rows = [row for row, found in enumerate(sets) if found]
    if not rows:
        return added_entries([], target.union, data.partition_types)
    for row in rows:
        sets[row].run_optimize()
    blobs = [deletion_vector_blob(encode_deletion_vector(sets[row]), paths[row], len(sets[row])) for row in rows]
    encoded, places = puffin_file(blobs)
    location = target.new_location(f"{target.file_name(file_name_token)}-deletes.puffin")
    write_file(location, encoded, target.io)
    entries = [
        FileEntry(
            path=location,
            partition=partitions[row],
            record_count=len(sets[row]),
            size=len(encoded),
            content=Content.POSITION_DELETES,
            format="PUFFIN",
            referenced_data_file=paths[row],
            content_offset=offset,
            content_size=length,
        )
        for row, (offset, length) in zip(rows, places, strict=True)
    ]
    return added_entries(entries, target.union, data.partition_types)


def _together(
    target: WriteTarget, partitions: list[FilePartition], paths: list[str], sets: list[BitMap64], alone: bool
) -> Iterator[list[int]]:
    """Which data files share a delete file: by path within a partition, up to the target size."""
    wanted = [row for row, found in enumerate(sets) if found]
    if alone:
        yield from ([row] for row in wanted)
        return
    wanted.sort(key=lambda row: (partitions[row].key.sort_key(), paths[row]))
    most = max(1, target.options.delete_target_file_size // _BYTES_PER_POSITION)
    group: list[int] = []
    for row in wanted:
        full = sum(len(sets[other]) for other in group) + len(sets[row]) > most
        if group and (full or partitions[row].key != partitions[group[0]].key):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _write(target: WriteTarget, location: str, deletes: list[tuple[str, BitMap64]]) -> WrittenFile:
    """Paths are written as the dictionary they are; positions hardly repeat, and a dictionary would double the file."""
    counts = np.array([len(found) for _, found in deletes])
    which = pa.array(np.repeat(np.arange(len(deletes), dtype=np.int32), counts))
    names = pa.DictionaryArray.from_arrays(which, pa.array([path for path, _ in deletes]))
    rows = np.concatenate([np.frombuffer(found.to_array(), dtype=np.uint64) for _, found in deletes])
    table = pa.table([names, pa.array(rows.astype(np.int64))], schema=_SCHEMA)
    file = ParquetFile(target.files, location, target.delete_options, table, plain=frozenset({"pos"}))
    try:
        file.write(table)
        return file.close()
    except BaseException:
        file.discard()
        raise


def _entry(file: WrittenFile, partition: FilePartition, deletes: list[tuple[str, BitMap64]]) -> FileEntry:
    """Path and position have bounds, whole, in a file that serves one data file, and none otherwise."""
    sizes = {
        key: int(file.footer.chunks(leaf).total_compressed_size.sum()) for key, leaf in file.footer.leaf_by_id.items()
    }
    bounds: list[dict[int, bytes]] = [{}, {}]
    only = deletes[0][0] if len(deletes) == 1 else None
    if only is not None:
        ends = (deletes[0][1].min(), deletes[0][1].max())
        bounds = [{PATH_ID: only.encode(), POSITION_ID: to_bytes(LongType(), end)} for end in ends]
    return FileEntry(
        path=file.path,
        partition=partition,
        record_count=file.footer.num_rows,
        size=file.size,
        content=Content.POSITION_DELETES,
        metrics=FileMetrics(column_sizes=sizes, lower_bounds=bounds[0], upper_bounds=bounds[1]),
        split_offsets=file.footer.chunks(0).start.tolist(),
        referenced_data_file=only,
    )


# Deleted positions gathered file by file and written as delete files at the end of a task.
#
# Format 3: one deletion vector for each data file, holding what earlier deletes removed too; the deletes it replaces
# leave the table when they serve this file alone. Format 2 at file granularity does the same with position delete
# files;
# at partition granularity earlier ones stay.


_OWN = (DeleteKind.VECTOR, DeleteKind.POSITION_FILE)


def file_scoped_deletes(file: FileScan) -> list[DeleteFileId]:
    """The delete files that serve this data file alone."""
    return [DeleteFileId(delete.path, delete.content_offset) for delete in file.deletes if delete.kind in _OWN]


class PositionDeleteCollector:
    """The deletes of one task."""

    def __init__(self, target: WriteTarget, files: FileRows) -> None:
        self._target, self._files = target, files
        self._vectors = target.format_version >= 3
        self._entries: list[EntriesTable] = []
        self._positions: list[BitMap64] = []
        self.replaced: list[DeleteFileId] = []

    def add(self, file: FileScan, entry: EntriesTable, positions: npt.NDArray[np.int64]) -> None:
        """Delete rows of a data file; its entry says which spec and partition that is in."""
        found = merge_positions(positions)
        if self._vectors:
            kinds: tuple[DeleteKind, ...] = (*_OWN, DeleteKind.POSITION_PARTITION)
        else:
            kinds = (DeleteKind.POSITION_FILE,) if self._target.options.delete_per_file else ()
        for delete in file.deletes:
            if delete.kind in kinds:
                found |= merge_positions(self._files.positions(delete, file.path))
        if kinds:
            self.replaced += file_scoped_deletes(file)
        self._entries.append(entry)
        self._positions.append(found)

    def write(self, token: str) -> EntriesTable | None:
        """Write the delete files; their entries."""
        if not self._entries:
            return None
        data = EntriesTable(
            pa.concat_tables([entry.table for entry in self._entries]).combine_chunks(),
            self._entries[0].partition_types,
        )
        write = write_deletion_vectors if self._vectors else write_position_deletes
        return write(self._target, data, self._positions, file_name_token=token)
