"""Split-block Bloom filters: one 32-byte block answers a probe, so the whole filter is not fetched.

A filter is a header followed by blocks of eight 32-bit words. The upper half of a value's xxHash64 selects the block,
the lower half one bit in each word: if any of the eight bits is not set, the value was never inserted. Where the footer
gives the length of header and filter, header and blocks are fetched in one round trip; if the header then contradicts
the expected sizes, a second one follows.

Fail-safe: only a proven absence counts. A missing filter, a header of any other than the one standard filter, sizes
that do not add up, and values that a file may store in more than one way all mean "may contain".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
from pyiceberg.types import DecimalType, PrimitiveType

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import comparable, stored_tick, tick_of
from floeplan.parquet.footer.thrift import read_struct
from floeplan.parquet.source import ByteSource, Range, byte_ranges
from floeplan.predicate.ir import BloomEq, BloomInList, Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.vectors import Ints, Mask

Hashes: TypeAlias = npt.NDArray[np.uint64]
Probe: TypeAlias = tuple[Column, tuple[Value, ...]]
"""A column and the values of an equality or IN."""
ChunkKey: TypeAlias = tuple[int, int]
"""Row group and leaf index."""

BLOCK_BYTES: Final = 32
_HEADER_PREFIX = 64
"""Bytes fetched for a header of unknown length."""
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


@dataclass(frozen=True, slots=True)
class SplitBlockFilter:
    """A whole filter in memory: one row of eight words per block."""

    blocks: npt.NDArray[np.uint32]

    @classmethod
    def from_bytes(cls, bitset: bytes) -> SplitBlockFilter:
        """From the bitset, without the header."""
        return cls(np.frombuffer(bitset, dtype="<u4").reshape(-1, 8))

    def might_contain(self, hashes: Hashes) -> Mask:
        """Per hash, whether a value with it may have been inserted."""
        return _probe_blocks(self.blocks[_block_numbers(hashes, len(self.blocks))], hashes)


def _block_numbers(hashes: Hashes, block_count: int | Ints) -> Ints:
    """The block of each hash in filters with ``block_count`` blocks."""
    scaled = (hashes >> np.uint64(32)) * np.asarray(block_count, dtype=np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def _probe_blocks(blocks: npt.NDArray[np.uint32], hashes: Hashes) -> Mask:
    """Per hash and its block, whether all eight of its bits are set."""
    low = hashes.astype(np.uint32)[:, None]
    bits = np.uint32(1) << ((low * _SALT) >> np.uint32(27))
    return np.asarray(((blocks & bits) == bits).all(axis=1))


@dataclass(frozen=True, slots=True)
class BloomResults:
    """The results of all probes: a ``BloomProbe`` over all row groups of the file."""

    masks: Mapping[tuple[int, tuple[Value, ...]], Mask]

    def might_contain(self, column: Column, values: tuple[Value, ...]) -> Mask | None:
        """Per row group, whether it may contain any of the values; ``None`` when they were not probed."""
        return self.masks.get((column.field_id, values))


def bloom_probes(expr: IrExpr) -> list[Probe]:
    """Collect the probes of an expression's Bloom leaves."""
    match expr:
        case BloomEq(column, value):
            return [(column, (value,))]
        case BloomInList(column, values):
            return [(column, values)]
    return [probe for child in expr.children for probe in bloom_probes(child)]


@dataclass(frozen=True, slots=True)
class FilterProbe:
    """One probe in terms of the file: the hashes of the values as the leaf stores them."""

    key: tuple[int, tuple[Value, ...]]
    leaf: LeafColumn
    hashes: Hashes


def hash_probes(probes: Iterable[Probe], leaves: Mapping[int, LeafColumn]) -> list[FilterProbe]:
    """Hash the probes a filter can decide: the file has the column and stores each value in exactly one way."""
    found = {}
    for column, values in probes:
        leaf = leaves.get(column.field_id)
        if leaf is None:
            continue
        encoded = [plain_encoding(leaf, column.type, value) for value in values]
        certain = [data for data in encoded if data is not None]
        if len(certain) == len(encoded):
            hashes = np.array([xxhash.xxh64_intdigest(data) for data in certain], dtype=np.uint64)
            found[column.field_id, values] = FilterProbe((column.field_id, values), leaf, hashes)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters to probe, one entry each; ``blocks`` is -1 where the number of blocks is unknown."""

    leaf: Ints
    row_group: Ints
    offset: Ints
    length: Ints
    header: Ints
    blocks: Ints


def probe_file(
    source: ByteSource,
    footer: ParquetFooter,
    probes: Iterable[Probe],
    row_groups: Sequence[int] | Ints,
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomResults:
    """Probe the file's own filters in some row groups; all others may contain the values.

    One round trip when the footer gives the lengths of the filters, else two.
    """
    hashed = hash_probes(probes, footer.leaf_by_id if leaves is None else leaves)
    filters = _locate(footer, {probe.leaf.index: probe.leaf for probe in hashed}.values(), row_groups)
    # Every hash of every probe with every filter of its leaf, probe by probe and filter by filter.
    own = [np.flatnonzero(filters.leaf == probe.leaf.index) for probe in hashed]
    which = np.concatenate(
        [np.zeros(0, np.int64), *(np.repeat(at, len(probe.hashes)) for at, probe in zip(own, hashed, strict=True))]
    )
    hashes = np.concatenate(
        [np.zeros(0, np.uint64), *(np.tile(probe.hashes, len(at)) for at, probe in zip(own, hashed, strict=True))]
    )
    # First round trip: all headers, and the blocks of filters whose layout follows from their length.
    guessed = filters.blocks[which] >= 0
    header_ranges = byte_ranges(filters.offset, filters.header)
    data = source.read_ranges(header_ranges + _block_ranges(filters, which[guessed], hashes[guessed]))
    # The layout that the headers state; 0 blocks for a filter that cannot be used.
    sizes = [header_sizes(bytes(header)) for header in data[: len(header_ranges)]]
    header, size = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    end = np.where(filters.length > 0, filters.offset + filters.length, footer.footer_start)
    usable = (size > 0) & (size % BLOCK_BYTES == 0) & (filters.offset + header + size <= end)
    actual = replace(filters, header=header, blocks=np.where(usable, size // BLOCK_BYTES, 0))
    might = np.ones(len(which), dtype=np.bool_)
    confirmed = guessed & (actual.blocks == filters.blocks)[which] & (actual.header == filters.header)[which]
    might[confirmed] = _probe(
        [block for block, good in zip(data[len(header_ranges) :], confirmed[guessed], strict=True) if good],
        hashes[confirmed],
    )
    # Second round trip: blocks of the usable filters whose layout only the header gives.
    late = ~confirmed & (actual.blocks[which] > 0)
    if late.any():
        might[late] = _probe(source.read_ranges(_block_ranges(actual, which[late], hashes[late])), hashes[late])
    # A row group may contain any of a probe's values if one of their hashes may be in its filter.
    masks, position = {}, 0
    for probe, at in zip(hashed, own, strict=True):
        count = len(at) * len(probe.hashes)
        mask = np.ones(footer.num_row_groups, dtype=np.bool_)
        results = might[position : position + count].reshape(len(at), len(probe.hashes))
        mask[filters.row_group[at]] = results.any(axis=1)
        masks[probe.key] = mask
        position += count
    return BloomResults(masks)


def _locate(footer: ParquetFooter, leaves: Iterable[LeafColumn], row_groups: Sequence[int] | Ints) -> _Filters:
    """The filters of the leaves in the row groups, with the layout that their lengths imply."""
    groups = np.asarray(row_groups, dtype=np.int64)
    columns: list[Ints] = [np.zeros((4, 0), dtype=np.int64)]
    for leaf in leaves:
        chunks = footer.chunks(leaf)
        offset, length = chunks.bloom_offset[groups], chunks.bloom_length[groups]
        columns.append(np.stack((np.full_like(groups, leaf.index), groups, offset, length))[:, offset >= 0])
    leaf_index, row_group, offset, length = np.concatenate(columns, axis=1)
    # Known writers emit a header of 14 bytes plus the filter size as a varint of 1 to 5 bytes, so the total length
    # determines both.
    header, blocks = np.zeros_like(length), np.full_like(length, -1)
    for digits in range(1, 6):
        size = length - 14 - digits
        fits = (size > 0) & (size % BLOCK_BYTES == 0)
        fits &= (2 * size >= 1 << 7 * (digits - 1)) & (2 * size < 1 << 7 * digits)
        header, blocks = np.where(fits, 14 + digits, header), np.where(fits, size // BLOCK_BYTES, blocks)
    prefix = np.minimum(_HEADER_PREFIX, footer.footer_start - offset)
    return _Filters(leaf_index, row_group, offset, length, np.where(blocks < 0, prefix, header), blocks)


def _block_ranges(filters: _Filters, which: Ints, hashes: Hashes) -> list[Range]:
    start = filters.offset[which] + filters.header[which]
    offsets = start + BLOCK_BYTES * _block_numbers(hashes, filters.blocks[which])
    return byte_ranges(offsets, np.full_like(offsets, BLOCK_BYTES))


def header_sizes(encoded: bytes) -> tuple[int, int]:
    """Bytes of the header and of the filter after it; ``(0, 0)`` for any but the standard filter.

    The standard filter is split-block, hashed with xxHash64, uncompressed.
    """
    try:
        fields, end = read_struct(encoded, 0, None, "bloom filter", "")
    except CorruptFileError:
        return 0, 0
    size = fields.get(1)  # BloomFilterHeader: 1 numBytes, 2 algorithm, 3 hash, 4 compression, each a union
    standard = all(fields.get(number) == {1: {}} for number in (2, 3, 4))
    return (end, size) if standard and isinstance(size, int) and 0 < size < 1 << 31 else (0, 0)


def _probe(blocks: Sequence[bytes | memoryview], hashes: Hashes) -> Mask:
    return _probe_blocks(np.frombuffer(b"".join(blocks), dtype="<u4").reshape(-1, 8), hashes)


# A filter hashes the plain encoding of a value. It decides a probe only if equal values have equal encodings.


def plain_encoding(leaf: LeafColumn, wanted: PrimitiveType, value: Value) -> bytes | None:
    """Return the only plain encoding of a canonical value of the wanted type in the leaf.

    ``None`` when there may be several (zeros and NaN, decimals of variable length, nanoseconds read as microseconds),
    none (a fraction of the stored unit), or when the column is not read as the wanted type.
    """
    if not comparable(leaf, wanted):
        return None
    match leaf.physical:
        case Physical.INT32 | Physical.INT64:
            if isinstance(value, Decimal) and isinstance(wanted, DecimalType):
                value = _unscaled(value, wanted.scale)
            if not isinstance(value, int):
                return None
            nanos = value * tick_of(wanted)
            # A finer stored unit has several values per wanted value, a coarser one may have none.
            if stored_tick(leaf) < tick_of(wanted) or nanos % stored_tick(leaf):
                return None
            width = 4 if leaf.physical is Physical.INT32 else 8
            return _to_bytes(nanos // stored_tick(leaf), width, "little", leaf.annotation.signed)
        case Physical.FLOAT | Physical.DOUBLE:
            # 0.0 and -0.0 are equal and differ in bytes; NaN has many bit patterns.
            if not isinstance(value, float) or value == 0 or math.isnan(value):
                return None
            form = "<f" if leaf.physical is Physical.FLOAT else "<d"
            try:
                encoded = struct.pack(form, value)
            except OverflowError:
                return None
            return encoded if struct.unpack(form, encoded)[0] == value else None
        case Physical.BYTE_ARRAY if leaf.annotation.kind is not Kind.DECIMAL:
            try:
                return value.encode("utf-8") if isinstance(value, str) else value if isinstance(value, bytes) else None
            except UnicodeEncodeError:  # a lone surrogate, which no file stores
                return None
        case Physical.FIXED_LEN_BYTE_ARRAY if isinstance(value, Decimal):
            return _to_bytes(_unscaled(value, leaf.annotation.scale), leaf.type_length, "big", signed=True)
        case Physical.FIXED_LEN_BYTE_ARRAY:
            return value if isinstance(value, bytes) and len(value) == leaf.type_length else None
    return None


def _unscaled(value: Decimal, scale: int) -> int:
    """The unscaled value, exact at any number of digits: Decimal arithmetic would round to the current context."""
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _to_bytes(value: int, width: int, order: Literal["little", "big"], signed: bool) -> bytes | None:
    try:
        return value.to_bytes(width, order, signed=signed)
    except OverflowError:
        return None
