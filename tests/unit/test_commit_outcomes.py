"""Commits when the catalog rejects them, does not answer, or cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from pyiceberg.table import StaticTable, Table

from floeplan.errors import BadInputError, CommitConflictError, CommitError, CommitStateUnknownError, UnknownTableError
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import CommitResult, commit_change
from tests.support.tables.commits import (
    NO_WAITING,
    append,
    copy_on_write_delete,
    create_table,
    files_under,
    leftovers,
    merge_on_read_delete,
    no_retry,
    open_catalog,
    patient,
    read_rows,
    replacing,
    rows_of,
    unreliable,
)

pytestmark = pytest.mark.unit

BEFORE = sorted(rows_of(0, 10))
NEW = rows_of(100, 103)
REFUSED = CommitFailedException("another writer was faster")
LOST = ConnectionError("reset by peer")
STEPS = ["refreshed", "validated", "manifests-written", "list-written", "before-commit", "committed", "cleaned"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return create_table(catalog, 2, BEFORE)


def commit(table: Table, options: CommitOptions | None = None) -> CommitResult:
    try:
        return commit_change(table, append(table, NEW), options=options or patient())
    finally:
        table.catalog.close()


def test_the_result_of_a_commit(table: Table) -> None:
    steps: list[str] = []
    result = commit(table, patient(on_step=steps.append))
    assert steps == STEPS
    assert result.attempts == 1
    assert result.table.metadata.current_snapshot_id == result.snapshot_id
    assert result.summary["operation"] == "append"
    assert result.summary["added-records"] == "3"
    assert [(m.spec_id, m.content, m.entries) for m in result.manifests_written] == [(0, 0, 1)]
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_refused_commit_is_repeated(catalog: SqlCatalog, version: int) -> None:
    table = create_table(catalog, version, BEFORE)
    result = commit(unreliable(table, REFUSED, REFUSED, REFUSED))
    assert result.attempts == 4
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table), "files of earlier attempts are removed"


def test_a_commit_refused_too_often_is_a_conflict_and_leaves_nothing(table: Table) -> None:
    with pytest.raises(CommitConflictError, match="after 5 attempts") as error:
        commit(unreliable(table, *[REFUSED] * 9))
    assert error.value.retryable
    assert error.value.safe_to_clean
    assert not error.value.committed
    assert read_rows(table) == BEFORE
    assert not leftovers(table)


def test_files_of_others_stay_when_the_commit_fails(table: Table) -> None:
    given = append(table, NEW)
    broken = unreliable(table, REFUSED)
    with pytest.raises(CommitConflictError):
        commit_change(broken, given, options=no_retry(owns_files=False))
    broken.catalog.close()
    assert leftovers(table) == set(given.added_data.path.to_pylist())  # type: ignore[union-attr]


def test_nothing_is_removed_when_cleaning_is_off(table: Table) -> None:
    with pytest.raises(CommitConflictError):
        commit(unreliable(table, REFUSED), no_retry(clean=False))
    assert len(leftovers(table)) == 3, "a data file, a manifest and a manifest list"


@pytest.mark.parametrize("lost", [LOST, CommitStateUnknownException("502"), TimeoutError(), ValueError("no JSON")])
def test_a_lost_answer_to_a_commit_that_happened_is_success(table: Table, lost: Exception) -> None:
    result = commit(unreliable(table, (lost,)))
    assert result.attempts == 1
    assert result.table.metadata.current_snapshot_id == result.snapshot_id
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table)


def test_a_lost_request_is_sent_again(table: Table) -> None:
    result = commit(unreliable(table, LOST, LOST))
    assert result.attempts == 3
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table)


def test_a_conflict_with_our_own_earlier_commit_is_success(table: Table) -> None:
    """The first request was still in flight when its state was checked, and was applied before the second."""
    broken = unreliable(table, LOST)
    waiting: list[Any] = []
    usual = broken.catalog.commit_table

    def delayed(*request: Any) -> Any:
        waiting.append(request)
        if len(waiting) == 2:
            table.catalog.commit_table(*waiting[0])
        return usual(*request)

    broken.catalog.commit_table = delayed  # type: ignore[method-assign]
    result = commit(broken)
    assert result.attempts == 3
    assert read_rows(table) == BEFORE + NEW
    first = waiting[0][2][0].snapshot
    assert result.table.metadata.snapshot_by_id(result.snapshot_id) == first
    assert not leftovers(table), "what the first attempt wrote is needed, what the second wrote is not"


def test_a_conflict_is_checked_against_the_table(table: Table) -> None:
    """A proxy repeated the request and returned the response to the second one."""
    result = commit(unreliable(table, (REFUSED,)), no_retry())
    assert result.attempts == 1
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table)


def test_a_table_that_cannot_be_loaded_is_not_committed_to(table: Table) -> None:
    broken = unreliable(table)
    change = append(table, NEW)
    broken.catalog.down = 1  # type: ignore[attr-defined]
    with pytest.raises(CommitError, match=r"cannot load table db\.t to commit to it: ConnectionError") as error:
        commit_change(broken, change, options=patient())
    broken.catalog.close()
    assert error.value.retryable
    assert not error.value.committed
    assert not leftovers(table)


def test_a_table_that_cannot_be_loaded_after_a_lost_answer_is_unknown(table: Table) -> None:
    broken = unreliable(table, LOST)

    def goes_away(seconds: float) -> None:
        broken.catalog.down = 1  # type: ignore[attr-defined]

    with pytest.raises(CommitStateUnknownError, match="cannot load") as error:
        commit(broken, patient(timing=replace(NO_WAITING, sleep=goes_away)))
    assert not error.value.retryable
    assert len(leftovers(table)) == 3


def test_requests_that_may_still_arrive_keep_their_files(table: Table) -> None:
    with pytest.raises(CommitError, match="after 2 attempts: ConnectionError: reset by peer") as error:
        commit(unreliable(table, *[LOST] * 9), patient(retry=RetryPolicy(retries=1)))
    assert not isinstance(error.value, CommitStateUnknownError)
    assert not error.value.safe_to_clean
    assert read_rows(table) == BEFORE
    assert len(leftovers(table)) == 4, "a data file, a manifest and two manifest lists"


def test_requests_that_can_no_longer_succeed_do_not_keep_their_files(table: Table) -> None:
    def another_writer_commits(step: str) -> None:
        if step == "before-commit":
            commit_change(table, append(table, rows_of(200, 201)))

    with pytest.raises(CommitError) as error:
        commit(unreliable(table, LOST), no_retry(on_step=another_writer_commits))
    assert error.value.safe_to_clean
    assert read_rows(table) == BEFORE + rows_of(200, 201)
    assert not leftovers(table)


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_commit_state_is_reported(table: Table, applied: bool) -> None:
    broken = unreliable(table, (LOST,) if applied else LOST, unreachable=99)
    with pytest.raises(CommitStateUnknownError, match="it may have been committed") as error:
        commit(broken)
    assert error.value.committed
    assert not error.value.safe_to_clean
    assert len(leftovers(table)) == (0 if applied else 3), "nothing is removed"
    assert read_rows(table) == (BEFORE + NEW if applied else BEFORE)


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_of_unknown_state_is_repeated_under_its_id(table: Table, applied: bool) -> None:
    change = append(table, NEW)
    broken = unreliable(table, (LOST,) if applied else LOST, unreachable=99)
    with pytest.raises(CommitStateUnknownError) as error:
        commit_change(broken, change, options=patient())
    broken.catalog.close()
    snapshot_id = error.value.context["snapshot_id"]
    result = commit_change(table, change, options=patient(snapshot_id=snapshot_id))
    assert result.snapshot_id == snapshot_id
    assert len(result.manifests_written) == (0 if applied else 1)
    assert result.summary["added-records"] == "3"
    assert read_rows(table) == BEFORE + NEW


@pytest.mark.parametrize("applied", [True, False])
def test_the_commit_state_is_checked_until_the_catalog_is_back(table: Table, applied: bool) -> None:
    result = commit(unreliable(table, (LOST,) if applied else LOST, unreachable=3))
    assert result.attempts == (1 if applied else 2)
    assert read_rows(table) == BEFORE + NEW
    assert not leftovers(table)


@pytest.mark.parametrize("version", [2, 3])
def test_a_change_that_is_committed_again_does_not_lose_its_files(catalog: SqlCatalog, version: int) -> None:
    """The first commit succeeded but its response was lost; the second conflicts with it and removes its own files."""
    table = create_table(catalog, version)
    for write in (
        copy_on_write_delete("id = 3", lambda row: row[0] == 3),
        merge_on_read_delete("part = 'b' AND id = 14", lambda row: row[0] == 14),
    ):
        planned = write.plan(table.refresh(), IsolationLevel.SERIALIZABLE)
        rows = write.of_rows(read_rows(table))
        broken = unreliable(table, (LOST,), unreachable=99)
        with pytest.raises(CommitStateUnknownError):
            replace(planned, table=broken).commit()
        broken.catalog.close()
        before = files_under(table)
        if write.name.startswith("copy-on-write") or version > 2:
            with pytest.raises(CommitConflictError):
                planned.commit()
            assert files_under(table) == before
        assert read_rows(table) == rows


def test_a_commit_that_is_not_allowed_is_not_repeated(table: Table) -> None:
    with pytest.raises(CommitError, match="does not allow") as error:
        commit(unreliable(table, ForbiddenError("read-only role")))
    assert error.value.context["attempts"] == 1
    assert not leftovers(table)


def test_a_failure_while_manifests_are_written_leaves_nothing(table: Table) -> None:
    def disk_full(step: str) -> None:
        if step == "manifests-written":
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        commit(table, patient(on_step=disk_full))
    assert read_rows(table) == BEFORE
    assert not leftovers(table)


def test_an_interrupt_removes_nothing(table: Table) -> None:
    broken = unreliable(table)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    broken.catalog.commit_table = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        commit(broken)
    assert len(leftovers(table)) == 3


def test_a_table_that_was_dropped_is_named(table: Table) -> None:
    change = append(table, NEW)
    table.catalog.drop_table("db.t")
    with pytest.raises(UnknownTableError, match=r"db\.t was dropped"):
        commit_change(table, change)


def test_a_table_that_was_created_again_is_another_table(catalog: SqlCatalog, table: Table) -> None:
    change = append(table, NEW)
    catalog.drop_table("db.t")
    create_table(catalog, 2, [])
    with pytest.raises(CommitError, match="dropped and created again"):
        commit_change(table, change, options=patient())


def test_a_table_without_a_catalog_is_read_only(table: Table) -> None:
    static = StaticTable.from_metadata(table.metadata_location)
    with pytest.raises(BadInputError, match="read-only"):
        commit_change(static, append(table, NEW))


def test_snapshot_properties_are_written(table: Table) -> None:
    change = replace(append(table, NEW), summary={"app": "nightly"})
    result = commit_change(table, change)
    assert result.table.current_snapshot().summary["app"] == "nightly"  # type: ignore[union-attr,index]


def test_a_replacement_whose_files_were_partly_removed_is_a_conflict(catalog: SqlCatalog) -> None:
    """Row counts differ because another writer removed some of the files, not because the replacement adds rows."""
    table = create_table(catalog)
    rewrite = replacing("part = 'a'").plan(table, IsolationLevel.SERIALIZABLE)
    other = copy_on_write_delete("id < 10", lambda row: row[0] < 10).plan(table, IsolationLevel.SERIALIZABLE)
    other.commit()
    with pytest.raises(CommitConflictError, match="removed file"):
        rewrite.commit()
    assert read_rows(table) == rows_of(10, 20, "b") + rows_of(20, 30, "a")
