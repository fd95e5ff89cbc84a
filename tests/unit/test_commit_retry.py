"""Wait times between commit attempts, and when retries stop."""

from __future__ import annotations

import pytest

from floeplan.errors import InvalidOptionError
from floeplan.transaction.catalog_commit import Retries, RetryPolicy, Timing

pytestmark = pytest.mark.unit


class Time:
    """A clock that only sleep() advances."""

    def __init__(self, chance: float = 1.0) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.timing = Timing(lambda: self.now, self.sleep, lambda: chance)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def waits(policy: RetryPolicy, chance: float = 1.0) -> list[float]:
    time = Time(chance)
    retries = Retries(policy, time.timing)
    while retries.again():
        pass
    assert retries.attempts == len(time.waits) + 1
    return time.waits


def test_waits_double_up_to_the_longest() -> None:
    assert waits(RetryPolicy(retries=6, min_wait_ms=100, max_wait_ms=1000)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_waits_are_drawn_from_the_upper_half() -> None:
    assert waits(RetryPolicy(retries=2), chance=0.0) == [0.05, 0.1]
    assert waits(RetryPolicy(retries=2), chance=0.5) == pytest.approx([0.075, 0.15])


def test_no_repetition_starts_after_the_total_time() -> None:
    assert waits(RetryPolicy(retries=9, min_wait_ms=400, max_wait_ms=400, total_timeout_ms=1000)) == [0.4, 0.4]


def test_no_retries_means_one_try() -> None:
    assert waits(RetryPolicy(retries=0)) == []


def test_the_defaults_are_icebergs() -> None:
    assert RetryPolicy.for_commits({}) == RetryPolicy(4, 100, 60_000, 1_800_000)
    assert RetryPolicy.for_status_checks({}) == RetryPolicy(3, 1000, 60_000, 1_800_000)


def test_table_properties_set_the_limits() -> None:
    properties = {
        "commit.retry.num-retries": "7",
        "commit.retry.min-wait-ms": "1",
        "commit.retry.max-wait-ms": "2",
        "commit.retry.total-timeout-ms": "3",
        "commit.status-check.num-retries": "9",
    }
    assert RetryPolicy.for_commits(properties) == RetryPolicy(7, 1, 2, 3)
    assert RetryPolicy.for_status_checks(properties).retries == 9


@pytest.mark.parametrize("text", ["many", "-1", "", "1.5"])
def test_a_property_that_is_no_number_is_named(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"commit\.retry\.num-retries"):
        RetryPolicy.for_commits({"commit.retry.num-retries": text})
