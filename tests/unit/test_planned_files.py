"""The files of a plan: views over columns with the values, equality and pickles of ``FileScan``."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import asdict, fields, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from floeplan.metadata.delete_index import DeleteKind
from floeplan.predicate.ir import TRUE
from floeplan.predicate.stats import TriState
from floeplan.scan import model
from floeplan.scan.model import FileScan, PlannedFiles, ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "v", DoubleType(), required=False),
    schema_id=0,
)
SPECS = (
    PartitionSpec(spec_id=0),
    PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "region"),
        PartitionField(3, 1001, IdentityTransform(), "v"),
        spec_id=1,
    ),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Eight files of two specs, one with a position delete, NaN and null among the partition values."""
    files = Files(tmp_path_factory.mktemp("files"))
    paths = []
    for number in range(8):
        region, v = ("eu", None)[number // 4], {1: 0.0, 3: -0.0, 5: float("nan"), 7: None}.get(number, 1.5)
        rows = [{"id": number * 10 + n, "region": region, "v": v} for n in range(10)]
        tuple_ = {"spec_id": 1, "partition.1000": region, "partition.1001": v} if number % 2 else {"spec_id": 0}
        paths.append(files.data(rows, SCHEMA, group=5, **tuple_))
    files.positions([(paths[0], 2)], referenced_data_file=paths[0], spec_id=0)
    return files.table(Layout(SCHEMA, SPECS))


@pytest.fixture(params=[1024, 3], ids=["one batch", "batches"])
def files(table: Table, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlannedFiles:
    monkeypatch.setattr(model, "_BATCH", request.param)
    return plan_scan(table, "id >= 7 AND id < 63", options=ScanOptions(report=False)).files


def test_attributes_are_those_of_the_entries(files: PlannedFiles) -> None:
    entries = files.entries
    assert [file.path for file in files] == entries.path.to_pylist()
    assert [file.record_count for file in files] == entries.record_count.tolist()
    assert [file.spec_id for file in files] == entries.spec_id.tolist()
    data = {int(Path(file.path).stem.removeprefix("data")): file for file in files}
    assert (data[0].row_groups, data[0].tri_state, data[0].format) == ((1,), TriState.UNKNOWN, "PARQUET")
    assert [(one.kind, one.record_count) for one in data[0].deletes] == [(DeleteKind.POSITION_FILE, 1)]
    assert (data[0].partition, data[0].constants, data[0].encrypted) == ({}, {}, False)
    assert (data[6].row_groups, data[6].residual == TRUE) == ((0,), False)
    assert (data[1].residual, data[1].tri_state, data[1].deletes) == (TRUE, TriState.TRUE, ())
    assert data[1].partition["region"] == "eu"
    assert [str(data[number].constants[3]) for number in (1, 3, 5)] == ["0.0", "-0.0", "nan"]
    assert data[5].constants[2] is None


def test_sequence(files: PlannedFiles) -> None:
    paths = [file.path for file in files]
    assert len(files) == len(paths) == 7
    assert [file.path for file in files[1:4]] == paths[1:4]
    assert [file.path for file in files[::-2]] == paths[::-2]
    assert [file.path for file in reversed(files)] == paths[::-1]
    assert [file.deletes for file in files[5::-5]] == [(), files[0].deletes]
    assert files[0] in files
    assert files[2:2] == []
    with pytest.raises(IndexError):
        files[7]


def test_views_are_files(files: PlannedFiles) -> None:
    for view in files:
        values = [getattr(view, field.name) for field in fields(FileScan)]
        plain = FileScan(*values)
        assert isinstance(view, FileScan)
        assert view == plain == view
        assert view.to_dict() == plain.to_dict()
        moved = replace(view, path="elsewhere")
        assert (type(moved), moved.path, moved.record_count) == (FileScan, "elsewhere", view.record_count)
        assert view != moved
        assert view != "path"
        with pytest.raises(AttributeError):
            view.path = "other"  # type: ignore[misc]
    assert asdict(files[0])["record_count"] == 10


def test_pickle_holds_one_file_and_no_columns(files: PlannedFiles) -> None:
    view = files[0]
    for loaded in (pickle.loads(pickle.dumps(view)), copy(view)):
        assert type(loaded) is FileScan
        assert loaded == view
    assert len(pickle.dumps(view)) < 4000


def test_columns_of_the_plan(files: PlannedFiles) -> None:
    found = files.to_arrow()
    assert found.column_names[:6] == ["path", "format", "spec_id", "record_count", "file_size", "sequence_number"]
    for row, file in zip(found.to_pylist(), files, strict=True):
        assert row["path"] == file.path
        assert row["deletes"] == len(file.deletes)
        assert row["row_groups"] == (None if file.row_groups is None else list(file.row_groups))
        assert (row["tri_state"], row["residual"]) == (file.tri_state.name.lower(), str(file.residual))
        assert row["partition"]["region"] == file.partition.get("region")


def test_columns_of_an_empty_plan_and_of_an_unpartitioned_table(table: Table, tmp_path: Path) -> None:
    assert plan_scan(table, "id < 0").files.to_arrow().num_rows == 0
    plain = Files(tmp_path)
    plain.data([{"id": 1, "region": "eu", "v": 1.0}], SCHEMA)
    found = plan_scan(plain.table(Layout(SCHEMA, SPECS[:1]))).files.to_arrow()
    assert (found.num_rows, found["partition"].type) == (1, pa.null())
