"""The start of a history whose snapshots expired: appends, changelogs and streams begin with the oldest snapshot."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.datasource.io import AppendStream, SourceOptions
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.scan.incremental import plan_appends, plan_changes
from floeplan.scan.read import PlanReader

pytestmark = pytest.mark.unit

SCHEMA = pa.schema({"k": pa.int64()})


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {
        "table": "db.t",
        "catalog": "streams",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "catalog.warehouse": tmp_path.as_uri(),
    }


@pytest.fixture
def table(options: dict[str, str]) -> Table:
    catalog = SqlCatalog("streams", uri=options["catalog.uri"], warehouse=options["catalog.warehouse"])
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", SCHEMA)
    for start in (0, 10, 20):
        fp.append(made.refresh(), pa.table({"k": range(start, start + 10)}, SCHEMA))
    yield made.refresh()
    catalog.close()


def expire(table: Table) -> Table:
    """Keep only the newest snapshot."""
    fp.expire_snapshots(table, older_than_ms=int(time.time() * 1000) + 60_000, retain_last=1, dry_run=False)
    assert len(table.refresh().metadata.snapshots) == 1
    return table.refresh()


def appended(table: Table, where: str | None = None) -> list[int]:
    return sorted(plan_appends(table, None, where=where).to_arrow().column("k").to_pylist())


def changed(table: Table) -> list[int]:
    """The rows that a changelog from the beginning inserts first."""
    plan = plan_appends(table, None)
    reader = PlanReader.of(plan, plan.schema)
    first = [change for change in plan_changes(table, None) if change.ordinal == 0]
    assert all(change.before is None for change in first)
    return sorted(k for c in first if c.after for k in reader.read(c.after).column("k").to_pylist())


def streamed(options: dict[str, str]) -> list[int]:
    stream = AppendStream(SourceOptions(options))
    shares = stream.partitions(stream.initialOffset(), stream.latestOffset())
    return sorted(k for share in shares for rows in stream.read(share) for k in rows.column(0).to_pylist())


def test_without_an_expiry_the_beginning_is_the_first_append(table: Table, options: dict[str, str]) -> None:
    assert appended(table) == streamed(options) == list(range(30))
    assert changed(table) == list(range(10))


def test_after_an_expiry_all_three_begin_with_every_row_of_the_oldest_snapshot(
    table: Table, options: dict[str, str]
) -> None:
    expire(table)
    assert appended(table) == changed(table) == streamed(options) == list(range(30))
    assert appended(table, "k < 5") == list(range(5))
    fp.append(table.refresh(), pa.table({"k": range(30, 40)}, SCHEMA))
    assert appended(table.refresh()) == streamed(options) == list(range(40))
    assert changed(table.refresh()) == list(range(30))


def test_deleted_rows_of_the_oldest_snapshot_are_not_in_the_first_batch(table: Table, options: dict[str, str]) -> None:
    merge_on_read = {"write.delete.mode": "merge-on-read"}
    table.transaction().set_properties(merge_on_read).commit_transaction()
    fp.delete(table.refresh(), where="k IN (3, 13, 23)")
    left = [k for k in range(30) if k not in (3, 13, 23)]
    with pytest.raises(UnsupportedError, match="changes rows"):
        streamed(options)
    expire(table.refresh())
    assert appended(table.refresh()) == changed(table.refresh()) == streamed(options) == left


def test_a_rewrite_that_became_the_oldest_snapshot_has_all_rows(table: Table, options: dict[str, str]) -> None:
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    assert appended(table.refresh()) == list(range(30))
    expire(table.refresh())
    assert appended(table.refresh()) == changed(table.refresh()) == streamed(options) == list(range(30))


def test_an_expired_first_snapshot_is_an_error(table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    expire(table)
    for plan in (plan_appends, plan_changes):
        with pytest.raises(BadInputError, match=f"snapshot {first} is not an ancestor"):
            plan(table.refresh(), first)
