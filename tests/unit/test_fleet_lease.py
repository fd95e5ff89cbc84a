"""Leases: one holder at a time, on catalogs with and without requirements on properties; expiry, renewal, takeover."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary

import floeplan as fp
from floeplan.errors import CommitConflictError
from floeplan.fleet import lease as lease_module
from floeplan.fleet.lease import PREFIX, SKEW, Lease, LeaseHeldError, foreign_maintenance, live_claims
from floeplan.transaction.catalog_commit import CommitOptions, Timing
from tests.support.tables.two_specs import catalog, events

pytestmark = pytest.mark.unit

TTL = timedelta(minutes=10)
START = 1_000_000.0


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["validates-requirements", "only-orders-commits"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """A catalog; the second one is treated like a REST catalog, which cannot require the value of a property."""
    if request.param == "only-orders-commits":
        monkeypatch.setattr(lease_module, "MetastoreCatalog", type("NoCatalog", (), {}))
    opened = catalog(tmp_path)
    opened.create_table("db.t", pa.schema([("id", pa.int64())]))
    yield opened
    opened.close()


def lease_of(lake: Catalog, holder: str, clock: Clock, commit: CommitOptions | None = None) -> Lease:
    return Lease(lake.load_table("db.t"), holder, TTL, clock, commit or CommitOptions())


def holders(lake: Catalog, clock: Clock) -> set[str]:
    return set(live_claims(lake.load_table("db.t").metadata.properties, clock()))


def test_the_second_holder_waits_until_the_first_releases(lake: Catalog) -> None:
    clock = Clock()
    first, second = lease_of(lake, "a", clock), lease_of(lake, "b", clock)
    first.take()
    assert not first.is_lost
    with pytest.raises(LeaseHeldError, match=r"db.t is maintained by a until 1970-01-12 13:56:40 UTC"):
        second.take()
    assert holders(lake, clock) == {"a"}
    first.release()
    second.take()
    assert holders(lake, clock) == {"b"}


def test_the_lease_of_a_dead_holder_is_taken_over_after_it_expired(lake: Catalog) -> None:
    clock = Clock()
    lease_of(lake, "dead", clock).take()
    second = lease_of(lake, "b", clock)
    clock.now += (TTL + SKEW).total_seconds() - 1
    with pytest.raises(LeaseHeldError):
        second.take()
    clock.now += 2
    second.take()
    assert second.took_over == ("dead",)
    assert [name for name in lake.load_table("db.t").metadata.properties if name.startswith(PREFIX)] == [f"{PREFIX}b"]


def test_a_holder_stops_before_others_take_over(lake: Catalog) -> None:
    clock = Clock()
    first = lease_of(lake, "a", clock)
    first.take()
    clock.now += (TTL - SKEW).total_seconds() - 1
    assert not first.is_lost
    first.renew()
    clock.now += (TTL - SKEW).total_seconds()
    assert first.is_lost
    with pytest.raises(LeaseHeldError, match="has expired"):
        first.renew()


def test_a_renewed_lease_lasts_longer(lake: Catalog) -> None:
    clock = Clock()
    first = lease_of(lake, "a", clock)
    first.take()
    clock.now += 300
    first.renew()
    clock.now += TTL.total_seconds() - 60
    with pytest.raises(LeaseHeldError):
        lease_of(lake, "b", clock).take()


def test_a_lease_that_another_run_took_over_is_not_renewed(lake: Catalog) -> None:
    slow, fast = Clock(), Clock()
    first = lease_of(lake, "a", slow)
    first.take()
    fast.now += (TTL + SKEW).total_seconds() + 1
    lease_of(lake, "b", fast).take()
    with pytest.raises(LeaseHeldError):
        first.renew()
    first.release()
    assert holders(lake, fast) == {"b"}


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
def test_of_two_claims_at_the_same_time_at_most_one_holds(lake: Catalog, step: str) -> None:
    """The second holder claims the table while the first is in the middle of its commit."""
    clock = Clock()
    outcomes = list[str]()
    second = lease_of(lake, "b", clock)

    def interrupt(name: str) -> None:
        if name == step and not outcomes:
            outcomes.append("b?")
            second.take()
            outcomes[0] = "b"

    first = lease_of(lake, "a", clock, CommitOptions(on_step=interrupt))
    with pytest.raises(LeaseHeldError):
        first.take()
    assert outcomes == ["b"]
    assert holders(lake, clock) == {"b"}


def test_of_many_claims_at_once_at_most_one_holds(lake: Catalog) -> None:
    clock, at_once = Clock(), CommitOptions(timing=Timing(sleep=lambda _: None))
    leases = [lease_of(lake, holder, clock, at_once) for holder in "abcd"]
    held = list[str]()

    def claim(lease: Lease) -> None:
        try:
            lease.take()
            held.append(lease.holder)
        except (LeaseHeldError, CommitConflictError):
            lease.release()

    threads = [threading.Thread(target=claim, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) <= 1
    assert holders(lake, clock) == set(held)


def test_a_lease_is_renewed_in_the_background(lake: Catalog) -> None:
    renewed = threading.Event()
    first = lease_of(lake, "a", Clock())
    first.ttl = timedelta(milliseconds=30)
    first.until = START + 3600
    lake.load_table("db.t").transaction().set_properties({f"{PREFIX}a": "{}"}).commit_transaction()
    first.commit = CommitOptions(on_step=lambda name: renewed.set() if name == "before-commit" else None)
    with first.kept():
        assert renewed.wait(60)


def test_a_claim_that_cannot_be_read_is_live() -> None:
    unreadable = ("?", "{}", '{"until": NaN}', '{"until": 1e300}', f'{{"until": {"9" * 400}}}')
    properties = {f"{PREFIX}{at}": text for at, text in enumerate(unreadable)}
    properties |= {f"{PREFIX}y": '{"until": 5}', "other": "1"}
    assert live_claims(properties, 1e12) == {str(at): float("inf") for at in range(len(unreadable))}


def test_a_claim_that_cannot_be_read_is_named_with_the_command_that_removes_it(lake: Catalog) -> None:
    lake.load_table("db.t").transaction().set_properties({f"{PREFIX}x": "?"}).commit_transaction()
    with pytest.raises(LeaseHeldError, match=f"'floeplan properties db.t --unset {PREFIX}x'"):
        lease_of(lake, "b", Clock()).take()


def replaced_by(table: Table, **summary: str) -> Table:
    """The table, as if the last snapshot was a replacement with this summary."""
    *before, last = table.metadata.snapshots
    changed = last.model_copy(update={"summary": Summary(Operation.REPLACE, **summary)})
    table.metadata = table.metadata.model_copy(update={"snapshots": [*before, changed]})
    return table


def test_a_lease_of_a_clock_that_is_ahead_is_named_with_the_command_that_removes_it(lake: Catalog) -> None:
    ahead, clock = Clock(), Clock()
    ahead.now += 5 * 3600
    lease_of(lake, "a", ahead).take()
    removal = r"its clock is 5h ahead of this one.* 'floeplan properties db.t --unset floeplan.lease.a'"
    with pytest.raises(LeaseHeldError, match=removal):
        lease_of(lake, "b", clock).take()
    assert holders(lake, clock) == {"a"}


def test_maintenance_of_other_engines_is_noticed(tmp_path: Path) -> None:
    opened: SqlCatalog = catalog(tmp_path)
    table = opened.create_table("db.events", events(0, 1).schema)
    fp.append(table, events(0, 10))
    table.refresh()
    now_s = table.metadata.snapshots[-1].timestamp_ms / 1000 + 120
    hour = timedelta(hours=1)
    assert foreign_maintenance(table.metadata, now_s, hour) is None
    assert foreign_maintenance(replaced_by(table, **{"floeplan.operation": "rewrite"}).metadata, now_s, hour) is None
    foreign = replaced_by(table, **{"engine-name": "spark"})
    assert "spark rewrote the table 2m ago" in str(foreign_maintenance(foreign.metadata, now_s, hour))
    assert foreign_maintenance(foreign.metadata, now_s + 3600, hour) is None
    assert "another engine" in str(foreign_maintenance(replaced_by(table).metadata, now_s, hour))
    table.transaction().set_properties({"self-optimizing.enabled": "true"}).commit_transaction()
    assert "Amoro" in str(foreign_maintenance(table.metadata, now_s, hour))
