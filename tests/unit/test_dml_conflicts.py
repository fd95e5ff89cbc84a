"""Two writers: a change is validated against concurrent commits, and no row is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError
from floeplan.scan.model import ScanOptions
from floeplan.transaction.catalog_commit import CommitOptions
from tests.support.tables.two_specs import events, two_spec_table

pytestmark = pytest.mark.unit

MODES = ("copy-on-write", "merge-on-read")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def concurrently(table: Table, change: Callable[[Table], object]) -> CommitOptions:
    """Another writer commits once, just before this one."""
    waiting = [change]

    def step(name: str) -> None:
        if name == "before-commit" and waiting:
            waiting.pop()(table.catalog.load_table(table.name()))

    return CommitOptions(on_step=step)


def ids(table: Table) -> list[int]:
    found = fp.plan_scan(table.refresh(), options=ScanOptions(report=False)).to_arrow(["id"])["id"].to_pylist()
    return sorted(found)


def data_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in (".parquet", ".puffin")}


def appended(first: int, last: int) -> Callable[[Table], object]:
    return lambda table: fp.append(table, events(first, last))


@pytest.mark.parametrize("mode", MODES)
class TestNewRows:
    def test_that_match_conflict_with_a_serializable_change(self, table: Table, mode: str, tmp_path: Path) -> None:
        options = concurrently(table, appended(5, 6))
        with pytest.raises(CommitConflictError):
            fp.delete(table, "id % 50 = 5", mode=mode, options=options)
        assert ids(table) == sorted([*range(300), 5])
        referenced = {Path(path).name for path in table.inspect.all_files()["file_path"].to_pylist()}
        assert {path.name for path in data_files(tmp_path)} == referenced

    def test_that_match_do_not_matter_to_snapshot_isolation(self, table: Table, mode: str) -> None:
        options = concurrently(table, appended(5, 6))
        result = fp.delete(table, "id % 50 = 5", mode=mode, isolation="snapshot", options=options)
        assert (result.rows_deleted, result.attempts) == (6, 2)
        assert ids(table) == sorted([*(i for i in range(300) if i % 50 != 5), 5])

    def test_that_cannot_match_do_not_matter(self, table: Table, mode: str) -> None:
        options = concurrently(table, appended(1000, 1003))
        result = fp.delete(table, "id % 50 = 5 AND id < 300", mode=mode, options=options)
        assert result.attempts == 2
        assert ids(table) == [*(i for i in range(300) if i % 50 != 5), 1000, 1001, 1002]

    def test_with_the_key_of_a_merge(self, table: Table, mode: str) -> None:
        source = pa.table({"id": [1000]})
        merge = fp.merge(table, source, "id", mode=mode, options=concurrently(table, appended(1000, 1001)))
        with pytest.raises(CommitConflictError):
            merge.when_not_matched_insert({"id": "id"}).execute()
        assert ids(table) == [*range(300), 1000]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("other", MODES)
class TestTheSameFile:
    def test_rows_updated_here_and_deleted_there(self, table: Table, mode: str, other: str) -> None:
        options = concurrently(table, lambda theirs: fp.delete(theirs, "id = 7", mode=other))
        with pytest.raises(CommitConflictError):
            fp.update(table, {"v": "0.5"}, "id IN (7, 8)", mode=mode, isolation="snapshot", options=options)
        assert ids(table) == [i for i in range(300) if i != 7]

    def test_rows_deleted_by_both(self, table: Table, mode: str, other: str) -> None:
        """The result equals one delete after the other."""
        options = concurrently(table, lambda theirs: fp.delete(theirs, "id IN (7, 9)", mode=other))
        try:
            fp.delete(table, "id IN (7, 8)", mode=mode, isolation="snapshot", options=options)
        except CommitConflictError:
            assert ids(table) == [i for i in range(300) if i not in (7, 9)]
        else:
            assert ids(table) == [i for i in range(300) if i not in (7, 8, 9)]


def test_files_dropped_by_metadata_may_have_new_deletes(table: Table) -> None:
    options = concurrently(table, lambda theirs: fp.delete(theirs, "id = 7", mode="merge-on-read"))
    result = fp.delete(table, "id < 100", options=options)
    assert (result.mode, result.attempts) == ("metadata", 2)
    assert ids(table) == list(range(100, 300))


def test_appends_never_conflict(table: Table) -> None:
    options = concurrently(table, lambda theirs: fp.delete(theirs, "TRUE"))
    assert fp.append(table, events(500, 502), options=options).attempts == 2
    assert ids(table) == [500, 501]


def test_an_overwrite_validates_only_on_request(table: Table) -> None:
    fp.overwrite(table, events(900, 901), "id < 100", options=concurrently(table, appended(5, 6)))
    assert ids(table) == [5, *range(100, 300), 900]
    with pytest.raises(CommitConflictError):
        fp.overwrite(
            table, events(901, 902), "id < 200", isolation="serializable", options=concurrently(table, appended(6, 7))
        )


def test_a_concurrently_dropped_column(table: Table, tmp_path: Path) -> None:
    def drop(theirs: Table) -> None:
        with theirs.update_schema() as update:
            update.delete_column("v")

    before = data_files(tmp_path)
    with pytest.raises(CommitConflictError, match="v"):
        fp.update(table, {"v": "0.5"}, "id = 7", options=concurrently(table, drop))
    assert data_files(tmp_path) == before
