"""Writers whose clocks differ by hours: timestamps increase, Spark reads the table, and no new file is removed."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

import floeplan as fp
from floeplan.partition.evolution import AddField, Term
from floeplan.transaction.evolve_spec import evolve_spec
from tests.support.tables.commits import arrow, create_table, files_under, patient, reachable, read_rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

HOUR = 3600
DAY = 24 * HOUR
TOLERANCE_MS = 60_000
"""Iceberg Java's tolerance for decreasing timestamps in table metadata."""


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Shift the clock of Floeplan; files and PyIceberg use the real time."""
    right = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + seconds)
        yield


@pytest.fixture(params=[1, 2, 3])
def table(request: pytest.FixtureRequest, local_catalog: SqlCatalog) -> Table:
    local_catalog.create_namespace_if_not_exists("skew")
    return create_table(local_catalog, request.param, name=f"skew.t{uuid.uuid4().hex}")


def assert_timestamps_increase(table: Table) -> None:
    """As Java requires, but without its tolerance."""
    metadata = table.refresh().metadata
    for log in (metadata.snapshot_log, metadata.metadata_log):
        timestamps = [entry.timestamp_ms for entry in log]
        assert timestamps == sorted(timestamps)
        assert not timestamps or metadata.last_updated_ms >= timestamps[-1]
    by_sequence = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    if metadata.format_version > 1:
        timestamps = [snapshot.timestamp_ms for snapshot in by_sequence]
        assert timestamps == sorted(timestamps)


@pytest.mark.parametrize("skew", [6 * HOUR, -6 * HOUR])
def test_timestamps_increase_for_any_writer(spark: SparkSession, table: Table, skew: float) -> None:
    started = time.time() * 1000
    with clock_ahead(skew):
        fp.append(table, arrow(rows_of(100, 105)))
    assert_timestamps_increase(table)
    newest = table.metadata.snapshots[-1].timestamp_ms
    assert newest >= started + max(skew, 0) * 1000 - TOLERANCE_MS
    fp.append(table, arrow(rows_of(110, 115)), options=patient())
    assert_timestamps_increase(table)
    fp.delete(table, "id IN (3, 101)", options=patient())
    assert_timestamps_increase(table)
    evolve_spec(table, [AddField(Term(("id",), BucketTransform(2)), "ids")])
    assert_timestamps_increase(table)
    with clock_ahead(-abs(skew)):
        fp.rewrite_data_files(table, options={"rewrite-all": "true"}, commit=patient())
    assert_timestamps_increase(table)
    fp.expire_snapshots(table, older_than_ms=int(started), dry_run=False)
    assert_timestamps_increase(table)
    name = "local." + ".".join(table.name())
    expected = read_rows(table)
    assert sorted((row.id, row.part) for row in spark.table(name).collect()) == expected
    assert len(expected) == 38
    if skew < 0:  # Spark uses its own clock, and refuses to commit after a snapshot in its future
        spark.sql(f"INSERT INTO {name} VALUES (200, 'a')")
        assert read_rows(table) == [*expected, (200, "a")]
        assert_timestamps_increase(table)


@pytest.mark.parametrize("skew", [30 * DAY, -30 * DAY])
def test_expiry_removes_nothing_that_a_branch_leads_to(table: Table, skew: float) -> None:
    rows = read_rows(table)
    fp.delete(table, "id < 10")
    with clock_ahead(skew):
        done = fp.expire_snapshots(table, dry_run=False)
    assert bool(done.expired) is (skew > 0)
    assert read_rows(table) == [row for row in rows if row[0] >= 10]
    there = files_under(table)
    assert reachable(table) - {entry.metadata_file for entry in table.refresh().metadata.metadata_log} <= there


def _orphan(table: Table, age: float) -> Path:
    path = Path(table.location().removeprefix("file://")) / "data" / f"{uuid.uuid4()}.parquet"
    path.write_bytes(b"of a commit under way")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_files_of_running_commits_are_safe_from_a_clock_that_is_ahead(table: Table) -> None:
    young, old, ahead = (_orphan(table, age) for age in (HOUR, 10 * DAY, -10 * DAY))
    before = files_under(table)
    with clock_ahead(30 * DAY):
        done = fp.remove_orphans(table, older_than=timedelta(days=1), dry_run=False)
    assert [Path(path).name for path in done.removed] == [old.name]
    assert done.files_too_young == 2
    assert young.exists()
    assert ahead.exists()
    assert before - files_under(table) == {path for path in before if path.endswith(old.name)}
    assert files_under(table) <= before, "the file written to determine the store's time is removed"


def test_a_clock_that_is_behind_removes_less(table: Table) -> None:
    old = _orphan(table, 10 * DAY)
    with clock_ahead(-30 * DAY):
        assert fp.remove_orphans(table, dry_run=False).removed == ()
    assert old.exists()
