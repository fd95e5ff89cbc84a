"""Values as they stand in pages: some left out, put together again, and their bounds, without building each of them.

Plain values are numbers, truth values as bits, byte arrays of one length, or byte arrays behind their lengths. Ints
that refer to the dictionaries of several row groups refer to one that grows with each of them: entries keep their
numbers, and pages are as wide as the numbers they have.

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

from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.data_pages import PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, Page, kernel, unpack_hybrid
from floeplan.vectors import Bytes, Mask

Values: TypeAlias = npt.NDArray[Any]
Bounds: TypeAlias = tuple[bytes, bytes] | None
"""The smallest and the largest value; ``None`` without values, or where they are not known yet."""

_NUMBERS = {Physical.INT32: "<i4", Physical.INT64: "<i8", Physical.FLOAT: "<f4", Physical.DOUBLE: "<f8"}


class ValueEncoding(Protocol):
    """How the values of a column are stored."""

    encoding: int
    """What pages that are made say they are."""
    read_from: tuple[int, ...]
    """What pages that are read may say they are."""
    width: int | None
    """Bytes of a number; 0 for byte arrays behind their lengths; ``None`` for anything else."""

    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        """The values that stay of so many on a page."""

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        """The values of some parts as they stand in one page, and their bounds."""


def plain_value_encoding(leaf: LeafColumn) -> ValueEncoding:
    """Plain values of a column."""
    if leaf.physical in _NUMBERS:
        return _Numbers(leaf)
    if leaf.physical is Physical.BOOLEAN:
        return _Flags()
    return _Lengthy() if leaf.physical is Physical.BYTE_ARRAY else _Fixed(leaf)


class _Plain:
    encoding = PLAIN
    read_from: tuple[int, ...] = (PLAIN,)
    width: int | None = None


class _Numbers(_Plain):
    def __init__(self, leaf: LeafColumn) -> None:
        self._type = np.dtype(_NUMBERS[leaf.physical])
        self.width = self._type.itemsize

    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
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
    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
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

    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        width = self._leaf.type_length
        if width < 1 or len(values) != count * width:
            raise ValueError(f"{len(values)} bytes of {count} values")
        rows = values.reshape(count, width)
        return (rows if keep is None else rows[keep]), None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        values = np.ascontiguousarray(_together(parts))
        return values.reshape(-1), _fixed_bounds(self._leaf, values)


def _fixed_bounds(leaf: LeafColumn, values: Values) -> Bounds:
    """Of values of one length, one in a row; the sign of signed ones is turned for bytes to be ordered as they are."""
    if not len(values):
        return None
    turned = np.zeros(values.shape[1], dtype=np.uint8)
    turned[0] = 128 if leaf.annotation.kind is Kind.DECIMAL else 0
    ordered = pa.Array.from_buffers(pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values ^ turned)])
    found = pc.min_max(ordered)
    low, high = (np.frombuffer(found[side].as_py(), dtype=np.uint8) ^ turned for side in ("min", "max"))
    return low.tobytes(), high.tobytes()


class _Lengthy(_Plain):
    width: int | None = 0

    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        room = np.empty(len(values), dtype=np.uint8)
        size, low, high = kernel.thin_byte_arrays(values, flags, room)
        return room[:size], None if low is None else (low, high)

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        known = [bound for bound in bounds if bound is not None]
        found = (min(low for low, _ in known), max(high for _, high in known)) if known else None
        return _together(parts), found


class Dictionary:
    """Ints that refer to the dictionaries of some row groups, made to refer to one that has the entries of all."""

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

    def learn(self, page: Page) -> None:
        """Take the dictionary page that the pages which follow refer to."""
        if self._last is not None and _same(self._last, page):
            return
        entries = _entries(self._leaf, page)
        known = 0 if self._entries is None else len(self._entries)
        encoded = pa.concat_arrays([entries] if self._entries is None else [self._entries, entries]).dictionary_encode()
        self._entries, self._last = encoded.dictionary, page
        self._new = np.asarray(encoded.indices)[known:]

    @property
    def size(self) -> int:
        """How many entries there are."""
        return 0 if self._entries is None else len(self._entries)

    @property
    def stored_entries(self) -> bytes:
        """All entries, as they stand in a dictionary page."""
        return b"" if self._entries is None else b"".join(self._entries.to_pylist())

    def thin(self, values: Bytes, count: int, keep: Mask | None) -> tuple[Values, Bounds]:
        if not count:
            return np.zeros(0, dtype=np.int32), None
        numbers = unpack_hybrid(values[1:], int(values[0]) if len(values) else -1, count)
        flags = np.ones(count, dtype=np.uint8) if keep is None else keep.view(np.uint8)
        return numbers[: kernel.renumber(numbers, flags, self._new)], None

    def stored(self, parts: Sequence[Values], bounds: Sequence[Bounds]) -> tuple[Bytes | bytes, Bounds]:
        numbers = _together(parts)
        width = max(1, int(numbers.max(initial=0)).bit_length())
        return bytes([width]) + kernel.pack(numbers, width), self._bounds(numbers) if len(numbers) else None

    def _bounds(self, numbers: npt.NDArray[np.int32]) -> Bounds:
        """Of the entries that numbers refer to; pages mostly refer to the same ones."""
        flags = np.zeros(self.size, dtype=np.uint8)
        kernel.mark(numbers, flags)
        if self._last_used != (used := flags.tobytes()):
            self._last_used, self._last_bounds = used, self._bounds_of(flags.view(np.bool_))
        return self._last_bounds

    def _bounds_of(self, used: Mask) -> Bounds:
        assert self._entries is not None
        if self._leaf.physical is Physical.BYTE_ARRAY:
            _, places, data = self._entries.buffers()
            starts = np.frombuffer(places, dtype=np.int32)[: self.size + 1]
            chosen = np.flatnonzero(used).astype(np.int32)
            found = kernel.entry_bounds(chosen, np.frombuffer(data, dtype=np.uint8), starts)
            low, high = (self._entries[number].as_py()[4:] for number in found)
            return low, high
        width = self._entries.type.byte_width
        entries = np.frombuffer(self._entries.buffers()[1], dtype=np.uint8)[: self.size * width]
        if self._leaf.physical in _NUMBERS:
            return _number_bounds(entries.view(_NUMBERS[self._leaf.physical])[used])
        return _fixed_bounds(self._leaf, entries.reshape(-1, width)[used])


def _same(one: Page, other: Page) -> bool:
    """Whether two dictionary pages have the same entries in the same order."""
    return one.rows == other.rows and one.encoding == other.encoding and np.array_equal(one.values, other.values)


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


def _together(parts: Sequence[Values]) -> Values:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
