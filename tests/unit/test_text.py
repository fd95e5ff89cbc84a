"""Sizes, counts and percentages as text, counts parsed from text, and exceptions as one line."""

from __future__ import annotations

from typing import Any

import pytest

from floeplan.text import counted, human_bytes, parse_count, percent, reason

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("007", 7), (str(2**63 - 1), 2**63 - 1)])
def test_plain_digits_are_a_count(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", " 1", "1_000", "²", "٣", str(2**63), "9" * 5000, 7, None, b"7"]
)
def test_other_text_is_none(text: object) -> None:
    assert parse_count(text) is None


@pytest.mark.parametrize(
    ("error", "options", "text"),
    [
        (ValueError("two\n  lines"), {}, "ValueError: two lines"),
        (ValueError(""), {"with_class": False}, "ValueError"),
        (ValueError("\n\nfirst\nsecond"), {"lines": 1, "with_class": False}, "first"),
        (KeyError("x"), {"lines": 2}, "KeyError: 'x'"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(error: Exception, options: dict[str, Any], text: str) -> None:
    assert reason(error, **options) == text


def test_sizes_and_counts_are_human_readable() -> None:
    assert [human_bytes(n) for n in (0, 1023, 65_536, 2_800_000_000)] == ["0 B", "1023 B", "64.0 KiB", "2.6 GiB"]
    assert [percent(n, 2_000) for n in (0, 1, 199, 2_000)] == ["0 %", "0.05 %", "9.9 %", "100 %"]
    assert [counted(n, "row") for n in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
