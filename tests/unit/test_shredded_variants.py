"""Shredded variants are put together as Spark's own decoder reads them."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from floeplan.predicate.variants import VariantError
from floeplan.scan.variants import NULL, unshredded

pytestmark = pytest.mark.unit


def metadata(*names: str) -> bytes:
    """A dictionary with offsets of two bytes."""
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name.encode()))
    numbers = [len(names), *ends]
    return bytes([1 | 1 << 6]) + b"".join(n.to_bytes(2, "little") for n in numbers) + "".join(names).encode()


def group(typed: pa.Array, value: list[bytes | None] | None = None, mask: list[bool] | None = None) -> pa.StructArray:
    """A group of a value and a typed value."""
    raw = pa.array(value if value is not None else [None] * len(typed), pa.binary())
    return pa.StructArray.from_arrays(
        [raw, typed], ["value", "typed_value"], mask=None if mask is None else pa.array(mask)
    )


def variants(inner: pa.StructArray, names: list[bytes]) -> list[Any]:
    """The top-level group, decoded by Spark's reader of variants."""
    children = [pa.array(names, pa.binary()), *inner.flatten()]
    whole = pa.StructArray.from_arrays(children, ["metadata", "value", "typed_value"])
    found = unshredded(whole)
    return [VariantVal(value, name).toPython() for value, name in zip(found, names, strict=True)]


NONE = metadata()
LONG = "a string of more than 63 bytes " * 3


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int8(), [-128, 127]),
        (pa.int16(), [-(2**15), 300]),
        (pa.int32(), [-(2**31), 70_000]),
        (pa.int64(), [-(2**63), 2**62]),
        (pa.float64(), [1.5, -0.25]),
        (pa.float32(), [1.5, -0.25]),
        (pa.decimal128(9, 2), [Decimal("-1.25"), Decimal("1234567.89")]),
        (pa.decimal128(18, 3), [Decimal("-1.250"), Decimal("999999999999999.999")]),
        (pa.decimal128(38, 10), [Decimal("-1.2500000000"), Decimal("99999999999999.9999999999")]),
        (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)]),
        (
            pa.timestamp("us", "UTC"),
            [datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime(2024, 2, 29, tzinfo=UTC)],
        ),
        (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 2, 29)]),
        (pa.string(), ["", "é", LONG]),
        (pa.large_string(), ["x"]),
        (pa.binary(), [b"", b"\x00\xff"]),
    ],
    ids=str,
)
def test_primitives(type_: pa.DataType, values: list[Any]) -> None:
    typed = pa.array([*values, None, None], type_)
    raw: list[bytes | None] = [None] * len(values) + [b"\x0c\x05", None]
    found = variants(group(typed, raw), [NONE] * len(typed))
    assert found == [*values, 5, None]


def test_types_that_sparks_reader_does_not_have() -> None:
    """Their bytes, as the encoding defines them."""
    number = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    for typed, expected in (
        (pa.array([1], pa.timestamp("ns", "UTC")), b"\x48\x01" + bytes(7)),
        (pa.array([1], pa.timestamp("ns")), b"\x4c\x01" + bytes(7)),
        (pa.array([time(0, 0, 0, 1)], pa.time64("us")), b"\x44\x01" + bytes(7)),
        (pa.array([number.bytes], pa.binary(16)), b"\x50" + number.bytes),
    ):
        children = [pa.array([NONE], pa.binary()), *group(typed).flatten()]
        whole = pa.StructArray.from_arrays(children, ["metadata", "value", "typed_value"])
        assert unshredded(whole) == [expected]


def test_objects_have_the_fields_of_columns_and_of_the_value() -> None:
    names = metadata("b", "a", "é", "c")
    # {"c": 7}, and {"c": 7, "b": 8} with offsets that are not in order.
    one, two = b"\x02\x01\x03\x00\x02\x0c\x07", b"\x02\x02\x00\x03\x02\x00\x04\x0c\x07\x0c\x08"
    a = group(pa.array([1, None, None, 4], pa.int64()), [None, b"\x05x", None, None])
    accented = group(pa.array([None, "y", None, "z"], pa.string()))
    typed = pa.StructArray.from_arrays([accented, a], ["é", "a"], mask=pa.array([False, False, False, True]))
    found = variants(group(typed, [one, two, None, b"\x0c\x09"]), [names] * 4)
    assert found == [{"a": 1, "c": 7}, {"a": "x", "b": 8, "c": 7, "é": "y"}, {}, 9]


def test_nested_lists_and_objects() -> None:
    names = metadata("items", "n", "tags")
    inner = group(pa.array(["x", None, "y"], pa.string()), [None, b"\x0c\x03", None])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), inner)
    numbers = group(pa.array([1, 2], pa.int32()))
    item = pa.StructArray.from_arrays([numbers, group(lists)], ["n", "tags"])
    items = pa.LargeListArray.from_arrays(pa.array([0, 2, 2], pa.int64()), group(item))
    whole = pa.StructArray.from_arrays([group(items)], ["items"])
    found = variants(group(whole), [names] * 2)
    assert found == [{"items": [{"n": 1, "tags": ["x", 3]}, {"n": 2, "tags": ["y"]}]}, {"items": []}]
    sliced = items.slice(1)
    assert variants(group(sliced), [names]) == [[]]


def test_large_objects_and_arrays() -> None:
    fields = [f"field number {number:04d}" for number in range(300)]
    names = metadata(*fields)
    columns = [group(pa.array([f"{LONG}{name}", None], pa.string())) for name in fields]
    typed = pa.StructArray.from_arrays(columns, fields)
    found = variants(group(typed), [names] * 2)
    assert found == [{name: f"{LONG}{name}" for name in fields}, {}]
    numbers = pa.LargeListArray.from_arrays(pa.array([0, 70_000]), group(pa.array(range(70_000), pa.int64())))
    assert variants(group(numbers), [NONE]) == [list(range(70_000))]


def test_json_is_that_of_the_values() -> None:
    names = metadata("a")
    typed = pa.StructArray.from_arrays([group(pa.array([1, None], pa.int64()))], ["a"])
    children = [pa.array([names, names], pa.binary()), *group(typed).flatten()]
    whole = pa.StructArray.from_arrays(children, ["metadata", "value", "typed_value"])
    texts = [VariantVal(value, names).toJson() for value in unshredded(whole)]
    assert [json.loads(text) for text in texts] == [{"a": 1}, {}]


def test_a_variant_without_any_value_is_null() -> None:
    assert variants(group(pa.array([None], pa.int64())), [NONE]) == [None]
    assert NULL == b"\x00"


@pytest.mark.parametrize(
    ("typed", "value", "names", "message"),
    [
        (pa.array([1], pa.uint8()), None, NONE, "type uint8 is not supported"),
        (pa.array([{"a": {"value": b"\x00", "typed_value": 1}}]), None, NONE, "metadata lacks the field 'a'"),
        (pa.array([{"a": {"value": None, "typed_value": 1}}]), b"\x0c\x07", metadata("a"), "is not an object"),
    ],
)
def test_what_cannot_be_put_together_is_an_error(
    typed: pa.Array, value: bytes | None, names: bytes, message: str
) -> None:
    with pytest.raises(VariantError, match=message):
        variants(group(typed, [value]), [names])
