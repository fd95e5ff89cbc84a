"""The order of rows by several keys, found by sorting one number for each row.

The number holds the beginning of the keys, as many bits of them as there is room for, and behind it the number of the
row: sorting these numbers alone, which is what a machine does best, puts the rows in order and keeps equal ones as they
were. Rows whose beginnings are the same although their keys may differ are told apart by all keys afterwards.

Rule: a beginning never contradicts the keys: of two rows the one with the smaller beginning has the smaller keys.
Whatever cannot be said in bits is left to the second step.
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

from floeplan.vectors import valid_mask

RowNumbers: TypeAlias = npt.NDArray[np.uint32]
Words: TypeAlias = npt.NDArray[np.uint64]

_WORD_BITS = 64
_PREFIX_BYTES = 8
_BLOCK = 1 << 16
_SAMPLE, _FEW = 4096, 256
"""Texts looked at to tell whether they repeat, and how many different ones of them say yes."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of the rows: integers, or anything else that Arrow sorts."""

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
    """The numbers of the rows in the order of their keys; rows of equal keys keep theirs."""
    numbers, exact, same = sort_by_prefixes(map(key_prefix, keys), len(keys[0].values))
    if not exact and same.any():
        _tell_apart(numbers, same, keys)
    return numbers


def sort_by_prefixes(beginnings: Iterable[KeyPrefix], rows: int) -> tuple[RowNumbers, bool, npt.NDArray[np.bool_]]:
    """The numbers of rows by the beginnings of their keys; what follows on one that is not exact tells nothing.

    Their words are used up. Memory is touched no more often than it must be, for that takes longer than the arithmetic.

    Returns:
        The numbers, whether all was told, and for each place but the first whether what was told is the same as at the
        place before.
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


def _tell_apart(numbers: RowNumbers, same: npt.NDArray[np.bool_], keys: Sequence[SortKey]) -> None:
    """Put rows of the same beginning in the order of all their keys, in place."""
    there = np.flatnonzero(np.append(False, same) | np.append(same, False))
    run = np.cumsum(~np.append(False, same)[there])
    rows = pa.array(numbers[there])
    columns: dict[str, pa.Array] = {"run": pa.array(run)}
    wanted = [("run", "ascending")]
    for number, key in enumerate(keys):
        values = key.values.take(rows)
        if values.null_count:
            columns[f"null{number}"] = values.is_null().cast(pa.int8())
            wanted.append((f"null{number}", "descending" if key.nulls_first else "ascending"))
        columns[f"key{number}"] = values
        wanted.append((f"key{number}", "descending" if key.descending else "ascending"))
    numbers[there] = numbers[there][np.asarray(pc.sort_indices(pa.table(columns), sort_keys=wanted))]


def key_prefix(key: SortKey) -> KeyPrefix:
    """As much of a key as fits a word, nulls at their end."""
    values = key.values
    found = _ascending(values.drop_null() if values.null_count else values)
    words, most = found.words, (1 << found.bits) - 1
    if key.descending:
        words = np.uint64(most) - words
    if not values.null_count:
        return KeyPrefix(words, found.bits, found.exact)
    if found.bits == _WORD_BITS:  # one more number is needed than there are
        words, most, found = words >> np.uint64(1), most >> 1, KeyPrefix(words, _WORD_BITS - 1, False)
    valid = valid_mask(values)
    placed = np.full(len(values), 0 if key.nulls_first else most + 1, dtype=np.uint64)
    placed[valid] = words + np.uint64(key.nulls_first)
    return KeyPrefix(placed, found.bits + 1, found.exact)


def _ascending(values: pa.Array) -> KeyPrefix:
    """The same for values without nulls among them."""
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
    """Integers of any width in their order."""
    if numbers.dtype == np.uint64:
        return (numbers ^ np.uint64(1 << 63)).view(np.int64)
    return numbers.astype(np.int64, copy=False)


def _of_integers(numbers: npt.NDArray[np.int64], exact: bool = True) -> KeyPrefix:
    """How far each is above the smallest."""
    smallest = numbers.min()
    span = int(numbers.max()) - int(smallest)
    words = numbers.view(np.uint64) - smallest.view(np.uint64)
    return KeyPrefix(np.asarray(words), span.bit_length(), exact)


def _of_decimals(values: pa.Array) -> KeyPrefix:
    """Unscaled values, if they all have 64 bits; else what is above the lower ones."""
    halves = np.frombuffer(values.buffers()[1], dtype=np.int64)[2 * values.offset :][: 2 * len(values)]
    lower, upper = halves[::2], halves[1::2]
    if np.array_equal(lower >> 63, upper):
        return _of_integers(np.ascontiguousarray(lower))
    return _of_integers(np.ascontiguousarray(upper), exact=False)


def _of_texts(values: pa.Array) -> KeyPrefix:
    """The rank of texts that repeat; else the bytes behind what all of them begin with."""
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
    """How many bytes two texts, and all between them, begin with in common."""
    shorter = min(len(one), len(other))
    differ = (at for at in range(shorter) if one[at] != other[at])
    return next(differ, shorter)


def _prefixes(values: pa.Array, skipped: int) -> Words:
    """Eight bytes behind the first ones of every text, zeros behind its end, as numbers."""
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset :][: len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"\x00", dtype=np.uint8)
    words = np.zeros(len(values), dtype=np.uint64)
    starts, ends = offsets[:-1] + skipped, offsets[1:]
    for at in range(_PREFIX_BYTES):
        byte = data[np.minimum(starts + at, len(data) - 1)].astype(np.uint64)
        words = words << np.uint64(8) | np.where(starts + at < ends, byte, np.uint64(0))
    return words
