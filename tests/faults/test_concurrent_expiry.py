"""Snapshots expired after a writer has loaded the table and before it reads them: a retry, not corruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError, CorruptMetadataError
from floeplan.rewrite import commit_groups as commit_manager
from floeplan.transaction.change import IsolationLevel
from tests.support.tables.commits import (
    appending,
    arrow,
    create_table,
    leftovers,
    merge_on_read_delete,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

OTHERS = rows_of(200, 205)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def commit_and_expire(table: Table) -> None:
    """Another writer appends and expires all other snapshots."""
    other = table.catalog.load_table(table.name())
    fp.append(other, arrow(OTHERS))
    soon = int(time.time() * 1000) + 60_000
    assert fp.expire_snapshots(other, older_than_ms=soon, retain_last=1, dry_run=False).manifest_lists


def once(act: Callable[[], object]) -> Callable[[], None]:
    waiting = [act]

    def run() -> None:
        if waiting:
            waiting.pop()()

    return run


@pytest.mark.parametrize("version", [2, 3])
def test_an_append_is_retried(catalog: SqlCatalog, version: int) -> None:
    table = create_table(catalog, version)
    rows = read_rows(table)
    interfere = once(lambda: commit_and_expire(table))
    planned = appending(rows_of(100, 105)).plan(table, IsolationLevel.SERIALIZABLE)
    done = planned.commit(patient(on_step=lambda at: interfere() if at == "refreshed" else None))
    assert done.attempts == 2
    assert read_rows(table) == sorted(rows + rows_of(100, 105) + OTHERS)
    assert {path.rpartition(".")[2] for path in leftovers(table)} <= {"json"}


@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_fails_with_a_retryable_error(catalog: SqlCatalog, version: int) -> None:
    table = create_table(catalog, version)
    rows = read_rows(table)
    interfere = once(lambda: commit_and_expire(table))
    deleting = merge_on_read_delete("id = 3", lambda row: row[0] == 3)
    planned = deleting.plan(table, IsolationLevel.SERIALIZABLE)
    with pytest.raises(CommitConflictError, match="run the operation again"):
        planned.commit(patient(on_step=lambda at: interfere() if at == "refreshed" else None))
    assert read_rows(table) == sorted(rows + OTHERS)


def test_a_rewrite_fails_with_a_retryable_error(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(catalog)
    rows = read_rows(table)
    usual = commit_manager._reload
    interfere = once(lambda: commit_and_expire(table))

    def newest(requested: Table) -> Table:
        fp.append(catalog.load_table("db.t"), arrow(rows_of(300, 301)))
        found = usual(requested)
        interfere()
        return found

    monkeypatch.setattr(commit_manager, "_reload", newest)
    with pytest.raises(CommitConflictError, match=r"expired while .*run the rewrite again"):
        fp.rewrite_data_files(table, options={"rewrite-all": "true"}, commit=patient())
    assert read_rows(table) == sorted(rows + OTHERS + rows_of(300, 301) * 2)


def test_a_file_that_is_missing_without_an_expiry_is_damage(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    planned = appending(rows_of(100, 105)).plan(table, IsolationLevel.SERIALIZABLE)
    head = table.current_snapshot()
    assert head is not None
    Path(head.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(CorruptMetadataError, match="does not exist although the table refers to it"):
        planned.commit(patient())
