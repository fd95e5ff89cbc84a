"""Puffin files: blobs of any kind one after the other, and a footer in JSON that says where each of them is.

Layout: magic, blobs, then the footer: magic, payload, its length, four bytes of flags, magic; numbers little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

_MAGIC = b"PFA1"
_NO_FLAGS = bytes(4)
_ROW_POSITION = 2147483645
DELETION_VECTOR = "deletion-vector-v1"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob with its metadata."""

    data: bytes
    type: str
    fields: tuple[int, ...]
    properties: Mapping[str, str]


def deletion_vector_blob(data: bytes, data_file: str, cardinality: int) -> Blob:
    """An encoded deletion vector, as the specification wants it described."""
    properties = {"referenced-data-file": data_file, "cardinality": str(cardinality)}
    return Blob(data, DELETION_VECTOR, (_ROW_POSITION,), properties)


def puffin_file(blobs: Sequence[Blob]) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a file, and offset and length of each blob in it; snapshot and sequence number are left open."""
    places = []
    offset = len(_MAGIC)
    for blob in blobs:
        places.append((offset, len(blob.data)))
        offset += len(blob.data)
    described = [
        {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": start,
            "length": length,
            "properties": dict(blob.properties),
        }
        for blob, (start, length) in zip(blobs, places, strict=True)
    ]
    footer = {"blobs": described, "properties": {"created-by": f"Floeplan {version('floeplan')}"}}
    payload = json.dumps(footer, separators=(",", ":")).encode()
    tail = _MAGIC + payload + struct.pack("<i", len(payload)) + _NO_FLAGS + _MAGIC
    return b"".join([_MAGIC, *(blob.data for blob in blobs), tail]), places
