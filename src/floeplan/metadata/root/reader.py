"""Reading a root manifest: as the manifests it stands for, so that a plan is made from it as from them.

Rule: row groups are manifests. ``manifests`` lists them with their partition summaries, ``read_entries`` reads the
requested columns of those that are left, with the signature and the result of
``floeplan.metadata.manifests.reader.read_entries``. Fail-safe: a root manifest of another table or snapshot, or of
other
partition fields, is refused, for its entries would be taken for the snapshot's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import BadInputError, CorruptMetadataError, UnknownFileError
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.assemble import map_type, number_array, partition_arrow_type
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import ManifestListTable, parse_manifest_list
from floeplan.metadata.manifests.new_entries import ENTRY_TYPES
from floeplan.metadata.manifests.typed_values import to_physical
from floeplan.metadata.root.layout import LEAF_OF_MAP, PLAIN, RootHeader, is_empty, pack_map
from floeplan.partition.union import UnionPartitionType
from floeplan.text import one_line
from floeplan.vectors import Ints

_KEYED = {
    "value_count.": "value_count",
    "null_count.": "null_count",
    "nan_count.": "nan_count",
    "lower.": "lower_bytes",
    "upper.": "upper_bytes",
    "column_size.": "column_size",
}
"""The leaf of ``stats`` behind each column of statistics by key."""


class RootManifest:
    """An open root manifest."""

    def __init__(self, location: str, io: FileIO | None = None) -> None:
        self.location = location
        path = local_path(location)
        try:
            source = path if path is not None else (io or load_file_io(location=location)).new_input(location).open()
            self._file = pq.ParquetFile(source, page_checksum_verification=True)
        except FileNotFoundError as error:
            raise UnknownFileError(f"no root manifest {location}", context={"file": location}) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._corrupt("is not a Parquet file", error) from error
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
        """Refuse to stand for another snapshot than the one that was written."""
        if (self.header.table_uuid, self.header.snapshot_id) != (str(metadata.table_uuid), snapshot_id):
            raise BadInputError(
                f"{self.location} is the root manifest of snapshot {self.header.snapshot_id} of table "
                f"{self.header.table_uuid}, not of snapshot {snapshot_id} of {metadata.table_uuid}: write it again",
                context={"file": self.location, "snapshot_id": snapshot_id},
            )

    def entries(self, union: UnionPartitionType) -> EntriesTable:
        """Every entry, whole."""
        return self.read_entries(self.manifests, union, EntryColumns(WHOLE))

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
        """As ``floeplan.metadata.manifests.reader.read_entries``; manifests are row groups, and the file is
        open already.
        """
        del io, max_workers
        self._check_partition(partition)
        groups = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        try:
            return self._entries(groups, columns.column_names(self.header.partition))
        except (pa.ArrowException, OSError, LookupError, TypeError) as error:
            raise self._corrupt("is a damaged root manifest", error) from error

    def _entries(self, groups: Ints, names: Collection[str]) -> EntriesTable:
        table = self._read(groups, names)
        counts = np.array([self._file.metadata.row_group(int(g)).num_rows for g in groups], dtype=np.int64)
        manifest = np.repeat(groups, counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        made = {
            "manifest": number_array(manifest.astype(np.int32), None),
            "ordinal": number_array((np.arange(len(manifest)) - first).astype(np.int32), None),
            "spec_id": _plain(table, "spec_id"),
        }
        made |= {name: self._column(table, name) for name in names}
        types = {key: type_ for key, (_, type_) in self.header.partition.items()}
        return EntriesTable(pa.table(made), types)

    def _check_partition(self, union: UnionPartitionType) -> None:
        known = {key: name for key, (name, _) in self.header.partition.items()}
        if known != {field.id: field.name for field in union.fields}:
            raise BadInputError(
                f"the partition fields of the table have changed since {self.location} was written: write it again",
                context={"file": self.location},
            )

    def _read(self, groups: Ints, names: Iterable[str]) -> pa.Table:
        """The columns of the file that hold the requested columns."""
        paths = {path for name in ("spec_id", *names) for path in self._paths(name)}
        if not len(groups):
            return self._file.schema_arrow.empty_table()
        return self._file.read_row_groups(groups.tolist(), columns=sorted(paths)).combine_chunks()

    def _paths(self, name: str) -> list[str]:
        if name in PLAIN:
            return [name]
        if name in LEAF_OF_MAP:
            return ["empty_maps", *(f"stats.{column}.{LEAF_OF_MAP[name]}" for column in self.header.columns)]
        prefix, field_id = _split(name)
        if prefix == partition_column(""):
            return [f"partition.{self.header.partition[field_id][0]}"]
        column = self._stat_name(field_id)
        return [] if column is None else [f"stats.{column}.{_KEYED[prefix]}"]

    def _stat_name(self, field_id: int) -> str | None:
        return next((name for name, known in self.header.columns.items() if known == field_id), None)

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        if name in PLAIN:
            return _plain(table, name)
        if name in LEAF_OF_MAP:
            return self._map(table, name)
        prefix, field_id = _split(name)
        if prefix == partition_column(""):
            label, type_ = self.header.partition[field_id]
            values = _nested(table, "partition", label)
            known = not pa.types.is_null(values.type)
            return to_physical(type_, values) if known else pa.nulls(len(values), partition_arrow_type(type_))
        column = self._stat_name(field_id)
        if column is None:
            type_ = pa.large_binary() if prefix in ("lower.", "upper.") else pa.int64()
            return pa.nulls(table.num_rows, type_)
        return _nested(table, "stats", column, _KEYED[prefix])

    def _map(self, table: pa.Table, name: str) -> pa.Array:
        leaf, value_type = LEAF_OF_MAP[name], map_type(name).value_type[1].type
        columns = {key: _nested(table, "stats", col, leaf).cast(value_type) for col, key in self.header.columns.items()}
        empty = is_empty(_plain(table, "empty_maps").to_numpy(zero_copy_only=False), name)
        return pack_map(name, columns, empty)


def read_root(location: str, union: UnionPartitionType, io: FileIO | None = None) -> EntriesTable:
    """Every entry of a root manifest, whole."""
    return RootManifest(location, io).entries(union)


def _split(name: str) -> tuple[str, int]:
    prefix, _, field_id = name.rpartition(".")
    return f"{prefix}.", int(field_id)


def _plain(table: pa.Table, name: str) -> pa.Array:
    array = _whole(table.column(name))
    return array.cast(ENTRY_TYPES[name]) if name in ENTRY_TYPES else array


def _nested(table: pa.Table, *path: str) -> pa.Array:
    array = _whole(table.column(path[0]))
    for name in path[1:]:
        array = pc.struct_field(array, name)
    return array


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
