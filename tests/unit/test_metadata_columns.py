"""Metadata columns: precedence of the table's own columns, and what cannot be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import floeplan as fp
from floeplan.errors import UnknownColumnError
from floeplan.scan.model import ScanOptions
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

QUIET = ScanOptions(report=False)
ID = NestedField(1, "id", LongType(), required=False)
PLAIN = PartitionSpec(spec_id=0)


def test_position_file_and_an_unpartitioned_tuple(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.data([{"id": n} for n in range(5)], Schema(ID), group=2)
    files.positions([(path, 1)])
    table = files.table(Layout(Schema(ID), (PLAIN,)))
    plan = fp.plan_scan(table, "_pos >= 1 AND id <> 3", columns=["_pos", "id", "_file", "_partition"], options=QUIET)
    assert plan.to_arrow().to_pylist() == [{"_pos": n, "id": n, "_file": path, "_partition": {}} for n in (2, 4)]
    assert plan.to_arrow(["id", "_deleted"]).to_pylist() == [
        {"id": 1, "_deleted": True},
        {"id": 2, "_deleted": False},
        {"id": 4, "_deleted": False},
    ]
    streamed = plan.to_arrow_batch_reader(["_pos"], limit=1).read_all()
    assert streamed.to_pylist() == [{"_pos": 2}]


def test_columns_of_the_table_come_first(tmp_path: Path) -> None:
    schema = Schema(ID, NestedField(2, "_pos", LongType(), required=False))
    files = Files(tmp_path)
    files.data([{"id": 1, "_pos": 70}], schema)
    table = files.table(Layout(schema, (PLAIN,)))
    assert fp.plan_scan(table, "_pos = 70", columns=["_pos"], options=QUIET).to_arrow().to_pylist() == [{"_pos": 70}]


def test_lineage_needs_format_3(tmp_path: Path) -> None:
    table = Files(tmp_path).table(Layout(Schema(ID), (PLAIN,)))
    with pytest.raises(UnknownColumnError, match="row lineage needs format 3, and the table has format 2"):
        fp.plan_scan(table, columns=["_row_id"], options=QUIET)
    with pytest.raises(UnknownColumnError, match="_nothing"):
        fp.plan_scan(table, columns=["_nothing"], options=QUIET)
    with pytest.raises(UnknownColumnError, match="_deleted"):
        fp.plan_scan(table, "_deleted OR _pos = 1", options=QUIET)
