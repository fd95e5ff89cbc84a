"""A cache of decoded manifest entries on local disk: a plan decodes only what changed since the last one.

Manifests never change, so decoded columns stay valid; only space is limited. The cache holds columns, not manifests: a
plan that needs the bounds of one more column decodes that column alone.

A table has a folder of segments. A segment is an Arrow file with one record batch, the decoded columns of some
manifests, and an index file that names the manifests, their rows, and a checksum per column. The index is written last,
so a segment without an index does not exist.

Rule: the result equals that of ``read_entries`` with ``live``: DELETED entries are not cached, because dropping them
later would copy every column, while columns of a single segment are used as they are mapped. The index carries its own
checksum, and a column is verified against the index before its first use. Local manifests that are smaller than the
indexes of the cache are read directly, because the lookup would cost more, unless the indexes are in memory already.

Fail-safe: the cache is never required. A segment that cannot be used is removed and its manifests are decoded again; a
cache that cannot be written is not used. Processes may share a folder: files are written under temporary names and
renamed, and a file that disappears is a cache miss.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from pyiceberg.io import FileIO
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan import arrow_compute as pc
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Origin, concat_columns, partition_column
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import parse_type
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints, arrow, integers, without_nulls

VERSION = 4
"""Incremented whenever the meaning of decoded columns changes."""

DEFAULT_MAX_BYTES = 2 * 1024**3
MAX_SEGMENTS = 16
"""The most segments of one table before those with the same columns are merged."""

SMALL_INDEXES = 128 * 1024
"""Indexes up to this size (about 1,000 manifests) are always looked up."""

DATA_SUFFIX, INDEX_SUFFIX = ".arrow", ".index"
IDENTITY = ("length", "spec_id", "content", "sequence_number", "added_snapshot_id", "first_row_id")
"""What must be equal, besides the path, for a cached manifest to match: entries inherit from these."""

_UNKNOWN_TYPE = str(UnknownType())
"""The type of a partition column that none of the segment's manifests has."""

_ATTEMPTS, _FEW_TIMES = 3, 4
_ABANDONED_SECONDS = 3600
_DIGEST_SIZE = 8
_NO_PARTITION = UnionPartitionType((), {})


def cache_directory() -> Path:
    """``$FLOEPLAN_CACHE``, or a folder in the user's cache directory."""
    if chosen := os.environ.get("FLOEPLAN_CACHE"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "floeplan"


class EntriesCache:
    """Reads live manifest entries through a folder of segments."""

    def __init__(self, directory: Path | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.directory = directory or cache_directory()
        self.max_bytes = max_bytes
        self._segments: dict[Path, Segment] = {}

    def read_entries(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: EntryColumns,
        *,
        rows: Ints | None = None,
        io: FileIO | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> EntriesTable:
        """As ``floeplan.metadata.manifests.reader.read_entries`` with ``live``."""
        chosen = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        if not len(chosen):
            return read_entries(manifests, partition, columns, rows=chosen, live=True)
        # A folder per table and set of partition fields: other specs give partition columns another meaning.
        fields = [[f.id, f.field_id, str(f.bound.column.type), sorted(f.positions.items())] for f in partition.fields]
        key = json.dumps([VERSION, manifests.paths(chosen[:1])[0].rpartition("/")[0], fields])
        folder = self.directory / xxhash.xxh3_128_hexdigest(key.encode())
        small = max(SMALL_INDEXES, int(manifests.length[chosen].sum()))
        sizes = {path: _stat(path)[1] for path in _by_age(folder)}

        def are_cheap() -> bool:
            """Whether decoding the manifests takes less than looking them up."""
            return sum(sizes.values()) > small and all(map(local_path, manifests.paths(chosen)))

        def read() -> EntriesTable:
            return read_entries(manifests, partition, columns, rows=chosen, io=io, max_workers=max_workers, live=True)

        if sum(size for path, size in sizes.items() if path not in self._segments) > small and are_cheap():
            return read()
        names = columns.column_names(field.id for field in partition.fields)
        for _ in range(_ATTEMPTS):
            sources = [(segment, segment.find(manifests, chosen)) for segment in self._open(folder)]
            lacking, missing = _lacking(sources, names, len(chosen))
            if len(missing) and are_cheap():  # segments of a few manifests would soon have to be merged
                return read()
            if len(missing):
                few, wanted = columns.only(lacking), manifests.take(chosen)
                at = np.full(len(wanted), -1, dtype=np.int64)
                at[missing] = np.arange(len(missing))
                segment = self._keep(
                    folder,
                    # Not named here, so that columns are freed as soon as they are written.
                    read_entries(wanted, partition, few, rows=missing, io=io, max_workers=max_workers, live=True),
                    wanted,
                    missing,
                    lacking,
                )
                sources.append((segment, at))
            with suppress(BadSegment, pa.ArrowException):
                return _assemble(sources, names, manifests, chosen, partition if columns.partition else _NO_PARTITION)
        return read()

    def _open(self, folder: Path) -> list[Segment]:
        """The segments of a table, the most recently used first."""
        segments = []
        for path in _by_age(folder)[::-1]:
            with suppress(BadSegment):
                segment = self._segments.get(path) or open_segment(path)
                self._segments[path] = segment
                segments.append(segment)
        return segments

    def _keep(
        self, folder: Path, part: EntriesTable, wanted: ManifestListTable, rows: Ints, names: Sequence[str]
    ) -> Segment:
        """Return decoded columns as a segment, from the cache if it could be written there."""
        counts = np.bincount(part.ints("manifest"), minlength=len(wanted))[rows]
        kept = wanted.take(rows)
        index = {"path": kept.path, **{name: arrow(getattr(kept, name)) for name in IDENTITY}}
        index |= {"start": arrow(np.cumsum(counts) - counts), "count": arrow(counts)}
        types = {key: str(type_) for key, type_ in part.partition_types.items()}
        segment = Segment.in_memory({name: part.array(name) for name in names}, pa.table(index), types)
        del part
        with suppress(OSError, pa.ArrowException, BadSegment):
            segment = write_segment(folder, segment)
            self._segments[segment.index_path] = segment
            self._merge(folder)
            self._evict()
        return segment

    def _merge(self, folder: Path) -> None:
        """Merge segments with the same columns when there are many; without any such, drop the least recently used."""
        segments = self._open(folder)
        if len(segments) <= MAX_SEGMENTS:
            return
        alike: dict[frozenset[str], list[Segment]] = defaultdict(list)
        for segment in segments:
            alike[frozenset(segment.checksums)].append(segment)
        most = max(alike.values(), key=len)
        if len(most) > 1:
            write_segment(folder, merge_segments(most))
        for segment in most if len(most) > 1 else segments[-1:]:
            self._drop(segment.index_path)

    def _evict(self) -> None:
        """Remove the least recently used segments until the rest fits; the newest always stays."""
        indexes: list[Path] = []
        for entry in os.scandir(self.directory):
            if not entry.is_dir():
                continue
            for path in Path(entry.path).iterdir():
                # Data without an index is of a writer that did not finish, or has not yet.
                abandoned = path.suffix != INDEX_SUFFIX and not path.with_suffix(INDEX_SUFFIX).exists()
                if abandoned and time.time() - _stat(path)[0] > _ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)
            indexes += _by_age(Path(entry.path))
        sizes = {path: _stat(path)[1] + _stat(path.with_suffix(DATA_SUFFIX))[1] for path in indexes}
        total = sum(sizes.values())
        for path in sorted(indexes, key=_stat)[:-1]:
            if total <= self.max_bytes:
                return
            total -= sizes[path]
            self._drop(path)

    def _drop(self, index_path: Path) -> None:
        remove_segment(index_path)
        self._segments.pop(index_path, None)


def _lacking(sources: Sequence[tuple[Segment, Ints]], names: Sequence[str], manifests: int) -> tuple[list[str], Ints]:
    """The columns that no source has for some manifest, and the manifests that lack any column.

    A source is a segment, and the index in it of each requested manifest, or -1.
    """
    lacking: set[str] = set()
    missing = np.zeros(manifests, dtype=np.bool_)
    for holders, shared in _by_holders(sources, names).items():
        absent = np.ones(manifests, dtype=np.bool_)
        for holder in holders:
            absent &= sources[holder][1] < 0
        if absent.any():
            lacking.update(shared)
            missing |= absent
    return [name for name in names if name in lacking], np.flatnonzero(missing)


def _by_holders(sources: Sequence[tuple[Segment, Ints]], names: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    """Columns grouped by the sources that have them; each group is located once."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in names:
        groups[tuple(at for at, (segment, _) in enumerate(sources) if name in segment.checksums)].append(name)
    return groups


def _assemble(
    sources: Sequence[tuple[Segment, Ints]],
    names: Sequence[str],
    manifests: ManifestListTable,
    rows: Ints,
    partition: UnionPartitionType,
) -> EntriesTable:
    """The requested columns of the requested manifests, in that order."""
    found: dict[str, pa.Array] = {}
    counts: Ints | None = None
    used: set[int] = set()
    for holders, shared in _by_holders(sources, names).items():
        # For each manifest the first source that has it, and its first row and number of entries there.
        source_of = np.full(len(rows), -1, dtype=np.int64)
        starts, these = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        for holder in holders:
            segment, at = sources[holder]
            here = (source_of < 0) & (at >= 0)
            source_of[here] = holder
            starts[here], these[here] = segment.numbers("start")[at[here]], segment.numbers("count")[at[here]]
        if counts is not None and not np.array_equal(counts, these):
            raise BadSegment("two segments disagree about the entries of a manifest")
        counts = these
        # Manifests that follow each other in one source are copied as one range of rows.
        ends = starts + counts
        breaks = np.flatnonzero((source_of[1:] != source_of[:-1]) | (starts[1:] != ends[:-1])) + 1
        first, last = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(starts)]]) - 1
        runs = list(zip(source_of[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True))
        used |= {holder for holder, _, _ in runs}
        for name in shared:
            found[name] = concat_columns([sources[holder][0].column(name)[a:b] for holder, a, b in runs])
    assert counts is not None
    segments = [sources[holder][0] for holder in sorted(used)]
    for segment in segments:
        with suppress(OSError):
            os.utime(segment.index_path)
    origin = Origin.of(manifests, rows, counts)
    identity = origin.columns(integers(found["status"]))
    types = _types(partition, set(manifests.spec_id[rows[counts > 0]].tolist()), segments)
    untyped = [partition_column(key) for key, type_ in types.items() if isinstance(type_, UnknownType)]
    return EntriesTable(pa.table(identity | found | dict.fromkeys(untyped, pa.nulls(len(origin)))), types)


def _types(partition: UnionPartitionType, specs: set[int], segments: Sequence[Segment]) -> dict[int, PrimitiveType]:
    """Types of the partition columns; where the source column was dropped, the type comes from the manifests."""
    types = {field.id: field.bound.column.type for field in partition.fields}
    for one in partition.fields:
        if isinstance(types[one.id], UnknownType) and specs & one.positions.keys():
            known = [s.types[one.id] for s in segments if s.types.get(one.id, _UNKNOWN_TYPE) != _UNKNOWN_TYPE]
            types[one.id] = parse_type(known[0]) if known else UnknownType()
    return types


def _by_age(folder: Path) -> list[Path]:
    """The indexes in a folder, least recently used first."""
    try:
        found = [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(INDEX_SUFFIX)]
    except OSError:
        return []
    return sorted(found, key=_stat)


def _stat(path: Path) -> tuple[float, int]:
    """When a file was last used, and its size; zeros for a file that disappeared."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0.0, 0
    return found.st_mtime, found.st_size


class BadSegment(Exception):  # noqa: N818 - never leaves the cache
    """A file of the cache that cannot be used; it was removed."""


class _Located(NamedTuple):
    """How often manifests of a list were looked up in a segment, and the index of each, or -1, once all were."""

    manifests: ManifestListTable
    times: int
    at: Ints | None


@dataclass(slots=True)
class Segment:
    """An index in memory; data is mapped, and each column verified, on first use.

    Attributes:
        index_path: The index file; the null device for a segment that was not written.
        manifests: A row per manifest: its path, ``IDENTITY``, its first row and the number of its entries.
        checksums: A checksum by column name.
        types: The types of partition columns.
    """

    index_path: Path
    manifests: pa.Table
    checksums: Mapping[str, str]
    types: Mapping[int, str]
    _columns: dict[str, pa.Array] = field(default_factory=dict)
    _data: pa.RecordBatch | None = None
    _located: _Located | None = None

    @classmethod
    def in_memory(cls, columns: Mapping[str, pa.Array], manifests: pa.Table, types: Mapping[int, str]) -> Segment:
        """A segment that was not written yet."""
        return cls(Path(os.devnull), manifests.combine_chunks(), dict.fromkeys(columns, ""), types, dict(columns))

    def numbers(self, name: str) -> Ints:
        """A column of the index."""
        return integers(self.manifests.column(name).chunk(0))

    def find(self, manifests: ManifestListTable, rows: Ints) -> Ints:
        """The index of each of these manifests in the segment, or -1.

        A list that is looked up again and again, as servers do, is looked up as a whole once.
        """
        known = self._located
        if known is None or known.manifests is not manifests:
            known = _Located(manifests, 0, None)
        at = known.at
        if at is None and known.times < _FEW_TIMES:
            self._located = known._replace(times=known.times + 1)
            return self._find(manifests.take(rows))
        if at is None:
            at = self._find(manifests)
            self._located = known._replace(at=at)
        return at[rows]

    def _find(self, manifests: ManifestListTable) -> Ints:
        found = pc.index_in(manifests.path, value_set=self.manifests.column("path").chunk(0))
        at = integers(without_nulls(found, -1))
        same = at >= 0
        for name in IDENTITY:
            same[same] = self.numbers(name)[at[same]] == getattr(manifests, name)[same]
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


def open_segment(index_path: Path) -> Segment:
    """Read an index.

    Raises:
        BadSegment: The index is damaged or missing.
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
    """Write a segment to a folder under a new name.

    The columns are then those of the mapped file, one after the other, and those in memory are freed: a process holds
    them once.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    index_path = folder / f"{uuid.uuid4().hex}{INDEX_SUFFIX}"
    names = list(segment.checksums)
    batch = pa.record_batch([segment.column(name) for name in names], names=names)
    with (
        _atomic(index_path.with_suffix(DATA_SUFFIX)) as partial,
        pa.OSFile(partial, "wb") as data,
        pa.ipc.new_file(data, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    del batch
    written, columns, checksums = _open_data(index_path), segment._columns, dict[str, str]()
    for name in names:
        columns[name] = written.column(name)
        checksums[name] = _digest(columns[name])
    header = json.dumps({"checksums": checksums, "types": {str(key): text for key, text in segment.types.items()}})
    table = segment.manifests.replace_schema_metadata({"floeplan": header})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    with _atomic(index_path) as partial:
        Path(partial).write_bytes(xxhash.xxh3_64_digest(content) + content)
    return Segment(index_path, table, checksums, segment.types, columns, written)


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Merge segments with the same columns; a manifest that is in two of them stays twice."""
    columns = {name: concat_columns([s.column(name) for s in segments]) for name in segments[0].checksums}
    at = segments[0].manifests.schema.get_field_index("start")
    shifted, offset = [], 0
    for segment in segments:
        starts = arrow(segment.numbers("start") + offset)
        shifted.append(segment.manifests.set_column(at, "start", starts).replace_schema_metadata(None))
        offset += int(segment.numbers("count").sum())
    # A partition type that is unknown in one segment may be known in another.
    types = [(key, text) for s in segments for key, text in s.types.items()]
    merged = dict(types) | {key: text for key, text in types if text != _UNKNOWN_TYPE}
    return Segment.in_memory(columns, pa.concat_tables(shifted), merged)


def remove_segment(index_path: Path) -> None:
    """Delete a segment, the index first; readers that mapped it are not affected."""
    for path in (index_path, index_path.with_suffix(DATA_SUFFIX)):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _open_data(index_path: Path) -> pa.RecordBatch:
    with pa.memory_map(str(index_path.with_suffix(DATA_SUFFIX))) as source:
        return pa.ipc.open_file(source).get_batch(0)


@contextmanager
def _atomic(target: Path) -> Iterator[str]:
    """A temporary name to write to, renamed to the target on success."""
    partial = f"{target}.{os.getpid()}.partial"
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _digest(array: pa.Array) -> str:
    """A checksum over the type, the length and all memory of a column."""
    state = xxhash.xxh3_64(f"{array.type}/{len(array)}/{array.null_count}".encode())
    for buffer in array.buffers():
        state.update(b"-" if buffer is None else buffer)
    return state.hexdigest()
