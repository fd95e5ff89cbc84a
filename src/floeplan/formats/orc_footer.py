"""The tail of an ORC file: stripes, the types with their Iceberg ids, and the statistics of each stripe.

pyarrow exposes none of these. The tail is protobuf in compressed chunks; only the few messages needed here are decoded.

Statistics are used from writers that know the fix of HIVE-8732, which corrected maxima and strings, and as far as every
writer means the same by them:

- integers, times, strings, booleans (counted values) and decimals, exactly;
- dates and timestamps from 1582-10-15 on, where all calendars agree. Timestamps are rounded to milliseconds, and Java
  stores those of the second before 1970 one second too late: their bounds are widened by a second. Without a time zone
  they may have been converted from the zone of the writer: then by a day;
- floating point of the Java and C++ writers, whose sum is NaN if a value is. Without NaN their bounds are right; with
  one they may leave out values.

Everything else is left unknown, and unknown keeps: nanoseconds, binary values, what has other types than the column.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from floeplan.errors import CorruptFileError, UnsupportedError
from floeplan.parquet.source import ByteSource
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable
from floeplan.vectors import Ints, valid_mask

MAGIC = b"ORC"
_TAIL = 16 * 1024
"""Bytes that hold the whole tail of most files; one request."""
_MAX_TAIL = 256 * 1024 * 1024
_FIRST_WRITER_WITH_STATISTICS = 1
_BOOLEAN, _INTEGERS, _FLOATS, _STRING, _DECIMAL, _DATE, TIMESTAMPS = 0, (1, 2, 3, 4), (5, 6), 7, 14, 15, (9, 18)
INSTANT = 18
_LIST, _MAP, _UNION = 10, 11, 13
_PRIMITIVE = (_BOOLEAN, *_INTEGERS, *_FLOATS, _STRING, _DECIMAL, _DATE, *TIMESTAMPS)
_DOUBLE = 1
_ICEBERG_ID = b"iceberg.id"
_JAVA_AND_CPP = (0, 1)
"""The writers whose sums of floating point are NaN if a value is."""
_FIRST_DAY = -141_427
"""1582-10-15."""
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_INT64_DIGITS = 18

Message = Mapping[int, list[int | bytes]]
_Value: TypeAlias = int | float | str | Decimal
Range: TypeAlias = tuple[_Value | None, _Value | None]
_UNKNOWN: Range = (None, None)


@dataclass(frozen=True, slots=True)
class OrcType:
    """One type of the schema; its position in the list of types is the number of its column."""

    kind: int
    field_id: int | None
    repeated: bool


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """Rows and bytes of the stripes, the types, and the encoded column statistics of each stripe.

    ``stripes`` is where they are, ``columns`` the types of the top-level columns, ``block`` the most bytes that one
    chunk of the ``codec`` holds.
    """

    path: str
    stripe_rows: Ints
    stripe_bytes: Ints
    types: tuple[OrcType, ...]
    statistics: tuple[tuple[bytes, ...], ...]
    stripes: tuple[Message, ...] = ()
    columns: tuple[int, ...] = ()
    codec: int = 0
    block: int = 0
    writer: int = 0

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
        kind, decoded = self.types[number].kind, [message_of(stripe[number]) for stripe in self.statistics]
        if kind not in _PRIMITIVE:
            return None
        counts = [one.get(1, [None])[-1] for one in decoded]
        values = np.array([-1 if count is None else count for count in counts], dtype=np.int64)
        nulls = np.where(values < 0, -1, self.stripe_rows - values)
        nulls = np.where(nulls < 0, -1, nulls)
        nans = np.zeros_like(nulls)
        if kind in _FLOATS:
            without_nan = [self.writer in _JAVA_AND_CPP and _has_no_nan(one) for one in decoded]
            decoded = [one if known else {} for one, known in zip(decoded, without_nan, strict=True)]
            nans = np.where(without_nan, 0, -1)
        ranges = [_range(kind, column.type, one, count) for one, count in zip(decoded, values.tolist(), strict=True)]
        lower, upper = (_bound(column.type, side) for side in zip(*ranges, strict=True)) if ranges else (None, None)
        return ColumnStats.from_counts(self.stripe_rows, nulls, nans, lower, upper)


def _range(kind: int, type_: IcebergType, one: Message, count: int) -> Range:
    """The bounds of a column in a stripe with this many values, in the physical domain of its type."""
    match type_:
        case IntegerType() | LongType() | TimeType() if kind in _INTEGERS and 2 in one:
            return _integers(message_of(one[2][-1]), 1, 2)
        case StringType() if kind == _STRING and 4 in one:
            # Fields 4 and 5 are the bounds of strings that are too long for the exact minimum and maximum.
            message = message_of(one[4][-1])
            return _text(message, 1, 4), _text(message, 2, 5)
        case BooleanType() if kind == _BOOLEAN and 5 in one:
            true = next(packed(message_of(one[5][-1]).get(1, [])), None)
            return _UNKNOWN if true is None or not 0 <= true <= count else (int(true == count), int(true > 0))
        case FloatType() | DoubleType() if kind in _FLOATS and 3 in one:
            message = message_of(one[3][-1])
            return _double(message, 1), _double(message, 2)
        case DecimalType() if kind == _DECIMAL and 6 in one:
            message = message_of(one[6][-1])
            return _decimal(_text(message, 1), type_), _decimal(_text(message, 2), type_)
        case DateType() if kind == _DATE and 7 in one:
            return _modern(_integers(message_of(one[7][-1]), 1, 2), _FIRST_DAY)
        case TimestampType() | TimestamptzType() if kind in TIMESTAMPS and 9 in one:
            lower, upper = _modern(_integers(message_of(one[9][-1]), 3, 4), _FIRST_DAY * _DAY // 1000)
            if lower is not None and upper is not None:
                margin = _SECOND if kind == INSTANT else _DAY
                return lower * 1000 - margin, (upper + 1) * 1000 + margin
    return _UNKNOWN


def _bound(type_: IcebergType, found: Sequence[_Value | None]) -> Bound:
    """The values of all stripes; those beyond 64 bits are unknown."""
    if isinstance(type_, StringType):
        values = pa.array(found, pa.string())
        return Bound(values, valid_mask(values))
    if isinstance(type_, DecimalType) and type_.precision > _INT64_DIGITS:
        values = pa.array(found, pa.decimal128(38, type_.scale))
        return Bound(values, valid_mask(values))
    if isinstance(type_, FloatType | DoubleType):
        numbers = np.array([math.nan if value is None else value for value in found], dtype=np.float64)
        return Bound(numbers, ~np.isnan(numbers))
    whole = [
        int(v.scaleb(type_.scale)) if isinstance(v, Decimal) and isinstance(type_, DecimalType) else v for v in found
    ]
    valid = [isinstance(value, int) and -(2**63) <= value < 2**63 for value in whole]
    kept = [value if known else 0 for value, known in zip(whole, valid, strict=True)]
    return Bound(np.array(kept, dtype=np.int64), np.array(valid, dtype=np.bool_))


def _integers(message: Message, low: int, high: int) -> tuple[int | None, int | None]:
    return _zigzag(message.get(low)), _zigzag(message.get(high))


def _modern(found: tuple[int | None, int | None], first: int) -> tuple[int | None, int | None]:
    """Bounds of days or times of which the lower one is not before the first."""
    return found if found[0] is not None and found[0] >= first else (None, None)


def _text(message: Message, *sides: int) -> str | None:
    raw = next((message[side][-1] for side in sides if side in message), None)
    try:
        return raw.decode() if isinstance(raw, bytes) else None
    except UnicodeDecodeError:
        return None


def _decimal(text: str | None, type_: DecimalType) -> Decimal | None:
    """A decimal with no more digits after the point than its type has."""
    try:
        value = Decimal(text or "NaN")
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent
    fits = isinstance(exponent, int) and exponent >= -type_.scale and value.adjusted() < type_.precision - type_.scale
    return value if fits else None


def _double(message: Message, side: int) -> float | None:
    raw = message.get(side, [None])[-1]
    return None if not isinstance(raw, bytes) or len(raw) != 8 else float(struct.unpack("<d", raw)[0])


def _has_no_nan(one: Message) -> bool:
    total = _double(message_of(one[3][-1]), 3) if 3 in one else None
    return total is not None and not math.isnan(total)


def _zigzag(raw: Sequence[int | bytes] | None) -> int | None:
    if raw is None:
        return None
    if isinstance(raw[-1], bytes):
        raise ValueError("a number is expected")
    return (raw[-1] >> 1) ^ -(raw[-1] & 1)


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
        script = message_of(tail[-1 - tail[-1] : -1])
        if bytes(script.get(8000, [b""])[-1]) != MAGIC:
            raise ValueError("its last bytes are not those of an ORC file")
        footer_size, metadata_size = number_of(script, 1), number_of(script, 5)
        needed = footer_size + metadata_size + tail[-1] + 1
        if needed > min(source.size, _MAX_TAIL):
            raise ValueError("its footer reaches beyond the file")
        tail = bytes(source.read_suffix(needed))
        end = len(tail) - tail[-1] - 1
        codec, block = number_of(script, 2), number_of(script, 3) or 256 * 1024
        footer = message_of(inflated(tail[end - footer_size : end], codec, block, path))
        encoded = tail[end - footer_size - metadata_size : end - footer_size]
        statistics: tuple[tuple[bytes, ...], ...] = ()
        if number_of(script, 6) >= _FIRST_WRITER_WITH_STATISTICS and metadata_size:
            listed = message_of(inflated(encoded, codec, block, path)).get(1, [])
            statistics = tuple(tuple(map(as_bytes, message_of(stripe).get(1, []))) for stripe in listed)
        stripes = [message_of(stripe) for stripe in footer.get(3, [])]
        described = [message_of(one) for one in footer.get(4, [])]
        types, columns = _types(described), tuple(packed(described[0].get(2, [])))
        rows = np.array([number_of(one, 5) for one in stripes], dtype=np.int64)
        if int(rows.sum()) != number_of(footer, 6):
            raise ValueError(f"its stripes have {int(rows.sum())} rows, its footer states {number_of(footer, 6)}")
        sizes = np.array([number_of(one, 3) for one in stripes], dtype=np.int64)
        found = (path, rows, sizes, types, statistics, tuple(stripes), columns, codec, block, number_of(footer, 9))
        return OrcFooter(*found)
    except (ValueError, IndexError, OverflowError, zlib.error, pa.ArrowException, TypeError) as error:
        problem = f"{path} is not a readable ORC file: {error}"
        raise CorruptFileError(problem, context={"file": path}) from None


def _types(messages: Sequence[Message]) -> tuple[OrcType, ...]:
    """The types in order; those inside lists, maps and unions have no usable statistics."""
    repeated = [False] * len(messages)
    types = []
    for number, message in enumerate(messages):
        kind = number_of(message, 1)
        for child in packed(message.get(2, [])):
            repeated[child] = repeated[number] or kind in (_LIST, _MAP, _UNION)
        pairs = [message_of(pair) for pair in message.get(7, [])]
        ids = [int(as_bytes(pair[2][-1])) for pair in pairs if pair.get(1, [b""])[-1] == _ICEBERG_ID]
        types.append(OrcType(kind, ids[-1] if ids else None, repeated[number]))
    return tuple(types)


def packed(values: Iterable[int | bytes]) -> Iterator[int]:
    """Repeated numbers, packed or not."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield number


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("bytes are expected")
    return value


def number_of(message: Message, field: int) -> int:
    value = message.get(field, [0])[-1]
    if isinstance(value, bytes):
        raise ValueError("a number is expected")
    return value


def message_of(data: int | bytes) -> dict[int, list[int | bytes]]:
    """The fields of a protobuf message by number: numbers, or bytes of strings and messages."""
    data = as_bytes(data)
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


def inflated(data: bytes, codec: int, block: int, path: str) -> bytes:
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
