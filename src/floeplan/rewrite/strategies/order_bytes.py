"""Values of every primitive type in forms that sort as Spark sorts them: for Arrow, and as plain bytes.

``order_bytes`` maps values to byte strings whose order as bytes is the order of the values; the strings of several
columns joined together order rows by all of them, because none is the beginning of another:

=========================  ==================================================================================
type                       bytes behind the first, which tells null from value
=========================  ==================================================================================
boolean, integers, times   eight bytes, big endian, sign bit flipped
float, double              eight bytes of the double: positive with the sign bit flipped, negative with all
decimal                    sixteen bytes of the unscaled value, big endian, sign bit flipped
string, binary, others     the bytes with 00 written as 00 FF, closed by 00 00
=========================  ==================================================================================

A descending order inverts all bytes behind the first.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words: TypeAlias = npt.NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_NULL_FIRST, _VALUE, _NULL_LAST = b"\x00", b"\x01", b"\x02"
_BYTES = pa.large_binary()
_NOTHING = pa.scalar(b"", _BYTES)


def comparable(column: pa.Array) -> pa.Array:
    """The column as something Arrow sorts and ranks as Spark would; nulls stay null."""
    plain = _plain(column)
    if pa.types.is_floating(plain.type):
        return pa.array(_float_words(plain), mask=_is_null(plain))
    return plain


def order_bytes(column: pa.Array, *, descending: bool = False, nulls_first: bool = True) -> pa.Array:
    """Byte strings in the order of the values; see the module's text."""
    plain = _plain(column)
    body = _closed(plain) if pa.types.is_large_binary(plain.type) else _fixed(_words(plain))
    if descending:
        body = _inverted(body)
    marked = pc.binary_join_element_wise(pa.scalar(_VALUE, _BYTES), body, _NOTHING)
    null = pa.scalar(_NULL_FIRST if nulls_first else _NULL_LAST, _BYTES)
    return pc.if_else(plain.is_valid(), marked, null)


def _plain(column: pa.Array) -> pa.Array:
    """Booleans and times as integers, everything made of bytes as binary, decimals of at most 128 bits."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return _plain(column.dictionary_decode())
    if pa.types.is_decimal(type_):
        return column.cast(pa.decimal128(38, type_.scale))
    if pa.types.is_floating(type_):
        return column.cast(pa.float64())
    if pa.types.is_temporal(type_):
        return column.view(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(pa.int64())
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return column.cast(pa.int64())
    return column.cast(_BYTES)


def _is_null(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _words(plain: pa.Array) -> list[Words]:
    """The unsigned words of fixed-size values, the most significant first; anything where a value is null."""
    if pa.types.is_floating(plain.type):
        return [_float_words(plain)]
    if pa.types.is_decimal(plain.type):
        pairs = np.frombuffer(plain.buffers()[1], dtype=np.uint64)[2 * plain.offset :][: 2 * len(plain)]
        return [pairs[1::2] ^ _SIGN, pairs[0::2]]
    return [plain.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64) ^ _SIGN]


def _float_words(column: pa.Array) -> Words:
    """Doubles as unsigned integers in their order: one NaN above all, one zero."""
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _fixed(words: list[Words]) -> pa.Array:
    """Words as byte strings of one length, big endian."""
    data = np.stack(words, axis=1).astype(">u8")
    rows, width = len(data), 8 * len(words)
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(_BYTES, rows, buffers)


def _closed(values: pa.Array) -> pa.Array:
    """Byte strings of which none is the beginning of another."""
    escaped = pc.replace_substring(values.fill_null(b""), pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(escaped, pa.scalar(b"\x00\x00", _BYTES), _NOTHING)


def _inverted(values: pa.Array) -> pa.Array:
    _, offsets, data = values.buffers()
    inverted = ~np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return pa.Array.from_buffers(_BYTES, len(values), [None, offsets, pa.py_buffer(inverted)], offset=values.offset)
