"""Writing manifest lists: what a snapshot consists of.

Rule: a manifest that was just written gets the sequence number of the snapshot, and from format 3 on the row ids it may
give to its files; manifests that are older keep theirs. A data manifest without a first row id then takes the next free
one, and as many ids as it has live rows, as Iceberg Java counts.

Fail-safe: a manifest of another snapshot without sequence number, and missing counts that the format requires,
are errors; 0 written for an unknown count would make readers skip the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.format4 import FORMAT, first_relative
from floeplan.metadata.avro.encoder import ENCODER, Encoder, avro_file, compile_encoder
from floeplan.metadata.files import write_file
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    MANIFEST_COUNT,
    UNKNOWN,
    ManifestListTable,
)
from floeplan.metadata.manifests.schemas import list_layout
from floeplan.metadata.manifests.values import number_array
from floeplan.vectors import Mask

_COUNTS = ("added_files", "existing_files", "deleted_files", "added_rows", "existing_rows", "deleted_rows")


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """The snapshot a manifest list belongs to.

    Attributes:
        format_version: 1 to 4.
        snapshot_id: Its id.
        parent_snapshot_id: The snapshot before it.
        sequence_number: Its sequence number; 0 in format 1.
        first_row_id: From format 3 on the table's next row id, where the snapshot's rows begin.
    """

    format_version: int
    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    first_row_id: int | None = None

    def header(self) -> dict[str, str]:
        """The header of the file."""
        parent, first_row_id = ("null" if n is None else str(n) for n in (self.parent_snapshot_id, self.first_row_id))
        header = {"snapshot-id": str(self.snapshot_id), "parent-snapshot-id": parent}
        if self.format_version > 1:
            header["sequence-number"] = str(self.sequence_number)
        if self.format_version > 2:
            header["first-row-id"] = first_row_id
        return header | {"format-version": str(self.format_version)}


@dataclass(frozen=True, slots=True)
class EncodedList:
    """A manifest list as bytes and as columns; ``next_row_id`` is the first row id that nothing has taken yet."""

    data: bytes
    manifests: ManifestListTable
    next_row_id: int | None


def write_manifest_list(
    location: str,
    manifests: ManifestListTable,
    snapshot: ListedSnapshot,
    *,
    io: FileIO | None = None,
    codec: str = "deflate",
) -> EncodedList:
    """Write the manifest list of a snapshot; the file must not exist yet.

    Args:
        location: Where to write.
        manifests: The manifests in order: rows of ``write_manifest`` and of older lists.
        snapshot: The snapshot.
        io: Where the file goes; local files need none.
        codec: Of the Avro blocks: deflate, zstandard, snappy or null.
    """
    encoded = encode_manifest_list(manifests, snapshot, codec=codec)
    write_file(location, encoded.data, io)
    return encoded


def encode_manifest_list(
    manifests: ManifestListTable,
    snapshot: ListedSnapshot,
    *,
    codec: str = "deflate",
    encoder: type[Encoder] = ENCODER,
) -> EncodedList:
    """The bytes of a manifest list."""
    _check(manifests, snapshot)
    is_new = manifests.sequence_number == UNKNOWN
    has_no_oldest = manifests.min_sequence_number == UNKNOWN
    assigned = replace(
        manifests,
        sequence_number=np.where(is_new, snapshot.sequence_number, manifests.sequence_number),
        min_sequence_number=np.where(has_no_oldest, snapshot.sequence_number, manifests.min_sequence_number),
    )
    next_row_id = None
    if snapshot.format_version > 2 and snapshot.first_row_id is not None:
        takes = (manifests.content == DATA) & (manifests.first_row_id == UNKNOWN)
        rows = np.where(takes, manifests.added_rows + manifests.existing_rows, 0)
        ends = snapshot.first_row_id + np.cumsum(rows)
        assigned = replace(assigned, first_row_id=np.where(takes, ends - rows, manifests.first_row_id))
        next_row_id = int(ends[-1]) if len(ends) else snapshot.first_row_id
    layout = list_layout(snapshot.format_version)
    header = snapshot.header() | {"iceberg.schema": layout.iceberg, MANIFEST_COUNT: str(len(assigned))}
    program = compile_encoder(layout.avro)
    data = avro_file(layout.avro, program, _columns(assigned), len(assigned), header, codec, encoder)
    return EncodedList(data, assigned, next_row_id)


def _check(manifests: ManifestListTable, snapshot: ListedSnapshot) -> None:
    version = snapshot.format_version
    if manifests.has_key_metadata.any():
        _refuse(manifests, manifests.has_key_metadata, "is encrypted, and its key would be lost")
    if version == 1 and (manifests.content == DELETES).any():
        raise UnsupportedError("format 1 has no delete manifests: upgrade the table to format 2")
    if version > 1:
        unknown = np.logical_or.reduce([getattr(manifests, name) == UNKNOWN for name in _COUNTS])
        if unknown.any():
            _refuse(manifests, unknown, "has no file counts: write it again")
        orphans = (manifests.sequence_number == UNKNOWN) & (manifests.added_snapshot_id != snapshot.snapshot_id)
        if orphans.any():
            _refuse(manifests, orphans, "was not added by this snapshot and has no sequence number")
    relative = first_relative(manifests.path) if version >= FORMAT else None
    if relative is not None:
        raise UnsupportedError(
            f"format {version} would take {relative!r} for a relative path, because it has no URI scheme",
            context={"manifest": relative},
        )
    if version > 2 and snapshot.first_row_id is None:
        raise CorruptMetadataError(f"a manifest list of format {version} needs the table's next row id")


def _refuse(manifests: ManifestListTable, wrong: Mask, why: str) -> None:
    path = manifests.path[int(np.argmax(wrong))].as_py()
    raise CorruptMetadataError(f"manifest {path} {why}", context={"manifest": path})


def _columns(manifests: ManifestListTable) -> dict[str, pa.Array]:
    """The columns by the names they have in Avro."""
    summaries = manifests.summaries
    partitions = pa.StructArray.from_arrays(
        [
            pa.array(summaries.contains_null),
            pa.array(summaries.contains_nan == 1, mask=summaries.contains_nan == UNKNOWN),
            summaries.lower,
            summaries.upper,
        ],
        names=["contains_null", "contains_nan", "lower_bound", "upper_bound"],
    )
    columns = {
        "manifest_path": manifests.path,
        "manifest_length": number_array(manifests.length),
        "partition_spec_id": number_array(manifests.spec_id),
        "partitions": pa.LargeListArray.from_arrays(pa.array(summaries.offsets), partitions),
    }
    for name in ("content", "sequence_number", "min_sequence_number", "added_snapshot_id"):
        columns[name] = number_array(getattr(manifests, name))
    for name in (*_COUNTS, "first_row_id"):
        numbers = getattr(manifests, name)
        columns[f"{name}_count" if name in _COUNTS else name] = number_array(numbers, numbers != UNKNOWN)
    return columns
