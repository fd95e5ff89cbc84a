"""The application: routes planning requests to the planner and everything else to the backend.

Every plan and every page of one first loads the table from the catalog with the headers of the caller; only then are
caches used. Planning runs on threads, never on the event loop. The table is passed to the planner as it was loaded,
so what is planned is what the caller may see.

Fail-safe: no exception of planning becomes a plan. Errors that may pass are answered so that clients retry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pyiceberg.table import Table
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from floeplan.rest.limits import AllowedStores, PlanDroppedError, PlanSlots, ServerLimits, guarded
from floeplan.rest.planner import PlanResponse, ScanPlanner
from floeplan.rest.records import AuditRecorder, Metrics, elapsed_ms, event, log
from floeplan.rest.requests import PlanTableScanRequest
from floeplan.rest.wire import (
    RestError,
    TablePath,
    UpstreamRefusedError,
    caller,
    encoded_response,
    is_plain,
    json_object,
    json_response,
    limited_body,
    planning_error,
    raw_path,
)
from floeplan.text import excerpt, reason

_LOGGED_PATH = 300
_CLIENT_GONE = 499
"""The status in logs and metrics of a request whose client closed the connection."""


class Backend(Protocol):
    """The catalog behind the server: proxied, or opened by PyIceberg."""

    async def respond(self, request: Request, target: TablePath | None) -> Response: ...
    async def report(self, request: Request, body: bytes) -> Response: ...
    async def plans_here(self, request: Request, target: TablePath) -> bool: ...
    async def load(self, request: Request, target: TablePath) -> Table: ...
    def table_name(self, target: TablePath) -> str: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PlanningApp:
    """The parts of the server."""

    backend: Backend
    planner: ScanPlanner
    stores: AllowedStores
    limits: ServerLimits
    slots: PlanSlots
    metrics: Metrics
    recorder: AuditRecorder

    def asgi(self) -> ASGIApp:
        """The application for an ASGI server."""
        own = {"/healthz": self._health, "/metrics": self._metrics}
        framework = Starlette(routes=list(map(Route, own, own.values())), lifespan=self._lifespan)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in own:
                await framework(scope, receive, send)
            else:  # every path and every error is handled here: the framework's routing would take as long as a plan
                response = await self._handle(Request(scope, receive))
                await response(scope, receive, send)

        return app

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self.slots.close()
        await self.backend.close()

    async def _health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        gauges = {"floeplan_plans_admitted": float(self.slots.admitted)}
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def _handle(self, request: Request) -> Response:
        started = time.perf_counter()
        path = raw_path(request)
        target = TablePath.match(path)
        endpoint = target.action if target is not None and target.action else _endpoint(path, target)
        response = await self._answered(request, target)
        status = str(response.status_code)
        self.metrics.add("floeplan_requests_total", 1, endpoint=endpoint, status=status)
        self.metrics.observe("floeplan_request_seconds", elapsed_ms(started) / 1000, endpoint=endpoint)
        return response

    async def _answered(self, request: Request, target: TablePath | None) -> Response:
        """The response to a request; every error becomes a response."""
        try:
            return await self._answer(request, target)
        except UpstreamRefusedError as refused:
            return refused.response
        except (PlanDroppedError, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE)
        except RestError as error:
            self.metrics.add("floeplan_refusals_total", 1, cause=error.cause or error.type)
            # A message may quote a literal of the filter.
            message = "" if self.recorder.redact else error.message
            path = excerpt(raw_path(request), _LOGGED_PATH)
            event("refused", path=path, status=error.status, type=error.type, message=message)
            if error.__cause__ is not None and error.status >= 500:
                log.warning("%s", reason(error.__cause__), exc_info=error.__cause__)
            return error.response()
        except Exception as error:
            log.error("%s", reason(error), exc_info=error)
            # Not a status that clients retry: whether a commit happened is not known.
            return RestError(
                500, "InternalServerError", f"{type(error).__name__}; see the log of the server"
            ).response()

    async def _answer(self, request: Request, target: TablePath | None) -> Response:
        if not is_plain(raw_path(request)):
            raise RestError(400, "BadRequestException", "the path is not absolute or has . or ..", cause="endpoint")
        if target is None or not target.action:
            return await self.backend.respond(request, target)
        if target.action == "metrics":
            return await self._report(request, target)
        if not await self.backend.plans_here(request, target):
            return await self.backend.respond(request, target)
        if target.plan_id:
            return self._of_plan(request, target)
        if request.method != "POST":
            raise RestError(405, "BadRequestException", f"{request.method} is not supported here", cause="endpoint")
        body = await limited_body(request, self.limits.body_bytes)
        self.slots.check()  # a server that is busy must not load tables for requests that it refuses
        table = await self.backend.load(request, target)
        return await (self._plan if target.action == "plan" else self._tasks)(request, target, table, body)

    def _of_plan(self, request: Request, target: TablePath) -> Response:
        """Plans end with their response: there is nothing to cancel, and nothing to ask for later."""
        if request.method == "DELETE":
            return Response(status_code=204)
        raise RestError(
            404, "NoSuchPlanIdException", f"no plan {target.plan_id!r}: plans are complete when they are sent"
        )

    async def _plan(self, request: Request, target: TablePath, table: Table, body: bytes) -> Response:
        who, name = caller(request.headers), self.backend.table_name(target)
        started = time.perf_counter()

        def plan() -> PlanResponse:
            return self.planner.plan(table, PlanTableScanRequest.parse(body), who)

        def finish(planned: PlanResponse, response: Response) -> None:
            ms = elapsed_ms(started)
            self.metrics.observe("floeplan_plan_seconds", ms / 1000, engine=who.engine)
            self.recorder.plan(planned, who, name, sent_bytes=len(response.body), ms=ms)

        return await self._planned(request, table, plan, finish)

    async def _tasks(self, request: Request, target: TablePath, table: Table, body: bytes) -> Response:
        who, token = caller(request.headers), json_object(body).get("plan-task")
        if not isinstance(token, str):
            raise RestError(400, "BadRequestException", "plan-task is missing", cause="bad-request")

        def finish(planned: PlanResponse, response: Response) -> None:
            name = self.backend.table_name(target)
            event(
                "tasks", plan_id=planned.plan_id, table=name, principal=who.principal, response_bytes=len(response.body)
            )

        return await self._planned(request, table, lambda: self.planner.fetch_tasks(table, token, who), finish)

    async def _planned(
        self,
        request: Request,
        table: Table,
        work: Callable[[], PlanResponse],
        finish: Callable[[PlanResponse, Response], None],
    ) -> Response:
        """Run planning, compression and recording on a thread."""
        accepted = request.headers.get("accept-encoding", "")

        def run(check: Callable[[], None]) -> Response:
            planned = guarded(work, self.stores, table.metadata_location, check)
            response = encoded_response(planned.body, accepted)
            finish(planned, response)
            self.metrics.add("floeplan_response_bytes_total", len(response.body))
            if planned.ahead is not None:
                self.slots.run_spare(planned.ahead)
            return response

        try:
            return await self.slots.run(request, run)
        except (PlanDroppedError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise planning_error(error) from error

    async def _report(self, request: Request, target: TablePath) -> Response:
        """Record what a client reports about its scan or commit, once the catalog has accepted it."""
        body = await limited_body(request, self.limits.body_bytes)
        response = await self.backend.report(request, body)
        if response.status_code < 300:
            document = _report_of(body)
            if document is not None:
                name, who = self.backend.table_name(target), caller(request.headers)
                await asyncio.to_thread(self.recorder.client_report, document, who, name)
        return response


def _report_of(body: bytes) -> Mapping[str, Any] | None:
    """A report; ``None`` for a body that is none, which is the catalog's business."""
    try:
        document = json_object(body)
    except RestError as error:
        event("report-ignored", level=logging.WARNING, message=error.message)
        return None
    return document if isinstance(document.get("report-type"), str) else None


def _endpoint(path: str, target: TablePath | None) -> str:
    """A label of few values."""
    if target is not None:
        return "table"
    return "config" if path == "/v1/config" else "other"
