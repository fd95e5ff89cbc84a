"""The expected content of a generated table: every row, the deletes that apply to it, and what a reader must return."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pyiceberg import transforms as pt
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from floeplan.partition.transforms import apply
from tests.support.oracles.datasets import Dataset
from tests.support.oracles.rows import is_nan, order_key
from tests.support.tables.manifests import Writer

Row = dict[int, Any]


@dataclass(frozen=True)
class PartField:
    """A field of a spec."""

    field_id: int
    source_id: int
    transform: Any


@dataclass(frozen=True)
class Spec:
    """A partition spec; ids need not be consecutive."""

    spec_id: int
    fields: tuple[PartField, ...]

    @property
    def unpartitioned(self) -> bool:
        return all(isinstance(f.transform, pt.VoidTransform) for f in self.fields)


@dataclass(frozen=True)
class File:
    """A data or delete file with its manifest entry; ``rows`` are as stored, by field id."""

    path: str
    content: int
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    rows: tuple[Row, ...]
    types: dict[int, PrimitiveType]
    stats: dict[str, dict[int, Any]]
    constants: Row = field(default_factory=dict)
    positions: tuple[tuple[str, int], ...] = ()
    keys: tuple[int, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_vector(self) -> bool:
        return self.extra.get("file_format") == "PUFFIN"


@dataclass(frozen=True)
class Manifest:
    """Files of one spec and content with their status, as one commit wrote them."""

    content: int
    spec_id: int
    sequence: int
    entries: tuple[tuple[int, File], ...]
    listed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The manifests of a commit and its schema."""

    snapshot_id: int
    schema: Schema
    manifests: tuple[Manifest, ...]

    def files(self, content: int) -> list[File]:
        return [f for m in self.manifests if m.content == content for status, f in m.entries if status != 2]


@dataclass(frozen=True, repr=False)
class History:
    """A table on disk and its expected content; its repr is short."""

    metadata: Path
    snapshots: tuple[Snapshot, ...]
    schema: Schema
    specs: dict[int, Spec]

    def rows(self, snapshot: Snapshot, file: File, schema: Schema) -> list[Row]:
        """The rows of a file in the columns of a schema, including deleted rows."""
        return [{f.field_id: _shown(file, row, f) for f in schema.fields} for row in file.rows]

    def live(self, snapshot: Snapshot, schema: Schema) -> Iterator[tuple[File, int, Row]]:
        """Every live row: its file, position and values."""
        deletes = snapshot.files(1)
        for file in snapshot.files(0):
            gone = self._positions(file, deletes)
            lists = [(d.keys, {_key(d, row) for row in d.rows}) for d in deletes if d.keys and self._applies(d, file)]
            for position, row in enumerate(self.rows(snapshot, file, schema)):
                listed = any(
                    tuple(map(_identity, self._key_values(file, position, keys))) in rows for keys, rows in lists
                )
                if position not in gone and not listed:
                    yield file, position, row

    def dataset(self, snapshot: Snapshot, schema: Schema) -> Dataset:
        """All rows, including deleted rows, for drawing predicates."""
        rows = [row for file in snapshot.files(0) for row in self.rows(snapshot, file, schema)]
        return Dataset(schema, len(rows), {f.field_id: [row[f.field_id] for row in rows] for f in schema.fields}, {})

    def _applies(self, delete: File, file: File) -> bool:
        same = (delete.spec_id, code(delete.partition)) == (file.spec_id, code(file.partition))
        if delete.keys:
            return delete.sequence > file.sequence and (same or self.specs[delete.spec_id].unpartitioned)
        return delete.sequence >= file.sequence and same

    def _positions(self, file: File, deletes: list[File]) -> set[int]:
        vectors = [d for d in deletes if d.is_vector and d.extra["referenced_data_file"] == file.path]
        ordinary = [d for d in deletes if not d.keys and not d.is_vector and self._applies(d, file)]
        return {at for d in vectors or ordinary for path, at in d.positions if path == file.path}

    def _key_values(self, file: File, position: int, keys: tuple[int, ...]) -> list[Any]:
        fields = {f.field_id: f for s in self.snapshots for f in s.schema.fields}
        return [_shown(file, file.rows[position], fields[key]) for key in keys]


def moved_partition(history: History, file: File, row: Row, spec_id: int) -> tuple[Any, ...]:
    """The partition of a row under a spec, with the file's partition value where its spec has the field."""
    own = dict(zip(history.specs[file.spec_id].fields, file.partition, strict=True))
    fields = history.specs[spec_id].fields
    return tuple(own[part] if part in own else _told(history, file, row, part) for part in fields)


def row_partition(history: History, file: File, row: Row, spec_id: int) -> tuple[Any, ...]:
    """The partition of a row under a spec, from its values; old writers store times before 1970 one unit later."""
    return tuple(_told(history, file, row, part) for part in history.specs[spec_id].fields)


def _told(history: History, file: File, row: Row, part: PartField) -> Any:
    columns = {f.field_id: f for s in history.snapshots for f in s.schema.fields}
    columns |= {f.field_id: f for f in history.schema.fields}
    column = columns[part.source_id]
    return apply(part.transform, column.field_type, _shown(file, row, column))


def _shown(file: File, row: Row, column: NestedField) -> Any:
    """A stored value, or for a column that the file lacks its partition value, its initial default, or null."""
    if column.field_id in row:
        return row[column.field_id]
    return file.constants.get(column.field_id, column.initial_default)


def _identity(value: Any) -> Any:
    return ("float", repr(value)) if isinstance(value, float) else value


def _key(delete: File, row: Row) -> tuple[Any, ...]:
    return tuple(_identity(row[key]) for key in delete.keys)


def code(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_identity, partition))


# Manifests, manifest lists and the metadata file of a generated table, written without the package.


_AVRO: dict[type[PrimitiveType], Any] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    TimestampType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    TimestamptzType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    StringType: "string",
    BinaryType: "bytes",
}


class HistoryFiles:
    """The metadata of a growing table: the state of the builder and its serialization."""

    folder: Path
    draw: st.DrawFn
    version: int
    sequence: int
    last_column: int
    schemas: list[Schema]
    specs: dict[int, Spec]
    manifests: list[Manifest]
    snapshots: list[Snapshot]
    listed: list[dict[str, Any]]

    @property
    def spec(self) -> Spec:
        return self.specs[max(self.specs)]

    def write_manifest(self, content: int, spec_id: int, entries: list[tuple[int, File]]) -> Manifest:
        spec, writer, number = self.specs[spec_id], Writer(self.version), uuid.uuid4().hex
        parts = [writer.field(f"p{at}", f.field_id, self._avro(f, at)) for at, f in enumerate(spec.fields)]
        records = [self._entry(writer, status, file) for status, file in entries]
        data = writer.encode(writer.entry_schema(parts), records, **{"format-version": str(self.version)})
        path = self.folder / f"manifest-{number}.avro"
        path.write_bytes(data)
        counts: dict[str, int] = {}
        for status, name in enumerate(("existing", "added", "deleted")):
            some = [file for found, file in entries if found == status]
            counts |= {f"{name}_files_count": len(some), f"{name}_rows_count": sum(len(f.rows) for f in some)}
        listed = counts | {
            "manifest_path": path.as_uri(),
            "manifest_length": len(data),
            "partition_spec_id": spec_id,
            "content": content,
            "sequence_number": self.sequence if self.version > 1 else 0,
            "min_sequence_number": min(file.sequence for _, file in entries),
            "added_snapshot_id": len(self.snapshots) + 1,
            "partitions": [
                self._summary(f, [file.partition[at] for _, file in entries]) for at, f in enumerate(spec.fields)
            ],
        }
        return Manifest(content, spec_id, self.sequence, tuple(entries), listed)

    def _entry(self, writer: Writer, status: int, file: File) -> dict[str, Any]:
        """Added files inherit sequence numbers from the manifest list, others store them."""
        sequence = None if status == 1 else file.sequence
        fields: dict[str, Any] = {
            "file_format": file.path.rsplit(".", 1)[1].upper(),
            "content": file.content if not file.keys else 2,
            "partition": {f"p{at}": value for at, value in enumerate(file.partition)},
            "record_count": len(file.rows),
            "sequence_number": sequence,
            "file_sequence_number": sequence,
            "snapshot_id": None if status == 1 else 1,
        }
        return writer.entry(file.path, status=status, **(fields | file.stats | file.extra))

    def _result_type(self, part: PartField) -> PrimitiveType:
        types = [column.field_type for s in self.schemas for column in s.fields if column.field_id == part.source_id]
        result = part.transform.result_type(types[-1])
        return result if isinstance(result, PrimitiveType) else types[-1]  # type: ignore[return-value]

    def _avro(self, part: PartField, at: int) -> Any:
        type_ = self._result_type(part)
        match type_:
            case DecimalType():
                size = decimal_required_bytes(type_.precision)
                extra = {"logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
                return {"type": "fixed", "name": f"d{at}", "size": size} | extra
            case UUIDType():
                return {"type": "fixed", "name": f"u{at}", "size": 16}
            case DateType():
                return {"type": "int", "logicalType": "date"}
        return _AVRO[type(type_)]

    def _summary(self, part: PartField, found: list[Any]) -> dict[str, Any]:
        type_ = self._result_type(part)
        ordinary = sorted((v for v in found if v is not None and not is_nan(v)), key=order_key)
        return {
            "contains_null": None in found,
            "contains_nan": any(map(is_nan, found)) if self.draw(st.booleans()) else None,
            "lower_bound": to_bytes(type_, ordinary[0]) if ordinary else None,
            "upper_bound": to_bytes(type_, ordinary[-1]) if ordinary else None,
        }

    def write_snapshot(self) -> None:
        """Write the manifest list of all manifests."""
        number = len(self.snapshots) + 1
        path = self.folder / f"snap-{number}.avro"
        path.write_bytes(Writer(self.version).manifest_list([m.listed for m in self.manifests]))
        self.snapshots.append(Snapshot(number, self.schemas[-1], tuple(self.manifests)))
        self.listed.append(
            {
                "snapshot-id": number,
                "sequence-number": self.sequence,
                "timestamp-ms": 1_700_000_000_000 + number,
                "manifest-list": path.as_uri(),
                "summary": {"operation": "overwrite"},
                "schema-id": self.schemas[-1].schema_id,
            }
        )

    def finish(self) -> History:
        """Write the metadata file."""
        document = {
            "format-version": self.version,
            "table-uuid": str(uuid.uuid4()),
            "location": self.folder.as_uri(),
            "last-sequence-number": self.sequence,
            "last-updated-ms": 1_700_000_000_000,
            "last-column-id": self.last_column,
            "schemas": [json.loads(schema.model_dump_json()) for schema in self.schemas],
            "schema": json.loads(self.schemas[-1].model_dump_json()),
            "current-schema-id": self.schemas[-1].schema_id,
            "partition-specs": [self._spec_json(spec) for spec in self.specs.values()],
            "partition-spec": self._spec_json(self.spec)["fields"],
            "default-spec-id": self.spec.spec_id,
            "last-partition-id": 2000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": self.listed,
            "current-snapshot-id": self.snapshots[-1].snapshot_id,
            "refs": {"main": {"snapshot-id": self.snapshots[-1].snapshot_id, "type": "branch"}},
            "next-row-id": 0,
        }
        path = self.folder / "v1.metadata.json"
        path.write_text(json.dumps(document))
        return History(path, tuple(self.snapshots), self.schemas[-1], self.specs)

    def _spec_json(self, spec: Spec) -> dict[str, Any]:
        fields = [
            {"field-id": f.field_id, "source-id": f.source_id, "name": f"p{at}", "transform": str(f.transform)}
            for at, f in enumerate(spec.fields)
        ]
        return {"spec-id": spec.spec_id, "fields": fields}
