"""A rewrite and a concurrent writer at every step of the commit: no row is lost, doubled or restored.

The other writer plans and commits while the rewrite waits at a step. Afterwards the rows are exactly those the other
writer left. Groups whose files it removed are not rewritten, all others are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.two_specs import EVENTS, catalog, events

pytestmark = pytest.mark.unit

STEPS = ("refreshed", "validated", "manifests-written", "list-written", "before-commit")
ALL = {"rewrite-all": "true"}
EVERYTHING = set(range(60))


def made(folder: Path, version: str) -> Table:
    """Ids 0–59 in two files of each of three regions, with some deleted rows."""
    opened = catalog(folder)
    with writable_metadata(opened._load_file_io(location=folder.as_uri())):
        table = opened.create_table("db.t", EVENTS, properties={"format-version": version})
        with table.update_spec() as update:
            update.add_identity("region")
    fp.append(table, events(0, 30))
    fp.append(table, events(30, 60))
    fp.delete(table, "id IN (5, 6)", mode="merge-on-read")
    return table


def ids(table: Table) -> list[int]:
    return sorted(fp.plan_scan(table.refresh()).to_arrow()["id"].to_pylist())


def expire(table: Table) -> None:
    with writable_metadata(table.io):
        head = table.current_snapshot()
        assert head is not None
        old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != head.snapshot_id]
        table.maintenance.expire_snapshots().by_ids(old).commit()


def merge(table: Table) -> None:
    source = events(0, 70).filter([i % 9 == 0 or i >= 60 for i in range(70)])
    fp.merge(table, source, ["id"], mode="merge-on-read").when_matched_delete().when_not_matched_insert().execute()


OTHERS: dict[str, tuple[Callable[[Table], object], set[int], bool]] = {
    "append": (lambda t: fp.append(t, events(60, 70)), EVERYTHING | set(range(60, 70)), True),
    "delete merge-on-read": (
        lambda t: fp.delete(t, "id % 4 = 1", mode="merge-on-read"),
        {i for i in EVERYTHING if i % 4 != 1},
        True,
    ),
    "delete twice": (
        lambda t: [fp.delete(t, f"id % 10 = {n}", mode="merge-on-read") for n in (5, 8)],
        {i for i in EVERYTHING if i % 10 not in (5, 8)},
        True,
    ),
    "merge": (merge, {i for i in range(70) if i % 9 or i >= 60}, True),
    "delete copy-on-write": (lambda t: fp.delete(t, "id = 9", mode="copy-on-write"), EVERYTHING - {9}, False),
    "delete a partition": (
        lambda t: fp.delete(t, "region = 'eu'"),
        {i for i in EVERYTHING if i % 3},
        False,
    ),
    "rewrite": (lambda t: fp.rewrite_data_files(t, where="region = 'eu'", options=ALL), EVERYTHING, False),
    "expire": (expire, EVERYTHING, True),
}


# ``make test`` runs each writer at one step, and the merge, which deletes and appends, at every step.
CASES = [
    pytest.param(other, step, marks=() if other == "merge" or at == number % len(STEPS) else pytest.mark.matrix)
    for number, other in enumerate(OTHERS)
    for at, step in enumerate(STEPS)
]


@pytest.mark.parametrize(("other", "step"), CASES)
def test_rows_equal_those_of_the_concurrent_writer(tmp_path: Path, other: str, step: str) -> None:
    act, left, whole = OTHERS[other]
    table = made(tmp_path, "2" if STEPS.index(step) % 2 else "3")
    beside = table.catalog.load_table(table.name())
    waiting = [act]

    def on_step(name: str) -> None:
        if name == step and waiting:
            waiting.pop()(beside)

    done = fp.rewrite_data_files(table, options=ALL, commit=CommitOptions(on_step=on_step))
    assert not waiting
    assert ids(table) == sorted(left - {5, 6})
    assert done.groups_failed == (0 if whole else 1)
    assert done.files_rewritten == (6 if whole else 4)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == ids(table)
    again = fp.rewrite_data_files(table, options=ALL)
    assert again.groups_failed == 0
    assert ids(table) == sorted(left - {5, 6})
    assert not any(file.deletes for file in fp.plan_scan(table).files)


def test_a_start_that_was_expired_is_a_conflict_and_nothing_changes(tmp_path: Path) -> None:
    table = made(tmp_path, "2")
    beside = table.catalog.load_table(table.name())
    files = set(tmp_path.rglob("*.parquet"))

    def on_step(name: str) -> None:
        if name == "refreshed" and len(beside.refresh().snapshots()) == 3:
            fp.append(beside, events(60, 61))
            expire(beside)

    with pytest.raises(CommitConflictError, match="does not reach it"):
        fp.rewrite_data_files(table, options=ALL, commit=CommitOptions(on_step=on_step))
    assert ids(table) == sorted(set(range(61)) - {5, 6})
    assert len(set(tmp_path.rglob("*.parquet")) - files) == 1, "what the other writer appended"


class Crash(BaseException):
    """A crash of the process, without any error handling."""


@pytest.mark.parametrize("step", [*STEPS, "committed", "cleaned"])
def test_a_crash_at_any_step_leaves_the_table_whole_and_a_second_run_finishes(tmp_path: Path, step: str) -> None:
    table = made(tmp_path, "3")
    before = ids(table)

    def on_step(name: str) -> None:
        if name == step:
            raise Crash

    options = {"min-input-files": "2", "delete-file-threshold": "1"}
    with pytest.raises(Crash):
        fp.rewrite_data_files(table, options=options, commit=CommitOptions(on_step=on_step))
    assert ids(table) == before
    done = fp.rewrite_data_files(table, options=options)
    assert done.files_rewritten == (0 if step in ("committed", "cleaned") else 6)
    assert ids(table) == before
    assert fp.rewrite_data_files(table, options=options).snapshot_ids == ()
