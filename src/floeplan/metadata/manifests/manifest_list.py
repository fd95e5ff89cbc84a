"""The manifest list of a snapshot as columns: one row per manifest.

All formats give the same table. What a version does not have is filled in as the specification says: content is data,
sequence numbers are 0, and a missing spec id is 0. Counts and row ids that were not written are -1. Relative paths of
format 4 are resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io import FileIO

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.format4 import FORMAT, resolve_all
from floeplan.metadata.avro.decoder import (
    DECODER,
    AvroReader,
    ColumnReader,
    Decoder,
    RawColumn,
    corrupt,
    stored_blocks,
)
from floeplan.metadata.avro.program import Fields, Items, Present, Scalar, compile_program
from floeplan.metadata.files import read_file
from floeplan.metadata.manifests.values import as_text
from floeplan.text import parse_count
from floeplan.vectors import Ints, Mask, all_set, arrow, expand_runs, offsets_of

DATA, DELETES = 0, 1
"""Content of a manifest."""

UNKNOWN = -1
"""A count or row id that was not written."""

MANIFEST_COUNT = "floeplan.manifest-count"
"""Header key for the number of manifests: an Avro file has no other sign of truncation between blocks."""

_LEAST_BYTES = 8
"""The smallest compressed size expected of a row."""

_SUMMARY = Fields(
    (
        (509, Scalar("summary.contains_null")),
        (518, Scalar("summary.contains_nan")),
        (510, Scalar("summary.lower")),
        (511, Scalar("summary.upper")),
    )
)
_NUMBERS = {
    "length": (501, None),
    "spec_id": (502, 0),
    "content": (517, DATA),
    "sequence_number": (515, 0),
    "min_sequence_number": (516, 0),
    "added_snapshot_id": (503, UNKNOWN),
    "added_files": (504, UNKNOWN),
    "existing_files": (505, UNKNOWN),
    "deleted_files": (506, UNKNOWN),
    "added_rows": (512, UNKNOWN),
    "existing_rows": (513, UNKNOWN),
    "deleted_rows": (514, UNKNOWN),
    "first_row_id": (520, UNKNOWN),
}
"""Field id and default of each number; ``None`` makes it required."""

_WANT = Fields(
    (
        (500, Scalar("path")),
        (519, Present("key_metadata")),
        (507, Items("summaries", _SUMMARY)),
        *((field_id, Scalar(name)) for name, (field_id, _) in _NUMBERS.items()),
    )
)


@dataclass(frozen=True, slots=True)
class Summaries:
    """Partition summaries of all manifests, concatenated.

    Those of manifest ``i`` are ``offsets[i]`` to ``offsets[i + 1]``, one per field of its spec in order, or none.
    ``contains_nan`` is -1 where it is unknown.
    """

    offsets: Ints
    contains_null: Mask
    contains_nan: npt.NDArray[np.int8]
    lower: pa.Array
    upper: pa.Array

    @classmethod
    def none(cls, manifests: int) -> Summaries:
        """No manifest has summaries."""
        empty = pa.nulls(0, pa.large_binary())
        offsets = np.zeros(manifests + 1, dtype=np.int64)
        return cls(offsets, np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int8), empty, empty)

    def take(self, rows: Ints) -> Summaries:
        """Those of these manifests, in their order."""
        counts = np.diff(self.offsets)[rows]
        at = expand_runs(self.offsets[rows], counts)
        lower, upper = (pc.take(bounds, arrow(at)) for bounds in (self.lower, self.upper))
        return Summaries(offsets_of(counts), self.contains_null[at], self.contains_nan[at], lower, upper)


class LiveCounts(NamedTuple):
    """What some manifests hold: ``files`` and ``rows`` are live ones, ``None`` where a manifest has no count."""

    manifests: int
    files: int | None
    rows: int | None


@dataclass(frozen=True)
class ManifestListTable:
    """One row per manifest; numbers that were not written are -1 unless the specification gives them a value.

    ``table_location`` is what relative paths in manifests of format 4 are resolved against.
    """

    path: pa.Array
    length: Ints
    spec_id: Ints
    content: Ints
    sequence_number: Ints
    min_sequence_number: Ints
    added_snapshot_id: Ints
    added_files: Ints
    existing_files: Ints
    deleted_files: Ints
    added_rows: Ints
    existing_rows: Ints
    deleted_rows: Ints
    first_row_id: Ints
    has_key_metadata: Mask
    summaries: Summaries
    table_location: str = ""

    @classmethod
    def empty(cls) -> ManifestListTable:
        """No manifests: a table or branch without a snapshot."""
        return cls(
            path=pa.nulls(0, pa.large_string()),
            has_key_metadata=np.zeros(0, np.bool_),
            summaries=Summaries.none(0),
            table_location="",
            **{name: np.zeros(0, dtype=np.int64) for name in _NUMBERS},
        )

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def is_data(self) -> Mask:
        """Which manifests have data files."""
        return np.asarray(self.content != DELETES)

    @cached_property
    def is_live(self) -> Mask:
        """Which manifests may have live files; a count that was not written is not 0."""
        return np.asarray((self.added_files != 0) | (self.existing_files != 0))

    @cached_property
    def by_spec(self) -> Mapping[int, Mask]:
        """The data manifests of each spec; -1 for manifests of several specs, which metadata trees have."""
        return {
            spec: self.is_data & (self.spec_id == spec) for spec in sorted(set(self.spec_id[self.is_data].tolist()))
        }

    @cached_property
    def live_by_spec(self) -> Mapping[int, Mask]:
        """Those of them that may have live files."""
        return {spec: chosen & self.is_live for spec, chosen in self.by_spec.items()}

    @cached_property
    def counts(self) -> tuple[LiveCounts, LiveCounts]:
        """The counts of data manifests and of delete manifests."""
        return self._counts(self.is_data), self._counts(~self.is_data)

    @cached_property
    def spec_counts(self) -> Mapping[int, LiveCounts]:
        """The counts of the data manifests of each spec."""
        return {spec: self._counts(chosen) for spec, chosen in self.by_spec.items()}

    def _counts(self, chosen: Mask) -> LiveCounts:
        files, rows = ((self.added_files, self.existing_files), (self.added_rows, self.existing_rows))

        def total(counts: tuple[Ints, Ints]) -> int | None:
            found = [count[chosen] for count in counts]
            return None if any((count < 0).any() for count in found) else sum(int(count.sum()) for count in found)

        return LiveCounts(int(np.count_nonzero(chosen)), total(files), total(rows))

    def paths(self, rows: Ints) -> list[str]:
        """The locations of these rows, in their order."""
        _, offsets, data = self.path.buffers()
        starts, text = np.frombuffer(offsets, dtype=np.int64)[self.path.offset :], memoryview(data or b"")
        ends = zip(starts[rows].tolist(), starts[rows + 1].tolist(), strict=True)
        return [str(text[start:end], "utf-8") for start, end in ends]

    def take(self, rows: Ints) -> ManifestListTable:
        """The manifests of these rows, in their order."""
        return ManifestListTable(
            path=pc.take(self.path, arrow(rows)),
            has_key_metadata=self.has_key_metadata[rows],
            summaries=self.summaries.take(rows),
            table_location=self.table_location,
            **{name: getattr(self, name)[rows] for name in _NUMBERS},
        )


def read_manifest_list(
    location: str, io: FileIO | None = None, *, table_location: str = "", decoder: type[Decoder] = DECODER
) -> ManifestListTable:
    """Read the manifest list of a snapshot; tables of format 4 need their location for relative paths."""
    return parse_manifest_list(read_file(location, io), location, table_location=table_location, decoder=decoder)


def parse_manifest_list(
    data: bytes, location: str, *, table_location: str = "", decoder: type[Decoder] = DECODER
) -> ManifestListTable:
    """Decode the bytes of a manifest list; ``location`` is for messages."""
    avro = AvroReader()
    header = avro.header(data, location)
    program = compile_program(header.schema, _WANT)
    if not {"path", "length"} <= program.found:
        raise CorruptMetadataError(f"{location} is not a manifest list", context={"file": location})
    # Allocate for as many manifests to a byte as the first block has, as far as that can be.
    first = next(stored_blocks(data, header, location), None)
    expected = 0 if first is None else first.records * len(data) // max(first.size, 1)
    reader = ColumnReader(decoder, expected=min(expected, len(data) // _LEAST_BYTES))
    for block in avro.blocks(data, header, location):
        reader.read(program, block, location)
    count = reader.records
    recorded = parse_count(header.metadata.get(MANIFEST_COUNT, b"").decode("utf-8", "replace"))
    if recorded is not None and count < recorded:
        raise corrupt(
            location, len(data), f"the file ends here after {count} of the {recorded} manifests it should list"
        )
    columns = reader.finish()
    path = pa.nulls(0, pa.large_string())
    if "path" in columns:
        if not all_set(columns["path"].valid):
            raise CorruptMetadataError(f"{location} lacks the path of a manifest", context={"file": location})
        try:
            path = as_text(columns["path"].to_arrow())
        except pa.ArrowInvalid as error:
            raise CorruptMetadataError(
                f"{location} has a path that is not UTF-8", context={"file": location}
            ) from error
        if (parse_count(header.metadata.get("format-version", b"").decode("utf-8", "replace")) or 0) >= FORMAT:
            path = resolve_all(table_location, path)
    return ManifestListTable(
        path=path,
        table_location=table_location,
        has_key_metadata=columns["key_metadata"].valid if "key_metadata" in columns else np.zeros(count, np.bool_),
        summaries=_summaries(columns, count),
        **{name: _numbers(columns, name, count, location) for name in _NUMBERS},
    )


def _numbers(columns: dict[str, RawColumn], name: str, count: int, location: str) -> Ints:
    column = columns.get(name)
    missing = _NUMBERS[name][1]
    if column is None:
        return np.full(count, missing or 0, dtype=np.int64)
    values = column.values.astype(np.int64, copy=False)
    if all_set(column.valid):
        return values
    if missing is None:
        raise CorruptMetadataError(f"{location} lacks the {name} of a manifest", context={"file": location})
    return np.where(column.valid, values, missing)


def _summaries(columns: dict[str, RawColumn], count: int) -> Summaries:
    listed = columns.get("summaries")
    null, nan = columns.get("summary.contains_null"), columns.get("summary.contains_nan")
    lower, upper = columns.get("summary.lower"), columns.get("summary.upper")
    if listed is None or null is None or lower is None or upper is None:
        return Summaries.none(count)
    contains_nan = np.full(len(null), UNKNOWN, dtype=np.int8)
    if nan is not None:
        contains_nan = np.where(nan.valid, nan.values, UNKNOWN).astype(np.int8)
    return Summaries(
        offsets=offsets_of(listed.values.astype(np.int64, copy=False)),
        contains_null=~null.valid | (null.values != 0),
        contains_nan=contains_nan,
        lower=lower.to_arrow(),
        upper=upper.to_arrow(),
    )


def concat_manifest_lists(tables: Sequence[ManifestListTable]) -> ManifestListTable:
    """The rows of several lists, concatenated."""
    parts = [table.summaries for table in tables]
    summaries = Summaries(
        offsets_of(np.concatenate([np.diff(part.offsets) for part in parts])),
        np.concatenate([part.contains_null for part in parts]),
        np.concatenate([part.contains_nan for part in parts]),
        pa.concat_arrays([part.lower for part in parts]),
        pa.concat_arrays([part.upper for part in parts]),
    )
    plain = [*_NUMBERS, "has_key_metadata"]
    return ManifestListTable(
        path=pa.concat_arrays([table.path for table in tables]),
        summaries=summaries,
        table_location=next((table.table_location for table in tables if table.table_location), ""),
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in plain},
    )
