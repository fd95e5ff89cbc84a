"""The same done with many things by several threads, results in the order of the things."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(make: Callable[[T], R], things: Iterable[T], threads: int) -> Iterator[R]:
    """What is made of each thing, in their order.

    One more than there are threads is under way or waits to be taken; things themselves are asked for only then, by
    the thread that takes results. With one thread nothing is made before it is asked for. An error is raised where the
    result would have come. Whoever stops early waits for what is being made.
    """
    if threads <= 1:
        yield from map(make, things)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "floeplan-map")
    try:
        for thing in things:
            waiting.append(pool.submit(make, thing))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# Making the next of some things while one is being used.


_END: Any = object()


def prefetch(things: Iterable[T]) -> Iterator[T]:
    """The same things in their order, each made by another thread while the one before is used.

    Two of them exist at the same time. An error is raised where the thing would have come. Whoever stops early waits
    for the one that is being made, and what makes them is closed.
    """
    makes = iter(things)
    pool = ThreadPoolExecutor(1, "floeplan-prefetch")
    try:
        following = pool.submit(next, makes, _END)
        while (made := following.result()) is not _END:
            following = pool.submit(next, makes, _END)
            yield made
    finally:
        pool.shutdown(wait=True)
        if isinstance(makes, Generator):
            makes.close()
