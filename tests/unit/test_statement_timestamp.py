"""current_timestamp() and related functions become one literal per statement; the rest of the text stays."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from floeplan.dml.assign import with_timestamp

pytestmark = pytest.mark.unit

TIMESTAMP = datetime(2026, 11, 15, 14, 5, 6, 7, tzinfo=UTC)
INSTANT = "TIMESTAMP '2026-11-15 14:05:06.000007Z'"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("current_timestamp()", INSTANT),
        ("CURRENT_TIMESTAMP", INSTANT),
        ("now() - INTERVAL 1 DAY", f"{INSTANT} - INTERVAL 1 DAY"),
        ("ts < current_timestamp() AND d = current_date", f"ts < {INSTANT} AND d = DATE '2026-11-15'"),
        ("localtimestamp()", "TIMESTAMP_NTZ '2026-11-15 14:05:06.000007'"),
        ("`current_date` = 1", "`current_date` = 1"),
        ("t.current_date = 'now()'", "t.current_date = 'now()'"),
        ("now = 1", "now = 1"),
        ("a + 1", "a + 1"),
        ("'unfinished", "'unfinished"),
    ],
)
def test_text(text: str, written: str) -> None:
    assert with_timestamp(text, TIMESTAMP) == written


def test_what_is_no_text_stays() -> None:
    assert with_timestamp(5, TIMESTAMP) == 5
    assert with_timestamp(None, TIMESTAMP) is None
