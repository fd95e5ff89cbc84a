"""Letting Python look for cycles of garbage less often while many small things are made that are in none.

Every look goes through all that a process has loaded, which in a worker of Spark is much. Garbage without cycles, which
is nearly all of it, goes away at once in any case.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MADE = 100_000
"""Things that are made between two looks."""
_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []
"""What held before the first of those who are inside came in, one for each of them."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Look less often inside of the block; several threads may be inside, and the last to leave restores what held."""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        if _usual[0][0]:  # 0 never looks
            gc.set_threshold(max(_MADE, _usual[0][0]), *_usual[0][1:])
    try:
        yield
    finally:
        with _lock:
            before = _usual.pop()
            if not _usual:
                gc.set_threshold(*before)
