"""Proxy mode: everything passes to an upstream REST catalog, and what clients need to plan here is added on the way.

Requests and responses pass through byte by byte, with the headers of the caller: the upstream catalog authenticates,
authorises, vends credentials and commits. Only these are edited, and in them only the named member: ``/v1/config``
(endpoints, mode, and no ``uri``, which would lead clients past the proxy) and the ``config`` of a loaded, created or
registered table (mode). An ETag covers the mode too, so that a client notices when the mode changes.

An upstream catalog that advertises planning keeps it: it may enforce policies on rows and columns while planning.

Fail-safe: a request whose response was lost gets 502 or 504, which clients do not repeat for a commit; only a request
that never reached the upstream catalog gets a 503 that they do.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx
from cachetools import LRUCache
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from floeplan.errors import InvalidOptionError
from floeplan.rest.forwarding import JsonMembers, decodable, edited, end_to_end, of_caller, passed, translated
from floeplan.rest.limits import AllowedStores, ServerLimits
from floeplan.rest.policy import MODE_KEY, PlanningPolicy, has_float_partitions
from floeplan.rest.wire import (
    RestError,
    TablePath,
    UpstreamRefusedError,
    decoded,
    json_object,
    limited_body,
    raw_path,
    unavailable,
)
from floeplan.text import reason

PLAN = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan"
TASKS = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/tasks"
_PLANNING = "/v1/{prefix}/namespaces/{namespace}/tables/{table}/plan"
_TABLES, _TABLE = "/v1/{prefix}/namespaces/{namespace}/tables", "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_NAMESPACES, _NAMESPACE = "/v1/{prefix}/namespaces", "/v1/{prefix}/namespaces/{namespace}"
DEFAULT_ENDPOINTS = (
    *(f"{method} {_NAMESPACES}" for method in ("GET", "POST")),
    *(f"{method} {_NAMESPACE}" for method in ("GET", "DELETE")),
    f"POST {_NAMESPACE}/properties",
    *(f"{method} {_TABLES}" for method in ("GET", "POST")),
    *(f"{method} {_TABLE}" for method in ("GET", "POST", "DELETE")),
    "POST /v1/{prefix}/tables/rename",
    f"POST {_NAMESPACE}/register",
    f"POST {_TABLE}/metrics",
    "POST /v1/{prefix}/transactions/commit",
)
"""What clients take for granted when a catalog sends no list; once a list is sent, the rest counts as unsupported."""

_STORE_PREFIXES = ("s3.", "gcs.", "adls.", "client.", "hdfs.", "oss.")
"""Properties of a catalog that the server takes over to read files; never ``py-io-impl``, which names code to run."""
_CREATED_BYTES = 16 * 1024 * 1024
_MOST_TABLES, _MOST_CONFIGS = 64, 256
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """What ``/v1/config`` of the upstream catalog says about one prefix."""

    prefix: str = ""
    separator: str = "\x1f"
    plans: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> UpstreamConfig:
        """Read a response."""
        defaults, overrides = (dict(document.get(name) or {}) for name in ("defaults", "overrides"))
        merged = defaults | overrides
        return cls(
            prefix=str(merged.get("prefix", "")).strip("/"),
            separator=unquote(str(merged.get("namespace-separator", "%1F"))) or "\x1f",
            plans=PLAN in (document.get("endpoints") or ()),
            defaults=defaults,
            overrides=overrides,
        )


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Where the upstream catalog is and how to reach it and its stores.

    Attributes:
        uri: The URI of the upstream catalog, without ``/v1``.
        warehouse: The warehouse to name when the server asks for ``/v1/config`` itself.
        replace_planning: Plan here although the upstream catalog plans scans too.
        io_properties: PyIceberg properties by which the server reads metadata files.
        ca_file: Certificates to verify the upstream catalog with.
    """

    uri: str
    warehouse: str | None = None
    replace_planning: bool = False
    io_properties: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None


class ProxyBackend:
    """Forwards requests to the upstream catalog."""

    def __init__(
        self, options: ProxyOptions, policy: PlanningPolicy, stores: AllowedStores, limits: ServerLimits
    ) -> None:
        self._options, self._policy, self._stores = options, policy, stores
        self._base = httpx.URL(options.uri.rstrip("/"))
        timeout = httpx.Timeout(limits.upstream_seconds, connect=min(_CONNECT_SECONDS, limits.upstream_seconds))
        verify = _trusting(options.ca_file) if options.ca_file else True
        pool = httpx.Limits(max_connections=256, max_keepalive_connections=64)
        # Nothing of this machine's environment (proxies, .netrc credentials) may get into the requests of callers.
        self._client = httpx.AsyncClient(timeout=timeout, limits=pool, verify=verify, trust_env=False)
        for name in tuple(self._client.headers):  # nor the headers that httpx adds
            del self._client.headers[name]
        self._configs: LRUCache[str, UpstreamConfig] = LRUCache(_MOST_CONFIGS)
        self._tables: LRUCache[bytes, tuple[Table, bool]] = LRUCache(_MOST_TABLES)
        self._tagged: LRUCache[tuple[str | None, ...], tuple[str, Table]] = LRUCache(_MOST_TABLES)

    async def close(self) -> None:
        """Close the connections to the upstream catalog."""
        await self._client.aclose()

    # --- everything but planning

    async def respond(self, request: Request, target: TablePath | None) -> Response:
        """Pass a request on, and edit the response if it carries a mode."""
        path = raw_path(request)
        if path == "/v1/config" and request.method == "GET":
            return await self._config(request)
        if target is not None and not target.action and request.method == "GET":
            return await self._loaded(request, target)
        kind = path.rpartition("/")[2]
        if request.method == "POST" and kind in ("tables", "register") and "/namespaces/" in path:
            return await self._created(request, path)
        return await self._forward(request)

    async def report(self, request: Request, body: bytes) -> Response:
        """Pass a metrics report on."""
        sent = await self._send("POST", request, end_to_end(request.headers.raw), body)
        return passed(sent)

    async def _forward(self, request: Request) -> Response:
        headers = end_to_end(request.headers.raw)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        outgoing = self._client.build_request(
            request.method, self._url(request), headers=headers, content=request.stream() if has_body else None
        )
        with translated(request.method):
            response = await self._client.send(outgoing, stream=True)
        streamed = StreamingResponse(
            response.aiter_raw(), response.status_code, background=BackgroundTask(response.aclose)
        )
        streamed.raw_headers = end_to_end(response.headers.raw)
        return streamed

    async def _config(self, request: Request) -> Response:
        response = await self._send("GET", request, decodable(request.headers.raw))
        if response.status_code != 200:
            return passed(response)
        text = response.text
        members = JsonMembers.of(text)
        upstream = UpstreamConfig.of(members.values)
        self._configs[upstream.prefix] = upstream
        # The `uri` of the upstream catalog would lead clients past the proxy.
        defaults, overrides = (
            {k: v for k, v in c.items() if k != "uri"} for c in (upstream.defaults, upstream.overrides)
        )
        if not upstream.plans or self._options.replace_planning:
            overrides[MODE_KEY] = self._policy.catalog_mode
            endpoints = list(members.values.get("endpoints") or DEFAULT_ENDPOINTS)
            text = members.replaced("endpoints", endpoints + [each for each in (PLAN, TASKS) if each not in endpoints])
            text = JsonMembers.of(text).replaced("overrides", overrides)
        elif len(overrides) != len(upstream.overrides):
            text = members.replaced("overrides", overrides)
        if len(defaults) != len(upstream.defaults):
            text = JsonMembers.of(text).replaced("defaults", defaults)
        return edited(response, text, request)

    async def _loaded(self, request: Request, target: TablePath) -> Response:
        mark = f"-floeplan-{self._policy.fingerprint()}"
        headers = decodable(request.headers.raw)
        known = request.headers.get("if-none-match")
        if known is not None:
            # Only a tag of this proxy with the policy of now is known upstream; with another, the table is sent again.
            headers = [pair for pair in headers if pair[0].lower() != b"if-none-match"]
            if f'{mark}"' in known:
                headers.append((b"if-none-match", known.replace(f'{mark}"', '"').encode("latin-1")))
        await self._learn_once(request)
        response = await self._send("GET", request, headers)
        if response.status_code == 304:
            return passed(response, etag_mark=mark)
        return await self._with_mode(request, response, self.table_name(target), mark)

    async def _created(self, request: Request, path: str) -> Response:
        body = await limited_body(request, _CREATED_BYTES)
        await self._learn_once(request)
        response = await self._send("POST", request, decodable(request.headers.raw), body)
        namespace = path.rpartition("/namespaces/")[2].partition("/")[0]
        name = json_object(body).get("name", "") if response.status_code == 200 else ""
        dotted = ".".join((*decoded(namespace, self._separators()), str(name)))
        return await self._with_mode(request, response, dotted, f"-floeplan-{self._policy.fingerprint()}")

    async def _with_mode(self, request: Request, response: httpx.Response, name: str, etag_mark: str) -> Response:
        """The response of a loaded table, with its mode in ``config``; others are passed on."""
        # Whether the upstream catalog plans does not depend on the warehouse.
        upstream_plans = any(each.plans for each in self._configs.values())
        if response.status_code != 200 or (upstream_plans and not self._options.replace_planning):
            return passed(response)
        text = await asyncio.to_thread(self._text_with_mode, response.text, name)
        return edited(response, text, request, etag_mark)

    def _text_with_mode(self, text: str, name: str) -> str:
        members = JsonMembers.of(text)
        metadata = members.values.get("metadata") or {}
        mode = self._policy.table_mode(
            name,
            int(metadata.get("format-version", 0)),
            metadata.get("properties") or {},
            float_partitions=has_float_partitions(metadata),
        )
        config = dict(members.values.get("config") or {})
        if MODE_KEY in config and not self._configs and not self._options.replace_planning:
            return text  # it is not known whether the upstream catalog plans, but it has a mode of its own
        return members.replaced("config", config | {MODE_KEY: mode})

    # --- planning

    async def plans_here(self, request: Request, target: TablePath) -> bool:
        """Whether the server plans, and not the upstream catalog.

        Raises:
            RestError: The upstream catalog does not say whether it plans.
        """
        prefix = unquote(target.prefix)
        if prefix not in self._configs:
            await self._learn(request)
        if self._options.replace_planning:
            return True
        known = self._configs.get(prefix)
        return not known.plans if known is not None else not any(each.plans for each in self._configs.values())

    async def load(self, request: Request, target: TablePath) -> Table:
        """Load a table as the caller, which proves that the caller may load it.

        Raises:
            UpstreamRefusedError: The upstream catalog refuses.
            RestError: It cannot be reached, or names a location that the server may not read.
        """
        headers = of_caller(request)
        sender = tuple(request.headers.get(name) for name in ("authorization", "x-iceberg-access-delegation"))
        tag, known = self._tagged.get((target.path, *sender), (None, None))
        if tag is not None:
            headers.append((b"if-none-match", tag.encode("latin-1")))
        url = self._base.copy_with(raw_path=(self._base.raw_path.rstrip(b"/") + target.path.encode("latin-1")))
        response = await self._get(url, headers)
        if response.status_code == 304 and known is not None:
            return known
        if response.status_code >= 500 or response.status_code == 304:
            raise unavailable(f"the upstream catalog answered {response.status_code}", "upstream")
        if response.status_code != 200:
            raise UpstreamRefusedError(passed(response))
        digest = hashlib.sha256(target.path.encode() + response.content).digest()
        if digest not in self._tables:
            self._tables[digest] = await asyncio.to_thread(self._table, response.text, target)
        table, vended = self._tables[digest]
        # Vended credentials expire, so they are asked for each time.
        if "etag" in response.headers and not vended:
            self._tagged[target.path, *sender] = response.headers["etag"], table
        return table

    def table_name(self, target: TablePath) -> str:
        """The dotted name of a table, which patterns are matched against."""
        return ".".join((*decoded(target.namespace, self._separators()), unquote(target.table)))

    def _table(self, text: str, target: TablePath) -> tuple[Table, bool]:
        """The table of a response, and whether the response has credentials."""
        members = JsonMembers.of(text)
        name = self.table_name(target)
        location = members.values.get("metadata-location")
        if not isinstance(location, str):
            raise RestError(400, "BadRequestException", f"{name} has no metadata location", cause="unsupported")
        self._stores.check(location, location)
        try:
            metadata = TableMetadataUtil.parse_raw(members.text_of("metadata"))
        except Exception as error:
            message = f"the metadata of {name} cannot be read: {reason(error, lines=2)}"
            raise RestError(500, "InternalServerError", message, cause="corrupt") from error
        io = self._io(members.values, location, target)
        identifier = (*decoded(target.namespace, self._separators()), unquote(target.table))
        config = members.values.get("config") or {}
        vended = bool(members.values.get("storage-credentials") or _store_properties(config))
        return Table(identifier, metadata, location, io, NoopCatalog("upstream")), vended

    def _io(self, loaded: Mapping[str, Any], location: str, target: TablePath) -> FileIO:
        """Reads files with the credentials that the catalog vends to this caller, else with those of the server."""
        config = self._configs.get(unquote(target.prefix), UpstreamConfig())
        credentials = [
            each for each in loaded.get("storage-credentials") or () if location.startswith(str(each.get("prefix")))
        ]
        best: Mapping[str, Any] = max(credentials, key=lambda each: len(each["prefix"]), default={})
        properties = (
            _store_properties(config.defaults)
            | dict(self._options.io_properties)
            | _store_properties(config.overrides)
            | _store_properties(loaded.get("config") or {})
            | _store_properties(best.get("config") or {})
        )
        return load_file_io(properties, location)

    async def _learn(self, request: Request) -> None:
        """Ask for the configuration that no client has fetched through this instance yet."""
        url = self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + b"/v1/config")
        if self._options.warehouse is not None:
            url = url.copy_merge_params({"warehouse": self._options.warehouse})
        response = await self._get(url, of_caller(request))
        if response.status_code == 200:
            config = UpstreamConfig.of(json_object(response.content))
            self._configs[config.prefix] = config
        elif not self._configs and not self._options.replace_planning:
            message = (
                f"the upstream catalog answered {response.status_code} to /v1/config, so it is not known whether it "
                "plans scans itself; --warehouse names the warehouse to ask for"
            )
            raise unavailable(message, "upstream")

    async def _learn_once(self, request: Request) -> None:
        """Ask for a configuration before a mode is sent: that of an upstream catalog that plans must stay."""
        if not self._configs and not self._options.replace_planning:
            with suppress(RestError):  # a table can be loaded nevertheless
                await self._learn(request)

    def _separators(self) -> tuple[str, ...]:
        return tuple({"\x1f", *(each.separator for each in self._configs.values())})

    # --- requests to the upstream catalog

    def _url(self, request: Request) -> httpx.URL:
        query: bytes = request.scope.get("query_string", b"")
        target = self._base.raw_path.rstrip(b"/") + raw_path(request).encode("latin-1")
        return self._base.copy_with(raw_path=target + (b"?" + query if query else b""))

    async def _send(
        self, method: str, request: Request, headers: Sequence[tuple[bytes, bytes]], body: bytes | None = None
    ) -> httpx.Response:
        sent = [pair for pair in headers if pair[0].lower() != b"content-length"]
        if method == "GET":
            return await self._get(self._url(request), sent)
        with translated(method):
            return await self._client.request(method, self._url(request), headers=sent, content=body)

    async def _get(self, url: httpx.URL, headers: Sequence[tuple[bytes, bytes]]) -> httpx.Response:
        """Read from the upstream catalog, a second time if it closed the connection just as the request was sent."""
        with translated("GET"):
            try:
                return await self._client.get(url, headers=headers)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                return await self._client.get(url, headers=headers)


def _trusting(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        message = f"cannot use the certificates of --upstream-ca {ca_file}: {error}"
        raise InvalidOptionError(message, context={"option": "--upstream-ca"}) from error


def _store_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in properties.items() if name.startswith(_STORE_PREFIXES)}
