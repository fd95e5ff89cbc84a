"""Manifests and manifest lists written with fastavro, in every format version and with every allowed variation."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from floeplan.metadata.avro.decoder import MAGIC, SYNC_SIZE, AvroReader

MAP_IDS = {
    "column_sizes": (108, 117, 118, "long"),
    "value_counts": (109, 119, 120, "long"),
    "null_value_counts": (110, 121, 122, "long"),
    "nan_value_counts": (137, 138, 139, "long"),
    "lower_bounds": (125, 126, 127, "bytes"),
    "upper_bounds": (128, 129, 130, "bytes"),
}


@dataclass(frozen=True)
class Writer:
    """How a manifest is written."""

    version: int = 2
    codec: str = "deflate"
    null_first: bool = True
    extra_fields: bool = False
    sync_interval: int = 200

    def optional(self, avro: Any) -> list[Any]:
        return ["null", avro] if self.null_first else [avro, "null"]

    def field(self, name: str, field_id: int, avro: Any, *, optional: bool = True) -> dict[str, Any]:
        made = {"name": name, "field-id": field_id, "type": self.optional(avro) if optional else avro}
        return made | ({"default": None} if optional and self.null_first else {})

    def entry_schema(self, partition: Sequence[dict[str, Any]]) -> dict[str, Any]:
        data_file = [
            self.field("file_path", 100, "string", optional=False),
            self.field("file_format", 101, "string", optional=False),
            self.field("partition", 102, _record("r102", list(partition)), optional=False),
            self.field("record_count", 103, "long", optional=False),
            self.field("file_size_in_bytes", 104, "long", optional=False),
            *(self.field(name, ids[0], _map(*ids)) for name, ids in MAP_IDS.items()),
            self.field("key_metadata", 131, "bytes"),
            self.field("split_offsets", 132, {"type": "array", "items": "long", "element-id": 133}),
            self.field("sort_order_id", 140, "int"),
        ]
        if self.version == 1:
            data_file.append(self.field("block_size_in_bytes", 105, "long", optional=False))
        else:
            data_file.insert(0, self.field("content", 134, "int", optional=False))
            data_file.append(self.field("equality_ids", 135, {"type": "array", "items": "int", "element-id": 136}))
        if self.version >= 3:
            data_file += [
                self.field("first_row_id", 142, "long"),
                self.field("referenced_data_file", 143, "string"),
                self.field("content_offset", 144, "long"),
                self.field("content_size_in_bytes", 145, "long"),
            ]
        if self.extra_fields:
            data_file.insert(3, {"name": "mystery", "field-id": 9001, "type": _mystery()})
            data_file.append({"name": "no_id", "type": {"type": "map", "values": ["int", "string"]}, "default": {}})
        entry = [
            self.field("status", 0, "int", optional=False),
            self.field("snapshot_id", 1, "long"),
            self.field("data_file", 2, _record("r2", data_file), optional=False),
        ]
        if self.version >= 2:
            entry[2:2] = [self.field("sequence_number", 3, "long"), self.field("file_sequence_number", 4, "long")]
        return _record("manifest_entry", entry)

    def encode(self, schema: dict[str, Any], records: Sequence[dict[str, Any]], **metadata: str) -> bytes:
        buffer = io.BytesIO()
        fastavro.writer(buffer, schema, records, sync_interval=self.sync_interval, metadata=metadata)
        return recode(buffer.getvalue(), self.codec)

    def manifest(
        self, entries: Sequence[dict[str, Any]], partition: Sequence[dict[str, Any]] = (), spec_id: int = 0
    ) -> bytes:
        return self.encode(
            self.entry_schema(partition),
            entries,
            **{"partition-spec-id": str(spec_id), "format-version": str(self.version), "content": "data"},
        )

    def entry(self, path: str = "a.parquet", *, status: int = 1, **values: Any) -> dict[str, Any]:
        """An entry; keyword arguments are fields of the entry or of its data file."""
        of_entry = ("snapshot_id", "sequence_number", "file_sequence_number")
        made: dict[str, Any] = {"status": status} | {name: values.pop(name, None) for name in of_entry}
        data_file: dict[str, Any] = {
            "file_path": path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": 10,
            "file_size_in_bytes": 1000,
            "content": 0,
            "block_size_in_bytes": 67108864,
            "mystery": [{"deep": [{"x": 1.5}, None], "kind": "B"}, {"deep": None, "kind": "A"}],
            "no_id": {"one": 1, "two": "zwei"},
        }
        maps = {name: values.pop(name) for name in MAP_IDS if name in values}
        as_items = {name: [{"key": k, "value": v} for k, v in found.items()] for name, found in maps.items()}
        return made | {"data_file": data_file | as_items | values}

    def list_schema(self) -> dict[str, Any]:
        summary = _record(
            "r508",
            [
                self.field("contains_null", 509, "boolean", optional=False),
                self.field("contains_nan", 518, "boolean"),
                self.field("lower_bound", 510, "bytes"),
                self.field("upper_bound", 511, "bytes"),
            ],
        )
        later = self.version >= 2
        fields = [
            self.field("manifest_path", 500, "string", optional=False),
            self.field("manifest_length", 501, "long", optional=False),
            self.field("partition_spec_id", 502, "int", optional=False),
            self.field("added_snapshot_id", 503, "long", optional=not later),
            self.field("added_files_count", 504, "int", optional=not later),
            self.field("existing_files_count", 505, "int", optional=not later),
            self.field("deleted_files_count", 506, "int", optional=not later),
            self.field("partitions", 507, {"type": "array", "items": summary, "element-id": 508}),
            self.field("added_rows_count", 512, "long", optional=not later),
            self.field("existing_rows_count", 513, "long", optional=not later),
            self.field("deleted_rows_count", 514, "long", optional=not later),
            self.field("key_metadata", 519, "bytes"),
        ]
        if later:
            fields[3:3] = [
                self.field("content", 517, "int", optional=False),
                self.field("sequence_number", 515, "long", optional=False),
                self.field("min_sequence_number", 516, "long", optional=False),
            ]
        if self.version >= 3:
            fields.append(self.field("first_row_id", 520, "long"))
        return _record("manifest_file", fields)

    def manifest_list(self, manifests: Sequence[dict[str, Any]]) -> bytes:
        return self.encode(self.list_schema(), [LISTED | manifest for manifest in manifests])


LISTED: dict[str, Any] = {
    "manifest_length": 0,
    "partition_spec_id": 0,
    "content": 0,
    "sequence_number": 7,
    "min_sequence_number": 7,
    "added_snapshot_id": 70,
    "added_files_count": 1,
    "existing_files_count": 0,
    "deleted_files_count": 0,
    "added_rows_count": 10,
    "existing_rows_count": 0,
    "deleted_rows_count": 0,
    "partitions": [],
}


def write_manifests(
    folder: Path, manifests: Sequence[tuple[bytes, dict[str, Any]]], writer: Writer | None = None
) -> str:
    """Write manifests and their manifest list; returns the path of the list."""
    writer = writer or Writer()
    listed = []
    for number, (data, fields) in enumerate(manifests):
        path = folder / f"m{number}.avro"
        path.write_bytes(data)
        listed.append({"manifest_path": str(path), "manifest_length": len(data)} | fields)
    target = folder / "list.avro"
    target.write_bytes(writer.manifest_list(listed))
    return str(target)


def recode(data: bytes, codec: str, schema: str | None = None) -> bytes:
    """The same file with another codec, and optionally with another schema in its header."""
    reader = AvroReader()
    header = reader.header(data, "")
    properties = dict(header.metadata) | {"avro.codec": codec.encode()}
    properties["avro.schema"] = (schema or header.schema).encode()
    items = b"".join(varint(len(part)) + part for pair in properties.items() for part in map(as_bytes, pair))
    sync = data[header.size : header.size + SYNC_SIZE]
    made = MAGIC + varint(len(properties)) + items + varint(0) + sync
    for block in reader.blocks(data, header, ""):
        payload = COMPRESS[codec](bytes(block.data))
        made += varint(block.count) + varint(len(payload)) + payload + sync
    return made


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def varint(value: int) -> bytes:
    """Avro's variable-length zigzag integers."""
    bits, made = (value << 1) ^ (value >> 63), bytearray()
    while bits > 0x7F:
        made.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*made, bits])


def _deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def _zstandard(data: bytes) -> bytes:
    """As a stream of unknown size, as Java writes it."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def _snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "gzip": gzip.compress,
    "zstandard": _zstandard,
    "snappy": _snappy,
}


def _record(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def _map(field_id: int, key_id: int, value_id: int, value: str) -> dict[str, Any]:
    items = _record(
        f"k{key_id}_v{value_id}",
        [{"name": "key", "type": "int", "field-id": key_id}, {"name": "value", "type": value, "field-id": value_id}],
    )
    return {"type": "array", "items": items, "logicalType": "map"}


def _mystery() -> dict[str, Any]:
    """An unknown field: nested arrays, an enum, a fixed, unions of several branches."""
    inner = _record("inner", [{"name": "x", "type": ["null", "double", "float", "boolean"]}])
    kind = {"type": "enum", "name": "kind", "symbols": ["A", "B"]}
    return {
        "type": "array",
        "items": _record(
            "outer",
            [
                {"name": "deep", "type": ["null", {"type": "array", "items": ["null", inner]}]},
                {"name": "kind", "type": kind},
            ],
        ),
    }
