"""The garbage collector's threshold is raised while groups are rewritten, and restored afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from floeplan.tasks.runner import raised_gc_threshold

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("usual", [(700, 10, 10), (1_000_000, 5, 5), (0, 10, 10)])
def test_the_threshold_is_restored(usual: tuple[int, int, int]) -> None:
    gc.set_threshold(*usual)
    with raised_gc_threshold():
        assert gc.get_threshold() == (max(usual[0], 100_000) if usual[0] else 0, *usual[1:])
    assert gc.get_threshold() == usual


def test_the_threshold_is_restored_after_an_error() -> None:
    gc.set_threshold(700, 10, 10)
    with suppress(ZeroDivisionError), raised_gc_threshold():
        raise ZeroDivisionError
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_thread_to_leave_restores_it() -> None:
    gc.set_threshold(700, 10, 10)
    both_in, one_out = Barrier(2), Barrier(2)

    def first() -> None:
        with raised_gc_threshold():
            both_in.wait()
        one_out.wait()

    def second() -> tuple[int, int, int]:
        with raised_gc_threshold():
            both_in.wait()
            one_out.wait()
            return gc.get_threshold()

    with ThreadPoolExecutor(2) as pool:
        leaves, stays = pool.submit(first), pool.submit(second)
        leaves.result()
        assert stays.result() == (100_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)
