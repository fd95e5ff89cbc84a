"""A cache of decoded manifests on local disk: a plan decodes only what changed since the last one.

Manifests never change, so decoded columns stay valid; only space is limited. The cache holds columns, not manifests: a
plan that needs the bounds of one more column decodes that column alone.

Rule: the result equals that of ``read_entries``. Local manifests that are smaller than the indexes of the cache are
read directly, because the lookup would cost more.

Fail-safe: a segment that cannot be used is removed and its manifests are decoded again; a cache that cannot be written
is not used. Processes may share a folder: files are written under temporary names and renamed, and a file that
disappears is a cache miss.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from pyiceberg.io import FileIO
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan.metadata.cache.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    UNKNOWN_TYPE,
    BadSegment,
    Segment,
    concat_columns,
    manifest_index,
    merge_segments,
    open_segment,
    remove_segment,
    write_segment,
)
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.assemble import number_array
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.typed_values import parse_type
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints

VERSION = 3
"""Incremented whenever the meaning of decoded columns changes."""

DEFAULT_MAX_BYTES = 2 * 1024**3
MAX_SEGMENTS = 16
"""The most segments of one table before those with the same columns are merged."""

SMALL_INDEXES = 128 * 1024
"""Indexes up to this size (about 1,000 manifests) are always looked up."""

_ATTEMPTS = 3
_ABANDONED_SECONDS = 3600
_NO_PARTITION = UnionPartitionType((), {})


def cache_directory() -> Path:
    """``$FLOEPLAN_CACHE``, or a folder in the user's cache directory."""
    if chosen := os.environ.get("FLOEPLAN_CACHE"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "floeplan"


@dataclass(frozen=True, slots=True)
class _Source:
    """A segment, and the index in it of each requested manifest, or -1."""

    segment: Segment
    at: Ints


class EntriesCache:
    """Reads manifest entries through a folder of segments."""

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
        """As ``floeplan.metadata.manifests.reader.read_entries``."""
        chosen = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        if not len(chosen):
            return read_entries(manifests, partition, columns, rows=chosen)
        folder = self.directory / _table_key(manifests.paths(chosen[:1])[0], partition)
        if _smaller_than_indexes(manifests, chosen, folder):
            return read_entries(manifests, partition, columns, rows=chosen, io=io, max_workers=max_workers)
        wanted = manifests.take(chosen)
        names = columns.column_names(field.id for field in partition.fields)
        for _ in range(_ATTEMPTS):
            sources = [_Source(segment, segment.find(wanted)) for segment in self._open(folder)]
            lacking, missing = _lacking(sources, names, len(wanted))
            if len(missing):
                few = columns.only(lacking)
                part = read_entries(wanted, partition, few, rows=missing, io=io, max_workers=max_workers)
                sources.append(self._keep(folder, part, wanted, missing, lacking))
            with suppress(BadSegment, pa.ArrowException):
                return _assemble(sources, names, manifests, chosen, partition if columns.partition else _NO_PARTITION)
        return read_entries(manifests, partition, columns, rows=chosen, io=io, max_workers=max_workers)

    def _open(self, folder: Path) -> list[Segment]:
        """The segments of a table, the most recently used first."""
        segments = []
        for path in _by_age(folder)[::-1]:
            with suppress(BadSegment):
                if path not in self._segments:
                    self._segments[path] = open_segment(path)
                segments.append(self._segments[path])
        return segments

    def _keep(
        self, folder: Path, part: EntriesTable, wanted: ManifestListTable, rows: Ints, names: Sequence[str]
    ) -> _Source:
        """Return decoded columns as a source, and write them to the cache if possible."""
        counts = np.bincount(part.ints("manifest"), minlength=len(wanted))[rows]
        types = {key: str(type_) for key, type_ in part.partition_types.items()}
        columns = {name: part.array(name) for name in names}
        segment = Segment.in_memory(columns, manifest_index(wanted.take(rows), counts), types)
        with suppress(OSError, pa.ArrowException, BadSegment):
            write_segment(folder, segment)
            self._merge(folder)
            self._evict()
        at = np.full(len(wanted), -1, dtype=np.int64)
        at[rows] = np.arange(len(rows))
        return _Source(segment, at)

    def _merge(self, folder: Path) -> None:
        """Merge segments with the same columns when there are many."""
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
        folders = [Path(entry.path) for entry in os.scandir(self.directory) if entry.is_dir()]
        for folder in folders:
            _sweep(folder)
        indexes = [path for folder in folders for path in _by_age(folder)]
        sizes = {path: _size(path) + _size(path.with_suffix(DATA_SUFFIX)) for path in indexes}
        total = sum(sizes.values())
        for path in sorted(indexes, key=_last_use)[:-1]:
            if total <= self.max_bytes:
                return
            total -= sizes[path]
            self._drop(path)

    def _drop(self, index_path: Path) -> None:
        remove_segment(index_path)
        self._segments.pop(index_path, None)


def _lacking(sources: Sequence[_Source], names: Sequence[str], manifests: int) -> tuple[list[str], Ints]:
    """The columns that no source has for some manifest, and the manifests that lack any column."""
    lacking, missing = [], np.zeros(manifests, dtype=np.bool_)
    for holders, shared in _by_holders(sources, names).items():
        absent = np.ones(manifests, dtype=np.bool_)
        for holder in holders:
            absent &= sources[holder].at < 0
        if absent.any():
            lacking += shared
            missing |= absent
    return [name for name in names if name in set(lacking)], np.flatnonzero(missing)


def _by_holders(sources: Sequence[_Source], names: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    """Columns grouped by the sources that have them; each group is located once."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in names:
        groups[tuple(at for at, source in enumerate(sources) if name in source.segment.checksums)].append(name)
    return groups


def _assemble(
    sources: Sequence[_Source],
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
        source_of, starts, these = _locate([sources[holder] for holder in holders], len(rows))
        if counts is not None and not np.array_equal(counts, these):
            raise BadSegment("two segments disagree about the entries of a manifest")
        counts = these
        pieces = [(holders[s], start, end) for s, start, end in _runs(source_of, starts, these)]
        used |= {holder for holder, _, _ in pieces}
        for name in shared:
            found[name] = concat_columns([sources[holder].segment.column(name)[a:b] for holder, a, b in pieces])
    assert counts is not None
    for holder in used:
        sources[holder].segment.used()
    manifest = np.repeat(rows, counts)
    ordinal = np.arange(len(manifest)) - np.repeat(np.cumsum(counts) - counts, counts)
    identity = {
        "manifest": number_array(manifest.astype(np.int32), None),
        "ordinal": number_array(ordinal.astype(np.int32), None),
        "spec_id": number_array(manifests.spec_id[manifest].astype(np.int32), None),
    }
    types = _types(partition, set(manifests.spec_id[manifest].tolist()), [sources[at].segment for at in sorted(used)])
    untyped = [partition_column(key) for key, type_ in types.items() if isinstance(type_, UnknownType)]
    return EntriesTable(pa.table(identity | found | dict.fromkeys(untyped, pa.nulls(len(manifest)))), types)


def _locate(sources: Sequence[_Source], manifests: int) -> tuple[Ints, Ints, Ints]:
    """For each manifest the first source that has it, and its first row and number of entries there."""
    source_of = np.full(manifests, -1, dtype=np.int64)
    starts, counts = np.zeros(manifests, dtype=np.int64), np.zeros(manifests, dtype=np.int64)
    for number, source in enumerate(sources):
        found = (source_of < 0) & (source.at >= 0)
        source_of[found] = number
        starts[found] = source.segment.starts[source.at[found]]
        counts[found] = source.segment.counts[source.at[found]]
    return source_of, starts, counts


def _runs(source_of: Ints, starts: Ints, counts: Ints) -> list[tuple[int, int, int]]:
    """Contiguous row ranges of one source: (source, first row, end)."""
    ends = starts + counts
    breaks = np.flatnonzero((source_of[1:] != source_of[:-1]) | (starts[1:] != ends[:-1])) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(starts)]]) - 1
    return list(zip(source_of[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True))


def _types(partition: UnionPartitionType, specs: set[int], segments: Sequence[Segment]) -> dict[int, PrimitiveType]:
    """Types of the partition columns; where the source column was dropped, the type comes from the manifests."""
    types = {field.id: field.bound.column.type for field in partition.fields}
    for field in partition.fields:
        if isinstance(types[field.id], UnknownType) and specs & field.positions.keys():
            known = [s.types[field.id] for s in segments if s.types.get(field.id, UNKNOWN_TYPE) != UNKNOWN_TYPE]
            types[field.id] = parse_type(known[0]) if known else UnknownType()
    return types


def _table_key(manifest: str, partition: UnionPartitionType) -> str:
    """A folder per table and set of partition fields: other specs give partition columns another meaning."""
    fields = [[f.id, f.field_id, str(f.bound.column.type), sorted(f.positions.items())] for f in partition.fields]
    home = manifest.rpartition("/")[0]
    return xxhash.xxh3_128_hexdigest(json.dumps([VERSION, home, fields]).encode())


def _smaller_than_indexes(manifests: ManifestListTable, rows: Ints, folder: Path) -> bool:
    """Whether manifests are local and smaller than the indexes of a folder."""
    indexes = sum(map(_size, _by_age(folder)))
    if indexes <= max(SMALL_INDEXES, int(manifests.length[rows].sum())):
        return False
    return all(local_path(path) is not None for path in manifests.paths(rows))


def _by_age(folder: Path) -> list[Path]:
    """The indexes in a folder, least recently used first."""
    try:
        found = [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(INDEX_SUFFIX)]
    except OSError:
        return []
    return sorted(found, key=_last_use)


def _sweep(folder: Path) -> None:
    """Remove files of writers that did not finish their index."""
    for path in folder.iterdir():
        abandoned = path.suffix != INDEX_SUFFIX and not path.with_suffix(INDEX_SUFFIX).exists()
        if abandoned and time.time() - _last_use(path) > _ABANDONED_SECONDS:
            path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
