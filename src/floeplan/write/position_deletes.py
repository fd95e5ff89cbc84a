"""Writes position deletes: position delete files in format 2, deletion vectors in format 3.

A delete file is recorded in the spec and partition of the data files it applies to, not in the table's default spec. A
position delete file applies to one data file (``referenced_data_file`` and both bounds of its path column) or, at
partition granularity, to several of one partition, sorted by path and position. Deletion vectors share a Puffin file;
each has its own manifest entry.

Fail-safe: format 1 has no row-level deletes, format 2 no deletion vectors, and format 3 forbids new position delete
files; a wrong combination is an error before anything is written.
"""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.types import LongType
from pyroaring import BitMap, BitMap64

from floeplan.errors import UnsupportedError
from floeplan.formats.stored import PARQUET
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.files import write_file
from floeplan.metadata.manifests.entries import Content, EntriesTable
from floeplan.scan.delete_files import PATH_ID, POSITION_ID, encode_deletion_vector
from floeplan.scan.file_rows import FileRows
from floeplan.scan.model import FileScan
from floeplan.schemas import FIELD_ID
from floeplan.write.metrics import FileEntry, FileMetrics, added_entries
from floeplan.write.parquet_file import ParquetFile, WrittenFile
from floeplan.write.partitioning import FilePartition, partitions_of
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from floeplan.write.other_files import RowFile

Positions: TypeAlias = "npt.NDArray[np.integer] | BitMap64"

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), False, {FIELD_ID: str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION_ID)}),
    ]
)
_PLAIN_SCHEMA = _SCHEMA.set(0, _SCHEMA.field(0).with_type(pa.large_string()))
"""The same without a dictionary, for ORC and Avro."""
_BYTES_PER_POSITION = 8
_ONE_BITMAP = struct.pack("<QI", 1, 0)
"""The prefix that makes a serialized 32-bit bitmap a 64-bit one: number of bitmaps, high bits of the first."""
_THREADS = 8
_MAGIC = b"PFA1"
_NO_FLAGS = bytes(4)
_ROW_POSITION = 2147483645
"""The field id of ``_pos``."""


def merge_positions(*parts: Positions) -> BitMap64:
    """The union of several sets of positions."""
    merged = BitMap64()
    for part in parts:
        if isinstance(part, BitMap64):
            merged |= part
        elif (part >> 32).any():
            merged |= BitMap64(array.array("Q", part.astype(np.uint64).tobytes()))
        else:
            # Building a 32-bit bitmap and prefixing its serialization takes half the time of building a 64-bit one.
            low = BitMap(array.array("I", part.astype(np.uint32).tobytes()))
            merged |= BitMap64.deserialize(_ONE_BITMAP + low.serialize())
    return merged


def write_position_deletes(
    target: WriteTarget,
    data: EntriesTable,
    positions: Sequence[Positions],
    *,
    file_name_token: str,
    per_file: bool | None = None,
) -> EntriesTable:
    """Write position delete files and return their manifest entries.

    Args:
        target: The table.
        data: Entries of the data files: their paths, specs and partitions.
        positions: The rows to delete of each; data files without any get no delete file.
        file_name_token: The prefix of file names.
        per_file: One delete file per data file; by default the table's ``write.delete.granularity``.
    """
    _check_format(target, "position delete files", 2, target.format_version == 2)
    alone = target.options.delete_per_file if per_file is None else per_file
    paths: list[str] = data.path.to_pylist()
    partitions = partitions_of(data, target.union)
    sets = [merge_positions(found) for found in positions]
    name = target.file_name(file_name_token)

    def write(number: int, rows: list[int]) -> FileEntry:
        suffix = target.delete_options.format.lower()
        location = target.new_location(f"{name}-{number:05d}-deletes.{suffix}", partitions[rows[0]].key)
        deletes = [(paths[row], sets[row]) for row in rows]
        return _write(target, location, partitions[rows[0]], deletes)

    groups = _share_files(target, partitions, paths, sets, alone)
    with ThreadPoolExecutor(_THREADS, "floeplan-deletes") as pool:
        futures = [pool.submit(write, number, rows) for number, rows in enumerate(groups, start=1)]
    # All or none: if one file cannot be written, remove the others.
    failed = next((future for future in futures if future.exception() is not None), None)
    if failed is not None:
        target.files.remove(future.result().path for future in futures if future.exception() is None)
        failed.result()
    return added_entries([future.result() for future in futures], target.union, data.partition_types)


def write_deletion_vectors(
    target: WriteTarget, data: EntriesTable, positions: Sequence[Positions], *, file_name_token: str
) -> EntriesTable:
    """Write the deletion vectors of many data files to one Puffin file, and return an entry for each.

    Args:
        target: The table.
        data: Entries of the data files: their paths, specs and partitions.
        positions: *All* deleted rows of each, including those of earlier deletes, which the vector replaces. Data files
            without any get no vector.
        file_name_token: The prefix of the file name.
    """
    _check_format(target, "deletion vectors", 3, target.format_version >= 3)
    paths: list[str] = data.path.to_pylist()
    partitions = partitions_of(data, target.union)
    sets = [merge_positions(found) for found in positions]
    rows = [row for row, found in enumerate(sets) if found]
    if not rows:
        return added_entries([], target.union, data.partition_types)
    for row in rows:
        sets[row].run_optimize()
    encoded, locations = encode_puffin([(paths[row], sets[row]) for row in rows])
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
        for row, (offset, length) in zip(rows, locations, strict=True)
    ]
    return added_entries(entries, target.union, data.partition_types)


def _check_format(target: WriteTarget, what: str, needed: int, fits: bool) -> None:
    if not fits:
        raise UnsupportedError(
            f"{what} require format {needed}, and the table has format {target.format_version}",
            context={"format-version": target.format_version},
        )


def encode_puffin(vectors: Sequence[tuple[str, BitMap64]]) -> tuple[bytes, list[tuple[int, int]]]:
    """Encode the deletion vectors of data files as a Puffin file, and return offset and length of each blob.

    Layout: magic, blobs, then the footer: magic, JSON payload, its length, 4 bytes of flags, magic; little-endian. The
    Puffin specification requires the field id of ``_pos``, the snapshot id and sequence number -1, and the properties.
    """
    parts, described, locations, offset = [_MAGIC], [], [], len(_MAGIC)
    for path, positions in vectors:
        data = encode_deletion_vector(positions)
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(data),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        parts.append(data)
        locations.append((offset, len(data)))
        offset += len(data)
    footer = {"blobs": described, "properties": {"created-by": f"Floeplan {version('floeplan')}"}}
    payload = json.dumps(footer, separators=(",", ":")).encode()
    tail = _MAGIC + payload + struct.pack("<i", len(payload)) + _NO_FLAGS + _MAGIC
    return b"".join([*parts, tail]), locations


def _share_files(
    target: WriteTarget, partitions: list[FilePartition], paths: list[str], sets: list[BitMap64], alone: bool
) -> Iterator[list[int]]:
    """Group the data files that share a delete file: by path within a partition, up to the target size."""
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


def _write(
    target: WriteTarget, location: str, partition: FilePartition, deletes: list[tuple[str, BitMap64]]
) -> FileEntry:
    """Write one position delete file for one or several data files."""
    # Paths are dictionary-encoded, positions are not: they are nearly all distinct.
    counts = np.array([len(found) for _, found in deletes])
    which = pa.array(np.repeat(np.arange(len(deletes), dtype=np.int32), counts))
    names = pa.DictionaryArray.from_arrays(which, pa.array([path for path, _ in deletes]))
    rows = np.concatenate([np.frombuffer(found.to_array(), dtype=np.uint64) for _, found in deletes])
    table = pa.table([names, pa.array(rows.astype(np.int64))], schema=_SCHEMA)
    options = target.delete_options
    opened: ParquetFile | RowFile
    if options.format == PARQUET:
        opened = ParquetFile(target.files, location, options, table, plain=frozenset({"pos"}))
    else:
        from floeplan.write.other_files import FILES

        table = table.cast(_PLAIN_SCHEMA)
        opened = FILES[options.format](target.files, location, options, _PLAIN_SCHEMA)
    try:
        opened.write(table)
        file = opened.close()
    except BaseException:
        opened.discard()
        raise
    metrics, split_offsets = FileMetrics(), None
    if isinstance(file, WrittenFile):
        for key, leaf in file.footer.leaf_by_id.items():
            metrics.column_sizes[key] = int(file.footer.chunks(leaf).total_compressed_size.sum())
        split_offsets = file.footer.chunks(0).start.tolist()
    # Equal, untruncated bounds of the path mark a file-scoped delete file for engines that ignore
    # ``referenced_data_file``; a delete file for several data files has no bounds.
    only = deletes[0][0] if len(deletes) == 1 else None
    if only is not None:
        ends = deletes[0][1].min(), deletes[0][1].max()
        for bounds, end in zip((metrics.lower_bounds, metrics.upper_bounds), ends, strict=True):
            bounds |= {PATH_ID: only.encode(), POSITION_ID: to_bytes(LongType(), end)}
    return FileEntry(
        path=file.path,
        partition=partition,
        record_count=table.num_rows,
        size=file.size,
        content=Content.POSITION_DELETES,
        format=options.format,
        metrics=metrics,
        split_offsets=split_offsets,
        referenced_data_file=only,
    )


_FILE_SCOPED = (DeleteKind.VECTOR, DeleteKind.POSITION_FILE)


def file_scoped_deletes(file: FileScan) -> list[DeleteFileId]:
    """The delete files that apply to this data file only."""
    return [DeleteFileId(delete.path, delete.content_offset) for delete in file.deletes if delete.kind in _FILE_SCOPED]


class PositionDeleteCollector:
    """Collects deleted positions by data file, and writes them as delete files at the end of a task.

    Format 3: one deletion vector per data file, which includes all earlier position deletes; ``replaced`` lists the
    file-scoped delete files that it replaces. Format 2 at file granularity does the same with position delete files; at
    partition granularity earlier delete files stay.
    """

    def __init__(self, target: WriteTarget, files: FileRows) -> None:
        self._target, self._files = target, files
        self._vectors = target.format_version >= 3
        self._entries: list[EntriesTable] = []
        self._positions: list[BitMap64] = []
        self.replaced: list[DeleteFileId] = []

    def add(self, file: FileScan, entry: EntriesTable, positions: npt.NDArray[np.int64]) -> None:
        """Delete rows of a data file; its manifest entry has its spec and partition."""
        found = merge_positions(positions)
        if self._vectors:
            kinds: tuple[DeleteKind, ...] = (*_FILE_SCOPED, DeleteKind.POSITION_PARTITION)
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
        """Write the delete files and return their entries."""
        if not self._entries:
            return None
        data = EntriesTable(
            pa.concat_tables([entry.table for entry in self._entries]).combine_chunks(),
            self._entries[0].partition_types,
        )
        write = write_deletion_vectors if self._vectors else write_position_deletes
        return write(self._target, data, self._positions, file_name_token=token)
