"""Catalog mode: the REST protocol over any catalog that PyIceberg opens.

Namespaces and tables, with commits that check their requirements; what PyIceberg's catalogs lack (views, transactions
over several tables) is not advertised. Clients bring their own storage credentials: those of the server are not sent.

Metadata is sent as it is in the metadata file, so that nothing is lost on the way to the client. A commit goes through
PyIceberg's models. Fail-safe: a commit with an update or a field that they do not know is refused, and so are names and
table properties that the catalog or the server would take for something else. An unforeseen failure of a commit is
sent as 500, which clients take for an unknown state: they keep their files and do not repeat the request.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qs

from cachetools import LRUCache
from pydantic import TypeAdapter
from pyiceberg.catalog import WAREHOUSE_LOCATION, Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import IcebergBaseModel
from sqlalchemy import bindparam
from starlette.requests import Request
from starlette.responses import Response

from floeplan.maintenance.expire import reachable_files, refuse_shared_files
from floeplan.metadata.files import TableFiles, guarded_reads, read_file
from floeplan.rest.limits import AllowedStores, ServerLimits, retrieve_exception
from floeplan.rest.policy import MODE_KEY, PlanningPolicy, has_float_partitions
from floeplan.rest.wire import (
    NAMESPACE_SEPARATOR,
    Identifier,
    RestError,
    TablePath,
    body_identifier,
    catalog_error,
    checked_levels,
    checked_name,
    checked_names,
    checked_strings,
    encoded_response,
    json_object,
    json_response,
    limited_body,
    namespace_levels,
    raw_path,
    table_identifier,
    tagged,
)
from floeplan.transaction.metadata_json import losses, writable_metadata

Loading: TypeAlias = "asyncio.Future[Table]"

_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
ENDPOINTS = (
    f"GET {_NAMESPACES}",
    f"POST {_NAMESPACES}",
    f"GET {_NAMESPACE}",
    f"HEAD {_NAMESPACE}",
    f"DELETE {_NAMESPACE}",
    f"POST {_NAMESPACE}/properties",
    f"GET {_NAMESPACE}/tables",
    f"POST {_NAMESPACE}/tables",
    f"POST {_NAMESPACE}/register",
    f"GET {_TABLE}",
    f"HEAD {_TABLE}",
    f"POST {_TABLE}",
    f"DELETE {_TABLE}",
    "POST /v1/{prefix}/tables/rename",
    f"POST {_TABLE}/metrics",
    f"POST {_TABLE}/plan",
    f"POST {_TABLE}/tasks",
)
_SERVER_PROPERTIES = ("py-io-impl", "write.py-location-provider.impl")
"""Table properties that name code which PyIceberg would import and run in the server."""
_STORE_PREFIXES = ("s3.", "gcs.", "adls.", "client.", "hdfs.", "oss.", "hf.")
"""Table properties that PyIceberg adds to those of the catalog: they could send the server's credentials elsewhere."""
_EXISTS = "exists"
"""The property by which PyIceberg's SQL catalog marks a namespace that has no other."""
_HARMLESS = ("last-column-id",)
"""Deprecated fields of updates, which say what the schema says too."""
_UPDATES = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS = TypeAdapter(tuple[TableRequirement, ...])
_LISTED = IcebergTables.__table__.c
_LOCATION = (
    IcebergTables.__table__.select()
    .with_only_columns(_LISTED.metadata_location)
    .where(
        _LISTED.catalog_name == bindparam("catalog"),
        _LISTED.table_namespace == bindparam("namespace"),
        _LISTED.table_name == bindparam("name"),
    )
)
"""Where the metadata of a table of PyIceberg's SQL catalog is; building the statement takes longer than running it."""
_THREADS, _MOST_TABLES = 8, 64
_GZIP, _MOST_METADATA = b"\x1f\x8b", 512 * 1024 * 1024


class CatalogBackend:
    """Serves one PyIceberg catalog."""

    def __init__(self, catalog: Catalog, policy: PlanningPolicy, stores: AllowedStores, limits: ServerLimits) -> None:
        self._catalog, self._policy, self._stores, self._limits = catalog, policy, stores, limits
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="floeplan-catalog")
        self._loads, self._next_loads = dict[Identifier, Loading](), dict[Identifier, Loading]()
        self._tables: LRUCache[tuple[Identifier, str], Table] = LRUCache(_MOST_TABLES)
        self._lock = threading.Lock()

    async def close(self) -> None:
        """End the threads, and close the catalog."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._catalog.close()

    async def plans_here(self, request: Request, target: TablePath) -> bool:
        """Whether the server plans: no catalog behind it does."""
        return True

    async def load(self, request: Request, target: TablePath) -> Table:
        """Load a table.

        Raises:
            RestError: There is no such table, or the catalog failed.
        """
        _refuse_browsers(request)
        name = table_identifier(target)
        # Requests that arrive before a load begins share it: it returns a state of the table not older than they are.
        load = self._next_loads.get(name)
        if load is None:
            load = self._next_loads[name] = asyncio.ensure_future(self._load_after(name, self._loads.get(name)))
            load.add_done_callback(retrieve_exception)
        return await asyncio.shield(load)

    async def _load_after(self, name: Identifier, running: Loading | None) -> Table:
        """Load a table once the load that is running has ended."""
        if running is not None:
            await asyncio.wait((running,))
        load = self._loads[name] = self._next_loads.pop(name)
        try:
            return cast(Table, await self._run(lambda: self._load(name), retry=True))
        finally:
            if self._loads[name] is load:
                del self._loads[name]

    def table_name(self, target: TablePath) -> str:
        """The dotted name of a table, which patterns are matched against."""
        return ".".join(table_identifier(target))

    async def report(self, request: Request, body: bytes) -> Response:
        """Accept a metrics report."""
        _refuse_browsers(request)
        return Response(status_code=204)

    async def respond(self, request: Request, target: TablePath | None) -> Response:
        """Answer a request that is not about planning."""
        _refuse_browsers(request)
        body = b""
        if request.method == "POST":
            body = await limited_body(request, 16 * self._limits.body_bytes)
        handle = self._handler(request, target, json_object(body) if body else {})
        return cast(Response, await self._run(handle, retry=request.method in ("GET", "HEAD")))

    def _handler(self, request: Request, target: TablePath | None, body: Mapping[str, Any]) -> Callable[[], Response]:
        """What answers a request, to be called on a thread."""
        path, method = raw_path(request), request.method
        query = {key: values[-1] for key, values in parse_qs(request.url.query, keep_blank_values=True).items()}
        if target is not None and not target.prefix and not target.action:
            return self._of_table(method, table_identifier(target), body, query, request)
        match [method, *path.removeprefix("/v1/").split("/")]:
            case ["GET", "config"]:
                return self._config
            case ["POST", "tables", "rename"]:
                return lambda: self._rename(body)
            case ["GET", "namespaces"]:
                return lambda: self._list_namespaces(query.get("parent", ""))
            case ["POST", "namespaces"]:
                return lambda: self._create_namespace(body)
            case ["GET", "namespaces", segment]:
                return lambda: self._load_namespace(namespace_levels(segment))
            case ["HEAD", "namespaces", segment]:
                return lambda: self._namespace_exists(namespace_levels(segment))
            case ["DELETE", "namespaces", segment]:
                return lambda: self._drop_namespace(namespace_levels(segment))
            case ["POST", "namespaces", segment, "properties"]:
                return lambda: self._update_namespace(namespace_levels(segment), body)
            case ["GET", "namespaces", segment, "tables"]:
                return lambda: self._list_tables(namespace_levels(segment))
            case ["POST", "namespaces", segment, "tables"]:
                return lambda: self._create_table(namespace_levels(segment), body)
            case ["POST", "namespaces", segment, "register"]:
                return lambda: self._register(namespace_levels(segment), body)
        message = f"this catalog does not serve {method} {path}"
        raise RestError(404, "NoSuchEndpointException", message, cause="endpoint")

    def _of_table(
        self, method: str, name: Identifier, body: Mapping[str, Any], query: Mapping[str, str], request: Request
    ) -> Callable[[], Response]:
        match method:
            case "GET":
                known, accepted = (request.headers.get(name, "") for name in ("if-none-match", "accept-encoding"))
                return lambda: self._load_table(name, known, accepted)
            case "HEAD":
                return lambda: Response(status_code=204 if self._catalog.table_exists(name) else 404)
            case "POST":
                return lambda: self._commit(name, body)
            case "DELETE":
                return lambda: self._drop_table(name, query.get("purgeRequested", "").lower() == "true")
        raise RestError(405, "BadRequestException", f"{method} is not supported for tables", cause="endpoint")

    async def _run(self, handle: Callable[[], Any], *, retry: bool) -> Any:
        """Call the catalog on a thread; ``retry`` says whether a failure can simply be tried again."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, handle)
        except RestError:
            raise
        except Exception as error:
            raise catalog_error(error, retry=retry) from error

    # --- configuration and namespaces

    def _config(self) -> Response:
        overrides = {MODE_KEY: self._policy.catalog_mode}
        return json_response({"defaults": {}, "overrides": overrides, "endpoints": list(ENDPOINTS)})

    def _list_namespaces(self, parent: str) -> Response:
        levels = tuple(parent.split(NAMESPACE_SEPARATOR)) if parent else ()
        if levels:
            self._check_namespace(levels)
        return json_response({"namespaces": sorted(map(list, self._catalog.list_namespaces(levels)))})

    def _check_namespace(self, levels: Identifier) -> None:
        """Raise the error that clients expect; catalogs word it differently."""
        if not self._catalog.namespace_exists(levels):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(levels)}")

    def _create_namespace(self, body: Mapping[str, Any]) -> Response:
        levels, properties = checked_levels(body.get("namespace")), checked_strings(body.get("properties"))
        if self._catalog.namespace_exists(levels):
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {'.'.join(levels)}")
        # The SQL catalog knows a namespace by its properties: without this one, removing the last would remove it.
        marked = properties | {_EXISTS: "true"} if isinstance(self._catalog, SqlCatalog) else properties
        self._catalog.create_namespace(levels, marked)
        return json_response({"namespace": list(levels), "properties": properties})

    def _load_namespace(self, levels: Identifier) -> Response:
        self._check_namespace(levels)
        properties = dict(self._catalog.load_namespace_properties(levels))
        if isinstance(self._catalog, SqlCatalog):
            properties.pop(_EXISTS, None)
        return json_response({"namespace": list(levels), "properties": properties})

    def _namespace_exists(self, levels: Identifier) -> Response:
        return Response(status_code=204 if self._catalog.namespace_exists(levels) else 404)

    def _drop_namespace(self, levels: Identifier) -> Response:
        if self._catalog.namespace_exists(levels) and self._catalog.list_namespaces(levels):
            raise NamespaceNotEmptyError(f"Namespace {'.'.join(levels)} is not empty. It holds namespaces.")
        self._catalog.drop_namespace(levels)
        return Response(status_code=204)

    def _update_namespace(self, levels: Identifier, body: Mapping[str, Any]) -> Response:
        removals, updates = set(checked_names(body.get("removals"))), checked_strings(body.get("updates"))
        if both := removals & set(updates):
            raise RestError(422, "UnprocessableEntityException", f"keys both removed and updated: {sorted(both)}")
        self._check_namespace(levels)
        kept = removals & {_EXISTS} if isinstance(self._catalog, SqlCatalog) else set()
        summary = self._catalog.update_namespace_properties(levels, removals - kept, updates)
        changes = {"removed": summary.removed, "updated": summary.updated, "missing": [*summary.missing, *kept]}
        return json_response({key: sorted(values) for key, values in changes.items()})

    # --- tables

    def _list_tables(self, levels: Identifier) -> Response:
        found = [{"namespace": list(name[:-1]), "name": name[-1]} for name in self._catalog.list_tables(levels)]
        return json_response({"identifiers": found})

    def _load(self, name: Identifier) -> Table:
        """The table as it is now; metadata files never change, so one that was parsed before is not read again."""
        location = self._metadata_location(name)
        with self._lock:
            known = None if location is None else self._tables.get((name, location))
        if known is not None:
            return known
        table = self._catalog.load_table(name)
        self._stores.check(table.metadata_location, table.metadata_location)
        with self._lock:
            self._tables[name, table.metadata_location] = table
        return table

    def _metadata_location(self, name: Identifier) -> str | None:
        """Where the metadata of a table or view is, if the catalog tells that without reading it."""
        if not isinstance(self._catalog, SqlCatalog):
            return None
        place = {"catalog": self._catalog.name, "namespace": ".".join(name[:-1]), "name": name[-1]}
        with self._catalog.engine.connect() as connection:
            location: str | None = connection.execute(_LOCATION, place).scalar()
        return location

    def _load_table(self, name: Identifier, known_tag: str, accepted: str) -> Response:
        table = self._load(name)
        tag = self._tag(table)
        if known_tag == tag:
            return tagged(Response(status_code=304), tag)
        return tagged(encoded_response(self._loaded(table), accepted), tag)

    def _tag(self, table: Table) -> str:
        state = f"{table.metadata_location} {self._policy.fingerprint()}"
        return f'W/"{hashlib.sha256(state.encode()).hexdigest()[:24]}"'

    def _loaded(self, table: Table) -> bytes:
        """The LoadTable document, with the metadata as it is in its file."""
        head = {
            "metadata-location": table.metadata_location,
            "config": self._table_config(table.name(), table.metadata),
        }
        return b'%s,"metadata":%s}' % (json.dumps(head).encode()[:-1], self._metadata_file(table.metadata_location))

    def _table_config(self, name: Identifier, metadata: TableMetadata) -> dict[str, str]:
        described = IcebergBaseModel.model_dump_json(metadata, include={"partition_specs", "schemas"})
        return {
            MODE_KEY: self._policy.table_mode(
                ".".join(name),
                metadata.format_version,
                metadata.properties,
                float_partitions=has_float_partitions(json.loads(described)),
            )
        }

    def _metadata_file(self, location: str) -> bytes:
        data = read_file(location, load_file_io(self._catalog.properties, location))
        if not data.startswith(_GZIP):
            return data
        with gzip.GzipFile(fileobj=BytesIO(data)) as compressed:
            text = compressed.read(_MOST_METADATA + 1)
        if len(text) > _MOST_METADATA:
            raise RestError(400, "BadRequestException", f"{location} exceeds {_MOST_METADATA} bytes of metadata")
        return text

    def _create_table(self, levels: Identifier, body: Mapping[str, Any]) -> Response:
        name = (*levels, checked_name(body.get("name")))
        properties = _checked_properties(checked_strings(body.get("properties")))
        location = body.get("location")
        if location is not None:
            self._check_store(str(location))
        self._check_namespace(levels)
        self._check_new(name)
        _check_defaults(body.get("schema"))
        given = {
            "schema": Schema.model_validate(body.get("schema")),
            "location": None if location is None else str(location),
            "partition_spec": _given(PartitionSpec, body.get("partition-spec"), UNPARTITIONED_PARTITION_SPEC),
            "sort_order": _given(SortOrder, body.get("write-order"), UNSORTED_SORT_ORDER),
            "properties": properties,
        }
        if body.get("stage-create"):
            return self._staged(name, given)
        with writable_metadata(self._io(), self._check_store):
            table = self._catalog.create_table(name, **given)
        return tagged(encoded_response(self._loaded(table), ""), self._tag(table))

    def _io(self) -> FileIO:
        return load_file_io(self._catalog.properties, self._catalog.properties.get(WAREHOUSE_LOCATION))

    def _check_store(self, location: str) -> None:
        """Refuse a location that the catalog may not name; properties of tables and namespaces name some too."""
        self._stores.check(location, self._catalog.properties.get(WAREHOUSE_LOCATION))

    def _check_new(self, name: Identifier) -> None:
        if self._catalog.table_exists(name):
            raise TableAlreadyExistsError(f"Table already exists: {'.'.join(name)}")

    def _staged(self, name: Identifier, given: Mapping[str, Any]) -> Response:
        """The metadata of a table that the client commits later; nothing is written."""
        # PyIceberg takes the format version out of the properties that it is given.
        staged = self._catalog.create_table_transaction(name, **dict(given) | {"properties": dict(given["properties"])})
        # Only the location comes from the catalog: the transaction's own metadata has every schema and spec twice.
        metadata = new_table_metadata(**dict(given) | {"location": staged.table_metadata.location})
        document = {
            "config": self._table_config(name, metadata),
            "metadata": json.loads(IcebergBaseModel.model_dump_json(metadata)),
        }
        return json_response(document)

    def _register(self, levels: Identifier, body: Mapping[str, Any]) -> Response:
        name, location = (*levels, checked_name(body.get("name"))), body.get("metadata-location")
        if not isinstance(location, str):
            raise RestError(400, "BadRequestException", "metadata-location is missing")
        self._check_store(location)
        # Before PyIceberg loads the table and does what its properties say.
        metadata = json_object(self._metadata_file(location))
        _checked_properties(checked_strings(metadata.get("properties")))
        self._check_new(name)
        table = self._catalog.register_table(name, location, overwrite=bool(body.get("overwrite")))
        return tagged(encoded_response(self._loaded(table), ""), self._tag(table))

    def _rename(self, body: Mapping[str, Any]) -> Response:
        source, destination = (body_identifier(body.get(key)) for key in ("source", "destination"))
        if not self._catalog.table_exists(source):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(source)}")
        self._check_new(destination)
        self._catalog.rename_table(source, destination)
        return Response(status_code=204)

    def _drop_table(self, name: Identifier, purge: bool) -> Response:
        if purge and isinstance(self._catalog, MetastoreCatalog):
            self._purge(name)
        elif purge:
            self._catalog.purge_table(name)
        else:
            self._catalog.drop_table(name)
        return Response(status_code=204)

    def _purge(self, name: Identifier) -> None:
        """Drop a table and delete its files; metadata can name files of others, which PyIceberg would delete too."""
        table = self._catalog.load_table(name)
        refuse_shared_files(table.metadata, "purge the table")
        with guarded_reads(lambda location: self._stores.check(location, table.metadata_location)):
            paths = reachable_files(table, trust_lists=True).to_pylist()
        self._catalog.drop_table(name)
        TableFiles.of(table).remove(paths)

    def _commit(self, name: Identifier, body: Mapping[str, Any]) -> Response:
        raw_updates, raw_requirements = body.get("updates") or [], body.get("requirements") or []
        updates, requirements = _UPDATES.validate_python(raw_updates), _REQUIREMENTS.validate_python(raw_requirements)
        _check_known(raw_updates, json.loads(_UPDATES.dump_json(updates, by_alias=True)))
        _check_known(raw_requirements, json.loads(_REQUIREMENTS.dump_json(requirements, by_alias=True)))
        for update in raw_updates:
            if update.get("action") == "set-properties":
                _checked_properties(checked_strings(update.get("updates")))
            elif update.get("action") == "set-location":
                self._check_store(str(update.get("location")))
        creates = any(requirement.get("type") == "assert-create" for requirement in raw_requirements)
        if not creates and not self._catalog.table_exists(name):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(name)}")
        io = self._io()
        # Only its name is used: the catalog loads the table itself and checks the requirements against that.
        named = StagedTable(
            name,
            new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, ""),
            "",
            io,
            self._catalog,
        )
        with writable_metadata(io, self._check_store):
            committed = self._catalog.commit_table(named, requirements, updates)
        metadata = self._metadata_file(committed.metadata_location)
        head = json.dumps({"metadata-location": committed.metadata_location}).encode()[:-1]
        return Response(b'%s,"metadata":%s}' % (head, metadata), media_type="application/json")


def _refuse_browsers(request: Request) -> None:
    """Refuse what a web page sends: this mode has no authentication that such a request would lack.

    A page whose host name has been rebound to this address sends its reads as of the same site, without ``Origin``;
    browsers, and no catalog clients, name a language.
    """
    named = any(name in request.headers for name in ("origin", "accept-language"))
    if named or request.headers.get("sec-fetch-site", "none") != "none":
        raise RestError(403, "ForbiddenException", "requests of web pages are refused", cause="browser")


def _checked_properties(properties: dict[str, str]) -> dict[str, str]:
    for name in properties:
        if name in _SERVER_PROPERTIES or name.startswith(_STORE_PREFIXES):
            message = f"table property {name!r} would change how this server reads files; set it in its catalog instead"
            raise RestError(400, "BadRequestException", message)
    return properties


def _given(model: Any, document: object, default: Any) -> Any:
    return default if document is None else model.model_validate(document)


def _check_defaults(schema: Any) -> None:
    """Refuse default values of columns: PyIceberg loses them when it assigns field ids."""
    if isinstance(schema, dict):
        if schema.get("initial-default") is not None or schema.get("write-default") is not None:
            raise NotImplementedError(f"this catalog cannot create column {schema.get('name')!r} with a default value")
        for value in schema.values():
            _check_defaults(value)
    elif isinstance(schema, list):
        for value in schema:
            _check_defaults(value)


def _check_known(sent: Any, understood: Any) -> None:
    """Refuse a commit of which PyIceberg's models would drop something."""
    lost = [path for path in losses(sent, understood) if path.rpartition(".")[2] not in _HARMLESS]
    if lost:
        raise NotImplementedError(f"this catalog cannot commit {', '.join(lost[:5])}")
