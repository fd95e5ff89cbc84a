"""The next thing is made while one is used, and nothing is left running or open."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from floeplan.tasks.runner import prefetch

pytestmark = pytest.mark.unit


def test_things_come_in_their_order() -> None:
    assert list(prefetch(range(100))) == list(range(100))
    assert list(prefetch([])) == []


def test_the_next_one_is_made_while_one_is_used() -> None:
    begun = [threading.Event() for _ in range(3)]

    def things() -> Iterator[int]:
        for number in range(3):
            begun[number].set()
            yield number

    for number in prefetch(things()):
        assert begun[min(number + 1, 2)].wait(60)


def test_an_error_comes_where_the_thing_would_have_come() -> None:
    def things() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    made = prefetch(things())
    assert next(made) == 1
    with pytest.raises(ValueError, match="no second"):
        next(made)


def test_whoever_stops_early_leaves_nothing_open() -> None:
    closed = threading.Event()

    def things() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.set()

    made = prefetch(things())
    next(made)
    made.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("floeplan-ahead")]
