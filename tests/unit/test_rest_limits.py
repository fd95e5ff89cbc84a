"""Plans at once, deadlines, clients that go away, and stores that may be read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from floeplan.metadata.files import read_file, read_files
from floeplan.rest.limits import AllowedStores, PlanDroppedError, PlanSlots, ServerLimits, guarded
from floeplan.rest.wire import RestError

pytestmark = pytest.mark.unit

HOME = "s3://lake/db/t/metadata/v1.metadata.json"


class Client:
    """A connection that can be closed."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def request(self) -> Request:
        async def receive() -> dict[str, Any]:
            await self.gone.wait()
            return {"type": "http.disconnect"}

        return Request({"type": "http", "method": "POST", "headers": []}, receive)


def run(limits: ServerLimits, scenario: Callable[[PlanSlots, Client], Any]) -> Any:
    slots = PlanSlots(limits)

    async def main() -> Any:
        return await scenario(slots, Client())

    try:
        return asyncio.run(main())
    finally:
        slots.close()


def test_a_plan_runs_on_a_thread() -> None:
    async def scenario(slots: PlanSlots, client: Client) -> str:
        return await slots.run(client.request(), lambda check: threading.current_thread().name)

    assert run(ServerLimits(), scenario).startswith("floeplan-plan")


def test_more_plans_than_fit_are_refused_and_the_place_is_free_again_afterwards() -> None:
    started, release = threading.Event(), threading.Event()

    def work(_: Callable[[], None]) -> str:
        started.set()
        release.wait(10)
        return "done"

    async def scenario(slots: PlanSlots, client: Client) -> None:
        first = asyncio.ensure_future(slots.run(client.request(), work))
        await asyncio.to_thread(started.wait, 10)
        waiting = asyncio.ensure_future(slots.run(client.request(), work))
        await asyncio.sleep(0)
        with pytest.raises(RestError, match="try again") as refused:
            await slots.run(client.request(), work)
        assert (refused.value.status, refused.value.retry) == (429, True)
        release.set()
        assert [await first, await waiting] == ["done", "done"]
        assert slots.admitted == 0
        assert await slots.run(client.request(), work) == "done"

    run(ServerLimits(plans=1, waiting=1), scenario)


def test_a_plan_past_its_deadline_stops_at_its_next_check() -> None:
    stopped = threading.Event()

    def work(check: Callable[[], None]) -> None:
        for _ in range(1000):
            try:
                check()
            except PlanDroppedError:
                stopped.set()
                raise
            threading.Event().wait(0.01)

    async def scenario(slots: PlanSlots, client: Client) -> None:
        with pytest.raises(RestError, match="longer than") as late:
            await slots.run(client.request(), work)
        assert (late.value.status, late.value.retry) == (503, True)
        assert await asyncio.to_thread(stopped.wait, 10)

    run(ServerLimits(plan_seconds=0.05), scenario)


def test_a_plan_whose_client_has_gone_is_dropped() -> None:
    release = threading.Event()

    async def scenario(slots: PlanSlots, client: Client) -> None:
        running = asyncio.ensure_future(slots.run(client.request(), lambda check: release.wait(10)))
        await asyncio.sleep(0.01)
        client.gone.set()
        with pytest.raises(PlanDroppedError):
            await running
        assert slots.admitted == 1, "its thread is still busy"
        release.set()

    run(ServerLimits(), scenario)


def test_work_that_nobody_waits_for_runs_on_free_threads_only() -> None:
    slots, release, ran = PlanSlots(ServerLimits(plans=2)), threading.Event(), threading.Semaphore(0)

    def spare() -> None:
        release.wait(10)
        ran.release()

    for _ in range(3):
        slots.run_spare(spare)
    assert slots.admitted == 2
    release.set()
    assert ran.acquire(timeout=10)
    assert ran.acquire(timeout=10)
    slots.close()
    slots.run_spare(spare)
    slots._threads.shutdown(wait=True)
    assert slots.admitted == 0
    assert not ran.acquire(blocking=False)


@pytest.mark.parametrize(
    ("prefixes", "location", "allowed"),
    [
        ((), "s3://lake/elsewhere/m.avro", True),
        ((), "s3a://lake/m.avro", True),
        ((), "s3://other/m.avro", False),
        ((), "http://169.254.169.254/latest", False),
        ((), "file:///etc/passwd", False),
        ((), "/etc/passwd", False),
        ((), "s3://lake/../other/m.avro", False),
        (("s3://lake/db",), "s3://lake/db/t/m.avro", True),
        (("s3://lake/db",), "s3://lake/dbx/m.avro", False),
        (("s3://lake/db", "file:///wh"), "/wh/t/m.avro", True),
        (("s3://lake",), "s3://lake/m.avro", True),
        (("s3://lake/db",), "s3://lake/db/../x/m.avro", False),
    ],
)
def test_only_allowed_stores_are_read(prefixes: tuple[str, ...], location: str, allowed: bool) -> None:
    stores = AllowedStores.of(prefixes)
    if allowed:
        stores.check(location, HOME)
    else:
        with pytest.raises(RestError, match="outside the stores"):
            stores.check(location, HOME)


def test_every_metadata_file_is_checked_before_it_is_read() -> None:
    for read in (lambda: read_file("/etc/hostname"), lambda: list(read_files(["s3://x/1", "s3://x/2"]))):
        with pytest.raises(RestError, match="outside the stores"):
            guarded(read, AllowedStores(), HOME, lambda: None)
