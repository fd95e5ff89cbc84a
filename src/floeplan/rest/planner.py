"""``ScanPlanner``: from a request to the bytes of a response.

A plan is a function of the snapshot's manifests, the request and the schemas that its names are bound to. All of these
are in the token of a plan task, so every instance makes the same plan, in the same order, and serves any page of it::

    request ──► snapshot, schemas ──► predicate ──► ScanPlan ──► pages
                                                       ▲           │
    token ─────────────────────────────────────────────┴───────────┘

Plans are kept in memory by table, metadata location and request, up to ``PlannerOptions.cache_bytes``. The cache holds
files, not responses: tokens are made for each caller. **The caller must be authorised before ``plan`` and
``fetch_tasks`` are called**; nothing here checks who may read a table.

The first page is in the response itself, the others are plan tasks. A plan is always ``completed``: there is nothing
to poll or to cancel.

Fail-safe: a plan that cannot be made is an error, never an empty or partial plan. A page of a snapshot or schema that
the table no longer has is ``NoSuchPlanTaskError``: another snapshot would have other files. So is a page of a plan
that this instance makes of other files than the instance whose token it is.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.held import EntriesMemory, EntriesSource
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.predicate.build import without_opaque
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.names import leaf_columns
from floeplan.predicate.stats import TriState
from floeplan.rest.expressions import Binder, CompiledFilter, FilterLimits, compile_filter
from floeplan.rest.pages import PlanFiles
from floeplan.rest.requests import PlanTableScanRequest
from floeplan.rest.tokens import KeyRing, NoSuchPlanTaskError, PlanTask
from floeplan.scan.incremental import plan_appends
from floeplan.scan.model import DEFAULT_CONCURRENCY, PlannedFiles, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_target
from floeplan.scan.report import LONGEST_PREDICATE, scan_report
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import ScanTarget, SnapshotReader
from floeplan.text import excerpt

_LONG_REQUEST, _PAGE_PER_REQUEST = 4096, 64
"""A page is at least 64 times as long as a long request, which every token repeats: tokens stay under 3% of a plan."""

_FEW_FILES, _FIRST_PAGE_BYTES = 1000, 1000
"""Plans of at most this many files keep their first page, of about this many bytes per file."""

_FIRST_BYTES = 64 * 1024
"""JSON of the first of several pages: clients parse it before they fetch the others, several of them at a time."""

_PLAN_BYTES, _FILE_BYTES, _PER_REQUEST_BYTE = 64 * 1024, 300, 16
"""Memory of a plan without its files, of a planned file, and of a byte of the request, about: Arrow's objects for the
columns, and the report, which repeats the filter for every pass and spec."""

_STATS_BYTES = 300
"""Memory of the statistics of a column of a file, and of their JSON in a first page, about."""

_PAGES_AHEAD = 2
"""Pages of a plan that may be written before they are asked for."""

_SPLITS = "split_offsets"
_READERS = 64
"""Snapshots whose manifest lists are kept."""

_SnapshotKey: TypeAlias = tuple[str, str, int | None]
_ProjectionKey: TypeAlias = tuple[str, str, tuple[int, ...], tuple[str, ...] | None, bool]
_BinderKey: TypeAlias = tuple[str, str, tuple[int, ...], bool]
_Page: TypeAlias = tuple[bytes, bytes]
"""The JSON of scan tasks and of delete files."""
_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")
_PlanKey: TypeAlias = tuple[str, str, int | None, tuple[int, ...], bool, str]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and with which engine, e.g. ``PyIceberg`` ``0.12.0``."""

    principal: str
    engine: str
    engine_version: str

    @property
    def is_pyiceberg(self) -> bool:
        """Whether the client is PyIceberg, which neither parses null partition values nor keeps bounds."""
        return self.engine.lower() == "pyiceberg"


@dataclass(frozen=True, slots=True)
class PlanResponse:
    """A JSON body; for a plan also its id and its scan report, which the caller stores.

    ``ahead`` writes the page that the client asks for next, if that can be known; it may be called once this response
    is on its way, or not at all.
    """

    body: bytes
    plan_id: str | None
    report: Mapping[str, Any] | None
    ahead: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How plans are made and cut."""

    page_bytes: int = 1024 * 1024
    """JSON of one page; requests of more than 4 kB make pages longer, because every plan task repeats its request."""
    token_seconds: float = 3600.0
    """How long a plan task can be fetched."""
    cache_bytes: int = 160 * 1024 * 1024
    """Memory of the plans that are kept; 0 keeps none."""
    entries_bytes: int = 64 * 1024 * 1024
    """Memory of the decoded manifest entries that are kept; others are read from the cache on disk."""
    unasked_stats: int = 2_000
    """Files times columns up to which statistics are sent unasked, so that engines answer min and max from them."""
    plan_ids: bool = True
    """Put the plan id into the response. Java then cancels the plan when it is done, if the server offers that."""
    limits: FilterLimits = field(default_factory=FilterLimits)
    concurrency: int = DEFAULT_CONCURRENCY
    """Requests in flight against the store."""

    def __post_init__(self) -> None:
        for name in ("page_bytes", "token_seconds", "concurrency"):
            if getattr(self, name) <= 0:
                raise InvalidOptionError(f"{name} is {getattr(self, name)} but must be positive")


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan in the cache: its files, the report of making it, and its first pages as they were last sent.

    ``starts`` are those of its pages (``PlanFiles.page_starts``), ``size`` is its memory in bytes, and ``digest`` tells
    which files it has in which order. ``first`` holds the JSON of a first page by its end and by whether it is for
    PyIceberg, and ``written`` that of pages for PyIceberg that were written before they were asked for, until they are.
    """

    files: PlanFiles
    report: Mapping[str, Any]
    starts: Sequence[int]
    size: int
    digest: str
    first: dict[tuple[int, bool], _Page] = field(default_factory=dict)
    written: dict[tuple[int, int], Future[_Page]] = field(default_factory=dict)

    def page(self, start: int, end: int, caller: Caller) -> _Page:
        """A page; that of a small plan is written once, because the same query is often repeated."""
        ahead = self.written.pop((start, end), None) if caller.is_pyiceberg else None
        if ahead is not None:
            return ahead.result()
        if len(self.files) > _FEW_FILES:
            return self.files.page(start, end, pyiceberg=caller.is_pyiceberg)
        key = (end, caller.is_pyiceberg)
        if start or key not in self.first:
            made = self.files.page(start, end, pyiceberg=caller.is_pyiceberg)
            if start:
                return made
            self.first[key] = made
        return self.first[key]

    def write_ahead(self, at: int) -> None:
        """Write the page for PyIceberg that begins at this file, unless enough pages wait to be asked for."""
        end = next(start for start in self.starts if start > at)
        page: Future[_Page] = Future()
        # Present from here on: a request that arrives meanwhile waits for this thread.
        if len(self.written) >= _PAGES_AHEAD or self.written.setdefault((at, end), page) is not page:
            return
        try:
            page.set_result(self.files.page(at, end, pyiceberg=True))
        except BaseException as error:  # for the request, which must not wait forever
            page.set_exception(error)


class ScanPlanner:
    """Plans scans for REST clients; one instance may be used by several threads."""

    def __init__(self, keys: KeyRing, options: PlannerOptions | None = None) -> None:
        self.keys = keys
        self.options = options or PlannerOptions()
        self._plans: LRUCache[_PlanKey, _Plan] = LRUCache(self.options.cache_bytes, getsizeof=lambda plan: plan.size)
        self._readers: LRUCache[_SnapshotKey, SnapshotReader] = LRUCache(_READERS)
        self._projections: LRUCache[_ProjectionKey, Schema] = LRUCache(_READERS)
        self._binders: LRUCache[_BinderKey, Binder] = LRUCache(_READERS)
        self._entries = EntriesMemory(EntriesCache(), self.options.entries_bytes)
        self._lock = threading.Lock()

    def plan(self, table: Table, request: PlanTableScanRequest, caller: Caller) -> PlanResponse:
        """Plan a scan: the first page, and plan tasks for the others.

        Args:
            table: The table, which the caller may read.
            request: What to scan.
            caller: Who asks; plan tasks can be fetched by the same principal only.

        Raises:
            BadInputError: An unknown snapshot or column, or an invalid filter.
            CorruptMetadataError: Metadata that contradicts itself or cannot be read.
        """
        snapshot, schemas = request.resolve(table)
        text = request.text
        plan, cached = self._planned(table, request, text, snapshot, schemas, caller)
        plan_id = str(uuid.uuid4())
        snapshot_id = -1 if snapshot is None else snapshot.snapshot_id
        schema_ids = tuple(schema.schema_id for schema in schemas)
        template = PlanTask(plan_id, text, snapshot_id, schema_ids, 0, 0, plan.digest)
        tasks = [replace(template, start=start, end=end) for start, end in pairwise(plan.starts[1:])]
        owner, lifetime = {"principal": caller.principal, "table_uuid": _identity(table)}, self.options.token_seconds
        tokens = [self.keys.seal(task, lifetime=lifetime, **owner) for task in tasks]
        head = {"status": "completed", **({"plan-id": plan_id} if self.options.plan_ids else {}), "plan-tasks": tokens}
        body = _body(head, plan, 0, plan.starts[1], caller)
        report = _signed(plan.report, plan_id, caller, len(body), cached)
        return PlanResponse(body, plan_id, report, self._ahead(plan, plan.starts[1], caller))

    def fetch_tasks(self, table: Table, token: str, caller: Caller) -> PlanResponse:
        """The page of a plan task.

        Raises:
            NoSuchPlanTaskError: The token is invalid or expired, or the table no longer has the snapshot.
        """
        task = self.keys.open(token, principal=caller.principal, table_uuid=_identity(table))
        try:
            request = PlanTableScanRequest.parse(task.request)
            snapshot = table.metadata.snapshot_by_id(task.snapshot_id)
            known = {schema.schema_id: schema for schema in table.metadata.schemas}
            if snapshot is None or not known.keys() >= set(task.schema_ids):
                raise NoSuchPlanTaskError
            schemas = tuple(known[i] for i in task.schema_ids)
            plan, _ = self._planned(table, request, task.request, snapshot, schemas, caller)
        except BadInputError:  # the plan could be made once: the table has changed since
            raise NoSuchPlanTaskError from None
        # Another plan, e.g. of an instance whose release prunes better: its pages would lose or repeat files.
        if task.files != plan.digest or not 0 <= task.start < task.end <= len(plan.files):
            raise NoSuchPlanTaskError
        body = _body({}, plan, task.start, task.end, caller)
        return PlanResponse(body, task.plan_id, None, self._ahead(plan, task.end, caller))

    def _ahead(self, plan: _Plan, at: int, caller: Caller) -> Callable[[], None] | None:
        """What writes the page that begins at this file while the client parses the one before.

        PyIceberg fetches one page after another; Java fetches all of them at once.
        """
        is_kept = plan.size <= self.options.cache_bytes  # else the next request would not find the page
        return partial(plan.write_ahead, at) if caller.is_pyiceberg and is_kept and at < len(plan.files) else None

    def _page_bytes(self, request: str) -> int:
        least = _PAGE_PER_REQUEST * len(request) if len(request) > _LONG_REQUEST else 0
        return max(self.options.page_bytes, least)

    def _planned(
        self,
        table: Table,
        request: PlanTableScanRequest,
        text: str,
        snapshot: Snapshot | None,
        schemas: tuple[Schema, ...],
        caller: Caller,
    ) -> tuple[_Plan, bool]:
        """The plan, and whether it was in the cache; ``text`` is the request as canonical JSON."""
        snapshot_id = None if snapshot is None else snapshot.snapshot_id
        schema_ids = tuple(schema.schema_id for schema in schemas)
        bounds = not caller.is_pyiceberg
        key = (_identity(table), table.metadata_location, snapshot_id, schema_ids, bounds, text)
        with self._lock:
            found = self._plans.get(key)
        if found is not None:
            return found, True
        if request.filter is True and not request.incremental:
            self._make_room(self._reader(table, snapshot).manifests)
        made = self._make(table, request, text, snapshot, schemas, bounds)
        with self._lock:
            if made.size <= self.options.cache_bytes:
                self._plans[key] = made
        return made, False

    def _make_room(self, manifests: ManifestListTable) -> None:
        """Drop plans before every file is planned, not after: the new plan must not come on top of them."""
        files = np.maximum(manifests.added_files, 0) + np.maximum(manifests.existing_files, 0)
        room = min(_PLAN_BYTES + int(files.sum()) * _FILE_BYTES, self.options.cache_bytes)
        before = len(self._plans)
        with self._lock:
            while self._plans and self._plans.currsize + room > self.options.cache_bytes:
                self._plans.popitem()
        if len(self._plans) < before:  # allocators would keep the memory
            for pool in (pa.default_memory_pool(), pa.system_memory_pool()):
                pool.release_unused()

    def _make(
        self,
        table: Table,
        request: PlanTableScanRequest,
        text: str,
        snapshot: Snapshot | None,
        schemas: tuple[Schema, ...],
        bounds: bool,
    ) -> _Plan:
        compiled = compile_filter(request.filter, self._binder(table, request, schemas), self.options.limits)
        projected = self._projection(table, request, schemas)
        stats = request.stats_ids(schemas)
        plan = self._scan(table, request, snapshot, schemas[0], projected, compiled)
        files = _enough(plan.files, request.min_rows_requested)
        if stats is None and bounds:
            stats = _unasked_stats(files, projected, schemas[0], self.options.unasked_stats)
        source = self._entries.source if request.incremental else self._entries.of(_snapshot_key(table, snapshot))
        details = _details(plan, files, frozenset(stats or ()), source)
        pages = PlanFiles(
            files=files,
            details=details,
            residuals=tuple(compiled.residual_json(residual) for residual in files.residuals),
            stats=tuple(sorted(stats or ())),
            union=plan.totals.union,
            columns=frozenset(fields_by_id(table.schema())),
        )
        report = scan_report(plan)
        prunable = without_opaque(compiled.predicate)
        if prunable is not compiled.predicate:  # the text of opaque pieces is of no use to users
            report["floeplan"]["predicate"] = excerpt(str(prunable), LONGEST_PREDICATE)
        page_bytes = self._page_bytes(text)
        starts = pages.page_starts(page_bytes, _FIRST_BYTES)
        ahead = _PAGES_AHEAD * page_bytes if len(starts) > 2 and not bounds else 0
        return _Plan(pages, report, starts, _size(pages) + _PER_REQUEST_BYTE * len(text) + ahead, _digest(files))

    def _projection(self, table: Table, request: PlanTableScanRequest, schemas: tuple[Schema, ...]) -> Schema:
        """The selected columns; engines repeat few selections, and making a schema takes longer than a page."""
        ids = tuple(schema.schema_id for schema in schemas)
        key = (_identity(table), table.metadata_location, ids, request.select, request.case_sensitive)
        return self._kept(self._projections, key, lambda: request.projection(schemas))

    def _binder(self, table: Table, request: PlanTableScanRequest, schemas: tuple[Schema, ...]) -> Binder:
        """What binds filters to these schemas, with the conjuncts that it has bound."""
        ids = tuple(schema.schema_id for schema in schemas)
        key = (_identity(table), table.metadata_location, ids, request.case_sensitive)
        return self._kept(self._binders, key, lambda: Binder(schemas, request.case_sensitive))

    def _kept(self, cache: LRUCache[_Key, _Kept], key: _Key, make: Callable[[], _Kept]) -> _Kept:
        """What is in a cache, or is made for it."""
        with self._lock:
            found = cache.get(key)
        if found is None:
            found = make()
            with self._lock:
                cache[key] = found
        return found

    def _scan(
        self,
        table: Table,
        request: PlanTableScanRequest,
        snapshot: Snapshot | None,
        schema: Schema,
        projected: Schema,
        filter_: CompiledFilter,
    ) -> ScanPlan:
        if request.incremental:
            assert snapshot is not None
            return plan_appends(table, request.start_snapshot_id, snapshot.snapshot_id, filter_.predicate)
        predicate = filter_.predicate
        compiled = CompileResult(predicate, without_opaque(predicate), predicate)
        # Footers are not opened: clients split and prune row groups themselves.
        options = ScanOptions(footers=False, report=False, concurrency=self.options.concurrency)
        target = ScanTarget(table, snapshot, schema)
        reader = self._reader(table, snapshot)
        return plan_target(target, compiled, options, schema=projected, reader=reader, names=frozenset({_SPLITS}))

    def _reader(self, table: Table, snapshot: Snapshot | None) -> SnapshotReader:
        """The reader of a snapshot with its manifest list, with this caller's access to the store."""
        key = _snapshot_key(table, snapshot)

        def opened() -> SnapshotReader:
            reader = SnapshotReader.open(table, snapshot, max_workers=self.options.concurrency)
            return replace(reader, cache=self._entries.of(key), io=None)

        return replace(self._kept(self._readers, key, opened), io=table.io)


def _details(plan: ScanPlan, files: PlannedFiles, stats: frozenset[int], source: EntriesSource) -> EntriesTable:
    """Split offsets and statistics of the planned files, row by row with them; read if planning did not."""
    if not stats and _SPLITS in files.entries:
        return EntriesTable(files.entries.table.select([_SPLITS]), {})
    columns = EntryColumns(frozenset({_SPLITS}), stats=stats, sizes=stats, partition=False)
    manifest, ordinal = files.entries.ints("manifest"), files.entries.ints("ordinal")
    totals, io = plan.totals, plan.target.table.io
    listed = np.unique(manifest)
    read = source.read_entries(totals.manifests, totals.union, columns, rows=listed, io=io).live()
    rows = np.searchsorted(read.ints("manifest"), manifest) + ordinal
    # Paths and other columns that are always read are in the planned files already.
    names = [name for name in read.table.column_names if name == _SPLITS or "." in name]
    few = EntriesTable(read.table.select(names), {})
    return few if np.array_equal(rows, np.arange(len(read))) else few.take(rows)


def _digest(files: PlannedFiles) -> str:
    """Which files of the snapshot a plan has, in which order."""
    places = np.stack((files.entries.ints("manifest"), files.entries.ints("ordinal")))
    return hashlib.blake2b(places.astype("<i8").tobytes(), digest_size=12).hexdigest()


def _snapshot_key(table: Table, snapshot: Snapshot | None) -> _SnapshotKey:
    return _identity(table), table.metadata_location, None if snapshot is None else snapshot.snapshot_id


def _size(files: PlanFiles) -> int:
    """The memory of a plan, its first page included."""
    if max(len(files), len(files.files.deletes)) <= _FEW_FILES:  # adding up their buffers takes longer than a page
        stats = _STATS_BYTES * len(files.stats)
        return _PLAN_BYTES + (_FILE_BYTES + _FIRST_PAGE_BYTES + stats) * (len(files) + len(files.files.deletes))
    parts = (files.files.entries, files.files.deletes, files.details)
    return _PLAN_BYTES + sum(int(part.table.nbytes) for part in parts) + 32 * len(files)


def _identity(table: Table) -> str:
    """What a token is bound to: the table's UUID; its location where format 1 has none and PyIceberg makes one up."""
    metadata = table.metadata
    return str(metadata.table_uuid) if "table_uuid" in metadata.model_fields_set else metadata.location


def _unasked_stats(files: PlannedFiles, projected: Schema, schema: Schema, most: int) -> frozenset[int]:
    """All columns, where an engine could answer min and max from statistics: every row matches and none is deleted.

    Spark tries that before it chooses columns; a request that selects some of them is for a scan of rows.
    """
    useful = len(projected.fields) >= len(schema.fields) and bool((files.states == TriState.TRUE).all())
    ids = (
        frozenset(leaf_columns(projected)) if useful and len(files) and not len(files.matches.deletes) else frozenset()
    )
    return ids if len(files) * len(ids) <= most else frozenset()


def _enough(files: PlannedFiles, rows: int | None) -> PlannedFiles:
    """The first files that certainly hold this many matching rows; all files when they do not."""
    if rows is None or not len(files):
        return files
    certain = (files.states == TriState.TRUE) & (files.matches.counts == 0)
    matching = np.cumsum(np.where(certain, np.maximum(files.entries.record_count, 0), 0))
    last = int(np.searchsorted(matching, max(rows, 1)))
    return files if last + 1 >= len(files) else files.take(np.arange(last + 1))


def _body(head: Mapping[str, Any], plan: _Plan, start: int, end: int, caller: Caller) -> bytes:
    """The JSON of a response with one page."""
    tasks, deletes = plan.page(start, end, caller)
    keys = json.dumps(head)[1:-1].encode()
    return b'{%b%b"delete-files":%b,"file-scan-tasks":%b}' % (keys, b"," if keys else b"", deletes, tasks)


def _signed(report: Mapping[str, Any], plan_id: str, caller: Caller, body_bytes: int, cached: bool) -> dict[str, Any]:
    """The report of a plan, with who asked for it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    metadata = {**report["metadata"], "engine-name": caller.engine, "engine-version": caller.engine_version}
    more = {"plan_id": plan_id, "principal": caller.principal, "body_bytes": body_bytes, "cached": cached}
    return {**report, "metadata": metadata, "floeplan": {**report["floeplan"], "timestamp": now, "served": more}}
