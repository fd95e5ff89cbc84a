"""Values as they stand in pages: some left out, put together again, and their bounds, without building each of them.

Plain values are numbers, truth values as bits, byte arrays of one length, or byte arrays behind their lengths. Numbers
that refer to a dictionary refer to a common one afterwards, whose entries are in order: the smallest number on a page
is its lower bound then.

Fail-safe: values that are not as many as there should be, and NaN, which has no place among bounds, are a
``ValueError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.parquet.data_pages import PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, Page, kernel, unpacked
from floeplan.parquet.page_codec import Bytes
from floeplan.parquet.schema import Kind, LeafColumn, Physical
from floeplan.predicate.tristate import Mask

Values: TypeAlias = npt.NDArray[Any]
Bounds: TypeAlias = tuple[bytes, bytes] | None
"""The smallest and the largest value; ``None`` without values, or where they are not known yet."""

_NUMBERS = {Physical.INT32: "<i4", Physical.INT64: "<i8", Physical.FLOAT: "<f4", Physical.DOUBLE: "<f8"}


class StoredValues(Protocol):
    """How the values of a column are stored."""

    encoding: int
    """What pages that are made say they are."""
    read_from: tuple[int, ...]
    """What pages that are read may say they are."""

    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        """The values that stay of so many on a page of a source."""

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        """The values of some parts as they stand in one page, and their bounds."""


def plain_values(leaf: LeafColumn) -> StoredValues:
    """Plain values of a column."""
    if leaf.physical in _NUMBERS:
        return _Numbers(leaf)
    if leaf.physical is Physical.BOOLEAN:
        return _Flags()
    return _Lengthy() if leaf.physical is Physical.BYTE_ARRAY else _Fixed(leaf)


class _Plain:
    encoding = PLAIN
    read_from: tuple[int, ...] = (PLAIN,)


class _Numbers(_Plain):
    def __init__(self, leaf: LeafColumn) -> None:
        self._type = np.dtype(_NUMBERS[leaf.physical])

    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        if len(values) != count * self._type.itemsize:
            raise ValueError(f"{len(values)} bytes of {count} numbers")
        if keep is None:
            return values.view(self._type), None
        room = np.empty(count, dtype=self._type)
        kernel.thin_numbers(values, keep.view(np.uint8), self._type.itemsize, room.view(np.uint8))
        return room[: np.count_nonzero(keep)], None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        numbers = _together(parts)
        return numbers.view(np.uint8), _number_bounds(numbers)


def _number_bounds(numbers: Values) -> Bounds:
    """Of numbers as they are stored; zeros have both signs, as readers cannot know which of them there are."""
    if not len(numbers):
        return None
    low, high = numbers.min(), numbers.max()
    if numbers.dtype.kind == "f":
        if np.isnan(low) or np.isnan(high):
            raise ValueError("NaN")
        low, high = low if low else -abs(low), high if high else abs(high)
    return low.tobytes(), high.tobytes()


class _Flags(_Plain):
    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        if len(values) != (count + 7) // 8:
            raise ValueError(f"{len(values)} bytes of {count} truth values")
        flags = np.unpackbits(values, count=count, bitorder="little")
        return (flags if keep is None else flags[keep]), None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        flags = _together(parts)
        found = (flags.min().tobytes(), flags.max().tobytes()) if len(flags) else None
        return np.packbits(flags, bitorder="little"), found


class _Fixed(_Plain):
    def __init__(self, leaf: LeafColumn) -> None:
        self._leaf = leaf

    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        width = self._leaf.type_length
        if width < 1 or len(values) != count * width:
            raise ValueError(f"{len(values)} bytes of {count} values")
        rows = values.reshape(count, width)
        return (rows if keep is None else rows[keep]), None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        values = np.ascontiguousarray(_together(parts))
        found = None
        if len(values):
            ordered = _ordered(self._leaf, values)
            found = tuple(_flipped(self._leaf, pc.min_max(ordered)[side].as_py()) for side in ("min", "max"))
        return values.reshape(-1), found  # type: ignore[return-value]


def _is_signed(leaf: LeafColumn) -> bool:
    return leaf.annotation.kind is Kind.DECIMAL


def _flipped(leaf: LeafColumn, value: bytes) -> bytes:
    return bytes([value[0] ^ 128]) + value[1:] if _is_signed(leaf) else value


def _ordered(leaf: LeafColumn, values: Values) -> pa.Array:
    """Values of one length so that their bytes have the order that they have; of signed ones the sign is turned."""
    if _is_signed(leaf):
        values = values.copy()
        values[:, 0] ^= 128
    return pa.Array.from_buffers(pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values)])


class _Lengthy(_Plain):
    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        room = np.empty(len(values), dtype=np.uint8)
        size, low, high = kernel.thin_byte_arrays(values, flags, room)
        return room[:size], None if low is None else (low, high)

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        known = [bound for bound in bounds if bound is not None]
        found = (min(low for low, _ in known), max(high for _, high in known)) if known else None
        return _together(parts), found


class Dictionary:
    """Numbers that refer to the dictionaries of some sources, made to refer to one that has the entries of all."""

    encoding = RLE_DICTIONARY
    read_from: tuple[int, ...] = (PLAIN_DICTIONARY, RLE_DICTIONARY)

    def __init__(self, leaf: LeafColumn, pages: Sequence[Page]) -> None:
        """Of the dictionary page of each source."""
        self._leaf = leaf
        entries = [_entries(leaf, page) for page in pages]
        encoded = pa.concat_arrays(entries).dictionary_encode()
        order = _order(leaf, encoded.dictionary)
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        ends = np.cumsum([len(one) for one in entries])
        self._new = np.split(rank[np.asarray(encoded.indices)], ends[:-1])
        self._all = encoded.dictionary.take(pa.array(order))
        self.size = len(self._all)
        self._width = max(1, (self.size - 1).bit_length())

    @property
    def stored_entries(self) -> bytes:
        """All entries, as they stand in a dictionary page."""
        return b"".join(self._all.to_pylist())

    def thin(self, values: Bytes, count: int, keep: Mask | None, source: int) -> tuple[Values, Bounds]:
        if not count:
            return np.zeros(0, dtype=np.int32), None
        numbers = unpacked(values[1:], int(values[0]) if len(values) else -1, count)
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        return numbers[: kernel.renumber(numbers, flags, self._new[source])], None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        numbers = _together(parts)
        packed = bytes([self._width]) + kernel.pack(numbers, self._width)
        return packed, self._bounds(int(numbers.min()), int(numbers.max())) if len(numbers) else None

    def _bounds(self, first: int, last: int) -> Bounds:
        low, high = self._all[first].as_py(), self._all[last].as_py()
        if self._leaf.physical in _NUMBERS:
            return _number_bounds(np.frombuffer(low + high, dtype=_NUMBERS[self._leaf.physical]))
        return (low[4:], high[4:]) if self._leaf.physical is Physical.BYTE_ARRAY else (low, high)


def _entries(leaf: LeafColumn, page: Page) -> pa.Array:
    """The entries of a dictionary page, each as it is stored: byte arrays with their lengths."""
    if page.encoding not in (PLAIN, PLAIN_DICTIONARY) or page.rows < 0 or page.rows > len(page.values):
        raise ValueError("a dictionary that is none")
    data = pa.py_buffer(page.values)
    if leaf.physical is Physical.BYTE_ARRAY:
        places = np.empty(page.rows + 1, dtype=np.int32)
        kernel.byte_array_places(page.values, places)
        return pa.Array.from_buffers(pa.binary(), page.rows, [None, pa.py_buffer(places), data])
    width = np.dtype(_NUMBERS[leaf.physical]).itemsize if leaf.physical in _NUMBERS else leaf.type_length
    if width < 1 or len(page.values) != page.rows * width:
        raise ValueError(f"{len(page.values)} bytes of {page.rows} entries")
    return pa.Array.from_buffers(pa.binary(width), page.rows, [None, data])


def _order(leaf: LeafColumn, entries: pa.Array) -> npt.NDArray[np.int64]:
    """Places of the entries in the order of their values."""
    if leaf.physical is Physical.BYTE_ARRAY:
        texts = pa.array([entry[4:] for entry in entries.to_pylist()], pa.large_binary())
        return np.asarray(pc.sort_indices(texts), dtype=np.int64)
    data = np.frombuffer(entries.buffers()[1], dtype=np.uint8)[: len(entries) * entries.type.byte_width]
    if leaf.physical not in _NUMBERS:
        ordered = _ordered(leaf, data.reshape(-1, entries.type.byte_width))
        return np.asarray(pc.sort_indices(ordered), dtype=np.int64)
    numbers = data.view(_NUMBERS[leaf.physical])
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        raise ValueError("NaN")
    return np.argsort(numbers)


def _together(parts: Sequence[Values]) -> Values:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
