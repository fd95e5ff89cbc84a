"""No file outside the locations of a table is removed or written, whatever its metadata contains."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.orphans import remove_orphans
from floeplan.metadata.files import Location, TableFiles, TableLocations
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    append,
    arrow,
    create_table,
    files_under,
    live_entries,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

LATER = 2**53
HOME = Location.parse("s3://bucket/db/t")


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path / "lake")


@pytest.fixture(autouse=True)
def _lake(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("s3://bucket/db/t/data/x.parquet", True),
        ("s3a://bucket/db/t//data/x.parquet", True),
        ("s3://bucket/db/t", False),
        ("s3://bucket/db/t2/data/x.parquet", False),
        ("s3://other/db/t/data/x.parquet", False),
        ("gs://bucket/db/t/data/x.parquet", False),
        ("s3://bucket/db/t/../t2/x.parquet", False),
        ("s3://bucket/db/t/data/..", False),
        ("/bucket/db/t/data/x.parquet", False),
    ],
)
def test_scheme_bucket_and_path_decide(path: str, inside: bool) -> None:
    assert HOME.holds(Location.parse(path)) is inside


def test_what_is_no_uri_and_the_root_of_everything_hold_nothing() -> None:
    assert not TableLocations((HOME,)).hold("http://[::1")
    assert not Location.parse("file:///").holds(Location.parse("/etc/passwd"))


def test_properties_name_further_locations(tmp_path: Path, catalog: SqlCatalog) -> None:
    elsewhere = tmp_path / "elsewhere"
    table = create_table(catalog, rows=[])
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": elsewhere.as_uri()})
    table = commit_change(table, append(table, rows_of(0, 10))).table
    assert list(elsewhere.rglob("*.parquet"))
    assert TableLocations.of(table.metadata).hold(live_entries(table).path[0].as_py())


def foreign_file(tmp_path: Path, name: str = "mine.parquet") -> Path:
    path = tmp_path / "outside" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"not the table's")
    return path


def entry_at(table: Table, path: str) -> EntriesTable:
    """The entry of a new data file with the location ``path``."""
    added = append(table, rows_of(100, 110)).added_data
    assert added is not None
    names = pa.array([path], added.table.schema.field("file_path").type)
    at = added.table.schema.get_field_index("file_path")
    return type(added)(added.table.set_column(at, "file_path", names), added.partition_types)


def adopt(table: Table, path: str) -> Table:
    """Commit a data file with the location ``path``, then remove it."""
    adopted = entry_at(table, path)
    table = commit_change(table, SnapshotChange(Operation.APPEND, added_data=adopted)).table
    removal = SnapshotChange(Operation.DELETE, removed_data=frozenset({path}))
    return commit_change(table, removal, options=patient()).table


@pytest.mark.parametrize("shape", ["{outside}", "file://{outside}", "{home}/../../../outside/mine.parquet"])
def test_expiring_leaves_files_outside_alone(tmp_path: Path, catalog: SqlCatalog, shape: str) -> None:
    mine = foreign_file(tmp_path)
    table = create_table(catalog)
    path = shape.format(outside=mine, home=table.location())
    assert Path(path.removeprefix("file://")).resolve() == mine
    table = adopt(table, path)
    planned = expire_snapshots(table, older_than_ms=LATER, dry_run=True)
    done = expire_snapshots(table, older_than_ms=LATER, dry_run=False, commit=patient())
    for result in (planned, done):
        assert path in result.not_removed
        assert path not in result.removed
        assert result.removed
    assert mine.exists()


@pytest.mark.parametrize("shape", ["{}", "file:{}"])
def test_a_path_without_its_first_slash_leads_elsewhere(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """It is relative to the working directory, although it looks like a path of the table."""
    table = create_table(catalog)
    looks_inside = f"{table.location().removeprefix('file:///')}/data/mine.parquet"
    mine = tmp_path / "here" / looks_inside
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"not the table's")
    monkeypatch.chdir(tmp_path / "here")
    path = shape.format(looks_inside)
    table = adopt(table, path)
    assert path in expire_snapshots(table, older_than_ms=LATER, dry_run=False, commit=patient()).not_removed
    assert mine.exists()


def test_orphans_behind_a_link_are_not_orphans(tmp_path: Path, catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    home = Path(table.location().removeprefix("file://"))
    mine = foreign_file(tmp_path)
    (home / "data" / "linked").symlink_to(mine.parent)
    (home / "alias").symlink_to(home / "data")
    orphan = home / "data" / "left.parquet"
    orphan.write_bytes(b"left over")
    for path in (mine, orphan, *home.rglob("*.parquet")):
        os.utime(path, (1000, 1000))
    before = read_rows(table)
    result = remove_orphans(table, older_than=timedelta(days=1), dry_run=False)
    assert result.removed == (f"{table.location()}/data/left.parquet",)
    assert mine.exists()
    assert read_rows(table) == before


@pytest.mark.parametrize("metadata_path", [None, "meta"])
def test_files_of_a_table_within_the_table_are_not_orphans(
    tmp_path: Path, catalog: SqlCatalog, metadata_path: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    outer = create_table(catalog)
    inside, home = f"{outer.location()}/archive", Path(outer.location().removeprefix("file://"))
    properties = {} if metadata_path is None else {"write.metadata.path": f"{inside}/{metadata_path}"}
    inner = catalog.create_table("db.inner", outer.schema(), location=inside, properties=properties)
    floeplan.append(inner, arrow(rows_of(0, 5)))
    unreferenced = [home / folder / "left" for folder in ("data", "metadata", "archived")]
    unreferenced.append(home / "metadata" / "00000-left.metadata.json")
    for path in unreferenced:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left over")
    for path in filter(Path.is_file, home.rglob("*")):
        os.utime(path, (1000, 1000))
    result = remove_orphans(outer, older_than=timedelta(days=1), dry_run=False)
    assert set(result.removed) == {path.as_uri() for path in unreferenced}
    assert read_rows(catalog.load_table("db.inner")) == rows_of(0, 5)
    assert f"{inside}/{metadata_path or 'metadata'} has metadata of another table" in caplog.text


def test_cleaning_never_leaves_the_table(tmp_path: Path, catalog: SqlCatalog) -> None:
    table, neighbour = create_table(catalog), create_table(catalog, name="db.t2")
    mine = foreign_file(tmp_path)
    home = Path(table.location().removeprefix("file://"))
    (home / "out").symlink_to(mine.parent)
    theirs = sorted(files_under(neighbour))
    wanted = [str(mine), mine.as_uri(), f"{home}/out/{mine.name}", f"{home}/../t2/metadata/x", "s3://bucket/x", *theirs]
    assert TableFiles.of(table).remove(wanted) == ()
    assert mine.exists()
    assert sorted(files_under(neighbour)) == theirs


def test_files_of_a_failed_task_are_removed_only_inside_the_table(tmp_path: Path, catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    mine = foreign_file(tmp_path)
    own = foreign_file(Path(table.location().removeprefix("file://")), "own.parquet")
    for path in (mine, own):
        remove_written_files(entry_at(table, str(path)), WriteTarget.of(table).files)
    assert mine.exists()
    assert not own.exists()


def test_files_are_removed_in_one_place_only() -> None:
    source = Path(floeplan.__file__).parent
    removers = {path.name for path in source.rglob("*.py") if re.search(r"\bio\.delete\b", path.read_text())}
    assert removers == {"files.py"}


@pytest.mark.parametrize("value", ["..", "../../outside", "/etc", "a/../../../b", "%2e%2e/x", "\\..\\", "."])
def test_partition_values_never_lead_out(catalog: SqlCatalog, value: str) -> None:
    table = create_table(catalog, rows=[])
    target = WriteTarget.of(table)
    location = target.new_location("x.parquet", PartitionKey(0, (value,)))
    assert TableLocations.of(table.metadata).hold(location)
    assert location.startswith(f"{table.location()}/data/part=")
    table = commit_change(table, append(table, [(1, value)])).table
    assert read_rows(table) == [(1, value)]
