"""One segment of the cache: decoded columns of some manifests, memory-mapped on first use.

A segment is an Arrow file with one record batch, and an index file that names the manifests, their rows, and a checksum
per column. The index is written last, so a segment without an index does not exist.

Rule: the index carries its own checksum, and a column is verified against the index before its first use. Fail-safe: a
mismatch raises ``BadSegment``, and the caller reads the manifests instead.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyiceberg.types import UnknownType

from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.vectors import Ints

DATA_SUFFIX, INDEX_SUFFIX = ".arrow", ".index"
IDENTITY = ("length", "spec_id", "content", "sequence_number", "added_snapshot_id", "first_row_id")
"""What must be equal, besides the path, for a cached manifest to match: entries inherit from these."""

UNKNOWN_TYPE = str(UnknownType())
"""The type of a partition column that none of the segment's manifests has."""

_DIGEST_SIZE = 8


class BadSegment(Exception):  # noqa: N818 - never leaves the cache
    """A file of the cache that cannot be used; it was removed."""


@dataclass(slots=True)
class Segment:
    """An index in memory; data is mapped, and each column verified, on first use."""

    index_path: Path
    manifests: pa.Table
    checksums: Mapping[str, str]
    types: Mapping[int, str]
    _columns: dict[str, pa.Array] = field(default_factory=dict)
    _data: pa.RecordBatch | None = None

    @classmethod
    def in_memory(cls, columns: Mapping[str, pa.Array], manifests: pa.Table, types: Mapping[int, str]) -> Segment:
        """A segment that was not written yet."""
        return cls(Path(os.devnull), manifests.combine_chunks(), dict.fromkeys(columns, ""), types, dict(columns))

    @property
    def starts(self) -> Ints:
        """First row of each manifest."""
        return self._numbers("start")

    @property
    def counts(self) -> Ints:
        """Entries of each manifest."""
        return self._numbers("count")

    def find(self, manifests: ManifestListTable) -> Ints:
        """The index of each manifest in the segment, or -1."""
        found = pc.index_in(manifests.path, value_set=self.manifests.column("path").chunk(0))
        at = np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int64)
        same = at >= 0
        for name in IDENTITY:
            same[same] = self._numbers(name)[at[same]] == getattr(manifests, name)[same]
        return np.where(same, at, -1)

    def column(self, name: str) -> pa.Array:
        """A verified column."""
        if name not in self._columns:
            try:
                if self._data is None:
                    self._data = _open_data(self.index_path)
                column = self._data.column(name)
            except (OSError, pa.ArrowException) as error:
                remove_segment(self.index_path)
                raise BadSegment(str(error)) from error
            if _digest(column) != self.checksums[name]:
                remove_segment(self.index_path)
                raise BadSegment(f"column {name} of {self.index_path} has changed")
            self._columns[name] = column
        return self._columns[name]

    def used(self) -> None:
        """Mark the segment as recently used."""
        with suppress(OSError):
            os.utime(self.index_path)

    def _numbers(self, name: str) -> Ints:
        return np.asarray(self.manifests.column(name).chunk(0).to_numpy())


def open_segment(index_path: Path) -> Segment:
    """Read an index.

    Raises:
        BadSegment: The index is damaged or gone.
    """
    try:
        content = index_path.read_bytes()
        if xxhash.xxh3_64_digest(content[_DIGEST_SIZE:]) != content[:_DIGEST_SIZE]:
            raise ValueError(f"{index_path} has changed")
        table = pa.ipc.open_stream(pa.py_buffer(content)[_DIGEST_SIZE:]).read_all().combine_chunks()
        header = json.loads(table.schema.metadata[b"floeplan"])
        types = {int(key): text for key, text in header["types"].items()}
        return Segment(index_path, table, header["checksums"], types)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        remove_segment(index_path)
        raise BadSegment(str(error)) from error


def write_segment(folder: Path, segment: Segment) -> Segment:
    """Write a segment to a folder under a new name."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    index_path = folder / f"{uuid.uuid4().hex}{INDEX_SUFFIX}"
    columns = {name: segment.column(name) for name in segment.checksums}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with (
        _atomic(index_path.with_suffix(DATA_SUFFIX)) as partial,
        pa.OSFile(partial, "wb") as data,
        pa.ipc.new_file(data, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    written = _open_data(index_path)
    checksums = {name: _digest(written.column(name)) for name in columns}
    header = json.dumps({"checksums": checksums, "types": {str(key): text for key, text in segment.types.items()}})
    table = segment.manifests.replace_schema_metadata({"floeplan": header})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    with _atomic(index_path) as partial:
        Path(partial).write_bytes(xxhash.xxh3_64_digest(content) + content)
    return Segment(index_path, table, checksums, segment.types)


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Merge segments with the same columns; a manifest that is in two of them stays twice."""
    columns = {name: concat_columns([s.column(name) for s in segments]) for name in segments[0].checksums}
    offsets = np.cumsum([0, *(int(s.counts.sum()) for s in segments)])
    at = segments[0].manifests.schema.get_field_index("start")
    shifted = [
        s.manifests.set_column(at, "start", pa.array(s.starts + offset)).replace_schema_metadata(None)
        for s, offset in zip(segments, offsets, strict=False)
    ]
    # A partition type that one segment knows is known for all.
    types = [(key, text) for s in segments for key, text in s.types.items()]
    merged = dict(types) | {key: text for key, text in types if text != UNKNOWN_TYPE}
    return Segment.in_memory(columns, pa.concat_tables(shifted), merged)


def concat_columns(pieces: Sequence[pa.Array]) -> pa.Array:
    """Concatenate pieces of a column; a partition column of unknown type is null and takes the type of the others."""
    if len(pieces) == 1:
        return pieces[0]
    typed = next((piece.type for piece in pieces if not pa.types.is_null(piece.type)), pa.null())
    return pa.concat_arrays([pa.nulls(len(p), typed) if pa.types.is_null(p.type) else p for p in pieces])


def remove_segment(index_path: Path) -> None:
    """Delete a segment, the index first; readers that mapped it are not affected."""
    for path in (index_path, index_path.with_suffix(DATA_SUFFIX)):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def manifest_index(manifests: ManifestListTable, counts: Ints) -> pa.Table:
    """The manifests of a segment in order, each with its first row and number of entries."""
    numbers = {name: pa.array(getattr(manifests, name)) for name in IDENTITY}
    starts = np.cumsum(counts) - counts
    return pa.table({"path": manifests.path, **numbers, "start": pa.array(starts), "count": pa.array(counts)})


def _open_data(index_path: Path) -> pa.RecordBatch:
    with pa.memory_map(str(index_path.with_suffix(DATA_SUFFIX))) as source:
        return pa.ipc.open_file(source).get_batch(0)


class _atomic:  # noqa: N801 - reads like the functions it stands beside
    """A temporary name to write to, renamed to the target on success."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.partial = f"{target}.{os.getpid()}.partial"

    def __enter__(self) -> str:
        return self.partial

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            os.replace(self.partial, self.target)
        else:
            Path(self.partial).unlink(missing_ok=True)


def _digest(array: pa.Array) -> str:
    """A checksum over the type, the length and all memory of a column."""
    state = xxhash.xxh3_64(f"{array.type}/{len(array)}/{array.null_count}".encode())
    for buffer in array.buffers():
        state.update(b"-" if buffer is None else buffer)
    return state.hexdigest()
