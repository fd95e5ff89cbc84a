"""Writers that plan and commit in any order: the result equals a serial execution of the committed operations.

A history is a list of operations, each planned on one version of the table and committed on a later one. With
serializable isolation, every committed operation has the effect it would have had if planned at commit time; the others
are conflicts and leave no files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from floeplan.errors import CommitConflictError
from floeplan.transaction.change import IsolationLevel
from tests.support.tables.commits import (
    Planned,
    Write,
    appending,
    copy_on_write_delete,
    copy_on_write_update,
    create_table,
    fork,
    merge_on_read_delete,
    merge_on_read_update,
    open_catalog,
    patient,
    read_rows,
    replacing,
    rows_of,
)

pytestmark = pytest.mark.property

START = rows_of(0, 10, "a") + rows_of(10, 20, "b") + rows_of(20, 30, "a")
PARTS = "abc"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    for version in (2, 3):
        create_table(opened, version, START, f"db.v{version}")
    yield opened
    opened.close()


@st.composite
def row_changes(draw: st.DrawFn) -> Write:
    """Deletes and updates of a few rows, in both modes."""
    ids = draw(st.sets(st.integers(0, 45), min_size=1, max_size=4))
    part = draw(st.sampled_from(PARTS))
    of_part = draw(st.booleans())
    listed = ", ".join(map(str, sorted(ids)))
    where = f"part = '{part}' AND id IN ({listed})" if of_part else f"id IN ({listed})"

    def matches(row: tuple[int, str]) -> bool:
        return row[0] in ids and (row[1] == part or not of_part)

    if draw(st.booleans()):
        return draw(st.sampled_from([copy_on_write_delete, merge_on_read_delete]))(where, matches)
    update = draw(st.sampled_from([copy_on_write_update, merge_on_read_update]))
    return update(where, matches, draw(st.sampled_from(PARTS)))


@st.composite
def appends(draw: st.DrawFn) -> Write:
    first = draw(st.integers(30, 42))
    return appending(rows_of(first, first + 3, draw(st.sampled_from(PARTS))))


WRITES = st.one_of(appends(), row_changes(), st.sampled_from(PARTS[:2]).map(lambda part: replacing(f"part = '{part}'")))


@dataclass(frozen=True)
class Step:
    """An operation, and the number of later operations that are planned before it is committed."""

    write: Write
    delay: int


HISTORIES = st.lists(st.builds(Step, WRITES, st.integers(0, 3)), min_size=2, max_size=6)


@settings(max_examples=max(10, settings().max_examples // 4))
@given(version=st.sampled_from([2, 3]), history=HISTORIES)
def test_committed_operations_are_serial(catalog: SqlCatalog, version: int, history: list[Step]) -> None:
    table = fork(catalog.load_table(f"db.v{version}"), f"db.t{uuid.uuid4().hex}")
    rows = list(START)
    waiting: list[tuple[int, Step, Planned]] = []
    for now in range(len(history) + 4):
        for due, step, planned in [entry for entry in waiting if entry[0] == now]:
            waiting.remove((due, step, planned))
            try:
                planned.commit(patient())
            except CommitConflictError:
                continue
            rows = sorted(step.write.of_rows(rows))
            assert read_rows(table) == rows
        if now < len(history):
            newest = catalog.load_table(table.name())
            step = history[now]
            waiting.append((now + 1 + step.delay, step, step.write.plan(newest, IsolationLevel.SERIALIZABLE)))
    assert read_rows(table) == rows
