"""Sorts rows by several keys by sorting one 64-bit integer per row.

The integer holds a prefix of the keys, as many bits as fit, followed by the row number: sorting these integers, which
NumPy vectorizes, sorts the rows and is stable. Rows with equal prefixes whose keys may differ are then sorted by all
keys.

Rule: a prefix never contradicts the keys: of two rows the one with the smaller prefix has the smaller keys. What does
not fit into the prefix is left to the second step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from floeplan.vectors import Mask, valid_mask

RowNumbers: TypeAlias = npt.NDArray[np.uint32]
"""32 bits are enough for the rows of one task, and halve the memory of their order."""
Words: TypeAlias = npt.NDArray[np.uint64]

_WORD_BITS = 64
_PREFIX_BYTES = 8
_BLOCK = 1 << 16
_SAMPLE, _FEW = 4096, 256
"""Strings to sample for repetition, and the number of distinct ones up to which they are dictionary-encoded."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One sort key of the rows: integers, or any type that Arrow sorts."""

    values: pa.Array
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """RowNumbers in the order of a key, below ``1 << bits``; ``exact`` when equal numbers mean equal keys."""

    words: Words
    bits: int
    exact: bool


def sorted_row_numbers(keys: Sequence[SortKey]) -> RowNumbers:
    """The row numbers in the order of their keys; the sort is stable."""
    numbers, exact, same = sort_by_prefixes(map(key_prefix, keys), len(keys[0].values))
    if not exact and same.any():
        _sort_equal_prefixes(numbers, same, keys)
    return numbers


def sort_by_prefixes(beginnings: Iterable[KeyPrefix], rows: int) -> tuple[RowNumbers, bool, npt.NDArray[np.bool_]]:
    """Sort rows by key prefixes; prefixes after one that is not exact are ignored.

    The words are modified in place, since memory traffic takes longer than the arithmetic.

    Returns:
        The row numbers, whether the order is exact, and for each position but the first whether its prefix equals the
        previous one.
    """
    low = max(1, rows - 1).bit_length()
    packed, left, exact = np.zeros(0, dtype=np.uint64), _WORD_BITS - low, True
    for one in beginnings:
        bits, words = min(left, one.bits), one.words
        if bits:
            words >>= np.uint64(one.bits - bits)
            packed <<= np.uint64(bits)
        if not len(packed):
            packed = words
        elif bits:
            packed |= words
        left, exact = left - bits, one.exact and bits == one.bits
        if not exact:
            break
    for start in range(0, rows, _BLOCK):
        block = packed[start : start + _BLOCK]
        block <<= np.uint64(low)
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    packed.sort()
    numbers = np.empty(rows, dtype=np.uint32)
    np.bitwise_and(packed, np.uint64((1 << low) - 1), out=numbers, casting="unsafe")
    packed >>= np.uint64(low)
    return numbers, exact, packed[1:] == packed[:-1]


def _sort_equal_prefixes(numbers: RowNumbers, same: Mask, keys: Sequence[SortKey]) -> None:
    """Sort rows with equal prefixes by all their keys, in place."""
    positions = np.flatnonzero(np.append(False, same) | np.append(same, False))
    run = np.cumsum(~np.append(False, same)[positions])
    rows = pa.array(numbers[positions])
    columns: dict[str, pa.Array] = {"run": pa.array(run)}
    wanted = [("run", "ascending")]
    for number, key in enumerate(keys):
        values = key.values.take(rows)
        if values.null_count:
            columns[f"null{number}"] = values.is_null().cast(pa.int8())
            wanted.append((f"null{number}", "descending" if key.nulls_first else "ascending"))
        columns[f"key{number}"] = values
        wanted.append((f"key{number}", "descending" if key.descending else "ascending"))
    numbers[positions] = numbers[positions][np.asarray(pc.sort_indices(pa.table(columns), sort_keys=wanted))]


def key_prefix(key: SortKey) -> KeyPrefix:
    """The prefix of a key that fits into a word, with nulls first or last."""
    values = key.values
    found = _ascending(values.drop_null() if values.null_count else values)
    words, most = found.words, (1 << found.bits) - 1
    if key.descending:
        words = np.uint64(most) - words
    if not values.null_count:
        return KeyPrefix(words, found.bits, found.exact)
    if found.bits == _WORD_BITS:  # drop a bit to make room for the null
        words, most, found = words >> np.uint64(1), most >> 1, KeyPrefix(words, _WORD_BITS - 1, False)
    valid = valid_mask(values)
    placed = np.full(len(values), 0 if key.nulls_first else most + 1, dtype=np.uint64)
    placed[valid] = words + np.uint64(key.nulls_first)
    return KeyPrefix(placed, found.bits + 1, found.exact)


def _ascending(values: pa.Array) -> KeyPrefix:
    """The prefix of values without nulls, ascending."""
    if not len(values):
        return KeyPrefix(np.zeros(0, dtype=np.uint64), 0, True)
    if pt.is_boolean(values.type):
        values = values.cast(pa.int64())
    if pt.is_integer(values.type):
        return _of_integers(_signed(np.asarray(values)))
    if pt.is_decimal128(values.type):
        return _of_decimals(values)
    if pt.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    if pt.is_large_string(values.type) or pt.is_string(values.type) or pt.is_large_binary(values.type):
        return _of_texts(values.cast(pa.large_binary()))
    if pt.is_binary(values.type):
        return _of_texts(values.cast(pa.large_binary()))
    return KeyPrefix(np.zeros(len(values), dtype=np.uint64), 0, False)


def _signed(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Integers of any width as int64 of the same order."""
    if numbers.dtype == np.uint64:
        return (numbers ^ np.uint64(1 << 63)).view(np.int64)
    return numbers.astype(np.int64, copy=False)


def _of_integers(numbers: npt.NDArray[np.int64], exact: bool = True) -> KeyPrefix:
    """The distance of each to the smallest."""
    smallest = numbers.min()
    span = int(numbers.max()) - int(smallest)
    words = numbers.view(np.uint64) - smallest.view(np.uint64)
    return KeyPrefix(np.asarray(words), span.bit_length(), exact)


def _of_decimals(values: pa.Array) -> KeyPrefix:
    """Unscaled values if all fit into 64 bits, else their upper halves."""
    halves = np.frombuffer(values.buffers()[1], dtype=np.int64)[2 * values.offset :][: 2 * len(values)]
    lower, upper = halves[::2], halves[1::2]
    if np.array_equal(lower >> 63, upper):
        return _of_integers(np.ascontiguousarray(lower))
    return _of_integers(np.ascontiguousarray(upper), exact=False)


def _of_texts(values: pa.Array) -> KeyPrefix:
    """The rank of strings that repeat, else the bytes after their common prefix."""
    sample = values.take(pa.array(np.arange(0, len(values), -(-len(values) // _SAMPLE))))
    if len(values) > _SAMPLE and pc.count_distinct(sample).as_py() <= _FEW:
        encoded = values.dictionary_encode()
        ranks = np.asarray(pc.rank(encoded.dictionary, tiebreaker="dense")).astype(np.int64)
        return _of_integers(ranks[np.asarray(encoded.indices)])
    ends = pc.min_max(values).as_py()
    return _of_integers(
        (_prefixes(values, _common(ends["min"], ends["max"])) ^ np.uint64(1 << 63)).view(np.int64), False
    )


def _common(one: bytes, other: bytes) -> int:
    """The length of the common prefix of two strings, and so of all between them."""
    shorter = min(len(one), len(other))
    differ = (at for at in range(shorter) if one[at] != other[at])
    return next(differ, shorter)


def _prefixes(values: pa.Array, skipped: int) -> Words:
    """Eight bytes of every string after ``skipped`` bytes, padded with zeros, as big-endian integers."""
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset :][: len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"\x00", dtype=np.uint8)
    words = np.zeros(len(values), dtype=np.uint64)
    starts, ends = offsets[:-1] + skipped, offsets[1:]
    for at in range(_PREFIX_BYTES):
        byte = data[np.minimum(starts + at, len(data) - 1)].astype(np.uint64)
        words = words << np.uint64(8) | np.where(starts + at < ends, byte, np.uint64(0))
    return words
