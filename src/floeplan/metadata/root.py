"""The columnar root manifest: all live entries of a snapshot, data and delete files of all specs, in one Parquet file.

=====================================  ============================================================================
``status`` … ``content_size_in_bytes``  the fields of an entry, named as in manifests; the file has live entries only
``spec_id``, ``manifest_path``          the entry's spec, and the manifest it was found in
``partition.<field>``                   the union partition tuple: null where the entry's spec does not have the field
``partition_ranges.<field>``            ``lower`` and ``upper`` of the partition function's output, for every field
``stats.<column>``                      ``lower`` and ``upper`` in the type of the column, the same as the bytes they
                                        were written in, ``value_count``, ``null_count``, ``nan_count``, ``column_size``
``empty_maps``                          which maps of statistics are there and empty
=====================================  ============================================================================

Rows are sorted by content, spec and partition, and a row group never mixes data with deletes or two specs: a row group
is a manifest. The footer carries the manifest list of the row groups, so a plan is made from it as from a manifest
list. ``floeplan.metadata.root_writer`` writes the file; this module reads it.

Fail-safe: a root manifest of another table, snapshot or set of partition fields is refused, because its entries would
be taken for the snapshot's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from floeplan.errors import BadInputError, CorruptMetadataError, FloeplanError, UnknownFileError
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.entries import (
    ALL_COLUMNS,
    ENTRY_TYPES,
    STAT_MAPS,
    STATS,
    EntriesTable,
    EntryColumns,
    Origin,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import ManifestListTable, parse_manifest_list
from floeplan.metadata.manifests.values import parse_type, partition_arrow_type, to_physical
from floeplan.metadata.v4.manifest_file import open_parquet
from floeplan.metadata.v4.stats import pack_map
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.partition.union import UnionPartitionType
from floeplan.text import one_line
from floeplan.vectors import Ints

HEADER_KEY = b"floeplan.root"
VERSION = 1

PLAIN = ("spec_id", *sorted(ALL_COLUMNS))
"""Columns that are stored as entries have them."""

LEAF_OF_MAP = {
    "column_sizes": "column_size",
    "value_counts": "value_count",
    "null_value_counts": "null_count",
    "nan_value_counts": "nan_count",
    "lower_bounds": "lower_bytes",
    "upper_bounds": "upper_bytes",
}
"""The leaf of ``stats.<column>`` with the values of each map of statistics."""

_LEAF_OF_STAT = {name: LEAF_OF_MAP[source] for name, source in {**STATS, "column_size": "column_sizes"}.items()}
"""The same for each column of statistics by field id."""


@dataclass(frozen=True, slots=True)
class RootHeader:
    """The header in the footer of the file.

    Attributes:
        table_uuid: The table.
        snapshot_id: The snapshot; none for a table without data.
        partition: Name and type of each field of the union tuple by its id.
        columns: Field ids of the columns in ``stats`` by name.
        manifest_list: The manifest list of the row groups, as Avro.
    """

    table_uuid: str
    snapshot_id: int | None
    partition: Mapping[int, tuple[str, PrimitiveType]]
    columns: Mapping[str, int]
    manifest_list: bytes

    def to_json(self) -> str:
        """The JSON in the footer."""
        return json.dumps(
            {
                "version": VERSION,
                "table-uuid": self.table_uuid,
                "snapshot-id": self.snapshot_id,
                "partition": [{"id": key, "name": n, "type": str(t)} for key, (n, t) in self.partition.items()],
                "columns": self.columns,
                "manifest-list": base64.b64encode(self.manifest_list).decode(),
            }
        )

    @classmethod
    def parse(cls, metadata: Mapping[bytes, bytes] | None, location: str) -> RootHeader:
        """From the footer's key-value pairs."""
        text = (metadata or {}).get(HEADER_KEY)
        if text is None:
            raise CorruptMetadataError(f"{location} is not a root manifest", context={"file": location})
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise CorruptMetadataError(
                    f"{location} is a root manifest of version {found['version']}, not {VERSION}: write it again",
                    context={"file": location},
                )
            return cls(
                table_uuid=found["table-uuid"],
                snapshot_id=found["snapshot-id"],
                partition={field["id"]: (field["name"], parse_type(field["type"])) for field in found["partition"]},
                columns=found["columns"],
                manifest_list=base64.b64decode(found["manifest-list"]),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptMetadataError(
                f"the header of the root manifest {location} is damaged: {error}", context={"file": location}
            ) from error


def open_root(location: str, metadata: TableMetadata, io: FileIO | None = None) -> RootManifest | MetadataTree:
    """Open the root of a metadata tree, or a root manifest of this layout; the footer shows which it is."""
    file = _open(location, io)
    if HEADER_KEY in (file.metadata.metadata or {}):
        return RootManifest(location, io, file)
    return MetadataTree(location, metadata, io, file)


def _open(location: str, io: FileIO | None) -> pq.ParquetFile:
    folder = Path(local_path(location) or "")
    if local_path(location) is not None and folder.is_dir():
        found = next((f", {path}" for path in sorted(folder.glob("*-root.parquet"))), "")
        raise BadInputError(f"{location} is a folder: give the root manifest in it{found}", context={"file": location})
    try:
        return open_parquet(location, io)
    except FloeplanError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise UnknownFileError(f"no root manifest {location}", context={"file": location}) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptMetadataError(
            f"{location} is not a Parquet file: {one_line(error)}", context={"file": location}
        ) from error


class RootManifest:
    """An open root manifest."""

    def __init__(self, location: str, io: FileIO | None = None, file: pq.ParquetFile | None = None) -> None:
        self.location = location
        self._file = _open(location, io) if file is None else file
        self.header = RootHeader.parse(self._file.metadata.metadata, location)
        listed = self.header.manifest_list
        self.manifests = parse_manifest_list(listed, location) if listed else ManifestListTable.empty()
        if len(self.manifests) != self._file.num_row_groups and self._file.metadata.num_rows:
            raise CorruptMetadataError(
                f"{location} has {self._file.num_row_groups} row groups, but lists {len(self.manifests)}",
                context={"file": location},
            )

    def _corrupt(self, what: str, error: Exception) -> CorruptMetadataError:
        return CorruptMetadataError(f"{self.location} {what}: {one_line(error)}", context={"file": self.location})

    def check(self, metadata: TableMetadata, snapshot_id: int | None) -> None:
        """Refuse to be used for another snapshot than the one that was written."""
        if (self.header.table_uuid, self.header.snapshot_id) != (str(metadata.table_uuid), snapshot_id):
            raise BadInputError(
                f"{self.location} is the root manifest of snapshot {self.header.snapshot_id} of table "
                f"{self.header.table_uuid}, not of snapshot {snapshot_id} of {metadata.table_uuid}: write it again",
                context={"file": self.location, "snapshot_id": snapshot_id},
            )

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
        """As ``floeplan.metadata.manifests.reader.read_entries``; manifests are row groups of the open file."""
        del io, max_workers
        if {key: name for key, (name, _) in self.header.partition.items()} != {f.id: f.name for f in partition.fields}:
            raise BadInputError(
                f"the partition fields of the table have changed since {self.location} was written: write it again",
                context={"file": self.location},
            )
        groups = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        names = columns.column_names(self.header.partition)
        try:
            paths = sorted({".".join(path) for name in names for path in self._paths(name)})
            table = self._file.schema_arrow.empty_table()
            if len(groups):
                table = self._file.read_row_groups(groups.tolist(), columns=paths).combine_chunks()
            counts = np.array([self._file.metadata.row_group(int(g)).num_rows for g in groups], dtype=np.int64)
            made = {name: self._column(table, name) for name in names}
            made |= Origin.of(manifests, groups, counts).columns(np.asarray(made["status"]))
        except (pa.ArrowException, OSError, LookupError, TypeError) as error:
            raise self._corrupt("is a damaged root manifest", error) from error
        return EntriesTable(pa.table(made), {key: type_ for key, (_, type_) in self.header.partition.items()})

    def _paths(self, name: str) -> list[tuple[str, ...]]:
        """The columns of the file that hold a column of entries; none for statistics that no file has."""
        if name in PLAIN:
            return [(name,)]
        if name in LEAF_OF_MAP:
            return [("empty_maps",), *(("stats", column, LEAF_OF_MAP[name]) for column in self.header.columns)]
        prefix, _, field_id = name.rpartition(".")
        if name == partition_column(field_id):
            return [("partition", self.header.partition[int(field_id)][0])]
        return [("stats", c, _LEAF_OF_STAT[prefix]) for c, key in self.header.columns.items() if key == int(field_id)]

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        found = [_leaf(table, path) for path in self._paths(name)]
        if name in PLAIN:
            return found[0].cast(ENTRY_TYPES[name])
        if name in LEAF_OF_MAP:
            # As columns, a missing and an empty map look alike; a bit distinguishes them.
            is_empty = np.asarray((found[0].to_numpy() >> STAT_MAPS.index(name)) & 1, dtype=np.bool_)
            return pack_map(name, dict(zip(self.header.columns.values(), found[1:], strict=True)), is_empty)
        prefix, _, field_id = name.rpartition(".")
        if name == partition_column(field_id):
            type_ = self.header.partition[int(field_id)][1]
            known = not pa.types.is_null(found[0].type)
            return to_physical(type_, found[0]) if known else pa.nulls(len(found[0]), partition_arrow_type(type_))
        if found:
            return found[0]
        return pa.nulls(table.num_rows, pa.large_binary() if prefix in ("lower", "upper") else pa.int64())


def _leaf(table: pa.Table, path: tuple[str, ...]) -> pa.Array:
    column = table.column(path[0])
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    for name in path[1:]:
        array = pc.struct_field(array, name)
    return array
