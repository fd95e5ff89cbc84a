"""The next item is prefetched, and nothing is left running or open."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from floeplan.tasks.runner import prefetch

pytestmark = pytest.mark.unit


def test_items_keep_their_order() -> None:
    assert list(prefetch(range(100))) == list(range(100))
    assert list(prefetch([])) == []


def test_the_next_item_is_prefetched() -> None:
    begun = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number in range(3):
            begun[number].set()
            yield number

    for number in prefetch(items()):
        assert begun[min(number + 1, 2)].wait(60)


def test_an_error_is_raised_in_place_of_its_item() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    made = prefetch(items())
    assert next(made) == 1
    with pytest.raises(ValueError, match="no second"):
        next(made)


def test_stopping_early_closes_the_source() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.set()

    made = prefetch(items())
    next(made)
    made.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("floeplan-ahead")]
