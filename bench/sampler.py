"""CPU time by Python stack: every few milliseconds, the CPU time since the last sample is attributed to the stack of
the main thread.

Samples are taken in a signal handler, which Python runs after a call into native code returns: the time of the call
counts for its caller, whether it holds the GIL or not. Native threads, such as those of Arrow's pools, count for the
function that waits for them. Work must run in the main thread, so ``in_turn`` replaces thread pools.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

Stack = tuple[str, ...]
_EVERY = 0.001


class Sampler:
    """A context; ``seconds`` has CPU seconds by stack, outermost function first."""

    def __init__(self) -> None:
        self.seconds: Counter[Stack] = Counter()
        self._last = 0.0

    def __enter__(self) -> Sampler:
        self._before = signal.signal(signal.SIGPROF, self._look)
        self._last = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _look(self, _: int, frame: FrameType | None) -> None:
        now = time.process_time()
        self.seconds[_stack(frame)] += now - self._last
        self._last = now


class _InTurn:
    """A pool that runs work on submission."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _InTurn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done

    def map(self, work: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return map(work, *arguments)


@contextmanager
def in_turn(*modules: ModuleType) -> Iterator[None]:
    """Make the thread pools of these modules run in the main thread."""
    pools = [module.ThreadPoolExecutor for module in modules]
    for module in modules:
        module.ThreadPoolExecutor = _InTurn  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, pool in zip(modules, pools, strict=True):
            module.ThreadPoolExecutor = pool  # type: ignore[attr-defined]


def _stack(frame: FrameType | None) -> Stack:
    """Functions of this project, and the library functions they call directly."""
    names: list[str] = []
    ours = True
    for path, function in reversed(_frames(frame)):
        if "/src/floeplan/" in path:
            names.append(f"{path.split('/src/floeplan/')[1].removesuffix('.py')} {function}")
            ours = True
        elif ours and names:
            names.append(f"{_library(path)} {function}")
            ours = False
    return tuple(names)


def _frames(frame: FrameType | None) -> list[tuple[str, str]]:
    found = []
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path != __file__ and not name.startswith("<"):  # a comprehension counts for its function
            found.append((path, name))
        frame = frame.f_back
    return found


def _library(path: str) -> str:
    if "/site-packages/" in path:
        return path.split("/site-packages/")[1].removesuffix(".py").removesuffix("/__init__")
    return Path(path).stem if path.endswith(".py") else path
