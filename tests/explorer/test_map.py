"""Lanes and bins of tables of any size and kind."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform
from pyiceberg.types import LongType, NestedField, TimestampType

from floeplan.catalog import load_table
from floeplan.explorer.documents import overview_document, plan_document, plan_for
from floeplan.explorer.view import MOST_BINS, MOST_LANES, TableView, _calendar, _fold
from tests.support.tables.archive import FileEntry, MetadataWriter, write_evolved_archive
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

NUMBERS = Schema(NestedField(1, "id", LongType()), schema_id=0)
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"), spec_id=0)


def written(root: Path, spec: PartitionSpec, files: int, per_manifest: int) -> TableView:
    """Files with one number each, without bounds."""
    writer = MetadataWriter(root, NUMBERS, [spec])
    for first in range(0, files, per_manifest):
        some = range(first, first + per_manifest)
        partition = [(at,) if spec.fields else () for at in some]
        entries = [FileEntry(f"{root}/{at}.parquet", p, 1, 10, {}) for at, p in zip(some, partition, strict=True)]
        writer.add_manifest(0, entries)
    return TableView.of(load_table(str(writer.finish())))


def test_many_partitions_are_folded_into_few_lanes_in_their_order(tmp_path: Path) -> None:
    drawn = written(tmp_path, BY_ID, 5000, 1000).map
    assert len(drawn.lanes) == MOST_LANES
    assert sum(lane.partitions for lane in drawn.lanes) == 5000
    assert drawn.lanes[0].label == "id=0 … id=104"
    assert drawn.lanes[-1].label.endswith("id=4999")
    assert drawn.sums["files"].sum() == 5000


def test_a_table_without_a_time_column_is_drawn_over_its_commits(tmp_path: Path) -> None:
    drawn = written(tmp_path, UNPARTITIONED_PARTITION_SPEC, 6, 2).map
    assert drawn.axis.kind == "commits"
    assert drawn.axis.labels == ("1", "2", "3")
    assert [lane.label for lane in drawn.lanes] == ["unpartitioned"]
    assert drawn.sums["files"].tolist() == [2, 2, 2]


def test_a_table_without_files_has_an_empty_map(tmp_path: Path) -> None:
    view = TableView.of(load_table(str(MetadataWriter(tmp_path, NUMBERS, [BY_ID]).root / _empty(tmp_path))))
    assert view.map.to_dict()["cells"]["lane"] == []


def _empty(root: Path) -> str:
    """The metadata of a table whose only manifest has only a deleted file."""
    writer = MetadataWriter(root, NUMBERS, [BY_ID])
    writer.add_manifest(0, [FileEntry(f"{root}/0.parquet", (0,), 1, 10, {}, deleted=True)])
    return writer.finish().relative_to(root).as_posix()


def test_files_of_all_specs_are_placed_by_their_bounds(tmp_path: Path) -> None:
    drawn = TableView.of(load_table(str(write_evolved_archive(tmp_path, manifests=12, entries=50, days=60)))).map
    assert drawn.axis.title == "ts"
    assert drawn.axis.labels[0] == "2021-01-01"
    starts = {lane.spec_id: drawn.cell_bin[drawn.cell_lane == at].min() for at, lane in enumerate(drawn.lanes)}
    assert starts[0] < starts[1] < starts[2]
    assert {lane.label for lane in drawn.lanes if lane.spec_id == 2} == {"time only"}


def test_bins_have_the_unit_of_specs_with_files(tmp_path: Path) -> None:
    """An older spec by day does not make days of months."""
    times = Schema(NestedField(1, "ts", TimestampType()), schema_id=0)
    transforms = ((DayTransform(), "ts_day"), (MonthTransform(), "ts_month"))
    specs = [PartitionSpec(PartitionField(1, 1000 + at, *one), spec_id=at) for at, one in enumerate(transforms)]
    writer = MetadataWriter(tmp_path / "t", times, specs)
    writer.add_manifest(0, [FileEntry(f"{tmp_path}/0.parquet", (19_000,), 1, 10, {}, deleted=True)])
    writer.add_manifest(1, [FileEntry(f"{tmp_path}/{at}.parquet", (648 + at,), 1, 10, {}) for at in range(3)])
    axis = TableView.of(load_table(str(writer.finish()))).map.axis
    assert (axis.unit, axis.labels) == ("month", ("2024-01", "2024-02", "2024-03"))


@given(st.lists(st.dates(date(1, 1, 2), date(9998, 1, 1)), min_size=1, max_size=30))
def test_every_time_is_in_the_bin_that_begins_before_it(days: list[date]) -> None:
    times = np.array([(day - date(1970, 1, 1)) // timedelta(days=1) for day in days]) * 86_400_000_000
    axis = _calendar("day", times, np.ones(len(days), dtype=np.bool_), 2)
    assert 0 <= axis.bins.min() <= axis.bins.max() < len(axis.labels) <= MOST_BINS
    order = np.argsort(times, kind="stable")
    assert (np.diff(axis.bins[order]) >= 0).all()
    if axis.unit in ("day", "week"):
        for day, at in zip(days, axis.bins.tolist(), strict=True):
            start = date.fromisoformat(axis.labels[at])
            assert timedelta(0) <= day - start < timedelta(days=1 if axis.unit == "day" else 7)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_folding_keeps_the_order_and_gives_each_spec_its_own_lanes(counts: list[int]) -> None:
    specs = np.repeat(np.arange(len(counts)), counts)
    lanes = _fold(specs)
    assert (np.diff(lanes) >= 0).all()
    assert (np.diff(lanes) <= 1).all()
    assert lanes.max() < max(MOST_LANES, len(counts)) + len(counts)
    for lane in np.unique(lanes):
        assert len(np.unique(specs[lanes == lane])) == 1


def test_a_table_that_was_never_written_has_all_its_pages(tmp_path: Path) -> None:
    view = TableView.of(catalog(tmp_path).create_table("db.new", NUMBERS))
    assert view.map.to_dict()["lanes"] == []
    assert overview_document(view)["specs"][0]["files"] == 0
    document = plan_document(view, "id = 1", plan_for(view, "id = 1"))
    assert (document["files"], document["kept_by_cell"]) == ([], [])
