"""Moves between specs, manifest clustering and repairs never change the rows of a table, whatever its deletes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.transforms import TruncateTransform

from floeplan.maintenance.doctor import doctor
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    Rows,
    arrow,
    delete_change,
    equality_delete,
    open_catalog,
    partition_by_part,
    patient,
    read_rows,
    unpartitioned_table,
)

pytestmark = pytest.mark.property

SPECS = (0, 1, 2)
parts = st.sampled_from(["a", "b", None])
appends = st.tuples(st.just("append"), st.sampled_from(SPECS), st.lists(parts, min_size=1, max_size=3))
position_deletes = st.tuples(st.just("positions"), st.integers(0, 3), st.booleans())
equality_deletes = st.tuples(st.just("equality"), st.integers(0, 4), st.sampled_from(["everywhere", "a", "b"]))
moves = st.tuples(st.just("move"), st.sampled_from(SPECS), st.booleans())
clusterings = st.tuples(st.just("cluster"), st.just(0), st.just(0))
histories = st.lists(st.one_of(appends, appends, position_deletes, equality_deletes, moves, clusterings), max_size=8)


@contextmanager
def three_specs() -> Iterator[Table]:
    """An empty table with three specs: unpartitioned, by part, by part and truncated id."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = open_catalog(Path(folder))
        table = partition_by_part(unpartitioned_table(catalog, files=()))
        with writable_metadata(table.io), table.update_spec() as update:
            update.add_field("id", TruncateTransform(6), "ids")
        yield table.refresh()
        catalog.close()


def step(table: Table, what: str, first: Any, second: Any, number: int) -> None:
    """Apply one operation to a table."""
    match what:
        case "append":
            rows: Rows = [(number * 10 + at, part) for at, part in enumerate(second)]
            target = WriteTarget.of(table, spec_id=first)
            added = write_data_files(target, [arrow(rows)], file_name_token=f"t{number}")
            commit_change(table, SnapshotChange(Operation.APPEND, added_data=added))
        case "positions" if table.current_snapshot() is not None:
            change = delete_change(table, slice(first, first + 2), per_file=second)
            if change.added_deletes is not None and len(change.added_deletes):
                commit_change(table, change, options=patient())
        case "equality":
            spec_id, part = (0, None) if second == "everywhere" else (1, second)
            change = equality_delete(table, [first * 10, first * 10 + 1], spec_id, part)
            commit_change(table, change, options=patient())
        case "move":
            options = UpgradeOptions(
                to=first, allow_coarser=second, metadata_only=True, allow_late_equality_deletes=True
            )
            upgrade_spec(table, options=options, commit=patient())
        case "cluster":
            rewrite_manifests(table, least_entries=2, commit=patient())


@settings(max_examples=settings.default.max_examples // 5)
@given(histories)
def test_rows_survive_every_move(history: list[tuple[str, Any, Any]]) -> None:
    with three_specs() as table:
        for number, (what, first, second) in enumerate(history):
            before = read_rows(table)
            step(table.refresh(), what, first, second, number)
            if what in ("move", "cluster"):
                assert read_rows(table) == before
        moved = table.refresh()
        before = read_rows(moved)
        for spec_id in SPECS:
            options = UpgradeOptions(to=spec_id, allow_coarser=True, allow_late_equality_deletes=True)
            upgrade_spec(moved, options=options, commit=patient())
            assert read_rows(moved) == before
        assert doctor(moved.refresh()).healthy
