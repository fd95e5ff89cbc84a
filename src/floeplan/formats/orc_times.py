"""Timestamps of an ORC column that pyarrow does not return, because nanoseconds do not reach them.

ORC stores the seconds since 2015 and the nanoseconds within the second as two streams. Each is read by pyarrow from a
file made in memory of the column's own streams: the seconds as a column of integers, and the nanoseconds as timestamps
whose seconds are replaced by zeros. Rule: the result is what ORC's C++ and Java readers compute, in microseconds.

Fail-safe: ``None`` where a column is stored in another way; the caller names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from floeplan.formats.orc_footer import (
    INSTANT,
    MAGIC,
    TIMESTAMPS,
    Message,
    OrcFooter,
    as_bytes,
    inflated,
    message_of,
    number_of,
)
from floeplan.parquet.footer.thrift import encode_varint
from floeplan.parquet.source import ByteSource

_PRESENT, _DATA, _SECONDARY = 0, 1, 5
_ZONE = 3
"""The field of a stripe footer with the time zone of the writer."""
_RLE_V2 = 2
_LONG, _STRUCT = 4, 12
_RUN = 512
_RUN_OF_ZEROS = b"\xc1\xff\x00\x00"
"""512 values: the first is 0, and so are the differences."""
_EPOCH = 1_420_070_400
"""2015-01-01 in seconds, from which ORC counts."""
_UTC = (b"UTC", b"GMT", b"Etc/UTC", b"Etc/GMT", b"UCT", b"Z", b"Zulu")


def writer_zones(source: ByteSource, footer: OrcFooter) -> list[str]:
    """The time zones, other than UTC, in which the stripes have timestamps without a zone."""
    stripes = range(len(footer.stripes))
    zones = {
        as_bytes(one.get(_ZONE, [b"an unknown time zone"])[-1]) for one in _stripe_footers(source, footer, stripes)
    }
    return sorted(zone.decode(errors="replace") for zone in zones.difference(_UTC))


def _stripe_footers(source: ByteSource, footer: OrcFooter, stripes: Sequence[int]) -> list[Message]:
    found = [footer.stripes[stripe] for stripe in stripes]
    ranges = [(sum(number_of(one, part) for part in (1, 2, 3)), number_of(one, 4)) for one in found]
    tails = map(bytes, source.read_ranges(ranges))
    return [message_of(inflated(tail, footer.codec, footer.block, footer.path)) for tail in tails]


def read_far_times(source: ByteSource, footer: OrcFooter, stripe: int, position: int) -> pa.Array | None:
    """A top-level column of timestamps in microseconds."""
    number, one = footer.columns[position], footer.stripes[stripe]
    kind = footer.types[number].kind
    if kind not in TIMESTAMPS:
        return None
    described = _stripe_footers(source, footer, [stripe])[0]
    encoding = message_of(described.get(2, [])[number])
    if number_of(encoding, 1) != _RLE_V2 or (kind != INSTANT and as_bytes(described.get(_ZONE, [b""])[-1]) not in _UTC):
        return None
    streams, at = dict[int, tuple[int, int]](), number_of(one, 1)
    for stream in map(message_of, described.get(1, [])):
        size = number_of(stream, 3)
        if number_of(stream, 2) == number:
            streams[number_of(stream, 1)] = at, size
        at += size
    names = [name for name in (_PRESENT, _DATA, _SECONDARY) if name in streams]
    found = map(bytes, source.read_ranges([streams[name] for name in names]))
    stored = dict(zip(names, found, strict=True))
    rows = number_of(one, 5)
    seconds = _decoded(footer, _LONG, rows, {name: stored[name] for name in names if name != _SECONDARY})
    zeros = _chunks(_RUN_OF_ZEROS * -(-rows // _RUN), footer)
    within = _decoded(footer, INSTANT, rows, stored | {_DATA: zeros}).cast(pa.int64())
    nanos = pc.subtract(within, _EPOCH * 10**9)
    seconds = pc.add(seconds, _EPOCH)
    early = pc.and_(pc.less(seconds, 0), pc.greater(nanos, 999_999))
    seconds = pc.subtract(seconds, early.cast(pa.int64()))
    micros = pc.add(pc.multiply_checked(seconds, 1_000_000), pc.divide(nanos, 1000))
    return micros.cast(pa.timestamp("us", "UTC" if kind == INSTANT else None))


def _decoded(footer: OrcFooter, kind: int, rows: int, streams: dict[int, bytes]) -> pa.Array:
    """The only column of a file made of its streams."""
    data = b"".join(streams.values())
    listed = [_message({1: kind_of, 2: 1, 3: len(one)}) for kind_of, one in streams.items()]
    encodings = [_message({1: 0}), _message({1: _RLE_V2})]
    stripe = _chunks(_message({1: listed, 2: encodings, 3: b"UTC"}), footer)
    place = {1: len(MAGIC), 2: 0, 3: len(data), 4: len(stripe), 5: rows}
    types = [_message({1: _STRUCT, 2: 1, 3: b"c"}), _message({1: kind})]
    ends = len(MAGIC) + len(data) + len(stripe)
    made = _message({1: len(MAGIC), 2: ends - len(MAGIC), 3: [_message(place)], 4: types, 6: rows})
    tail = _chunks(made, footer)
    script = _message({1: len(tail), 2: footer.codec, 3: footer.block, 4: [0, 12], 5: 0, 6: 1, 8000: MAGIC})
    whole = b"".join((MAGIC, data, stripe, tail, script, bytes([len(script)])))
    return orc.ORCFile(pa.BufferReader(whole)).read_stripe(0).column(0)


def _chunks(data: bytes, footer: OrcFooter) -> bytes:
    """Bytes as they are stored in a compressed file: in chunks whose header says that they are not compressed."""
    if footer.codec == 0:
        return data
    parts = (data[at : at + footer.block] for at in range(0, len(data), footer.block))
    return b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)


def _message(fields: Mapping[int, int | bytes | list[int] | list[bytes]]) -> bytes:
    """A protobuf message."""
    made = bytearray()
    for field, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                made += encode_varint(field << 3) + encode_varint(value)
            else:
                made += encode_varint(field << 3 | 2) + encode_varint(len(value)) + value
    return bytes(made)
