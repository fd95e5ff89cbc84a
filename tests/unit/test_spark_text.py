"""Text to values by Spark's rules; expected values are those of Spark 4.1."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from floeplan.errors import BadInputError
from floeplan.predicate import spark_text
from floeplan.predicate.spark_text import parse_like

pytestmark = pytest.mark.unit


def nanos(*parts: int) -> int:
    timestamp = datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]
    return round((timestamp - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 10**6) * 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024", nanos(2024, 1, 1)),
        ("2024-03", nanos(2024, 3, 1)),
        (" 2024-3-1 ", nanos(2024, 3, 1)),
        ("+2024-03-01", nanos(2024, 3, 1)),
        ("2024-03-01T", nanos(2024, 3, 1)),
        ("2024-03-01 12", nanos(2024, 3, 1, 12)),
        ("2024-03-01 12:30", nanos(2024, 3, 1, 12, 30)),
        ("2024-03-01 1:2:3", nanos(2024, 3, 1, 1, 2, 3)),
        ("2024-03-01 10:00:00.", nanos(2024, 3, 1, 10)),
        ("2024-3-1 5:6:7.8", nanos(2024, 3, 1, 5, 6, 7, 800000)),
        ("2024-03-01 00:00:00.123456789", nanos(2024, 3, 1, 0, 0, 0, 123456) + 789),
        ("2024-03-01 00:00:00.1234567899", nanos(2024, 3, 1, 0, 0, 0, 123456) + 789),
        ("2024-03-01T00:00:00Z", nanos(2024, 3, 1)),
        ("2024-03-01 12:30:00 UTC", nanos(2024, 3, 1, 12, 30)),
        ("2024-03-01 12:30:00GMT+1", nanos(2024, 3, 1, 11, 30)),
        ("2024-03-01 12:30:00UTC+1", nanos(2024, 3, 1, 11, 30)),
        ("2024-03-01 12:30:00+0100", nanos(2024, 3, 1, 11, 30)),
        ("2024-03-01 12:30:00+1", nanos(2024, 3, 1, 11, 30)),
        ("2024-03-01 12:30:00 +1:30", nanos(2024, 3, 1, 11)),
        ("2024-03-01 12:30:00-18:00", nanos(2024, 3, 2, 6, 30)),
        ("2024-03-01T10:00:00.123456+05:30:15", nanos(2024, 3, 1, 4, 29, 45, 123456)),
        ("0001-01-01", nanos(1, 1, 1)),
        ("1969-12-31 23:59:59.999999", -1000),
    ],
)
def test_timestamps(text: str, expected: int) -> None:
    assert spark_text.parse_timestamp(text) == expected


def test_years_beyond_four_digits() -> None:
    assert spark_text.parse_date("12024-03-01") - spark_text.parse_date("2024-03-01") == 25 * 146_097
    assert spark_text.parse_date("-0001-03-01") == spark_text.parse_date("0399-03-01") - 146_097
    assert spark_text.parse_timestamp("12024-03-01") == spark_text.parse_date("12024-03-01") * 86_400 * 10**9


def test_a_zone_is_ignored_where_the_type_has_none() -> None:
    assert spark_text.parse_timestamp("2024-03-01 00:00:00+01:00", zoned=False) == nanos(2024, 3, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nan", math.nan),
        ("NaN", math.nan),
        ("+inf", math.inf),
        ("-Infinity", -math.inf),
        (" 1e3 ", 1e3),
        ("1d", 1.0),
        (".5F", 0.5),
    ],
)
def test_doubles(text: str, expected: float) -> None:
    found = spark_text.parse_double(text)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (
            spark_text.parse_timestamp,
            ["", "x", "12:30", "T12:30", "2024-03-01Z", "2024-03-01 Z", "2024-03-01 24:00:00"],
        ),
        (
            spark_text.parse_timestamp,
            ["2024-03-01 10:", "2024-02-30", "24-03-01", "2024-03-01 10:00 utc", "2024-03-01 9:00 Nowhere"],
        ),
        (spark_text.parse_date, ["", "2024-13-01", "2024-02-30", "20240301x", "01.03.2024", "202"]),
        (spark_text.parse_time, ["", "10", "25:00", "10:61", "10:00:60"]),
        (
            lambda text: spark_text.parse_integer(text, 64),
            ["", "3.5", "1e3", "1_000", "9223372036854775808", "0x10", "٣"],
        ),
        (spark_text.parse_double, ["", "one", "1_0", "-nan", "--1", "0x1p3", "1e"]),
        (lambda text: spark_text.parse_decimal(text, 9, 2), ["", "one", "NaN", "1_0", "inf"]),
        (spark_text.parse_boolean, ["", "maybe", "2", "truee"]),
        (
            spark_text.parse_uuid,
            ["", "1234", "12345678123412341234123456789abc"],
        ),
    ],
)
def test_malformed_text_is_refused(parse: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(BadInputError, match="is not a"):
            parse(text)


@pytest.mark.parametrize(
    ("pattern", "escape", "parts"),
    [
        ("", "\\", ()),
        ("ab", "\\", ("ab",)),
        ("a%_b", "\\", ("a", None, "", "b")),
        (r"a\%\_\\", "\\", ("a%_\\",)),
        ("a!%b!!", "!", ("a%b!",)),
        (r"a\b", "!", ("a\\b",)),
    ],
)
def test_like_patterns(pattern: str, escape: str, parts: tuple[str | None, ...]) -> None:
    assert parse_like(pattern, escape).parts == parts


@pytest.mark.parametrize(("pattern", "escape"), [("a\\b", "\\"), ("a\\", "\\"), ("a!b", "!"), ("a", "ab"), ("a", "")])
def test_like_patterns_spark_refuses(pattern: str, escape: str) -> None:
    with pytest.raises(BadInputError):
        parse_like(pattern, escape)
