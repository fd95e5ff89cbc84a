"""Limits of the server: how much it accepts, how much it does at once, for how long, and which stores it reads.

Plans run on a fixed number of threads. A few more requests wait; beyond that they are refused with 429, which Iceberg's
Java client retries. A plan that exceeds its deadline, or whose client has gone, is dropped: at once if it is waiting,
otherwise before it reads the next metadata file. Its thread counts as used until then, so the limit always holds.

Table metadata names files in any store, and a user who may commit may name any host. Fail-safe: only files in the
allowed stores are read, by default in the store of the table's own metadata file.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from floeplan.metadata.files import Location, guarded_reads
from floeplan.rest.wire import RestError, unavailable

Answer = TypeVar("Answer")

_UNWATCHED_SECONDS = 0.05
"""How long a plan runs before the connection of its client is watched."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits with their defaults.

    Attributes:
        body_bytes: Largest body of a request that the server itself parses.
        plans: Plans at once.
        waiting: Requests that may wait for a plan to end.
        plan_seconds: Deadline of a plan, waiting included.
        upstream_seconds: Longest wait for the upstream catalog.
        shutdown_seconds: How long running requests may take after SIGTERM.
    """

    body_bytes: int = 1024 * 1024
    plans: int = 4
    waiting: int = 256
    plan_seconds: float = 60.0
    upstream_seconds: float = 60.0
    shutdown_seconds: int = 60


class PlanDroppedError(Exception):
    """No client waits for the plan any longer."""


class PlanSlots:
    """Threads for plans, and a bounded number of requests that wait for one."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.plans, thread_name_prefix="floeplan-plan")
        self._lock = threading.Lock()
        self.admitted = 0

    def check(self) -> None:
        """Refuse a request that would have to wait behind too many others; also before anything is done for it.

        Raises:
            RestError: Too many plans are waiting.
        """
        if self.admitted >= self._limits.plans + self._limits.waiting:
            message = f"{self.admitted} plans are running or waiting; try again later"
            raise RestError(429, "TooManyRequestsException", message, retry=True, cause="busy")

    def close(self) -> None:
        """Drop waiting plans; running ones end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run_spare(self, work: Callable[[], None]) -> None:
        """Run work that no request waits for, if a thread is free for it; it counts as a plan."""
        with self._lock:
            if self.admitted >= self._limits.plans:
                return
            self.admitted += 1
        try:
            self._threads.submit(work).add_done_callback(self._release)
        except RuntimeError:  # the server is stopping
            with self._lock:
                self.admitted -= 1

    async def run(self, request: Request, work: Callable[[Callable[[], None]], Answer]) -> Answer:
        """Run ``work`` on a thread; it receives a function that raises once no client waits for it.

        Raises:
            RestError: Too many plans are waiting, or the deadline has passed.
            PlanDroppedError: The client has closed the connection.
        """
        with self._lock:
            self.check()
            self.admitted += 1
        dropped = threading.Event()

        def check() -> None:
            if dropped.is_set():
                raise PlanDroppedError

        submitted = self._threads.submit(work, check)
        submitted.add_done_callback(self._release)
        planned = asyncio.wrap_future(submitted)
        seconds = self._limits.plan_seconds
        try:
            # Most plans end before a task that watches the connection would pay.
            await asyncio.wait((planned,), timeout=min(_UNWATCHED_SECONDS, seconds))
            if not planned.done() and seconds > _UNWATCHED_SECONDS:
                await _watched(request, planned, seconds - _UNWATCHED_SECONDS)
            if planned.done():
                return planned.result()
            raise unavailable(f"planning took longer than {seconds:g} s", "deadline")
        finally:
            if not planned.done():
                dropped.set()
                planned.add_done_callback(retrieve_exception)
                submitted.cancel()

    def _release(self, _: Future[Any]) -> None:
        with self._lock:
            self.admitted -= 1


async def _watched(request: Request, planned: asyncio.Future[Any], seconds: float) -> None:
    """Wait until a plan has ended or the deadline has passed.

    Raises:
        PlanDroppedError: The client has closed the connection.
    """
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((planned, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not planned.done():
            raise PlanDroppedError
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    # The body has been read: the next message says that the client has gone.
    while (await request.receive())["type"] != "http.disconnect":
        pass


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Take the exception of work without a waiting client, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


@dataclass(frozen=True, slots=True)
class AllowedStores:
    """Where metadata files may be.

    Attributes:
        prefixes: Locations such as ``s3://lake/warehouse``; empty for the store of each table's own metadata file.
    """

    prefixes: tuple[Location, ...] = ()

    @classmethod
    def of(cls, prefixes: tuple[str, ...]) -> AllowedStores:
        """Parse prefixes."""
        return cls(tuple(map(Location.parse, prefixes)))

    def check(self, location: str, home: str | None) -> None:
        """Refuse a location outside the stores.

        Args:
            location: The file.
            home: A location whose store is allowed if no prefixes are given; without it, every store then is.

        Raises:
            RestError: The server may not read the file.
        """
        found = Location.parse(location)
        prefixes = self.prefixes
        if not prefixes and home is not None:
            own = Location.parse(home)
            prefixes = (Location(own.scheme, own.authority, "/"),)
        inside = not prefixes or any(_holds(prefix, found) for prefix in prefixes)
        if not inside or ".." in found.path.split("/"):
            message = f"{location} is outside the stores that this server may read; --store allows it"
            raise RestError(403, "ForbiddenException", message, cause="store")


def _holds(prefix: Location, location: Location) -> bool:
    if (prefix.scheme, prefix.authority) != (location.scheme, location.authority):
        return False
    return prefix.path == "/" or location.path == prefix.path or location.path.startswith(f"{prefix.path}/")


def guarded(
    work: Callable[[], Answer], stores: AllowedStores, metadata_location: str | None, check: Callable[[], None]
) -> Answer:
    """Run ``work``; before it reads a metadata file, check that somebody waits and that the store is allowed."""

    def guard(location: str) -> None:
        check()
        stores.check(location, metadata_location)

    check()
    with guarded_reads(guard):
        return work()
