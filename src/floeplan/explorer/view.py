"""The current snapshot of a table with the manifest entries of its files, read once for all pages.

Only metadata is read. A view is immutable; a newer snapshot is another view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.errors import UnknownFileError
from floeplan.explorer.table_map import TableMap, axis_of, draw_map, time_column
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable
from floeplan.partition.fields import SourceTypes, source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.scan.projection import PartitionNames
from floeplan.snapshot.passes import ScanDeletes, match
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.vectors import Ints

_NAMES = frozenset({"snapshot_id", "key_metadata", "first_row_id", "sort_order_id"})
_FILE = ("file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "sequence_number", "snapshot_id")


@dataclass(frozen=True)
class TableView:
    """The files of a table's current snapshot, and the map of them."""

    target: ScanTarget
    reader: SnapshotReader
    sources: SourceTypes
    time: Column | None
    deletes: ScanDeletes
    files: EntriesTable
    delete_counts: Ints

    @classmethod
    def of(cls, table: Table) -> TableView:
        """Read the metadata of a table."""
        target = resolve_target(table)
        reader = SnapshotReader.open(table, target.snapshot, cache=True)
        sources = source_types(target.schema, target.metadata.schemas)
        time = time_column(target.metadata, target.schema)
        deletes = reader.deletes()
        stats = deletes.key_columns | (frozenset() if time is None else {time.field_id})
        files = reader.entries(reader.manifest_rows(DATA), EntryColumns(_NAMES, stats=stats))
        counts = match(files, deletes, reader.union, sources).counts
        return cls(target, reader, sources, time, deletes, files, counts)

    @property
    def manifests(self) -> ManifestListTable:
        """The manifest list."""
        return self.reader.manifests

    @property
    def union(self) -> UnionPartitionType:
        """The union of the partition fields of all specs."""
        return self.reader.union

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.target.name

    @property
    def table(self) -> Table:
        """The loaded table."""
        return self.target.table

    @cached_property
    def map(self) -> TableMap:
        """Partitions over time."""
        axis = axis_of(self.files, self.time, self.union)
        time_id = self.time.field_id if self.time is not None and axis.kind == "time" else None
        return draw_map(self.files, self.union, axis, time_id, self.delete_counts)

    @cached_property
    def _ordinals(self) -> tuple[Ints, Ints]:
        """Files by manifest and ordinal: sorted keys, and the row of each."""
        keys = ordinal_keys(self.files)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def rows_of(self, entries: EntriesTable) -> Ints:
        """The rows of entries that a plan of the same snapshot kept."""
        keys, order = self._ordinals
        return order[np.searchsorted(keys, ordinal_keys(entries))]

    def row_of_path(self, path: str) -> int:
        """The row of a data file.

        Raises:
            UnknownFileError: The snapshot has no such file.
        """
        row: int = pc.index(self.files.path, pa.scalar(path, self.files.path.type)).as_py()
        if row < 0:
            raise UnknownFileError(f"the current snapshot has no data file {path}", context={"file": path})
        return row

    def file_facts(self, rows: Ints) -> list[dict[str, Any]]:
        """Documents of a few files."""
        names = PartitionNames(self.union, self.files.partition_types)
        picked = self.files.take(rows).table.to_pylist()
        return [
            _facts(entry) | {"partition": names.readable(entry["spec_id"], entry), "deletes": count}
            for entry, count in zip(picked, self.delete_counts[rows].tolist(), strict=True)
        ]

    def with_statistics(self, row: int, field_ids: frozenset[int]) -> EntriesTable:
        """One file with the statistics of some columns, read from its manifest."""
        manifest, ordinal = int(self.files.ints("manifest")[row]), int(self.files.ints("ordinal")[row])
        columns = EntryColumns(_NAMES, stats=field_ids)
        entries = self.reader.entries(np.array([manifest]), columns)
        return entries.filter(entries.ints("ordinal") == ordinal)


def ordinal_keys(entries: EntriesTable) -> Ints:
    """One number per entry: its manifest and its ordinal in it."""
    return (entries.ints("manifest") << 32) | entries.ints("ordinal")


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in _FILE}
