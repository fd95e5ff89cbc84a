"""Manifests, manifest lists and the metadata file of a table that is made up, written without the package's help."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
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
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from tests.support.history_truth import File, History, Manifest, PartField, Snapshot, Spec
from tests.support.manifests import Writer
from tests.support.oracle import is_nan, order_key

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
    """The metadata of a table that grows: what the builder of a history knows of it, and how that is written."""

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
        """Added files inherit what the list says, others say it themselves."""
        sequence = None if status == 1 else file.sequence
        said: dict[str, Any] = {
            "content": file.content if not file.keys else 2,
            "partition": {f"p{at}": value for at, value in enumerate(file.partition)},
            "record_count": len(file.rows),
            "sequence_number": sequence,
            "file_sequence_number": sequence,
            "snapshot_id": None if status == 1 else 1,
        }
        return writer.entry(file.path, status=status, **(said | file.stats | file.extra))

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
        """Write the manifest list of all manifests there are."""
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
