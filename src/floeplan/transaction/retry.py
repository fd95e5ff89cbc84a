"""How often and how long to try again: exponential waits with jitter, up to a number of times and a total time.

Rule: the wait before the n-th repetition is ``min_wait * 2**(n - 1)``, at most ``max_wait``, then drawn evenly from the
upper half of that, so that writers who failed together do not come back together. Clock, sleep and chance are given
from outside: tests wait for nobody.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from floeplan.errors import InvalidOptionError
from floeplan.text import parse_count


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of repetition.

    Attributes:
        retries: Repetitions after the first try.
        min_wait_ms: Wait before the first repetition.
        max_wait_ms: Longest wait.
        total_timeout_ms: No repetition starts later than this after the first try.
    """

    retries: int = 4
    min_wait_ms: int = 100
    max_wait_ms: int = 60_000
    total_timeout_ms: int = 30 * 60_000

    @classmethod
    def for_commits(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """As the ``commit.retry.*`` properties of a table say."""
        return _from_properties("commit.retry.", properties, cls())

    @classmethod
    def for_status_checks(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """As the ``commit.status-check.*`` properties of a table say."""
        return _from_properties("commit.status-check.", properties, cls(retries=3, min_wait_ms=1000))


def _from_properties(prefix: str, properties: Mapping[str, str], default: RetryPolicy) -> RetryPolicy:
    def number(name: str, otherwise: int) -> int:
        text = properties.get(prefix + name)
        if text is None:
            return otherwise
        told = parse_count(text.strip())
        if told is None:
            raise InvalidOptionError(
                f"table property {prefix}{name} is {text!r} but must be a number that is not negative",
                context={"property": prefix + name, "value": text},
            )
        return told

    return RetryPolicy(
        number("num-retries", default.retries),
        number("min-wait-ms", default.min_wait_ms),
        number("max-wait-ms", default.max_wait_ms),
        number("total-timeout-ms", default.total_timeout_ms),
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time and chance come from: seconds that only grow, a way to wait, and numbers from 0 to 1."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


class Repetition:
    """Counts the tries of one thing."""

    def __init__(self, policy: RetryPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._started = timing.clock()
        self.tries = 1

    def again(self) -> bool:
        """Wait and return true, or return false at once when the limits are reached."""
        policy = self._policy
        if self.tries > policy.retries:
            return False
        longest = min(policy.max_wait_ms, policy.min_wait_ms * 2 ** (self.tries - 1)) / 1000
        wait = longest * (1 + self._timing.chance()) / 2
        if (self._timing.clock() - self._started + wait) * 1000 > policy.total_timeout_ms:
            return False
        self.tries += 1
        self._timing.sleep(wait)
        return True
