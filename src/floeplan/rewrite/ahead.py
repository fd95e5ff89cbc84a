"""Making the next of some things while one is being used."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


def ahead(things: Iterable[T]) -> Iterator[T]:
    """The same things in their order, each made by another thread while the one before is used.

    Two of them exist at the same time. An error is raised where the thing would have come. Whoever stops early waits
    for the one that is being made, and what makes them is closed.
    """
    makes = iter(things)
    pool = ThreadPoolExecutor(1, "floeplan-ahead")
    try:
        following = pool.submit(next, makes, _END)
        while (made := following.result()) is not _END:
            following = pool.submit(next, makes, _END)
            yield made
    finally:
        pool.shutdown(wait=True)
        if isinstance(makes, Generator):
            makes.close()
