"""Bloom filters: single blocks in one round trip; a value may exist unless its absence is proven."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from floeplan.parquet.footer.bloom import (
    BloomResults,
    ChunkKey,
    SplitBlockFilter,
    bloom_probes,
    hash_probes,
    header_sizes,
    plain_encoding,
    probe_file,
)
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.thrift import BINARY, EMPTY_STRUCT, I32, I64, STRUCT, encode_struct
from floeplan.parquet.prune.provider import filter_requests, probe_filters
from floeplan.parquet.source import BytesSource
from floeplan.predicate.build import and_, or_
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import BloomEq, BloomInList, Cmp, CmpOp, Column, IrExpr, Not
from floeplan.predicate.stats import StatsTable
from tests.support.parquet import forge

pytestmark = pytest.mark.unit

X = Column(1, LongType(), ("x",))
ROWS = 20_000
GROUP = 5_000


@pytest.fixture(scope="module")
def file() -> bytes:
    """Odd numbers only, shuffled over four row groups."""
    numbers = np.random.default_rng(1).permutation(np.arange(1, 2 * ROWS, 2))
    out = io.BytesIO()
    options = {"x": {"ndv": GROUP, "fpp": 0.001}}
    pq.write_table(pa.table({"x": numbers, "y": numbers}), out, row_group_size=GROUP, bloom_filter_options=options)
    return out.getvalue()


def opened(data: bytes) -> tuple[BytesSource, ParquetFooter]:
    source = BytesSource(data, gap=0)
    footer = read_footer(source, tail=8)
    source.counters.requests = source.counters.bytes = source.counters.round_trips = 0
    return source, footer


def numbers_of(data: bytes) -> list[list[int]]:
    file = pq.ParquetFile(io.BytesIO(data))
    return [file.read_row_group(i).column("x").to_pylist() for i in range(file.num_row_groups)]


def test_a_value_is_found_in_its_row_group_with_header_and_block_alone(file: bytes) -> None:
    source, footer = opened(file)
    value = numbers_of(file)[2][17]
    might = probe_file(source, footer, [(X, (value,))], range(4)).might_contain(X, (value,))
    assert might is not None
    assert might.tolist() == [False, False, True, False]
    assert source.counters.round_trips == 1
    assert source.counters.requests == 8
    assert source.counters.bytes == 4 * (17 + 32)


def test_many_probes_are_one_round_trip(file: bytes) -> None:
    source, footer = opened(file)
    groups = numbers_of(file)
    questions = [(X, (groups[0][3],)), (X, (2, 4, groups[3][9])), (X, (2, 4, 6)), (X, ())]
    answers = probe_file(source, footer, questions, range(4))
    found = [answers.might_contain(*question) for question in questions]
    assert [mask.tolist() for mask in found if mask is not None] == [
        [True, False, False, False],
        [False, False, False, True],
        [False, False, False, False],
        [False, False, False, False],
    ]
    assert source.counters.round_trips == 1


def test_no_value_of_the_file_is_ruled_out(file: bytes) -> None:
    source, footer = opened(file)
    for group, values in enumerate(numbers_of(file)):
        answers = probe_file(source, footer, [(X, (value,)) for value in values[::10]], [group])
        assert all(mask[group] for mask in answers.masks.values())


def test_row_groups_that_were_not_probed_may_hold_anything(file: bytes) -> None:
    source, footer = opened(file)
    might = probe_file(source, footer, [(X, (2,))], [1]).might_contain(X, (2,))
    assert might is not None
    assert might.tolist() == [True, False, True, True]


def test_columns_without_a_filter_and_missing_probes(file: bytes) -> None:
    source, footer = opened(file)
    y = Column(2, LongType(), ("y",))
    missing = Column(9, LongType(), ("z",))
    answers = probe_file(source, footer, [(y, (2,)), (missing, (2,))], range(4))
    assert answers.might_contain(y, (2,)) is not None
    assert np.all(answers.might_contain(y, (2,)))  # type: ignore[arg-type]
    assert answers.might_contain(missing, (2,)) is None
    assert answers.might_contain(X, (2,)) is None
    assert source.counters.requests == 0


def test_the_evaluator_uses_the_filters(file: bytes) -> None:
    source, footer = opened(file)
    answers = probe_file(source, footer, [(X, (2,))], range(4))
    table = StatsTable(4, {}, bloom=answers)
    assert not evaluate(BloomEq(X, 2), table).may_true.any()
    assert evaluate(BloomEq(X, 4), table).may_true.all()


def test_probes_of_an_expression() -> None:
    expr: IrExpr = or_(and_(BloomEq(X, 1), Cmp(X, CmpOp.GT, 5)), Not(BloomInList(X, (7, 8))))
    assert bloom_probes(expr) == [(X, (1,)), (X, (7, 8))]


# --- forged filters -------------------------------------------------------------------------------------------------

STANDARD = [(2, STRUCT, encode_struct([(1, STRUCT, EMPTY_STRUCT)]))]
STANDARD += [(3, *STANDARD[0][1:]), (4, *STANDARD[0][1:])]


def header(size: int, union: Sequence[Any] = STANDARD) -> bytes:
    return encode_struct([(1, I32, size), *union])


def forged(
    head: bytes, bits: bytes, *, length: int | None = None, padding: int = 200
) -> tuple[BytesSource, ParquetFooter]:
    """A column of 64-bit integers with a filter at the start of the file."""
    inside = [(14, I64, 4), *([] if length is None else [(15, I32, length)])]
    column = forge.chunk(forge.INT64, 5, inside=inside)
    leaf = forge.element("x", forge.INT64)
    return opened(forge.one_column(leaf, [(5, column)], body=head + bits + bytes(padding)))


def ruled_out(source: BytesSource, footer: ParquetFooter) -> bool:
    might = probe_file(source, footer, [(X, (2,))], [0]).might_contain(X, (2,))
    return might is not None and not might[0]


EMPTY = bytes(64)


@pytest.mark.parametrize(
    ("length", "round_trips"),
    [(len(header(64)) + 64, 1), (None, 2), (len(header(64)) + 96, 2), (len(header(64)) + 65, 2)],
)
def test_an_empty_filter_rules_everything_out(length: int | None, round_trips: int) -> None:
    source, footer = forged(header(64), EMPTY, length=length)
    assert ruled_out(source, footer)
    assert source.counters.round_trips == round_trips


def test_a_header_with_another_layout_is_read_again() -> None:
    unusual = encode_struct([(1, I32, 64), *STANDARD, (9, I32, 300)])
    source, footer = forged(unusual, EMPTY, length=len(unusual) + 64)
    assert ruled_out(source, footer)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff" * 20,
        header(0),
        header(-64),
        header(63),
        header(2**31 - 32),
        header(64, []),
        header(64, STANDARD[:2]),
        header(64, [(2, STRUCT, encode_struct([(2, STRUCT, EMPTY_STRUCT)])), *STANDARD[1:]]),
        header(64, [*STANDARD[:1], (3, STRUCT, encode_struct([(2, STRUCT, EMPTY_STRUCT)])), *STANDARD[2:]]),
        header(64, [*STANDARD[:2], (4, STRUCT, encode_struct([(2, STRUCT, EMPTY_STRUCT)]))]),
        encode_struct([(1, BINARY, b"64"), *STANDARD]),
        b"\x1c" * 64,
        b"\x19\xfc\xff\xff\xff\xff\x07",
    ],
)
@pytest.mark.parametrize("with_length", [True, False])
def test_a_damaged_header_rules_nothing_out(head: bytes, with_length: bool) -> None:
    source, footer = forged(head, EMPTY, length=len(header(64)) + 64 if with_length else None)
    assert not ruled_out(source, footer)


def test_inconsistent_sizes_rule_nothing_out() -> None:
    source, footer = forged(header(128), EMPTY, length=len(header(64)) + 64)
    assert not ruled_out(source, footer)
    source, footer = forged(header(4096), EMPTY, length=None)
    assert not ruled_out(source, footer)


def test_header_sizes() -> None:
    assert header_sizes(header(64) + b"rest") == (len(header(64)), 64)
    assert header_sizes(b"") == (0, 0)


# --- values as they are stored ------------------------------------------------------------------------------------

MILLIS, NANOS = forge.timestamp_type(1, utc=False), forge.timestamp_type(3, utc=False)


@pytest.mark.parametrize(
    ("leaf", "type_", "value", "encoded"),
    [
        (forge.element("x", 1), IntegerType(), -2, b"\xfe\xff\xff\xff"),
        (forge.element("x", 1), LongType(), 5, b"\5\0\0\0"),
        (forge.element("x", 1), LongType(), 2**40, None),
        (forge.element("x", 1, converted=forge.UINT_32), LongType(), 2**32 - 1, b"\xff" * 4),
        (forge.element("x", 1, converted=6), DateType(), 3, b"\3\0\0\0"),
        (forge.element("x", 1, converted=6), TimestampType(), 86_400_000_000, b"\1\0\0\0"),
        (forge.element("x", 1, converted=6), TimestampType(), 86_400_000_001, None),
        (forge.element("x", 2, logical=MILLIS), TimestampType(), 7000, b"\7" + bytes(7)),
        (forge.element("x", 2, logical=MILLIS), TimestampType(), 7001, None),
        (forge.element("x", 2, logical=NANOS), TimestampNanoType(), 7, b"\7" + bytes(7)),
        (forge.element("x", 2, logical=NANOS), TimestampType(), 7, None),
        (forge.element("x", 3), TimestamptzType(), 7, None),
        (forge.element("x", 0), BooleanType(), True, None),
        (forge.element("x", 4), FloatType(), 1.5, b"\0\0\xc0\x3f"),
        (forge.element("x", 4), DoubleType(), 0.1, None),
        (forge.element("x", 4), DoubleType(), 1e300, None),
        (forge.element("x", 5), DoubleType(), -0.0, None),
        (forge.element("x", 5), DoubleType(), 0.0, None),
        (forge.element("x", 5), DoubleType(), math.nan, None),
        (forge.element("x", 5), DoubleType(), math.inf, b"\0" * 6 + b"\xf0\x7f"),
        (forge.element("x", 1, converted=5, precision=9, scale=2), DecimalType(9, 2), Decimal("1.50"), b"\x96\0\0\0"),
        (
            forge.element("x", 7, length=3, converted=5, precision=5, scale=2),
            DecimalType(5, 2),
            Decimal("-0.01"),
            b"\xff" * 3,
        ),
        (forge.element("x", 6, converted=5, precision=9, scale=2), DecimalType(9, 2), Decimal("1.50"), None),
        (forge.element("x", 6, converted=0), StringType(), "é", b"\xc3\xa9"),
        (forge.element("x", 6, converted=0), StringType(), "\ud800", None),
        (forge.element("x", 6), BinaryType(), b"", b""),
        (forge.element("x", 7, length=3), FixedType(3), b"abc", b"abc"),
        (forge.element("x", 7, length=3), FixedType(3), b"ab", None),
        (forge.element("x", 7, length=16, logical=forge.logical(14)), UUIDType(), bytes(16), bytes(16)),
        (forge.element("x", 7, length=2, logical=forge.logical(15)), FloatType(), 1.5, None),
        (forge.element("x", 6, converted=0), IntegerType(), 5, None),
    ],
)
def test_values_as_the_file_stores_them(leaf: bytes, type_: PrimitiveType, value: Any, encoded: bytes | None) -> None:
    (column,) = read_footer(BytesSource(forge.file([forge.root(1), leaf], []))).leaves
    assert plain_encoding(column, type_, value) == encoded


def test_decimals_of_38_digits_are_exact() -> None:
    leaf = forge.element("x", 7, length=16, converted=5, precision=38, scale=10)
    (column,) = read_footer(BytesSource(forge.file([forge.root(1), leaf], []))).leaves
    most = 10**38 - 1
    value = Decimal((1, tuple(map(int, str(most))), -10))
    assert plain_encoding(column, DecimalType(38, 10), value) == (-most).to_bytes(16, "big", signed=True)


# --- custom providers ---------------------------------------------------------------------------------------------


def filter_with(*values: int) -> SplitBlockFilter:
    """A filter of one block with these values, computed in a simple way."""
    salt = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
    words = [0] * 8
    for value in values:
        low = xxhash.xxh64_intdigest(value.to_bytes(8, "little")) & 0xFFFFFFFF
        words = [word | 1 << ((low * factor & 0xFFFFFFFF) >> 27) for word, factor in zip(words, salt, strict=True)]
    return SplitBlockFilter.from_bytes(b"".join(word.to_bytes(4, "little") for word in words))


class Cache:
    """Filters of row groups 0 and 1; records requests."""

    def __init__(self) -> None:
        self.requested: list[ChunkKey] = []

    def bloom_filters_batch(self, requests: Sequence[ChunkKey]) -> Mapping[ChunkKey, SplitBlockFilter]:
        self.requested += requests
        return {(0, 0): filter_with(1, 2, 3), (1, 0): filter_with(10), (99, 0): filter_with()}


class SlowCache(Cache):
    async def bloom_filters_batch(  # type: ignore[override]
        self, requests: Sequence[ChunkKey]
    ) -> Mapping[ChunkKey, SplitBlockFilter]:
        await asyncio.sleep(0)
        return super().bloom_filters_batch(requests)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_custom_provider_is_called_once(file: bytes, awaited: bool) -> None:
    source, footer = opened(file)
    questions = [(X, (2,)), (X, (10, 11))]
    answers: BloomResults
    cache = SlowCache() if awaited else Cache()
    probes = hash_probes(questions, footer.leaf_by_id)
    requests = filter_requests(probes, np.arange(3))
    if isinstance(cache, SlowCache):
        answers = probe_filters(footer, probes, asyncio.run(cache.bloom_filters_batch(requests)))
    else:
        answers = probe_filters(footer, probes, cache.bloom_filters_batch(requests))
    found = [answers.might_contain(*question) for question in questions]
    assert [mask.tolist() for mask in found if mask is not None] == [
        [True, False, True, True],
        [False, True, True, True],
    ]
    assert cache.requested == [(0, 0), (1, 0), (2, 0)]
    assert source.counters.requests == 0
