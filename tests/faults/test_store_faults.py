"""An object store that throttles, fails, resets, answers by halves: the work is done, or the table is as it was.

All selected cases run beside each other, each with a proxy of its own: they mostly wait for clients to try again.
``make test`` runs every operation and every fault, not every pair of them; ``make faults`` runs every operation with
every fault.
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
from floeplan.maintain.expire import ExpireResult
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
"""Faults that befall the first request of every kind, once: clients try again, and nobody notices."""
FEW_ONCE = (
    ("scan", "throttled"),
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
"""Faults that do not go away: the operation says so, and has done nothing."""
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
"""Of other files the store tells the length along with their bytes, which are checked against it."""

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
    """What became of one try."""

    error: Exception | None
    answer: object
    rows: Rows
    missing: list[str]
    met: int


def attempt(store: FaultyStore, name: str, faults: list[Fault]) -> Outcome:
    """One operation on a table of its own, through a proxy of its own."""
    operation = _scan if name == "scan" else OPERATIONS[name].run
    with store.opened(own_files=name == "expire") as (table, proxy):
        error, answer = None, None
        with proxy.misbehaving(*faults):
            try:
                answer = operation(table)
            except Exception as raised:
                error = raised
        return Outcome(error, answer, store.rows(table), store.missing(table), sum(fault.met for fault in faults))


def _scan(table: Table) -> Rows:
    return read(table)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with faulty_store(tmp_path_factory.mktemp("store")) as made:
        yield made


Outcomes = Callable[..., Outcome]


@pytest.fixture(scope="module")
def outcome(store: FaultyStore, request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The outcome of a case; those of all selected tests are begun when the first is asked for."""
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
def test_one_fault_of_every_kind_of_request_is_survived(outcome: Outcomes, name: str, kind: str) -> None:
    found = outcome(name, kind)
    assert found.error is None
    assert found.met >= 5
    assert found.rows == (START if name == "scan" else OPERATIONS[name].of_rows(START))
    assert found.missing == []
    if name == "scan":
        assert found.answer == START


@pytest.mark.parametrize(("name", "kind", "method", "what"), cases(FOREVER, FEW_FOREVER))
def test_what_cannot_be_done_is_said_and_leaves_the_table_as_it_was(
    outcome: Outcomes, name: str, kind: str, method: str, what: str
) -> None:
    found = outcome(name, kind, method, what)
    assert found.met > 0
    assert isinstance(found.error, FloeplanError), f"{found.error!r}, {found.answer}"
    assert not found.error.committed
    assert "\n" not in found.error.message
    assert found.rows == START
    assert found.missing == []


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("what", [*LENGTH_ASKED, "data", "vector"])
def test_a_store_that_lies_about_lengths_costs_no_row(outcome: Outcomes, kind: str, what: str) -> None:
    found = outcome(kind, what)
    assert found.met > 0
    if found.error is None:
        assert found.rows == (START | NEW if what == "metadata" else START)
        assert what == "metadata" or found.answer == START
        assert kind != "halved" or what not in LENGTH_ASKED, "half of it cannot do"
    else:
        assert isinstance(found.error, FloeplanError), repr(found.error)
        assert "\n" not in found.error.message
        assert found.rows == START


def test_files_that_cannot_be_removed_are_named(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        fp.rewrite_data_files(table, options={"rewrite-all": "true"})
        with proxy.misbehaving(always("error", "DELETE", KINDS["data"])):
            done = OPERATIONS["expire"].run(table)
        assert isinstance(done, ExpireResult)
        left = [path for path in done.not_removed if path.endswith(".parquet")]
        assert len(left) == len(done.not_removed) == 3
        assert done.removed
        OPERATIONS["append"].run(table)
        OPERATIONS["expire"].run(table)  # until now a manifest said that they were removed
        later = time.time() + 10 * 24 * 3600
        with proxy.misbehaving(always("throttled", "DELETE")):
            found = fp.remove_orphans(table, dry_run=False, now_s=later)
        assert (list(found.orphans), found.removed) == (sorted(left), ())
        assert fp.remove_orphans(table, dry_run=False, now_s=later).removed == tuple(sorted(left))
        assert store.rows(table) == START | NEW
        assert store.missing(table) == []


def test_an_expiry_forgets_nothing_while_the_lists_that_stay_cannot_be_read(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        with proxy.misbehaving(always("reset", "GET", KINDS["list"])), pytest.raises(FloeplanError) as raised:
            OPERATIONS["expire"].run(table)
        assert not raised.value.committed
        assert len(store.newest(table).metadata.snapshots) == 3


def test_an_expiry_that_cannot_tell_which_files_are_free_removes_none(store: FaultyStore) -> None:
    with store.opened(own_files=True) as (table, proxy):
        with (
            proxy.misbehaving(always("reset", "GET", KINDS["list"], nth=2)) as requests,
            pytest.raises(FloeplanError, match=r"2 snapshots were expired.*remove-orphans will find them") as raised,
        ):
            OPERATIONS["expire"].run(table)
        assert raised.value.committed
        assert "DELETE" not in {method for method, _ in requests}
        assert len(store.newest(table).metadata.snapshots) == 1
        assert store.rows(table) == START
