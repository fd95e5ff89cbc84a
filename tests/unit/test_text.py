"""Counts that others wrote as text."""

from __future__ import annotations

import pytest

from floeplan.text import parse_count

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("007", 7), (str(2**63 - 1), 2**63 - 1)])
def test_plain_digits_are_a_count(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", " 1", "1_000", "²", "٣", str(2**63), "9" * 5000, 7, None, b"7"]
)
def test_whatever_else_is_none(text: object) -> None:
    assert parse_count(text) is None
