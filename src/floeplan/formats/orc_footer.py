"""The tail of an ORC file: stripes, the types with their Iceberg ids, and the statistics of each stripe.

pyarrow exposes none of these. The tail is protobuf in compressed chunks; only the few messages needed here are decoded.

Statistics are used where every writer means the same by them: integers and strings, from writers that know the fix of
HIVE-8732, which corrected maxima and strings. Dates and timestamps depend on a calendar and a time zone, and floating
point on the treatment of NaN; they are left unknown, and unknown keeps.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.types import IntegerType, LongType, StringType

from floeplan.errors import CorruptFileError, UnsupportedError
from floeplan.parquet.source import ByteSource
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable
from floeplan.vectors import Ints, valid_mask

_MAGIC = b"ORC"
_TAIL = 16 * 1024
"""Bytes that hold the whole tail of most files; one request."""
_MAX_TAIL = 256 * 1024 * 1024
_FIRST_WRITER_WITH_STATISTICS = 1
_INTEGERS, _STRING, _LIST, _MAP, _UNION = (1, 2, 3, 4), 7, 10, 11, 13
_DOUBLE = 1
_ICEBERG_ID = b"iceberg.id"

Message = Mapping[int, list[int | bytes]]


@dataclass(frozen=True, slots=True)
class OrcType:
    """One type of the schema; its position in the list of types is the number of its column."""

    kind: int
    field_id: int | None
    repeated: bool


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """Rows and bytes of the stripes, the types, and the encoded column statistics of each stripe."""

    path: str
    stripe_rows: Ints
    stripe_bytes: Ints
    types: tuple[OrcType, ...]
    statistics: tuple[tuple[bytes, ...], ...]

    @property
    def has_field_ids(self) -> bool:
        """Whether the columns carry field ids."""
        return any(one.field_id is not None for one in self.types)

    def stripe_stats(self, wanted: Iterable[Column]) -> StatsTable:
        """Statistics of all stripes by field id; a column that is not in the file is null in every row."""
        rows = self.stripe_rows
        by_id = {one.field_id: number for number, one in enumerate(self.types) if one.field_id is not None}
        found: dict[int, ColumnStats] = {}
        for column in wanted:
            number = by_id.get(column.field_id)
            if number is None:
                found[column.field_id] = ColumnStats.all_null(rows > 0)
            elif len(self.statistics) == len(rows) and not self.types[number].repeated:
                stats = self._column(column, number)
                if stats is not None:
                    found[column.field_id] = stats
        return StatsTable(len(rows), found, rows > 0)

    def _column(self, column: Column, number: int) -> ColumnStats | None:
        if any(number >= len(stripe) for stripe in self.statistics):
            return None
        kind, decoded = self.types[number].kind, [_message(stripe[number]) for stripe in self.statistics]
        counts = [one.get(1, [None])[-1] for one in decoded]
        values = np.array([-1 if count is None else count for count in counts], dtype=np.int64)
        nulls = np.where(values < 0, -1, self.stripe_rows - values)
        nulls = np.where(nulls < 0, -1, nulls)
        lower = upper = None
        if kind in _INTEGERS and isinstance(column.type, IntegerType | LongType):
            lower, upper = (_integers(decoded, side) for side in (1, 2))
        elif kind == _STRING and isinstance(column.type, StringType):
            # Fields 4 and 5 are the bounds of strings that are too long for the exact minimum and maximum.
            lower, upper = (_texts(decoded, sides) for sides in ((1, 4), (2, 5)))
        else:
            return None
        return ColumnStats.from_counts(self.stripe_rows, nulls, np.zeros_like(nulls), lower, upper)


def _integers(decoded: Sequence[Message], side: int) -> Bound:
    raw = [_message(one[2][-1]).get(side, [None])[-1] if one.get(2) else None for one in decoded]
    numbers = [None if value is None else _zigzag(value) for value in raw]
    valid = np.array([number is not None for number in numbers], dtype=np.bool_)
    return Bound(np.array([number or 0 for number in numbers], dtype=np.int64), valid)


def _texts(decoded: Sequence[Message], sides: tuple[int, int]) -> Bound:
    found: list[str | None] = []
    for one in decoded:
        message = _message(one[4][-1]) if one.get(4) else {}
        raw = next((message[side][-1] for side in sides if side in message), None)
        try:
            found.append(raw.decode() if isinstance(raw, bytes) else None)
        except UnicodeDecodeError:
            found.append(None)
    values = pa.array(found, pa.string())
    return Bound(values, valid_mask(values))


def _zigzag(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number is expected")
    return (value >> 1) ^ -(value & 1)


def read_orc_footer(source: ByteSource) -> OrcFooter:
    """Read the tail of a file.

    Raises:
        CorruptFileError: The tail is damaged.
        UnsupportedError: It is compressed with a codec other than zlib, Snappy, LZ4 and Zstandard.
    """
    path = source.name
    try:
        tail = bytes(source.read_suffix(_TAIL))
        if len(tail) < 2 or tail[-1] + 1 > len(tail):
            raise ValueError("it is too short")
        script = _message(tail[-1 - tail[-1] : -1])
        if bytes(script.get(8000, [b""])[-1]) != _MAGIC:
            raise ValueError("its last bytes are not those of an ORC file")
        footer_size, metadata_size = _number(script, 1), _number(script, 5)
        needed = footer_size + metadata_size + tail[-1] + 1
        if needed > min(source.size, _MAX_TAIL):
            raise ValueError("its footer reaches beyond the file")
        tail = bytes(source.read_suffix(needed))
        end = len(tail) - tail[-1] - 1
        codec, block = _number(script, 2), _number(script, 3) or 256 * 1024
        footer = _message(_inflated(tail[end - footer_size : end], codec, block, path))
        encoded = tail[end - footer_size - metadata_size : end - footer_size]
        statistics: tuple[tuple[bytes, ...], ...] = ()
        if _number(script, 6) >= _FIRST_WRITER_WITH_STATISTICS and metadata_size:
            listed = _message(_inflated(encoded, codec, block, path)).get(1, [])
            statistics = tuple(tuple(map(_as_bytes, _message(stripe).get(1, []))) for stripe in listed)
        stripes = [_message(stripe) for stripe in footer.get(3, [])]
        types = _types([_message(one) for one in footer.get(4, [])])
        rows = np.array([_number(one, 5) for one in stripes], dtype=np.int64)
        if int(rows.sum()) != _number(footer, 6):
            raise ValueError(f"its stripes have {int(rows.sum())} rows, its footer says {_number(footer, 6)}")
        sizes = np.array([_number(one, 3) for one in stripes], dtype=np.int64)
        return OrcFooter(path, rows, sizes, types, statistics)
    except (ValueError, IndexError, OverflowError, zlib.error, pa.ArrowException, TypeError) as error:
        problem = f"{path} is not a readable ORC file: {error}"
        raise CorruptFileError(problem, context={"file": path}) from None


def _types(messages: Sequence[Message]) -> tuple[OrcType, ...]:
    """The types in order; those inside lists, maps and unions have no usable statistics."""
    repeated = [False] * len(messages)
    types = []
    for number, message in enumerate(messages):
        kind = _number(message, 1)
        for child in _packed(message.get(2, [])):
            repeated[child] = repeated[number] or kind in (_LIST, _MAP, _UNION)
        pairs = [_message(pair) for pair in message.get(7, [])]
        ids = [int(_as_bytes(pair[2][-1])) for pair in pairs if pair.get(1, [b""])[-1] == _ICEBERG_ID]
        types.append(OrcType(kind, ids[-1] if ids else None, repeated[number]))
    return tuple(types)


def _packed(values: Iterable[int | bytes]) -> Iterator[int]:
    """Repeated numbers, packed or not."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield number


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("bytes are expected")
    return value


def _number(message: Message, field: int) -> int:
    value = message.get(field, [0])[-1]
    if isinstance(value, bytes):
        raise ValueError("a number is expected")
    return value


def _message(data: int | bytes) -> dict[int, list[int | bytes]]:
    """The fields of a protobuf message by number: numbers, or bytes of strings and messages."""
    data = _as_bytes(data)
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        match key & 7:
            case 0:
                value, at = _varint(data, at)
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case 1 | 5 as width:
                size = 8 if width == _DOUBLE else 4
                value, at = data[at : at + size], at + size
            case other:
                raise ValueError(f"its footer has a field of unknown kind {other}")
        if at > len(data):
            raise ValueError("its footer is cut off")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number in its footer is too long")


def _inflated(data: bytes, codec: int, block: int, path: str) -> bytes:
    """Chunks with a header of 3 bytes: twice their length, plus 1 if they are stored as they are."""
    if codec == 0:
        return data
    inflate = {1: _zlib, 2: _snappy, 4: _lz4, 5: _zstd}.get(codec)
    if inflate is None:
        raise UnsupportedError(f"{path} is compressed with ORC codec {codec}", context={"file": path})
    found, at = bytearray(), 0
    while at < len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (header >> 1)]
        found += chunk if header & 1 else inflate(chunk, block)
        at += 3 + (header >> 1)
    return bytes(found)


def _zlib(chunk: bytes, block: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(chunk, block)


def _snappy(chunk: bytes, block: int) -> bytes:
    size, _ = _varint(chunk, 0)
    if size > block:
        raise ValueError("a compressed chunk is too large")
    inflated: bytes = pa.Codec("snappy").decompress(chunk, size, asbytes=True)
    return inflated


def _zstd(chunk: bytes, block: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
        return bytes(stream.read(block))


def _lz4(chunk: bytes, block: int) -> bytes:
    """An LZ4 block, which does not state its size: sequences of literals and of copies from what came before."""
    found, at = bytearray(), 0
    while at < len(chunk):
        token, at = chunk[at], at + 1
        length, at = _lz4_length(chunk, at, token >> 4)
        found += chunk[at : at + length]
        at += length
        if at >= len(chunk):
            break
        distance = int.from_bytes(chunk[at : at + 2], "little")
        length, at = _lz4_length(chunk, at + 2, token & 15)
        if not 0 < distance <= len(found) or len(found) + length > block:
            raise ValueError("a compressed chunk is damaged")
        for _ in range(length + 4):
            found.append(found[-distance])
    return bytes(found)


def _lz4_length(chunk: bytes, at: int, start: int) -> tuple[int, int]:
    if start == 15:
        while True:
            start, at = start + chunk[at], at + 1
            if chunk[at - 1] < 255:
                break
    return start, at
