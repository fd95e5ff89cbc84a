"""Filters and concatenates the encoded values of pages, and computes their bounds, without decoding each value.

Plain values are numbers, booleans as bits, fixed-length byte arrays, or length-prefixed byte arrays. Dictionary indexes
of several row groups are renumbered to one dictionary that grows with each of them: entries keep their index, and a
page uses as many bits as its largest index needs.

Fail-safe: an unexpected number of values, and NaN, which has no order in Parquet's statistics, are a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.data_pages import PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, Page, kernel, unpack_hybrid
from floeplan.vectors import Bytes, Mask

Values: TypeAlias = npt.NDArray[Any]
Bounds: TypeAlias = tuple[bytes, bytes] | None
"""The smallest and the largest encoded value; ``None`` without values, or when not computed yet."""

_NUMBERS = {Physical.INT32: "<i4", Physical.INT64: "<i8", Physical.FLOAT: "<f4", Physical.DOUBLE: "<f8"}


class ValueEncoding(Protocol):
    """How the values of a column are encoded in pages."""

    encoding: int
    """The encoding of written pages."""
    read_from: tuple[int, ...]
    """The encodings of pages that can be read."""
    width: int | None
    """Bytes of a number; 0 for length-prefixed byte arrays; ``None`` for anything else."""

    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        """The kept ones of a page's ``count`` values, and their bounds if they cost nothing."""

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        """Encode filtered values as one page, and return their bounds."""


def plain_value_encoding(leaf: LeafColumn) -> ValueEncoding:
    """The plain encoding of a column."""
    if leaf.physical in _NUMBERS:
        return _Numbers(leaf)
    if leaf.physical is Physical.BOOLEAN:
        return _Booleans()
    return _ByteArrays() if leaf.physical is Physical.BYTE_ARRAY else _FixedByteArrays(leaf)


class _Plain:
    encoding = PLAIN
    read_from: tuple[int, ...] = (PLAIN,)
    width: int | None = None


class _Numbers(_Plain):
    def __init__(self, leaf: LeafColumn) -> None:
        self._type = np.dtype(_NUMBERS[leaf.physical])
        self.width = self._type.itemsize

    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        if len(values) != count * self._type.itemsize:
            raise ValueError(f"{len(values)} bytes of {count} numbers")
        if keep is None:
            return values.view(self._type), None
        room = np.empty(count, dtype=self._type)
        kernel.thin_numbers(values, keep.view(np.uint8), self._type.itemsize, room.view(np.uint8))
        return room[: np.count_nonzero(keep)], None

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        numbers = _concatenated(parts)
        return numbers.view(np.uint8), _number_bounds(numbers)


def _number_bounds(numbers: Values) -> Bounds:
    if not len(numbers):
        return None
    low, high = numbers.min(), numbers.max()
    if numbers.dtype.kind == "f":
        if np.isnan(low) or np.isnan(high):
            raise ValueError("NaN has no bounds")
        # Parquet: a min of zero is written as -0.0 and a max of zero as +0.0, since the two compare equal.
        low, high = low if low else -abs(low), high if high else abs(high)
    return low.tobytes(), high.tobytes()


class _Booleans(_Plain):
    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        if len(values) != (count + 7) // 8:
            raise ValueError(f"{len(values)} bytes of {count} truth values")
        flags = np.unpackbits(values, count=count, bitorder="little")
        return (flags if keep is None else flags[keep]), None

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        flags = _concatenated(parts)
        found = (flags.min().tobytes(), flags.max().tobytes()) if len(flags) else None
        return np.packbits(flags, bitorder="little"), found


class _FixedByteArrays(_Plain):
    def __init__(self, leaf: LeafColumn) -> None:
        self._leaf = leaf

    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        width = self._leaf.type_length
        if width < 1 or len(values) != count * width:
            raise ValueError(f"{len(values)} bytes of {count} values")
        rows = values.reshape(count, width)
        return (rows if keep is None else rows[keep]), None

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        values = np.ascontiguousarray(_concatenated(parts))
        return values.reshape(-1), _fixed_bounds(self._leaf, values)


def _fixed_bounds(leaf: LeafColumn, values: Values) -> Bounds:
    if not len(values):
        return None
    # Decimals are signed big-endian: with the sign bit flipped, unsigned bytes have their order.
    sign = np.zeros(values.shape[1], dtype=np.uint8)
    sign[0] = 128 if leaf.annotation.kind is Kind.DECIMAL else 0
    ordered = pa.Array.from_buffers(pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values ^ sign)])
    found = pc.min_max(ordered)
    low, high = (np.frombuffer(found[side].as_py(), dtype=np.uint8) ^ sign for side in ("min", "max"))
    return low.tobytes(), high.tobytes()


class _ByteArrays(_Plain):
    width: int | None = 0

    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        room = np.empty(len(values), dtype=np.uint8)
        size, low, high = kernel.thin_byte_arrays(values, flags, room)
        return room[:size], None if low is None else (low, high)

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        known = [bound for bound in bounds if bound is not None]
        found = (min(low for low, _ in known), max(high for _, high in known)) if known else None
        return _concatenated(parts), found


class DictionaryEncoding:
    """Dictionary indexes of several row groups, renumbered to one dictionary with the entries of all."""

    encoding = RLE_DICTIONARY
    read_from: tuple[int, ...] = (PLAIN_DICTIONARY, RLE_DICTIONARY)
    width: int | None = None

    def __init__(self, leaf: LeafColumn) -> None:
        self._leaf = leaf
        self._entries: pa.Array | None = None
        self._last: Page | None = None
        self._new = np.zeros(0, dtype=np.int32)
        self._last_used = b""
        self._last_bounds: Bounds = None

    def add_dictionary(self, page: Page) -> None:
        """Add the entries of the dictionary page that the next data pages are encoded with."""
        last = self._last
        same_header = last is not None and (last.rows, last.encoding) == (page.rows, page.encoding)
        if last is not None and same_header and np.array_equal(last.values, page.values):
            return  # row groups of one file often have the same dictionary
        entries = _entries(self._leaf, page)
        known = 0 if self._entries is None else len(self._entries)
        encoded = pa.concat_arrays([entries] if self._entries is None else [self._entries, entries]).dictionary_encode()
        self._entries, self._last = encoded.dictionary, page
        self._new = np.asarray(encoded.indices)[known:]

    @property
    def size(self) -> int:
        """Number of entries."""
        return 0 if self._entries is None else len(self._entries)

    @property
    def stored_entries(self) -> bytes:
        """All entries, encoded for a dictionary page."""
        return b"" if self._entries is None else b"".join(self._entries.to_pylist())

    def filter(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        if not count:
            return np.zeros(0, dtype=np.int32), None
        numbers = unpack_hybrid(values[1:], int(values[0]) if len(values) else -1, count)
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        return numbers[: kernel.renumber(numbers, flags, self._new)], None

    def encode(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        numbers = _concatenated(parts)
        width = max(1, int(numbers.max(initial=0)).bit_length())
        return bytes([width]) + kernel.pack(numbers, width), self._bounds(numbers) if len(numbers) else None

    def _bounds(self, numbers: npt.NDArray[np.int32]) -> Bounds:
        """The bounds of the used entries; cached, because consecutive pages mostly use the same ones."""
        assert self._entries is not None
        flags = np.zeros(self.size, dtype=np.uint8)
        kernel.mark(numbers, flags)
        if self._last_used == (used := flags.tobytes()):
            return self._last_bounds
        is_used = flags.view(np.bool_)
        if self._leaf.physical is Physical.BYTE_ARRAY:
            _, offsets, data = self._entries.buffers()
            starts = np.frombuffer(offsets, dtype=np.int32)[: self.size + 1]
            chosen = np.flatnonzero(is_used).astype(np.int32)
            ends = kernel.entry_bounds(chosen, np.frombuffer(data, dtype=np.uint8), starts)
            low, high = (self._entries[number].as_py()[4:] for number in ends)  # without the length prefix
            found: Bounds = (low, high)
        else:
            width = self._entries.type.byte_width
            entries = np.frombuffer(self._entries.buffers()[1], dtype=np.uint8)[: self.size * width]
            if self._leaf.physical in _NUMBERS:
                found = _number_bounds(entries.view(_NUMBERS[self._leaf.physical])[is_used])
            else:
                found = _fixed_bounds(self._leaf, entries.reshape(-1, width)[is_used])
        self._last_used, self._last_bounds = used, found
        return found


def _entries(leaf: LeafColumn, page: Page) -> pa.Array:
    """The encoded entries of a dictionary page; byte arrays keep their length prefix."""
    if page.encoding not in (PLAIN, PLAIN_DICTIONARY) or page.rows < 0 or page.rows > len(page.values):
        raise ValueError("an invalid dictionary page")
    data = pa.py_buffer(page.values)
    if leaf.physical is Physical.BYTE_ARRAY:
        offsets = np.empty(page.rows + 1, dtype=np.int32)
        kernel.byte_array_places(page.values, offsets)
        return pa.Array.from_buffers(pa.binary(), page.rows, [None, pa.py_buffer(offsets), data])
    width = np.dtype(_NUMBERS[leaf.physical]).itemsize if leaf.physical in _NUMBERS else leaf.type_length
    if width < 1 or len(page.values) != page.rows * width:
        raise ValueError(f"{len(page.values)} bytes of {page.rows} entries")
    return pa.Array.from_buffers(pa.binary(width), page.rows, [None, data])


def _concatenated(parts: Sequence[Values]) -> Values:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
