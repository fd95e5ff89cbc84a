"""Metadata-only tables written by Floeplan's manifest writer, and entries as values to compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType
from pyroaring import BitMap64

from floeplan.format4 import manifest_suffix
from floeplan.metadata.manifests.entries import ENTRY_TYPES, STAT_MAPS, Content, EntriesTable, new_entries
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.delete_files import encode_deletion_vector
from floeplan.write.target import WriteTarget

SNAPSHOT_ID = 70
SEQUENCE_NUMBER = 9


@dataclass(frozen=True)
class Layout:
    """Schema, specs and format version of a generated table."""

    schema: Schema
    specs: tuple[PartitionSpec, ...]
    version: int = 2
    older_schemas: tuple[Schema, ...] = ()

    @property
    def union(self) -> UnionPartitionType:
        return UnionPartitionType.of(self.specs, source_types(self.schema, self.older_schemas))

    def spec(self, spec_id: int) -> PartitionSpec:
        return next(spec for spec in self.specs if spec.spec_id == spec_id)

    def uri(self, path: Path) -> str:
        """The path as metadata have it: without a scheme, format 4 would take it for a relative one."""
        return str(path) if self.version < 4 else f"file://{path}"

    def entries(self, rows: Sequence[dict[str, Any]]) -> EntriesTable:
        """Entries from rows; maps are dicts, missing values get the default of an ordinary file."""
        given = [ORDINARY | {"file_path": f"f{n}.parquet"} | row for n, row in enumerate(rows)]
        names = sorted({"file_path", *(name for row in given for name in row)})
        columns = {name: [row.get(name) for row in given] for name in names}
        return new_entries({name: _array(name, values) for name, values in columns.items()}, self.union)

    def write(self, folder: Path, entries: EntriesTable, **options: Any) -> ManifestListTable:
        """Write a manifest per content and spec; returns the rows of the manifest list."""
        listed = []
        is_data = entries.content == Content.DATA
        kinds = set(zip(entries.spec_id.tolist(), is_data.tolist(), strict=True))
        for number, (spec_id, data) in enumerate(sorted(kinds)):
            part = entries.filter((entries.spec_id == spec_id) & (is_data == data))
            written = write_manifest(
                self.uri(folder / f"m{number}-{len(list(folder.glob('*')))}.{manifest_suffix(self.version)}"),
                part,
                self.spec(spec_id),
                self.schema,
                union=self.union,
                format_version=self.version,
                content=DATA if data else DELETES,
                snapshot_id=SNAPSHOT_ID,
                **options,
            )
            listed.append(written)
        return concat_manifest_lists(listed) if listed else ManifestListTable.empty()

    def write_table(self, folder: Path, entries: EntriesTable) -> Table:
        """Write a table with one snapshot of these entries."""
        folder.mkdir(parents=True, exist_ok=True)
        location = folder / "list.avro"
        first_row_id = 0 if self.version > 2 else None
        sequence_number = SEQUENCE_NUMBER if self.version > 1 else 0
        snapshot = ListedSnapshot(self.version, SNAPSHOT_ID, None, sequence_number, first_row_id)
        written = write_manifest_list(self.uri(location), self.write(folder, entries), snapshot)
        path = folder / "v1.metadata.json"
        path.write_text(json.dumps(self.metadata(folder, location, written.next_row_id)))
        return StaticTable.from_metadata(str(path))

    def metadata(self, folder: Path, manifest_list: Path, next_row_id: int | None) -> dict[str, Any]:
        snapshot: dict[str, Any] = {
            "snapshot-id": SNAPSHOT_ID,
            "timestamp-ms": 1_700_000_000_000,
            "manifest-list": self.uri(manifest_list),
            "summary": {"operation": "append"},
            "schema-id": self.schema.schema_id,
        }
        rows = {}
        if self.version > 1:
            snapshot["sequence-number"] = SEQUENCE_NUMBER
        if self.version > 2:
            snapshot |= {"first-row-id": 0, "added-rows": next_row_id}
            rows = {"next-row-id": next_row_id}
        ids = [field.field_id for spec in self.specs for field in spec.fields]
        return rows | {
            "format-version": self.version,
            "table-uuid": "6f1c2b9e-0000-4000-8000-000000000001",
            "location": self.uri(folder),
            "last-sequence-number": SEQUENCE_NUMBER,
            "last-updated-ms": 1_700_000_000_000,
            "last-column-id": self.schema.highest_field_id,
            "schema": json.loads(self.schema.model_dump_json()),
            "schemas": [json.loads(s.model_dump_json()) for s in (*self.older_schemas, self.schema)],
            "current-schema-id": self.schema.schema_id,
            "partition-spec": [json.loads(f.model_dump_json()) for f in self.specs[-1].fields],
            "partition-specs": [json.loads(spec.model_dump_json()) for spec in self.specs],
            "default-spec-id": self.specs[-1].spec_id,
            "last-partition-id": max(ids, default=999),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": [snapshot],
            "current-snapshot-id": SNAPSHOT_ID,
            "refs": {"main": {"snapshot-id": SNAPSHOT_ID, "type": "branch"}},
        }


ORDINARY: dict[str, Any] = {
    "spec_id": 0,
    "status": 1,
    "content": 0,
    "file_format": "PARQUET",
    "record_count": 10,
    "file_size_in_bytes": 1000,
    "snapshot_id": SNAPSHOT_ID,
}


def _array(name: str, values: list[Any]) -> pa.Array:
    if name in STAT_MAPS:
        values = [None if v is None else [{"key": k, "value": x} for k, x in v.items()] for v in values]
    return pa.array(values, ENTRY_TYPES[name]) if name in ENTRY_TYPES else pa.array(values)


def rows_of(entries: EntriesTable) -> dict[str, dict[str, Any]]:
    """Entry values by path: maps as sorted pairs, values as text so that NaN equals NaN."""
    found = {}
    for row in entries.table.to_pylist():
        for name in STAT_MAPS:
            if row.get(name) is not None:
                row[name] = sorted((pair["key"], pair["value"]) for pair in row[name])
        key = f"{row['content']} {row['file_path']} {row['content_offset']}"
        assert key not in found
        found[key] = {name: repr(value) for name, value in row.items() if name not in ("manifest", "ordinal")}
    return found


# --- tables with a few real Parquet files: data, position deletes, equality deletes, deletion vectors

POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)
Rows = Sequence[Mapping[str, Any]]


@dataclass
class Files:
    """Writes files into a folder and collects their manifest entries."""

    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)

    def data(self, rows: Rows, schema: Schema, *, name: str = "", group: int | None = None, **fields: Any) -> str:
        """A data file with the columns of a schema; returns its path."""
        return self._parquet(name or f"data{len(self.entries)}", rows, schema, group, {"sequence_number": 1} | fields)

    def keys(self, rows: Rows, schema: Schema, ids: Sequence[int], **fields: Any) -> str:
        """An equality delete file for these field ids."""
        entry = {"content": 2, "equality_ids": list(ids), "sequence_number": 2} | fields
        return self._parquet(f"keys{len(self.entries)}", rows, schema, None, entry)

    def positions(self, deleted: Sequence[tuple[str, int]], **fields: Any) -> str:
        """A position delete file."""
        rows = [{"file_path": path, "pos": position} for path, position in deleted]
        entry = {"content": 1, "sequence_number": 2} | fields
        return self._parquet(f"positions{len(self.entries)}", rows, POSITIONS, None, entry)

    def vector(self, path: str, deleted: Sequence[int], **fields: Any) -> str:
        """A deletion vector for a data file."""
        blob = encode_deletion_vector(BitMap64(deleted))
        target = self.folder / f"vector{len(self.entries)}.puffin"
        target.write_bytes(b"PFA1" + blob + b"PFA1")
        entry = {
            "content": 1,
            "file_format": "PUFFIN",
            "file_path": str(target),
            "referenced_data_file": path,
            "content_offset": 4,
            "content_size_in_bytes": len(blob),
            "record_count": len(deleted),
            "sequence_number": 2,
        }
        self.entries.append(entry | fields)
        return str(target)

    def table(self, layout: Layout) -> Table:
        """A table of all these files."""
        number = len(list(self.folder.glob("metadata*")))
        return layout.write_table(self.folder / f"metadata{number}", layout.entries(self.entries))

    def _parquet(self, name: str, rows: Rows, schema: Schema, group: int | None, fields: dict[str, Any]) -> str:
        path = self.folder / f"{name}.parquet"
        made = pa.Table.from_pylist([dict(row) for row in rows], schema=schema_to_pyarrow(schema))
        pq.write_table(made, path, row_group_size=group, write_page_index=True)
        self.entries.append(
            {"file_path": str(path), "record_count": len(rows), "file_size_in_bytes": path.stat().st_size} | fields
        )
        return str(path)


# --- a write target, and rows for it

EVENTS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "v", DoubleType()),
)
UNPARTITIONED = PartitionSpec(spec_id=0)
DAY = 86_400_000_000


def target(folder: Path, schema: Schema, *specs: PartitionSpec, version: int = 3, **properties: str) -> WriteTarget:
    layout = Layout(schema, specs or (UNPARTITIONED,), version)
    table = layout.write_table(folder / "table", layout.entries([]))
    table.metadata.properties.update({name.replace("_", "-").replace("--", "."): v for name, v in properties.items()})
    return WriteTarget.of(table)


def events(count: int) -> pa.Table:
    ids = list(range(count))
    return pa.table(
        {
            "id": ids,
            "region": pa.array([None if i % 7 == 0 else ("é", "xa", "xb", "")[i % 4] for i in ids], pa.string()),
            "ts": pa.array([None if i % 11 == 0 else (i % 3 - 1) * DAY - 1 for i in ids], pa.timestamp("us")),
            "v": pa.array([(None, float("nan"), 0.0, -0.0)[i % 4] for i in ids], pa.float64()),
        }
    )
