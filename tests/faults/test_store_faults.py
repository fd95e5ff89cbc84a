"""An object store that throttles, fails, resets or truncates: operations succeed, or leave the table unchanged.

All selected cases run concurrently, each with its own proxy: they mostly wait for client retries. ``make test`` runs
every operation and every fault, not every pair of them; ``make faults`` runs every operation with every fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import FloeplanError
from floeplan.maintenance.expire import ExpireResult
from tests.support.faults.faulty_store import KINDS, NEW, OPERATIONS, START, FaultyStore, Rows, faulty_store, read
from tests.support.faults.proxies import Fault, Kind, always

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

pytestmark = pytest.mark.services

EVERYTHING = os.environ.get("FLOEPLAN_FAULTS") == "all"
AT_ONCE = 24
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
SURVIVED = ("throttled", "error", "error-after", "reset", "reset-after", "truncated", "trickling")

ONCE: dict[str, tuple[Kind, ...]] = {
    "scan": ("throttled", "error", "reset", "reset-after", "truncated", "trickling"),
    "append": ("throttled", "error-after", "reset-after"),
    "delete": ("truncated", "throttled"),
    "update": ("reset", "trickling"),
    "merge": ("error",),
    "rewrite": ("error-after", "truncated"),
    "upgrade": ("throttled",),
    "expire": ("reset-after",),
}
"""Faults that apply once to the first request of every kind: clients retry."""
FEW_ONCE = (
    ("scan", "reset"),
    ("scan", "truncated"),
    ("append", "error-after"),
    ("delete", "truncated"),
    ("update", "trickling"),
    ("merge", "error"),
    ("rewrite", "error-after"),
    ("upgrade", "throttled"),
    ("expire", "reset-after"),
)

WRITE, READ = "PUT|POST", "GET"
FOREVER: tuple[tuple[str, Kind, str, str], ...] = (
    ("scan", "throttled", READ, "list"),
    ("scan", "truncated", READ, "manifest"),
    ("scan", "truncated", READ, "data"),
    ("scan", "truncated", READ, "vector"),
    ("scan", "shortened", READ, "data"),
    ("scan", "shortened", READ, "vector"),
    ("append", "truncated", READ, "metadata"),
    ("append", "throttled", WRITE, "data"),
    ("append", "error-after", WRITE, "manifest"),
    ("append", "reset-after", WRITE, "list"),
    ("delete", "error-after", WRITE, "vector"),
    ("delete", "reset", WRITE, "metadata"),
    ("update", "error", "HEAD", "manifest"),
    ("merge", "reset-after", WRITE, "data"),
    ("merge", "throttled", WRITE, "list"),
    ("rewrite", "truncated", READ, "data"),
    ("rewrite", "error-after", WRITE, "data"),
    ("rewrite", "error", WRITE, "manifest"),
    ("upgrade", "reset", READ, "data"),
    ("upgrade", "error", WRITE, "list"),
    ("expire", "error", READ, "metadata"),
)
"""Permanent faults: the operation reports them and changes nothing."""
FEW_FOREVER = (
    ("scan", "throttled", READ, "list"),
    ("scan", "truncated", READ, "manifest"),
    ("scan", "shortened", READ, "data"),
    ("scan", "shortened", READ, "vector"),
    ("append", "truncated", READ, "metadata"),
    ("append", "throttled", WRITE, "data"),
    ("delete", "error-after", WRITE, "vector"),
    ("delete", "reset", WRITE, "metadata"),
    ("update", "error", "HEAD", "manifest"),
    ("merge", "reset-after", WRITE, "data"),
    ("merge", "throttled", WRITE, "list"),
    ("rewrite", "truncated", READ, "data"),
    ("rewrite", "error", WRITE, "manifest"),
    ("upgrade", "reset", READ, "data"),
    ("expire", "error", READ, "metadata"),
)

LIES: tuple[Kind, ...] = ("halved", "doubled")
LENGTH_ASKED = ("metadata", "list", "manifest")
"""For other files, the length comes with the bytes and is checked."""

if EVERYTHING:
    ONCE = {name: tuple(kind for kind in get_args(Kind) if kind in SURVIVED) for name in ("scan", *OPERATIONS)}
    FOREVER += tuple(
        (name, kind, WRITE, what)
        for name in ("append", "delete", "update", "merge", "rewrite", "upgrade")
        for kind in ("error", "error-after", "reset", "reset-after")
        for what in ("manifest", "list", "metadata")
    )


def cases(all_: Iterable[tuple[str, ...]], few: Iterable[tuple[str, ...]]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=() if case in few else pytest.mark.matrix) for case in all_]


@dataclass(frozen=True)
class Outcome:
    """The result of one operation."""

    error: Exception | None
    answer: object
    rows: Rows
    missing: list[str]
    applied: int


def attempt(store: FaultyStore, name: str, faults: list[Fault]) -> Outcome:
    """Run one operation on a new table with its own proxy."""
    operation = _scan if name == "scan" else OPERATIONS[name].run
    with store.opened(own_files=name == "expire") as (table, proxy):
        error, answer = None, None
        with proxy.with_faults(*faults):
            try:
                answer = operation(table)
            except Exception as raised:
                error = raised
        return Outcome(error, answer, store.rows(table), store.missing(table), sum(fault.applied for fault in faults))


def _scan(table: Table) -> Rows:
    return read(table)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with faulty_store(tmp_path_factory.mktemp("store")) as made:
        yield made


Outcomes = Callable[..., Outcome]


@pytest.fixture(scope="module")
def outcome(store: FaultyStore, request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The outcome of a case; all selected cases start when the first outcome is requested."""
    selected = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and "outcome" in item.fixturenames
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun: dict[tuple[str, ...], Future[Outcome]] = {}
        for case in selected:
            match case:
                case {"name": name, "kind": kind, "method": method, "what": what}:
                    key, faults = (name, kind, method, what), [always(kind, method, KINDS[what])]
                case {"name": name, "kind": kind}:
                    key, faults = (name, kind), [Fault(kind, m, path) for m in METHODS for path in KINDS.values()]
                case {"kind": kind, "what": what}:
                    name = "append" if what == "metadata" else "scan"
                    key, faults = (kind, what), [always(kind, "HEAD|GET", KINDS[what])]
            begun[key] = pool.submit(attempt, store, name, faults)
        yield lambda *case: begun[case].result()


@pytest.mark.parametrize(
    ("name", "kind"), cases([(name, kind) for name, kinds in ONCE.items() for kind in kinds], FEW_ONCE)
)
def test_one_fault_of_every_kind_of_request_is_retried(outcome: Outcomes, name: str, kind: str) -> None:
    found = outcome(name, kind)
    assert found.error is None
    assert found.applied >= 5
    assert found.rows == (START if name == "scan" else OPERATIONS[name].of_rows(START))
    assert found.missing == []
    if name == "scan":
        assert found.answer == START


@pytest.mark.parametrize(("name", "kind", "method", "what"), cases(FOREVER, FEW_FOREVER))
def test_a_permanent_fault_is_reported_and_leaves_the_table_unchanged(
    outcome: Outcomes, name: str, kind: str, method: str, what: str
) -> None:
    found = outcome(name, kind, method, what)
    assert found.applied > 0
    assert isinstance(found.error, FloeplanError), f"{found.error!r}, {found.answer}"
    assert not found.error.committed
    assert "\n" not in found.error.message
    assert found.rows == START
    assert found.missing == []


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("what", [*LENGTH_ASKED, "data", "vector"])
def test_wrong_lengths_lose_no_row(outcome: Outcomes, kind: str, what: str) -> None:
    found = outcome(kind, what)
    assert found.applied > 0
    if found.error is None:
        assert found.rows == (START | NEW if what == "metadata" else START)
        assert what == "metadata" or found.answer == START
        assert kind != "halved" or what not in LENGTH_ASKED, "half of the bytes cannot be enough"
    else:
        assert isinstance(found.error, FloeplanError), repr(found.error)
        assert "\n" not in found.error.message
        assert found.rows == START


def test_files_that_cannot_be_removed_are_named(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        fp.rewrite_data_files(table, options={"rewrite-all": "true"})
        with proxy.with_faults(always("error", "DELETE", KINDS["data"])):
            done = OPERATIONS["expire"].run(table)
        assert isinstance(done, ExpireResult)
        left = [path for path in done.not_removed if path.endswith(".parquet")]
        assert len(left) == len(done.not_removed) == 3
        assert done.removed
        OPERATIONS["append"].run(table)
        OPERATIONS["expire"].run(table)  # until now manifests had DELETED entries of them
        later = time.time() + 10 * 24 * 3600
        with proxy.with_faults(always("throttled", "DELETE")):
            found = fp.remove_orphans(table, dry_run=False, now_s=later)
        assert (list(found.orphans), found.removed) == (sorted(left), ())
        assert fp.remove_orphans(table, dry_run=False, now_s=later).removed == tuple(sorted(left))
        assert store.rows(table) == START | NEW
        assert store.missing(table) == []


def test_expiry_removes_nothing_if_a_retained_list_cannot_be_read(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        with proxy.with_faults(always("reset", "GET", KINDS["list"])), pytest.raises(FloeplanError) as raised:
            OPERATIONS["expire"].run(table)
        assert not raised.value.committed
        assert len(store.newest(table).metadata.snapshots) == 3


def test_expiry_removes_no_files_if_references_cannot_be_determined(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        with (
            proxy.with_faults(always("reset", "GET", KINDS["list"], nth=2)) as requests,
            pytest.raises(FloeplanError, match=r"2 snapshots were expired.*remove-orphans will find them") as raised,
        ):
            OPERATIONS["expire"].run(table)
        assert raised.value.committed
        assert "DELETE" not in {method for method, _ in requests}
        assert len(store.newest(table).metadata.snapshots) == 1
        assert store.rows(table) == START
