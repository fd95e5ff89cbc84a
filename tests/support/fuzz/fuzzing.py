"""How long a fuzzing test runs: a fixed number of examples, or a number of seconds with ``make fuzz``.

With ``FLOEPLAN_FUZZ_SECONDS`` every property test is repeated with new examples for that time. Without it, tests that
damage input use fixed seeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import wraps
from itertools import count
from random import SystemRandom
from typing import Any

import pytest

TRIED = "examples"
SECONDS = float(os.environ.get("FLOEPLAN_FUZZ_SECONDS") or 0)


def seeds(number: int, *, share: float = 1.0) -> Iterator[int]:
    """``number`` fixed seeds; when fuzzing, new seeds for this share of the seconds of a test."""
    if not SECONDS:
        yield from range(number)
        return
    end = time.monotonic() + share * SECONDS
    for seed in count(SystemRandom().randrange(2**40)):
        yield seed
        if time.monotonic() >= end:
            return


def look_for_more(test: pytest.Function) -> None:
    """Run hypothesis with new examples until the time of the test is over; record the number of examples.

    The cases of a parametrised test share the time equally.
    """
    inner, tried = test.obj.hypothesis.inner_test, count()

    @wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> None:
        next(tried)
        inner(*args, **kwargs)

    test.obj.hypothesis.inner_test = counted
    arguments = {name: test.funcargs[name] for name in test._fixtureinfo.argnames}
    cases = sum(one.nodeid.split("[")[0] == test.nodeid.split("[")[0] for one in test.session.items)
    end = time.monotonic() + SECONDS / cases
    while time.monotonic() < end:
        test.obj(**arguments)
    test.obj.hypothesis.inner_test = inner
    test.user_properties.append((TRIED, next(tried)))


def account(reports: Iterable[pytest.TestReport]) -> str:
    """The number of examples, and the tests with the fewest."""
    tried = sorted(
        (value, report.nodeid) for report in reports for name, value in report.user_properties if name == TRIED
    )
    lines = [f"{sum(number for number, _ in tried):,} examples in {len(tried)} tests; the fewest:"]
    return "\n".join([*lines, *(f"{number:9,} {name}" for number, name in tried[:10])])
