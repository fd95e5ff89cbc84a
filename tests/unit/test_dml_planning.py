"""Files that planning a change opens, and the estimated work per file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table import Table

from floeplan.dml import delete_update
from floeplan.dml.delete_update import OPENING_BYTES, file_tasks, plan_rows, weights
from floeplan.dml.target import Command, resolve
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def passes(table: Table) -> set[str]:
    return {step.name for step in plan_rows(resolve(table, Command.DELETE), "id % 2 = 1 AND id < 9", None).passes}


def test_small_files_are_opened_only_by_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "footers" not in passes(table)
    monkeypatch.setattr(delete_update, "SMALL_FILE_BYTES", 1)
    assert "footers" in passes(table)


@pytest.mark.parametrize("summary", [{}, {"total-data-files": None}])
def test_missing_summary_values_are_looked_up(
    table: Table, summary: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    known = {} if not summary else snapshot.summary.additional_properties | summary
    monkeypatch.setattr(type(snapshot.summary), "__getitem__", lambda _, name: known.get(name))
    assert "footers" in passes(table)


def test_opening_a_file_has_a_minimum_cost(table: Table) -> None:
    files = plan_rows(resolve(table, Command.DELETE), "TRUE", None).files
    chosen = file_tasks(files, np.ones(len(files), dtype=np.bool_))
    assert weights(chosen, 0) == [OPENING_BYTES] * len(files)
    assert weights(chosen, 1) == [work.file.file_size + OPENING_BYTES for work in chosen]
