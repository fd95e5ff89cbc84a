"""Split-block bloom filters: one 32-byte block per value answers, the filter is not fetched.

A filter is a header and then blocks of eight 32-bit words. The upper half of a value's hash picks the block, the lower
half one bit in each word: if any of the eight is not set, the value was never inserted. Where the footer says how long
header and filter are, both the header and the blocks are asked for at once; the header then confirms the guess, or a
second request follows.

Only a proven absence counts. A missing filter, a header that says anything but the one standard filter, sizes that do
not add up, and values that the file may have stored in more than one way (zeros, NaN, decimals of variable length)
all answer "may be there".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
from pyiceberg.types import DecimalType, PrimitiveType

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import Kind, LeafColumn, Physical
from floeplan.parquet.footer.thrift import read_struct
from floeplan.parquet.footer.values import comparable, stored_tick, tick_of
from floeplan.parquet.source import ByteSource
from floeplan.predicate.ir import BloomEq, BloomInList, Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.vectors import Ints, Mask

# A literal as the bytes a Parquet column stores for it: what bloom filters hash.
#
# ``None`` means that equality of rows is not equality of bytes: the value may be stored in more than one way (zeros and
# NaN, decimals of variable length, nanoseconds read as microseconds), in none (a fraction of the stored unit), or the
# column is not read as the literal's type. Nothing may be concluded then.


def plain_encoding(leaf: LeafColumn, wanted: PrimitiveType, value: Value) -> bytes | None:
    """The one plain encoding of a canonical value of the wanted type in the leaf, or ``None``."""
    if not comparable(leaf, wanted):
        return None
    match leaf.physical:
        case Physical.INT32 | Physical.INT64:
            return _integer(leaf, wanted, value)
        case Physical.FLOAT | Physical.DOUBLE:
            return _float(value, "<f" if leaf.physical is Physical.FLOAT else "<d")
        case Physical.BYTE_ARRAY if leaf.annotation.kind is not Kind.DECIMAL:
            return _bytes(value)
        case Physical.FIXED_LEN_BYTE_ARRAY:
            return _fixed(leaf, value)
    return None


def _integer(leaf: LeafColumn, wanted: PrimitiveType, value: Value) -> bytes | None:
    if isinstance(value, Decimal) and isinstance(wanted, DecimalType):
        value = _unscaled(value, wanted.scale)
    if not isinstance(value, int):
        return None
    nanos = value * tick_of(wanted)
    if stored_tick(leaf) < tick_of(wanted) or nanos % stored_tick(leaf):
        return None
    width = 4 if leaf.physical is Physical.INT32 else 8
    return _to_bytes(nanos // stored_tick(leaf), width, "little", leaf.annotation.signed)


def _unscaled(value: Decimal, scale: int) -> int:
    """Exact at any number of digits, which arithmetic in the current decimal context is not."""
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _to_bytes(value: int, width: int, order: Literal["little", "big"], signed: bool) -> bytes | None:
    try:
        return value.to_bytes(width, order, signed=signed)
    except OverflowError:
        return None


def _float(value: Value, format_: str) -> bytes | None:
    if not isinstance(value, float) or value == 0 or math.isnan(value):
        return None
    try:
        encoded = struct.pack(format_, value)
    except OverflowError:
        return None
    return encoded if struct.unpack(format_, encoded)[0] == value else None


def _bytes(value: Value) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode("utf-8") if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _fixed(leaf: LeafColumn, value: Value) -> bytes | None:
    if isinstance(value, Decimal):
        return _to_bytes(_unscaled(value, leaf.annotation.scale), leaf.type_length, "big", signed=True)
    return value if isinstance(value, bytes) and len(value) == leaf.type_length else None


# ---

Hashes: TypeAlias = npt.NDArray[np.uint64]
Question: TypeAlias = tuple[Column, tuple[Value, ...]]
ChunkKey: TypeAlias = tuple[int, int]
"""Row group and leaf index."""

BLOCK_BYTES: Final = 32
_HEADER_PREFIX = 64
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


@dataclass(frozen=True, slots=True)
class SplitBlockFilter:
    """A whole filter in memory: one row of eight words per block."""

    blocks: npt.NDArray[np.uint32]

    @classmethod
    def from_bytes(cls, bitset: bytes) -> SplitBlockFilter:
        """The filter from its bits, without the header."""
        return cls(np.frombuffer(bitset, dtype="<u4").reshape(-1, 8))

    def might_contain(self, hashes: Hashes) -> Mask:
        """Per hash, whether a value with it may have been inserted."""
        return probe_blocks(self.blocks[block_numbers(hashes, len(self.blocks))], hashes)


class BloomFilterProvider(Protocol):
    """A custom source of filters, a cache for instance; keys are (row group, leaf index), absent ones unknown."""

    def bloom_filters_batch(self, requests: Sequence[ChunkKey]) -> Mapping[ChunkKey, SplitBlockFilter]:
        """The filters that are known among those asked for."""


class AsyncBloomFilterProvider(Protocol):
    """The same, awaited."""

    async def bloom_filters_batch(self, requests: Sequence[ChunkKey]) -> Mapping[ChunkKey, SplitBlockFilter]:
        """The filters that are known among those asked for."""


@dataclass(frozen=True, slots=True)
class BloomResults:
    """Answers to questions asked beforehand: a ``BloomProbe`` over all row groups of the file."""

    answers: Mapping[tuple[int, tuple[Value, ...]], Mask]

    def might_contain(self, column: Column, values: tuple[Value, ...]) -> Mask | None:
        """Per row group, whether any of the values may be there; ``None`` when the question was not asked."""
        return self.answers.get((column.field_id, values))


def block_numbers(hashes: Hashes, block_count: int | Ints) -> Ints:
    """The block each hash belongs to, in filters of so many blocks."""
    scaled = (hashes >> np.uint64(32)) * np.asarray(block_count, dtype=np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def probe_blocks(blocks: npt.NDArray[np.uint32], hashes: Hashes) -> Mask:
    """Per hash and its block, whether all eight of its bits are set."""
    low = hashes.astype(np.uint32)[:, None]
    bits = np.uint32(1) << ((low * _SALT) >> np.uint32(27))
    return np.asarray(((blocks & bits) == bits).all(axis=1))


def bloom_probes(expr: IrExpr) -> list[Question]:
    """The questions that the bloom leaves of an expression ask."""
    match expr:
        case BloomEq(column, value):
            return [(column, (value,))]
        case BloomInList(column, values):
            return [(column, values)]
    return [question for child in expr.children for question in bloom_probes(child)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question in terms of the file: the hashes of the values as the leaf stores them."""

    key: tuple[int, tuple[Value, ...]]
    leaf: LeafColumn
    hashes: Hashes


def _asked(
    footer: ParquetFooter, questions: Iterable[Question], leaves: Mapping[int, LeafColumn] | None
) -> list[_Asked]:
    """The questions that filters can answer: the file has the column, and stores each value in exactly one way."""
    known = footer.leaf_by_id if leaves is None else leaves
    asked = {}
    for column, values in questions:
        leaf = known.get(column.field_id)
        if leaf is None:
            continue
        encoded = [plain_encoding(leaf, column.type, value) for value in values]
        certain = [data for data in encoded if data is not None]
        if len(certain) == len(encoded):
            hashes = np.array([xxhash.xxh64_intdigest(data) for data in certain], dtype=np.uint64)
            asked[column.field_id, values] = _Asked((column.field_id, values), leaf, hashes)
    return list(asked.values())


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters that are to be asked, one entry each; ``blocks`` is -1 where it is not known how many there are."""

    leaf: Ints
    row_group: Ints
    offset: Ints
    length: Ints
    header: Ints
    blocks: Ints


def probe_file(
    source: ByteSource,
    footer: ParquetFooter,
    questions: Iterable[Question],
    row_groups: Sequence[int] | Ints,
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomResults:
    """Ask the file's own filters about some row groups; all others answer "may be there".

    One round trip when the footer gives the lengths of the filters, else two.
    """
    asked = _asked(footer, questions, leaves)
    filters = _locate(footer, {one.leaf.index: one.leaf for one in asked}.values(), row_groups)
    which, hashes = _cross(asked, filters)
    guessed = filters.blocks[which] >= 0
    header_ranges = _ranges(filters.offset, filters.header)
    data = source.read_ranges(header_ranges + _block_ranges(filters, which[guessed], hashes[guessed]))
    read = _confirm(filters, data[: len(header_ranges)], footer.footer_start)
    might = np.ones(len(which), dtype=np.bool_)
    confirmed = guessed & (read.blocks == filters.blocks)[which] & (read.header == filters.header)[which]
    might[confirmed] = _probe(
        [block for block, good in zip(data[len(header_ranges) :], confirmed[guessed], strict=True) if good],
        hashes[confirmed],
    )
    late = ~confirmed & (read.blocks[which] > 0)
    if late.any():
        might[late] = _probe(source.read_ranges(_block_ranges(read, which[late], hashes[late])), hashes[late])
    return _answers(footer, asked, filters, might)


def _locate(footer: ParquetFooter, leaves: Iterable[LeafColumn], row_groups: Sequence[int] | Ints) -> _Filters:
    """The filters of the leaves in the row groups, with the guess that their lengths allow."""
    groups = np.asarray(row_groups, dtype=np.int64)
    columns: list[Ints] = [np.zeros((4, 0), dtype=np.int64)]
    for leaf in leaves:
        chunks = footer.chunks(leaf)
        offset, length = chunks.bloom_offset[groups], chunks.bloom_length[groups]
        columns.append(np.stack((np.full_like(groups, leaf.index), groups, offset, length))[:, offset >= 0])
    leaf_index, row_group, offset, length = np.concatenate(columns, axis=1)
    header, blocks = _guess(length)
    prefix = np.minimum(_HEADER_PREFIX, footer.footer_start - offset)
    return _Filters(leaf_index, row_group, offset, length, np.where(blocks < 0, prefix, header), blocks)


def _guess(length: Ints) -> tuple[Ints, Ints]:
    """Header bytes and number of blocks of filters from their total length, as all known writers lay them out.

    The header is 14 bytes and the number of filter bytes as a varint, so the sum is unambiguous.
    """
    header, blocks = np.zeros_like(length), np.full_like(length, -1)
    for digits in range(1, 6):
        size = length - 14 - digits
        fits = (
            (size > 0) & (size % BLOCK_BYTES == 0) & (2 * size >= 1 << 7 * (digits - 1)) & (2 * size < 1 << 7 * digits)
        )
        header, blocks = np.where(fits, 14 + digits, header), np.where(fits, size // BLOCK_BYTES, blocks)
    return header, blocks


def _cross(asked: list[_Asked], filters: _Filters) -> tuple[Ints, Hashes]:
    """Every hash of every question with every filter of its leaf, question by question and filter by filter."""
    which: list[Ints] = [np.zeros(0, dtype=np.int64)]
    hashes: list[Hashes] = [np.zeros(0, dtype=np.uint64)]
    for one in asked:
        own = np.flatnonzero(filters.leaf == one.leaf.index)
        which.append(np.repeat(own, len(one.hashes)))
        hashes.append(np.tile(one.hashes, len(own)))
    return np.concatenate(which), np.concatenate(hashes)


def _block_ranges(filters: _Filters, which: Ints, hashes: Hashes) -> list[tuple[int, int]]:
    start = filters.offset[which] + filters.header[which]
    offsets = start + BLOCK_BYTES * block_numbers(hashes, filters.blocks[which])
    return _ranges(offsets, np.full_like(offsets, BLOCK_BYTES))


def _ranges(offsets: Ints, lengths: Ints) -> list[tuple[int, int]]:
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def _confirm(filters: _Filters, headers: list[memoryview], footer_start: int) -> _Filters:
    """What the headers themselves say; 0 blocks where it cannot be used."""
    sizes = [header_sizes(bytes(header)) for header in headers]
    header, size = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    end = np.where(filters.length > 0, filters.offset + filters.length, footer_start)
    usable = (size > 0) & (size % BLOCK_BYTES == 0) & (filters.offset + header + size <= end)
    return replace(filters, header=header, blocks=np.where(usable, size // BLOCK_BYTES, 0))


def header_sizes(encoded: bytes) -> tuple[int, int]:
    """Bytes of the header and of the filter behind it; ``(0, 0)`` unless it is the one standard kind of filter."""
    try:
        fields, end = read_struct(encoded, 0, None, "bloom filter", "")
    except CorruptFileError:
        return 0, 0
    size = fields.get(1)
    standard = all(fields.get(number) == {1: {}} for number in (2, 3, 4))
    return (end, size) if standard and isinstance(size, int) and 0 < size < 1 << 31 else (0, 0)


def _probe(blocks: Sequence[bytes | memoryview], hashes: Hashes) -> Mask:
    return probe_blocks(np.frombuffer(b"".join(blocks), dtype="<u4").reshape(-1, 8), hashes)


def _answers(footer: ParquetFooter, asked: list[_Asked], filters: _Filters, might: Mask) -> BloomResults:
    """One mask over all row groups per question: any of its values may be there."""
    answers = {}
    position = 0
    for one in asked:
        own = filters.leaf == one.leaf.index
        probes = int(own.sum()) * len(one.hashes)
        mask = np.ones(footer.num_row_groups, dtype=np.bool_)
        part = might[position : position + probes].reshape(int(own.sum()), len(one.hashes))
        mask[filters.row_group[own]] = part.any(axis=1)
        answers[one.key] = mask
        position += probes
    return BloomResults(answers)


def probe_provider(
    provider: BloomFilterProvider,
    footer: ParquetFooter,
    questions: Iterable[Question],
    row_groups: Sequence[int] | Ints,
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomResults:
    """Ask the filters of a custom provider, in one batch."""
    asked = _asked(footer, questions, leaves)
    requests = _requests(asked, row_groups)
    return _answers_of(footer, asked, requests, provider.bloom_filters_batch(requests))


async def probe_provider_async(
    provider: AsyncBloomFilterProvider,
    footer: ParquetFooter,
    questions: Iterable[Question],
    row_groups: Sequence[int] | Ints,
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomResults:
    """Ask the filters of a custom provider, in one awaited batch."""
    asked = _asked(footer, questions, leaves)
    requests = _requests(asked, row_groups)
    return _answers_of(footer, asked, requests, await provider.bloom_filters_batch(requests))


def _requests(asked: list[_Asked], row_groups: Sequence[int] | Ints) -> list[ChunkKey]:
    groups = np.asarray(row_groups, dtype=np.int64).tolist()
    return [(group, leaf) for leaf in sorted({one.leaf.index for one in asked}) for group in groups]


def _answers_of(
    footer: ParquetFooter,
    asked: list[_Asked],
    requests: list[ChunkKey],
    filters: Mapping[ChunkKey, SplitBlockFilter],
) -> BloomResults:
    answers = {}
    for one in asked:
        mask = np.ones(footer.num_row_groups, dtype=np.bool_)
        for key in requests:
            if key[1] == one.leaf.index and key in filters:
                mask[key[0]] = filters[key].might_contain(one.hashes).any()
        answers[one.key] = mask
    return BloomResults(answers)
