"""A spec upgrade with a crash or a concurrent commit at every step of its commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floeplan.maintenance.doctor import doctor
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import (
    ROWS,
    append,
    copy_on_write_delete,
    data_specs,
    evolved_table,
    leftovers,
    merge_on_read_delete,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

STEPS = ("refreshed", "validated", "manifests-written", "list-written", "before-commit")
ALONE = UpgradeOptions(metadata_only=True)
ALL_ROWS = sorted(row for rows in ROWS for row in rows)


class Died(BaseException):
    """A crash of the process."""


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def reloaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


def at(step: str, do: Callable[[], None]) -> Callable[[str], None]:
    """Run ``do`` when a step is first reached."""
    done: list[str] = []

    def watch(name: str) -> None:
        if name == step and not done:
            done.append(name)
            do()

    return watch


@pytest.mark.parametrize("step", [*STEPS, "committed"])
def test_a_killed_run_leaves_a_valid_table_and_is_resumed(catalog: SqlCatalog, step: str) -> None:
    table = evolved_table(catalog, 3)

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        upgrade_spec(table, options=ALONE, commit=patient(on_step=at(step, die)))
    assert data_specs(reloaded(table)) == ([0, 1, 1, 1] if step == "committed" else [0, 0, 0, 0])
    assert read_rows(table) == ALL_ROWS
    upgrade_spec(reloaded(table), options=ALONE, commit=patient())
    assert data_specs(reloaded(table)) == [0, 1, 1, 1]
    assert read_rows(table) == ALL_ROWS


def test_a_run_that_finds_nothing_left_to_move_removes_the_manifests_it_wrote(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, 2)
    already_there = leftovers(table)
    steps: list[str] = []
    first = at("before-commit", lambda: upgrade_spec(reloaded(table), options=ALONE, commit=patient()))

    def watch(step: str) -> None:
        steps.append(step)
        first(step)

    result = upgrade_spec(table, options=ALONE, commit=patient(on_step=watch))
    assert "list-written" in steps
    assert result.snapshot_ids == ()
    assert data_specs(reloaded(table)) == [0, 1, 1, 1]
    assert leftovers(reloaded(table)) == already_there


def _append(table: Table) -> None:
    commit_change(table, append(table, rows_of(50, 60, "a")))


def _merge_on_read(table: Table) -> None:
    delete = merge_on_read_delete("id < 25", lambda row: row[0] < 25 and row[0] % 10 == 3)
    delete.plan(table, IsolationLevel.SERIALIZABLE).commit()


def _copy_on_write(table: Table) -> None:
    copy_on_write_delete("id = 13", lambda row: row[0] == 13).plan(table, IsolationLevel.SERIALIZABLE).commit()


def _move(table: Table) -> None:
    upgrade_spec(table, options=ALONE, commit=patient())


def _cluster(table: Table) -> None:
    rewrite_manifests(table, commit=patient())


def _expire(table: Table) -> None:
    expire_snapshots(table, older_than_ms=2**53, dry_run=False)


OTHERS = {
    _append: sorted(ALL_ROWS + rows_of(50, 60, "a")),
    _merge_on_read: [row for row in ALL_ROWS if row[0] not in (3, 13, 23)],
    _copy_on_write: [row for row in ALL_ROWS if row[0] != 13],
    _move: ALL_ROWS,
    _cluster: ALL_ROWS,
    _expire: ALL_ROWS,
}


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
@pytest.mark.parametrize("other", OTHERS)
def test_concurrent_commits_are_neither_lost_nor_doubled(
    catalog: SqlCatalog, other: Callable[[Table], None], step: str
) -> None:
    table = evolved_table(catalog)
    watch = at(step, lambda: other(reloaded(table)))
    upgrade_spec(table, options=ALONE, commit=patient(on_step=watch))
    assert read_rows(table) == OTHERS[other]
    assert doctor(reloaded(table)).healthy
    assert set(data_specs(reloaded(table))) == {0, 1}
