"""Ordered parallel map over a thread pool, and prefetching of an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()


def parallel_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Apply a function to items in several threads and yield the results in order.

    At most one result more than there are threads is computed or waits to be taken; the caller's thread iterates the
    items, one for each result it takes. With one thread nothing is computed before it is requested. An error is raised
    at the position of its result. A caller that stops early waits for the running calls.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "floeplan-map")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, each computed by another thread while the one before is used.

    Two items exist at the same time. An error is raised at the position of its item. A caller that stops early waits
    for the item being computed, and a generator is closed.
    """
    iterator = iter(items)
    pool = ThreadPoolExecutor(1, "floeplan-prefetch")
    try:
        following = pool.submit(next, iterator, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, iterator, _END)
            yield item
    finally:
        pool.shutdown(wait=True)
        if isinstance(iterator, Generator):
            iterator.close()
