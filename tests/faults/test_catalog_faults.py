"""Iceberg's REST catalog behind a proxy: conflicts, errors and timeouts, before and after a commit is applied.

A commit whose response is lost is looked up by its snapshot id: it is applied once, or reported as unknown.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from requests.adapters import HTTPAdapter

import floeplan as fp
from floeplan.catalog import connect
from floeplan.errors import CommitConflictError, CommitStateUnknownError, FloeplanError
from floeplan.rest_timeouts import SOCKET_TIMEOUT
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import commit_change
from tests.support.faults.proxies import Fault, FaultProxy, Kind, always, fault_proxy
from tests.support.faults.writer_processes import REWRITE, WRITES, KilledWriters, killed_writers
from tests.support.servers import rest_catalog
from tests.support.tables.commits import (
    SCHEMA,
    SPEC,
    Rows,
    append,
    arrow,
    files_under,
    leftovers,
    no_retry,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.services

COMMIT, LOAD = ("POST", r"/tables/\w+$"), ("GET", r"/tables/\w+$")
START = rows_of(0, 10, "a") + rows_of(10, 20, "b")
NEW = rows_of(100, 103)


def _refusal(status: int, kind: str) -> bytes:
    return json.dumps({"error": {"message": "not now", "type": kind, "code": status}}).encode()


def _error(status: int, kind: Kind, type_: str = "ServiceFailureException") -> Fault:
    return Fault(kind, *COMMIT, status=status, body=_refusal(status, type_))


FAULTS: dict[str, Callable[[], Fault]] = {
    "409": lambda: _error(409, "error", "CommitFailedException"),
    "429": lambda: _error(429, "error", "TooManyRequestsException"),
    "500": lambda: _error(500, "error"),
    "500 after it was applied": lambda: _error(500, "error-after"),
    "503": lambda: _error(503, "error"),
    "503 after it was applied": lambda: _error(503, "error-after"),
    "504": lambda: _error(504, "error"),
    "504 after it was applied": lambda: _error(504, "error-after"),
    "reset": lambda: Fault("reset", *COMMIT),
    "reset after it was applied": lambda: Fault("reset-after", *COMMIT),
    "half an answer": lambda: Fault("truncated", *COMMIT),
    "silence": lambda: Fault("silent", *COMMIT),
    "silence after it was applied": lambda: Fault("silent-after", *COMMIT),
}

CHANGES: dict[str, tuple[Callable[[Table], object], Rows]] = {
    "append": (lambda t: fp.append(t, arrow(NEW), options=patient()), START + NEW),
    "row delta": (
        lambda t: fp.delete(t, "id IN (3, 14)", mode="merge-on-read", options=patient()),
        [row for row in START if row[0] not in (3, 14)],
    ),
    "replace": (
        lambda t: fp.rewrite_data_files(t, options={"rewrite-all": "true"}, commit=patient()),
        START,
    ),
}


class ShortTimeout(HTTPAdapter):
    """Uses a short timeout for the first commit, which the proxy never answers."""

    commits = 0

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        if request.method == "POST":
            self.commits += 1
            if self.commits == 1:
                named["timeout"] = 0.2
        return super().send(request, *arguments, **named)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("rest")
    with rest_catalog(home, (home / "warehouse").as_uri(), {}) as uri:
        catalog = RestCatalog("rest", uri=uri)
        catalog.create_namespace("db")
        _create(catalog, "db.base")
        yield uri


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[FaultProxy]:
    with fault_proxy(server) as started:
        yield started


def _create(catalog: RestCatalog, name: str, version: int = 3) -> Table:
    table = catalog.create_table(name, SCHEMA, partition_spec=SPEC, properties={"format-version": str(version)})
    for at in range(0, len(START), 10):
        fp.append(table, arrow(START[at : at + 10]))
    return table


def own(paths: set[str]) -> set[str]:
    """Without the files of the catalog server: metadata and checksums."""
    return {path for path in paths if not path.endswith((".json", ".crc"))}


@contextmanager
def opened(server: str, proxy: FaultProxy, *, short_timeout: bool = False) -> Iterator[tuple[Table, Table]]:
    """A new table, opened directly and through the proxy."""
    direct, faulty = RestCatalog("rest", uri=server), RestCatalog("rest", uri=proxy.url)
    name = f"db.t{uuid.uuid4().hex}"
    table = _create(direct, name)
    if short_timeout:
        faulty._session.mount("http://", ShortTimeout())
    yield table, faulty.load_table(name)
    direct.close()
    faulty.close()


OF_EVERY_CHANGE = ("409", "503 after it was applied", "reset")
"""One fault for each outcome of a commit: retried, found to be applied, found not to be applied."""
CASES = [
    pytest.param(change, fault, marks=() if change == "append" or fault in OF_EVERY_CHANGE else pytest.mark.matrix)
    for change in CHANGES
    for fault in FAULTS
]


@pytest.mark.parametrize(("change", "fault"), CASES)
def test_a_commit_is_applied_once_whatever_the_response(
    server: str, proxy: FaultProxy, change: str, fault: str
) -> None:
    run, expected = CHANGES[change]
    made = FAULTS[fault]()
    with opened(server, proxy, short_timeout="silence" in fault) as (table, faulty):
        before = len(table.metadata.snapshots)
        with proxy.with_faults(made):
            run(faulty)
        assert made.applied == 1
        assert read_rows(table) == sorted(expected)
        assert len(table.refresh().metadata.snapshots) == before + 1
        assert not own(leftovers(table))


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("change", ["append", "row delta"])
def test_an_unknown_commit_state_is_reported_and_nothing_is_removed(
    server: str, proxy: FaultProxy, change: str, applied: bool
) -> None:
    run, expected = CHANGES[change]
    lost = _error(502, "error-after" if applied else "error")
    with opened(server, proxy) as (table, faulty):
        files = files_under(table)
        # the table is loaded to plan and to commit; then the catalog is unreachable
        with (
            proxy.with_faults(lost, always("reset", *LOAD, nth=3)),
            pytest.raises(CommitStateUnknownError, match="it may have been committed") as raised,
        ):
            run(faulty)
        assert raised.value.committed
        assert not raised.value.safe_to_clean
        assert read_rows(table) == sorted(expected if applied else START)
        written = files_under(table) - files
        assert {Path(path).suffix for path in written} >= {".avro", ".parquet" if change == "append" else ".puffin"}
        found = table.refresh().snapshot_by_id(raised.value.context["snapshot_id"])  # type: ignore[arg-type]
        assert (found is not None) is applied


def test_a_commit_of_unknown_state_is_repeated_by_its_id_and_counts_once(server: str, proxy: FaultProxy) -> None:
    for applied in (False, True):
        with opened(server, proxy) as (table, faulty):
            change = append(faulty, NEW)
            lost = _error(502, "error-after" if applied else "error")
            with (
                proxy.with_faults(lost, always("reset", *LOAD, nth=2)),
                pytest.raises(CommitStateUnknownError) as raised,
            ):
                commit_change(faulty, change, options=patient())
            snapshot_id = raised.value.context["snapshot_id"]
            assert isinstance(snapshot_id, int)
            again = commit_change(faulty, change, options=patient(snapshot_id=snapshot_id))
            assert again.snapshot_id == snapshot_id
            assert read_rows(table) == sorted(START + NEW)


def test_a_catalog_that_always_refuses_leaves_nothing_behind(server: str, proxy: FaultProxy) -> None:
    with opened(server, proxy) as (table, faulty):
        files = files_under(table)
        refusing = always("error", *COMMIT)
        refusing.status, refusing.body = 409, _refusal(409, "CommitFailedException")
        with proxy.with_faults(refusing), pytest.raises(CommitConflictError, match="after 1 attempts"):
            fp.append(faulty, arrow(NEW), options=no_retry())
        assert own(files_under(table)) == own(files)
        assert read_rows(table) == sorted(START)


def test_an_unreachable_catalog_is_named(server: str, proxy: FaultProxy) -> None:
    with opened(server, proxy) as (table, faulty):
        files = files_under(table)
        for run, _ in CHANGES.values():
            with proxy.with_faults(always("reset", *LOAD)), pytest.raises(FloeplanError, match="'rest'") as raised:
                run(faulty)
            assert raised.value.retryable
            assert raised.value.kind == "unreachable"
        assert own(files_under(table)) == own(files)


def test_an_unreachable_catalog_after_the_commit_is_no_failure(server: str, proxy: FaultProxy) -> None:
    for run, expected in CHANGES.values():
        with opened(server, proxy) as (table, faulty):
            # the table is loaded to plan and to commit; a rewrite loads it once more in between
            nth = 4 if expected is START else 3
            with proxy.with_faults(always("reset", *LOAD, nth=nth)):
                run(faulty)
            assert read_rows(table) == sorted(expected)


SECONDS = 5
"""Long enough for any response."""


@pytest.mark.parametrize("kind", [pytest.param("silent", marks=pytest.mark.matrix), "silent-after"])
def test_a_commit_without_a_response_times_out(server: str, proxy: FaultProxy, kind: Kind) -> None:
    fault = Fault(kind, *COMMIT)
    with opened(server, proxy) as (table, _):
        name = ".".join(table.name())
        catalog = connect("rest", {"uri": proxy.url, SOCKET_TIMEOUT: str(SECONDS * 1000)})
        with proxy.with_faults(fault):
            fp.append(fp.load_table(name, catalog), arrow(NEW), options=patient())
        catalog.close()
        assert fault.applied == 1
        assert read_rows(table) == sorted(START + NEW)
        assert not own(leftovers(table))


def test_a_silent_catalog_is_named(server: str, proxy: FaultProxy) -> None:
    with opened(server, proxy) as (table, _):
        catalog = connect("rest", {"uri": proxy.url, SOCKET_TIMEOUT: str(SECONDS * 1000)})
        faulty = fp.load_table(".".join(table.name()), catalog)
        with (
            proxy.with_faults(always("silent", *LOAD)),
            pytest.raises(FloeplanError, match=r"'rest'.*timed out") as raised,
        ):
            fp.append(faulty, arrow(NEW))
        catalog.close()
        assert raised.value.kind == "unreachable"
        assert read_rows(table) == sorted(START)


BEFORE = ("refreshed", "validated", "manifests-written", "list-written", "before-commit")
AFTER = ("committed", "cleaned")


@pytest.fixture(scope="module")
def writers() -> Iterator[KilledWriters]:
    with killed_writers() as made:
        yield made


@pytest.mark.parametrize("kind", ["append", "merge-on-read", REWRITE])
def test_a_writer_killed_at_any_step_leaves_a_valid_table(
    server: str, writers: KilledWriters, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "rest").write_text(server)
    catalog = RestCatalog("rest", uri=server)
    for step in BEFORE + AFTER:
        table = _create(catalog, "db.t")
        files = files_under(table)
        writers.kill_at(tmp_path, kind, step)
        done = WRITES[kind].of_rows(START) if step in AFTER and kind in WRITES else START
        assert read_rows(table) == sorted(done), step
        left = own(leftovers(table) - files)
        if step in BEFORE or kind in WRITES:  # otherwise the next group may already be written
            assert bool(left) is (step in BEFORE), step
        again = WRITES["append"].plan(catalog.load_table("db.t"), IsolationLevel.SERIALIZABLE)
        again.commit()
        assert len(read_rows(table)) == len(done) + 5, step
        catalog.drop_table("db.t")
    catalog.close()
