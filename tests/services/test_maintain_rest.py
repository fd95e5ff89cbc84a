"""Maintenance through a REST catalog, whose requirements cannot name a property: leases still exclude each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import floeplan as fp
from floeplan.errors import CommitConflictError, UnknownTableError
from floeplan.fleet.lease import Lease, LeaseHeldError, live_claims
from floeplan.fleet.policy import Policy
from floeplan.fleet.run import MaintainOptions, run_maintenance
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy
from tests.support.servers import rest_catalog

pytestmark = pytest.mark.services

TTL = timedelta(minutes=10)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    home = tmp_path_factory.mktemp("rest")
    with rest_catalog(home, (home / "warehouse").as_uri(), {}) as uri:
        opened = load_catalog("rest", type="rest", uri=uri)
        opened.create_namespace("db")
        table = opened.create_table("db.small", pa.schema([("id", pa.int64())]))
        for number in range(12):
            fp.append(table, pa.table({"id": [number]}), fast=True)
        yield opened


def claims(lake: Catalog) -> set[str]:
    return set(live_claims(lake.load_table("db.small").metadata.properties, time.time()))


def test_of_many_claims_at_once_at_most_one_holds(lake: Catalog) -> None:
    patient = CommitOptions(retry=RetryPolicy(retries=20, min_wait_ms=5))
    leases = [Lease(lake.load_table("db.small"), holder, TTL, time.time, patient) for holder in "abcd"]
    held = list[Lease]()

    def claim(lease: Lease) -> None:
        try:
            lease.take()
            held.append(lease)
        except (LeaseHeldError, CommitConflictError):
            lease.release()

    threads = [threading.Thread(target=claim, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) <= 1
    assert claims(lake) == {lease.holder for lease in held}
    for lease in held:
        lease.release()
    assert claims(lake) == set()


def test_a_second_run_leaves_a_table_that_is_worked_on(lake: Catalog) -> None:
    results = list[str]()

    def second(name: str) -> None:
        if name == "planned" and not results:
            results.append("running")
            options = MaintainOptions(tables=("db.small",), policy=Policy(runs=None))
            found = run_maintenance(options, catalog=lake).tables[0].work
            results[0] = next(one.status.value for one in found if one.work.kind == "compact")

    options = MaintainOptions(policy=Policy(runs="ops.runs"), commit=CommitOptions(on_step=second))
    done = run_maintenance(options, catalog=lake)
    assert results == ["busy"]
    assert done.exit_code == 0
    assert claims(lake) == set()
    table = lake.load_table("db.small")
    assert len(table.inspect.files()) == 1
    assert sorted(fp.plan_scan(table).to_arrow()["id"].to_pylist()) == list(range(12))
    assert len(fp.plan_scan(lake.load_table("ops.runs")).to_arrow()) > 1


def test_a_view_is_named_as_such_and_is_no_table_to_maintain(lake: Catalog) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    query = SQLViewRepresentation(type="sql", sql="SELECT id FROM db.small", dialect="spark")
    version = ViewVersion(
        version_id=1, schema_id=0, representations=[ViewRepresentation(query)], default_namespace=("db",)
    )
    lake.create_view("db.recent", schema, version)
    with pytest.raises(UnknownTableError, match=r"db\.recent is a view in catalog 'rest'") as raised:
        fp.load_table("db.recent", lake)
    assert raised.value.kind == "view"
    options = MaintainOptions(tables=("db.*",), policy=Policy(runs=None), dry_run=True)
    assert [one.table for one in run_maintenance(options, catalog=lake).tables] == ["db.small"]
