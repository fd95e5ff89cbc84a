"""Scans of random tables with real files: evolved, with deletes, with exact and weakened statistics.

The oracle has every row in memory, evaluates the predicate on each and applies the delete rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable

from floeplan.formats.files import open_stored
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.stats import TriState
from floeplan.scan.model import FileScan, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from tests.support.oracles.datasets import predicates
from tests.support.oracles.histories import ROW_ID, histories
from tests.support.oracles.history_files import History, Snapshot
from tests.support.oracles.rows import evaluate_row

pytestmark = pytest.mark.property

Row = dict[int, Any]
QUESTIONS = 4
"""Scans per table, since creating a table costs more than scanning it."""


@dataclass(frozen=True)
class Case:
    """A table, a snapshot, a schema, and a predicate."""

    history: History
    snapshot: Snapshot
    schema: Schema
    predicate: IrExpr
    plan: ScanPlan

    def matching(self) -> Iterator[tuple[str, int, Row]]:
        """Live rows that match."""
        for file, position, row in self.history.live(self.snapshot, self.schema):
            if evaluate_row(self.predicate, row) is True:
                yield file.path, position, row


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


@st.composite
def cases(draw: st.DrawFn, history: History) -> Case:
    past = draw(st.none() | st.sampled_from(history.snapshots))
    snapshot = past or history.snapshots[-1]
    schema = past.schema if past else history.schema
    predicate = draw(predicates(history.dataset(snapshot, schema), max_leaves=4))
    flag = st.booleans()
    options = draw(st.builds(ScanOptions, flag, flag, flag, cache=flag, recover=flag, report=st.just(False)))
    table = StaticTable.from_metadata(str(history.metadata))
    plan = plan_scan(table, predicate, snapshot_id=past and past.snapshot_id, options=options)
    return Case(history, snapshot, schema, predicate, plan)


@given(st.data())
def test_scans_match_the_rows(root: Path, data: st.DataObject) -> None:
    history = data.draw(histories(root))
    for _ in range(QUESTIONS):
        case = data.draw(cases(history))
        check_rows(case)
        check_kept(case)
        check_proofs(case)
        json.dumps(case.plan.to_dict(), allow_nan=False)
        assert case.plan.explain()


def check_rows(case: Case) -> None:
    """A scan returns exactly the live rows that match, with correct values and count."""
    expected = {row[ROW_ID]: repr(row) for _, _, row in case.matching()}
    found = [dict(zip(_ids(case), row, strict=True)) for row in zip(*_values(case.plan.to_arrow()), strict=True)]
    assert len({row[ROW_ID] for row in found}) == len(found), "a row was returned twice"
    assert {row[ROW_ID]: repr(row) for row in found} == expected
    assert case.plan.count() == len(expected)


def check_kept(case: Case) -> None:
    """Every matching live row is in a kept part of its file."""
    kept = {file.path: _selection(case, file) for file in case.plan.files}
    for path, position, row in case.matching():
        assert path in kept, f"{row} is in a dropped file"
        assert position in kept[path], f"{row} is in a dropped row group or page"


def check_proofs(case: Case) -> None:
    """All rows of a proven file match; elsewhere the residual equals the predicate."""
    files = {file.path: file for file in case.snapshot.files(0)}
    for scan in case.plan.files:
        rows = case.history.rows(case.snapshot, files[scan.path], case.schema)
        chosen = [rows[position] for position in sorted(_selection(case, scan))]
        for row in chosen:
            matches = evaluate_row(case.predicate, row) is True
            assert (evaluate_row(scan.residual, row) is True) == matches, f"{scan.residual} is wrong for {row}"
            assert matches or scan.tri_state is not TriState.TRUE, f"{row} is in a proven file"


def _selection(case: Case, scan: FileScan) -> set[int]:
    """Row positions that a file scan reads."""
    if scan.row_selection is not None:
        return set(_positions(scan.row_selection))
    if scan.row_groups is None:
        return set(range(scan.record_count))
    return set(_positions(_whole_groups(scan)))


def _whole_groups(scan: FileScan) -> RowSelection:
    sizes = open_stored(scan.path, scan.format, None).row_group_rows.tolist()
    starts = [sum(sizes[:group]) for group in scan.row_groups or ()]
    return RowSelection.from_runs(starts, [sizes[group] for group in scan.row_groups or ()])


def _positions(selection: RowSelection) -> list[int]:
    return [start + at for start, count in selection.to_pairs() for at in range(count)]


def _ids(case: Case) -> list[int]:
    return [field.field_id for field in case.schema.fields]


def _values(table: pa.Table) -> list[list[Any]]:
    """Columns as canonical values."""
    return [_canonical(column).to_pylist() for column in table.columns]


def _canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column
