"""Starting and stopping the server: its parts from options, the socket, TLS, and the line that says that it is ready.

Plain HTTP carries tokens and data in the clear. Fail-safe: without TLS the server listens on a loopback address only,
unless an option states that something else encrypts the connections.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from floeplan.catalog import open_catalog
from floeplan.errors import InvalidOptionError
from floeplan.rest.app import Backend, PlanningApp
from floeplan.rest.catalog_endpoints import CatalogBackend
from floeplan.rest.limits import AllowedStores, PlanSlots, ServerLimits
from floeplan.rest.planner import PlannerOptions, ScanPlanner
from floeplan.rest.policy import LINEAGE_REASON, PlanningPolicy
from floeplan.rest.proxy import ProxyBackend, ProxyOptions
from floeplan.rest.records import AuditRecorder, JsonFormatter, Metrics, event, log
from floeplan.rest.tokens import KeyRing

_KEEP_ALIVE_SECONDS = 75
_OPEN_REASON = "catalog mode has no authentication: whoever reaches this address can change tables"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of ``floeplan serve-catalog``.

    Attributes:
        upstream: The upstream REST catalog of proxy mode; ``None`` for catalog mode.
        catalog: The catalog of catalog mode, by name.
        host: The address to listen on.
        port: The port; 0 picks a free one.
        policy: Which tables are planned here.
        limits: Limits.
        planner: How plans are made and cut into pages.
        stores: Prefixes of locations that may be read.
        keys: The file of keys for plan tasks; a key of this process without one.
        audit: The folder of audit records.
        redact: Whether audit records hide the literals of filters.
        certificate: The TLS certificate file.
        private_key: The TLS key file.
        plain_http: Whether to listen without TLS on an address that is not loopback.
    """

    upstream: ProxyOptions | None = None
    catalog: str | None = None
    host: str = "127.0.0.1"
    port: int = 8181
    policy: PlanningPolicy = field(default_factory=PlanningPolicy)
    limits: ServerLimits = field(default_factory=ServerLimits)
    planner: PlannerOptions = field(default_factory=PlannerOptions)
    stores: tuple[str, ...] = ()
    keys: Path | None = None
    audit: Path | None = None
    redact: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    plain_http: bool = False


def build(options: ServerOptions) -> ASGIApp:
    """Put the application together.

    Raises:
        FloeplanError: The catalog cannot be opened, or the key file cannot be used.
    """
    stores = AllowedStores.of(options.stores)
    backend: Backend
    if options.upstream is not None:
        backend = ProxyBackend(options.upstream, options.policy, stores, options.limits)
    else:
        backend = CatalogBackend(open_catalog(options.catalog), options.policy, stores, options.limits)
    keys = KeyRing.generate() if options.keys is None else KeyRing.load(options.keys)
    metrics = Metrics()
    return PlanningApp(
        backend=backend,
        planner=ScanPlanner(keys, options.planner),
        stores=stores,
        limits=options.limits,
        slots=PlanSlots(options.limits),
        metrics=metrics,
        recorder=AuditRecorder(options.audit, metrics, redact=options.redact),
    ).asgi()


class _Server(uvicorn.Server):
    """Calls a function when the server has begun to accept requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after running requests; uvicorn would also end the process by the signal, with its exit code."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(options: ServerOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish running requests; ``ready`` gets the URI.

    Raises:
        InvalidOptionError: The address, the port or the TLS files cannot be used.
    """
    check_transport(options)
    app = build(options)
    listening = _listen(options)
    scheme = "http" if options.certificate is None else "https"
    host, port = listening.getsockname()[:2]
    uri = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    _log_to_stderr()
    if options.policy.plan_format_3:
        event("format-3", level=logging.WARNING, patterns=options.policy.plan_format_3, reason=LINEAGE_REASON)
    if options.upstream is None and not _is_loopback(options.host):
        event("no-authentication", level=logging.WARNING, host=options.host, reason=_OPEN_REASON)
    config = uvicorn.Config(
        app,
        http="h11",  # httptools writes the names of headers in lower case; Iceberg's Java client looks for ETag
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        lifespan="on",
        # Longer than the pools of clients keep a connection: a request on one that is being closed would be lost.
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=options.limits.shutdown_seconds,
        **_tls(options),
    )
    gc.collect()
    gc.freeze()  # looking for garbage among everything that was imported takes longer than a plan
    with listening:
        try:
            config.load()
        except OSError as error:
            message = f"cannot use the certificate {options.certificate} with the key {options.private_key}: {error}"
            raise InvalidOptionError(message, context={"option": "--tls-certificate"}) from error
        _Server(config, lambda: ready(uri)).run([listening])


def check_transport(options: ServerOptions) -> None:
    """Refuse plain HTTP on an address that others can reach.

    Raises:
        InvalidOptionError: It would be served, or only one of the TLS files is given.
    """
    if (options.certificate is None) != (options.private_key is None):
        message = "--tls-certificate and --tls-key must be given together"
        raise InvalidOptionError(message, context={"option": "--tls-certificate"})
    for path in (options.certificate, options.private_key):
        if path is not None and not path.is_file():
            raise InvalidOptionError(f"there is no file {path}", context={"option": "--tls-certificate"})
    if options.certificate is None and not options.plain_http and not _is_loopback(options.host):
        message = (
            f"--host {options.host} would serve plain HTTP to others; give --tls-certificate and --tls-key, or "
            "--plain-http if a load balancer encrypts the connections"
        )
        raise InvalidOptionError(message, context={"option": "--host"})


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(options: ServerOptions) -> socket.socket:
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {options.host}:{options.port}: {error}; choose another --port, or 0 for a free one"
        raise InvalidOptionError(message, context={"option": "--port"}) from error
    listening.set_inheritable(True)
    return listening


def _tls(options: ServerOptions) -> Mapping[str, Any]:
    if options.certificate is None:
        return {}
    return {"ssl_certfile": str(options.certificate), "ssl_keyfile": str(options.private_key)}


def _log_to_stderr() -> None:
    """One JSON object per line, for the events of the server and the errors of its libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for logger, level in ((log, logging.INFO), (logging.getLogger("uvicorn"), logging.WARNING)):
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
