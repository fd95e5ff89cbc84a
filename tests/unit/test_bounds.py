"""Single-value bytes as typed vectors: PyIceberg's encoding, promotions, and invalid bytes."""

from __future__ import annotations

import struct
import uuid
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
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
    TimeType,
    UnknownType,
    UUIDType,
)

from floeplan.metadata.manifests.values import decode_bounds, decode_values
from floeplan.predicate.stats import Bound

pytestmark = pytest.mark.unit


def binary(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def values(bound: Bound | None) -> list[Any]:
    """Values, with ``None`` where the bound is not valid."""
    assert bound is not None
    found = bound.values.tolist() if isinstance(bound.values, np.ndarray) else bound.values.to_pylist()
    return [value if valid else None for value, valid in zip(found, bound.valid, strict=True)]


longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
ENCODED: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (IntegerType(), ints),
    (LongType(), longs),
    (DateType(), ints),
    (TimeType(), longs),
    (TimestampType(), longs),
    (TimestamptzType(), longs),
    (DoubleType(), st.floats(allow_nan=False)),
    (FloatType(), st.floats(allow_nan=False, width=32)),
    (StringType(), st.text()),
    (BinaryType(), st.binary()),
    (BooleanType(), st.booleans()),
]


@pytest.mark.parametrize(("type_", "some"), ENCODED, ids=[str(type_) for type_, _ in ENCODED])
@given(st.data())
def test_what_pyiceberg_encodes_is_read_back(type_: PrimitiveType, some: st.SearchStrategy[Any], data: Any) -> None:
    expected = data.draw(st.lists(st.none() | some, max_size=8))
    raw = binary([None if value is None else to_bytes(type_, value) for value in expected])
    assert values(decode_values(type_, raw)) == expected
    assert values(decode_values(type_, raw[1:])) == expected[1:]


OTHERS: list[PrimitiveType] = [DecimalType(9, 2), DecimalType(30, 2), FixedType(2), UUIDType(), TimestampNanoType()]


@pytest.mark.parametrize("type_", [*(type_ for type_, _ in ENCODED), *OTHERS], ids=str)
@given(st.data())
def test_bounds_at_places_are_those_bounds(type_: PrimitiveType, data: Any) -> None:
    """For any bytes, lengths and order of positions; a negative position has no bound."""
    some = st.none() | st.sampled_from([b"", b"\x01", b"ab", b"abcd", b"abcdefgh", bytes(range(16)), b"\xff" * 16])
    lower, upper = (data.draw(st.lists(some, min_size=5, max_size=5)) for _ in range(2))
    size = data.draw(st.sampled_from([0, 5]))
    at = data.draw(st.lists(st.integers(-1, size - 1), max_size=8))
    whole = decode_bounds(type_, binary(lower[:size]), binary(upper[:size]))
    picked = decode_bounds(type_, binary(lower[:size]), binary(upper[:size]), np.array(at, dtype=np.int64))
    for one, other in zip(whole, picked, strict=True):
        found = values(one)
        assert repr(values(other)) == repr([None if place < 0 else found[place] for place in at])


@given(st.integers(1, 38), st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=6), st.integers(0, 20))
def test_decimals_of_any_width(precision: int, numbers: list[int | None], padding: int) -> None:
    """Minimal bytes as Iceberg writes them, and longer ones with sign extension."""
    numbers = [None if n is None else int(n / 10 ** (38 - precision)) for n in numbers]
    type_ = DecimalType(precision, 2)
    raw = [None if n is None else n.to_bytes((n.bit_length() + 8) // 8 + padding, "big", signed=True) for n in numbers]
    found = values(decode_values(type_, binary(raw)))
    scaled = [None if n is None else Decimal(n).scaleb(-2, Context(prec=60)) for n in numbers]
    assert found == (numbers if precision <= 18 else scaled)


def test_decimals_that_do_not_fit_are_no_bounds() -> None:
    raw = binary([(2**63).to_bytes(9, "big", signed=True), (-(2**63)).to_bytes(9, "big", signed=True), b""])
    assert values(decode_values(DecimalType(9, 0), raw)) == [None, -(2**63), None]
    assert values(decode_values(DecimalType(30, 0), binary([(2**127).to_bytes(17, "big", signed=True)]))) == [None]


@pytest.mark.parametrize(
    ("type_", "raw", "expected"),
    [
        (LongType(), struct.pack("<i", -5), -5),
        (IntegerType(), struct.pack("<q", 7), 7),
        (DoubleType(), struct.pack("<f", 1.5), 1.5),
        (TimestampType(), struct.pack("<i", -1), -86_400_000_000),
        (TimestampNanoType(), struct.pack("<i", 2), 2 * 86_400_000_000_000),
        (TimestampNanoType(), struct.pack("<i", 200_000), None),
        (TimestampNanoType(), struct.pack("<q", 5), 5),
        (DateType(), struct.pack("<q", 5), None),
        (TimeType(), struct.pack("<i", 5), None),
        (LongType(), b"", None),
        (LongType(), b"abc", None),
        (FloatType(), b"abcdef", None),
        (BooleanType(), b"\x02", None),
        (BooleanType(), b"\x01\x00", None),
        (StringType(), b"\xff\xfe", None),
        (StringType(), b"", ""),
        (FixedType(3), b"abcd", None),
        (FixedType(3), b"abc", b"abc"),
        (UUIDType(), b"short", None),
    ],
)
def test_bytes_are_read_by_their_length(type_: PrimitiveType, raw: bytes, expected: Any) -> None:
    fine = {LongType(): struct.pack("<q", 1), StringType(): b"fine"}.get(type_, raw)
    assert values(decode_values(type_, binary([raw, None, fine])))[:2] == [expected, None]


def test_promoted_columns_mix_old_and_new_bytes() -> None:
    raw = binary([struct.pack("<i", -3), struct.pack("<q", 2**40), None, b"x", struct.pack("<i", 9)])
    assert values(decode_values(LongType(), raw)) == [-3, 2**40, None, None, 9]


def test_an_invalid_string_does_not_affect_others() -> None:
    assert values(decode_values(StringType(), binary([b"a", b"\xff", "é".encode(), None]))) == ["a", None, "é", None]


def test_types_without_an_order_have_no_bounds() -> None:
    assert decode_values(UnknownType(), binary([b"x"])) is None


@given(st.lists(st.uuids(), min_size=1, max_size=6), st.booleans())
def test_uuid_bounds_hold_under_both_orders(keys: list[uuid.UUID], signed: bool) -> None:
    """Whichever order a writer uses, the bounds contain every key as unsigned bytes."""

    def order(key: uuid.UUID) -> tuple[int, int]:
        halves = struct.unpack(">qq" if signed else ">QQ", key.bytes)
        return halves[0], halves[1]

    low, high = min(keys, key=order), max(keys, key=order)
    lower, upper = decode_bounds(UUIDType(), binary([low.bytes]), binary([high.bytes]))
    assert lower is not None
    assert upper is not None
    assert lower.valid.tolist() == upper.valid.tolist() == [low.bytes[0] >> 7 == high.bytes[0] >> 7]
    if lower.valid[0]:
        assert all(values(lower)[0] <= key.bytes <= values(upper)[0] for key in keys)


def test_a_uuid_bound_without_its_partner_is_dropped() -> None:
    lower, upper = decode_bounds(UUIDType(), binary([bytes(16)]), binary([None]))
    assert values(lower) == values(upper) == [None]
