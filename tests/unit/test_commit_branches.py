"""Branches and tags: commits to them, and how they are created, moved and dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from floeplan.errors import BadInputError, UnknownSnapshotError
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import commit_change
from floeplan.transaction.refs import (
    Retention,
    create_branch,
    create_tag,
    drop_branch,
    drop_tag,
    fast_forward,
    rollback_to,
    set_current,
)
from tests.support.tables.commits import (
    Planned,
    append,
    create_table,
    leftovers,
    merge_on_read_delete,
    open_catalog,
    patient,
    read_rows,
    rows_of,
    unreliable,
)

pytestmark = pytest.mark.unit

BEFORE = rows_of(0, 10)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=[2, 3])
def table(catalog: SqlCatalog, request: pytest.FixtureRequest) -> Table:
    return create_table(catalog, request.param, BEFORE)


def add(table: Table, first: int, branch: str = "main", **options: bool) -> Table:
    change = append(table, rows_of(first, first + 2))
    return commit_change(table, change, branch=branch, options=patient(**options)).table


def test_a_commit_to_a_branch_moves_that_branch_only(table: Table) -> None:
    add(create_branch(table, "audit"), 100, "audit")
    assert read_rows(table) == BEFORE
    assert read_rows(table, "audit") == BEFORE + rows_of(100, 102)


def test_a_missing_branch_is_created_only_on_request(table: Table) -> None:
    with pytest.raises(UnknownSnapshotError, match="no branch audit; it has: main"):
        add(table, 100, "audit")
    assert not leftovers(table)
    after = add(table, 100, "audit", create_branch=True)
    assert read_rows(table, "audit") == BEFORE + rows_of(100, 102)
    assert read_rows(table) == BEFORE
    head = after.snapshot_by_name("audit")
    assert head is not None
    assert head.parent_snapshot_id == after.metadata.current_snapshot_id


def test_an_empty_table_has_no_branch_before_main(catalog: SqlCatalog) -> None:
    table = create_table(catalog, 2, [])
    with pytest.raises(BadInputError, match="cannot create branch audit: the table has no snapshot yet"):
        add(table, 0, "audit", create_branch=True)
    add(table, 0)
    assert read_rows(table) == rows_of(0, 2)


def test_a_tag_cannot_be_written_to(table: Table) -> None:
    tagged = create_tag(table, "release")
    with pytest.raises(BadInputError, match="release is a tag"):
        add(tagged, 100, "release")
    assert read_rows(table, "release") == BEFORE
    assert not leftovers(table)


def test_a_commit_keeps_the_retention_of_its_branch(table: Table) -> None:
    kept = Retention(max_ref_age_ms=10**12, max_snapshot_age_ms=10**11, min_snapshots_to_keep=3)
    after = add(create_branch(table, "audit", retention=kept), 100, "audit")
    ref = after.metadata.refs["audit"]
    assert (ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) == (10**12, 10**11, 3)


def test_commits_to_two_branches_never_share_a_sequence_number(table: Table) -> None:
    """PyIceberg's catalogs accept it in format 3 if no rows are added; deletes would not apply to their data."""
    table = create_branch(table, "audit")
    rounds = iter([1, 2])

    def main_moves(step: str) -> None:
        if step == "before-commit":
            for number in rounds:
                delete_row(number, table.catalog.load_table(table.name())).commit()

    result = delete_row(7, table).commit(patient(on_step=main_moves), branch="audit")
    assert result.attempts == 2
    numbers = [snapshot.sequence_number for snapshot in result.table.metadata.snapshots]
    assert sorted(numbers) == list(range(1, 5))  # type: ignore[type-var]
    assert read_rows(table, "audit") == [row for row in BEFORE if row[0] != 7]
    assert read_rows(table) == [row for row in BEFORE if row[0] not in (1, 2)]


def delete_row(number: int, table: Table) -> Planned:
    write = merge_on_read_delete(f"id = {number}", lambda row: row[0] == number)
    return write.plan(table, IsolationLevel.SERIALIZABLE)


def test_a_branch_is_created_at_any_snapshot_and_replaced_on_request(table: Table) -> None:
    old = table.metadata.current_snapshot_id
    newer = add(table, 100)
    create_branch(newer, "audit", old)
    assert read_rows(table, "audit") == BEFORE
    with pytest.raises(BadInputError, match=f"branch audit exists already, at snapshot {old}"):
        create_branch(newer, "audit")
    create_branch(newer, "audit", replace=True)
    assert read_rows(table, "audit") == BEFORE + rows_of(100, 102)


def test_a_tag_stays_when_its_branch_moves(table: Table) -> None:
    tagged = create_tag(table, "release")
    assert tagged.metadata.refs["release"].snapshot_ref_type is SnapshotRefType.TAG
    add(tagged, 100)
    assert read_rows(table, "release") == BEFORE


def test_refs_are_dropped_by_their_kind(table: Table) -> None:
    create_tag(create_branch(table, "audit"), "release")
    with pytest.raises(BadInputError, match="release is a tag, not a branch"):
        drop_branch(table, "release")
    drop_branch(table, "audit")
    drop_tag(table, "release")
    assert set(table.refresh().metadata.refs) == {"main"}
    with pytest.raises(UnknownSnapshotError, match="no branch or tag audit"):
        drop_branch(table, "audit")
    with pytest.raises(BadInputError, match="main cannot be dropped"):
        drop_branch(table, "main")


def test_a_branch_is_fast_forwarded_to_a_descendant_only(table: Table) -> None:
    ahead = add(create_branch(table, "audit"), 100, "audit")
    fast_forward(ahead, "main", "audit")
    assert read_rows(table) == BEFORE + rows_of(100, 102)
    add(ahead, 200, "audit")
    add(table, 300)
    with pytest.raises(BadInputError, match="cannot fast-forward main to audit"):
        fast_forward(table, "main", "audit")


def test_a_branch_is_rolled_back_to_an_ancestor_only(table: Table) -> None:
    old = table.metadata.current_snapshot_id
    assert old is not None
    newer = add(table, 100)
    elsewhere = add(create_branch(newer, "audit"), 200, "audit").metadata.refs["audit"].snapshot_id
    rollback_to(newer, old)
    assert read_rows(table) == BEFORE
    with pytest.raises(BadInputError, match="it is not an ancestor"):
        rollback_to(newer, elsewhere)
    set_current(newer, elsewhere)
    assert read_rows(table) == BEFORE + rows_of(100, 102) + rows_of(200, 202)
    with pytest.raises(UnknownSnapshotError, match="no snapshot 7"):
        set_current(newer, 7)


@pytest.mark.parametrize("fault", [CommitFailedException("late"), ConnectionError(), (ConnectionError(),)])
@pytest.mark.parametrize(
    ("change", "refs"),
    [
        (lambda t: create_tag(t, "release", options=patient()), {"main", "audit", "release"}),
        (lambda t: create_branch(t, "x", options=patient()), {"main", "audit", "x"}),
        (lambda t: drop_branch(t, "audit", options=patient()), {"main"}),
    ],
    ids=["create tag", "create branch", "drop branch"],
)
def test_refs_survive_refusals_and_lost_answers(
    table: Table, change: Callable[[Table], Table], refs: set[str], fault: Exception | tuple[Exception]
) -> None:
    create_branch(table, "audit")
    change(unreliable(table, fault)).catalog.close()
    assert set(table.refresh().metadata.refs) == refs
