"""Arguments that every public function has: a catalog for a table given by name, and times as datetimes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.times import age_text, epoch_ms, parse_age

pytestmark = pytest.mark.unit

SCHEMA = pa.schema({"k": pa.int64()})
FUNCTIONS = [getattr(fp, name) for name in fp.__all__ if name != "prune"]
TABLE_FUNCTIONS = [one for one in FUNCTIONS if "table" in inspect.signature(one).parameters and one.__name__.islower()]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    """A catalog that no configuration names, with a table of two snapshots."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(tmp_path / "reports"))
    made = SqlCatalog("other", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=tmp_path.as_uri())
    made.create_namespace("db")
    table = made.create_table("db.t", SCHEMA)
    for start in (0, 10):
        fp.append(table.refresh(), pa.table({"k": range(start, start + 10)}, SCHEMA))
    yield made
    made.close()


@pytest.mark.parametrize("function", TABLE_FUNCTIONS, ids=lambda function: function.__name__)
def test_every_function_of_a_table_takes_a_catalog(function: Callable[..., object]) -> None:
    assert "catalog" in inspect.signature(function).parameters


def test_a_name_is_looked_up_in_the_given_catalog(catalog: SqlCatalog) -> None:
    rows = pa.table({"k": [20]}, SCHEMA)
    assert fp.append("db.t", rows, catalog=catalog).rows_inserted == 1
    assert fp.delete("db.t", "k = 20", catalog=catalog).rows_deleted == 1
    assert fp.update("db.t", {"k": "100"}, "k = 0", catalog=catalog).rows_updated == 1
    assert fp.overwrite("db.t", rows, "k = 1", catalog=catalog).rows_deleted == 1
    assert (
        fp.merge("db.t", "db.t", "k", catalog=catalog).when_matched_delete("target.k = 2").execute().rows_deleted == 1
    )
    assert fp.plan_scan("db.t", catalog=catalog).count() == 19
    assert fp.why("db.t", fp.plan_scan("db.t", catalog=catalog).files[0].path, catalog=catalog).kept
    assert fp.inspect_table("db.t", catalog=catalog).table.endswith("db.t")
    assert fp.doctor("db.t", catalog=catalog).healthy
    assert fp.expire_snapshots("db.t", catalog=catalog).expired == ()
    assert fp.remove_orphans("db.t", catalog=catalog).orphans == ()
    assert fp.rewrite_manifests("db.t", dry_run=True, catalog=catalog).dry_run
    assert fp.RewriteDataFilesPlanner("db.t", catalog=catalog).plan().target.name.endswith("db.t")
    options = {"rewrite-all": "true"}
    assert fp.rewrite_data_files("db.t", options=options, catalog=catalog).files_added == 1
    assert fp.upgrade_format("db.t", 3, dry_run=True, catalog=catalog).to_version == 3
    assert fp.upgrade_spec("db.t", catalog=catalog).files_left == 0
    assert fp.sql(None, "DELETE FROM db.t WHERE k = 3", catalog=catalog).rows_deleted == 1


def snapshot_times(catalog: SqlCatalog) -> list[datetime]:
    table: Table = catalog.load_table("db.t")
    return [datetime.fromtimestamp(one.timestamp_ms / 1000, UTC) for one in table.snapshots()]


def test_a_scan_reads_as_of_a_datetime(catalog: SqlCatalog) -> None:
    first = snapshot_times(catalog)[0]
    assert fp.plan_scan("db.t", as_of=first, catalog=catalog).count() == 10
    assert fp.plan_scan("db.t", as_of=first.replace(tzinfo=None), catalog=catalog).count() == 10
    assert fp.plan_scan("db.t", as_of=first + timedelta(days=1), catalog=catalog).count() == 20
    with pytest.raises(BadInputError, match="exclude each other"):
        fp.plan_scan("db.t", as_of=first, timestamp_ms=1, catalog=catalog)


def test_snapshots_expire_by_a_datetime_or_an_age(catalog: SqlCatalog) -> None:
    first = snapshot_times(catalog)[0]
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert fp.expire_snapshots("db.t", older_than=first, catalog=catalog).expired == ()
    assert len(fp.expire_snapshots("db.t", older_than=later, catalog=catalog).expired) == 1
    assert len(fp.expire_snapshots("db.t", older_than=timedelta(minutes=-1), catalog=catalog).expired) == 1
    assert fp.expire_snapshots("db.t", older_than=timedelta(days=1), catalog=catalog).expired == ()
    with pytest.raises(InvalidOptionError, match="exclude each other"):
        fp.expire_snapshots("db.t", older_than=first, older_than_ms=1, catalog=catalog)


def test_orphans_are_older_than_a_datetime(catalog: SqlCatalog) -> None:
    assert fp.remove_orphans("db.t", older_than=datetime(2020, 1, 1), catalog=catalog).orphans == ()
    with pytest.raises(InvalidOptionError, match="running commit"):
        fp.remove_orphans("db.t", older_than=datetime.now(UTC), catalog=catalog)


def test_the_grace_of_a_spec_upgrade_may_be_a_timedelta() -> None:
    assert fp.UpgradeOptions(grace_seconds=timedelta(minutes=1)).grace == fp.UpgradeOptions(grace_seconds=60).grace
    with pytest.raises(InvalidOptionError, match="-1 day"):
        fp.UpgradeOptions(grace_seconds=timedelta(days=-1))


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("7d", timedelta(days=7)),
        ("7", timedelta(days=7)),
        ("1.5h", timedelta(minutes=90)),
        ("30m", timedelta(minutes=30)),
        ("10 s", timedelta(seconds=10)),
        ("2w", timedelta(days=14)),
    ],
)
def test_ages(text: str, age: timedelta) -> None:
    assert parse_age(text, "--older-than") == age
    assert parse_age(age_text(age), "--older-than") == age


@pytest.mark.parametrize("text", ["", "d", "-1d", "7x", "9" * 400 + "d", "NaN", "1e999d"])
def test_other_texts_are_no_ages(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="--older-than is "):
        parse_age(text, "--older-than")


def test_a_time_without_an_offset_is_in_utc() -> None:
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1)) == epoch_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1000
    assert epoch_ms(5) == 5
