"""Memory for decoded columns, which the next read uses again.

The kernel clears memory before it hands it out, which takes 0.3 to 0.4 s of CPU per gigabyte: as long as decompressing
what is decoded to it. The C library returns memory that threads have freed to the kernel, more or less of it from run
to run. So large buffers come from a pool, and return to it with the last Arrow array that uses them.

Rule: the pool never holds more than ``MOST_BYTES``, in use or not, nor more than was in use at once lately. What has
not been used for ``IDLE`` seconds returns to the kernel. A read that needs more gets the rest from Arrow.

No huge pages: where memory is fragmented, or belongs to a virtual machine that has not used it yet, the kernel takes
several times as long to clear them.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import defaultdict, deque
from functools import cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from floeplan.vectors import Bytes

MOST_BYTES = 1 << 30
IDLE = 5.0
SPARE_BYTES = 1 << 25
"""May be kept in addition to what was in use at once: memory that is only used for a moment."""
_STEPS = 4
"""Sizes are rounded up to this many leading bits, and one more, so that similar ones can replace each other."""
_Freed: TypeAlias = deque[mmap.mmap]


class Room:
    """Memory of the pool, until the last buffer in it is gone."""

    __slots__ = ("_freed", "_memory", "bytes")

    def __init__(self, memory: mmap.mmap, freed: _Freed) -> None:
        self._memory, self._freed = memory, freed
        self.bytes: Bytes = np.frombuffer(memory, dtype=np.uint8)

    def buffer(self, start: int, size: int) -> pa.Buffer:
        """A part as an Arrow buffer, which keeps the room."""
        return pa.foreign_buffer(self.bytes.ctypes.data + start, size, self)

    def __del__(self) -> None:
        self._freed.append(self._memory)  # without a lock, which this thread may hold


class BufferPool:
    """Thread-safe; a thread of the pool gives idle memory back."""

    def __init__(self, most: int = MOST_BYTES, spare: int = SPARE_BYTES, idle: float = IDLE) -> None:
        self._most, self._spare, self._idle = most, spare, idle
        self._lock = threading.Lock()
        self._freed: _Freed = deque()
        self._kept: dict[int, deque[tuple[float, mmap.mmap]]] = defaultdict(deque)
        self._used = self._unused = self._peak = 0
        self._sweeper: threading.Thread | None = None

    def room(self, size: int) -> Room | None:
        """Memory of at least this size, whose content is undefined; ``None`` beyond the limit."""
        size = _rounded(size)
        with self._lock:
            self._collect()
            if self._kept[size]:
                memory = self._kept[size].pop()[1]  # the one used last, which may be in the processor's cache
                self._unused -= size
            elif self._used + size > self._most:
                return None
            else:
                try:
                    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                except OSError:  # the system's limit on memory, or on the number of mappings
                    return None
            self._used += size
            self._peak = max(self._peak, self._used)
            while self._unused > max(min(self._peak + self._spare, self._most) - self._used, 0):
                self._drop(min((kept for kept in self._kept.values() if kept), key=lambda kept: kept[0][0]))
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, name="floeplan-buffers", daemon=True)
                self._sweeper.start()
        return Room(memory, self._freed)

    def sizes(self) -> tuple[int, int]:
        """Bytes in use, and bytes that are kept."""
        with self._lock:
            self._collect()
            return self._used, self._unused

    def _collect(self) -> None:
        now = time.monotonic()
        while self._freed:
            memory = self._freed.popleft()
            self._used -= len(memory)
            self._unused += len(memory)
            self._kept[len(memory)].append((now, memory))

    def _drop(self, kept: deque[tuple[float, mmap.mmap]]) -> None:
        """Give the memory of one size that has been kept longest back."""
        self._unused -= len(kept.popleft()[1])

    def _sweep(self) -> None:
        while True:
            time.sleep(self._idle)
            with self._lock:
                self._collect()
                since = time.monotonic() - self._idle
                for kept in self._kept.values():
                    while kept and kept[0][0] < since:
                        self._drop(kept)
                self._peak = self._used + self._unused
                if not self._peak:
                    self._sweeper = None
                    return


def _rounded(size: int) -> int:
    step = max(1 << max(size.bit_length() - _STEPS - 1, 0), mmap.PAGESIZE)
    return -(-size // step) * step


@cache
def pool() -> BufferPool:
    """The pool of this process."""
    return BufferPool()


os.register_at_fork(after_in_child=pool.cache_clear)  # neither its thread nor a lock that is held survives a fork
