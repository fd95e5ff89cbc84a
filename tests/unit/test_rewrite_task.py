"""Groups rewritten in this process and committed: the same rows with the requested files, order and specs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform

import floeplan as fp
from floeplan.errors import MissingFileError
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import concat_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.run.group import GroupResult
from floeplan.rewrite.run.rewrite_group import GroupRewriter, group_tasks
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.two_specs import EVENTS, catalog, events, two_spec_table

pytestmark = pytest.mark.unit


def rewritten(table: Table, **options: Any) -> tuple[RewriteDataFilesPlan, list[GroupResult]]:
    """The plan and the results of its groups; the task is pickled as for another machine."""
    plan = RewriteDataFilesPlanner(table, RewriteOptions(**({"rewrite_all": True} | options)), cache=False).plan()
    rewriter, tasks = pickle.loads(pickle.dumps((GroupRewriter.of(plan), group_tasks(plan))))
    results = [rewriter(task, "attempt") for task in tasks]
    return plan, pickle.loads(pickle.dumps(results))


def commit(table: Table, results: list[GroupResult]) -> None:
    union = UnionPartitionType.of_table(table.metadata)
    change = SnapshotChange(
        operation=Operation.REPLACE,
        added_data=concat_entries([result.added for result in results], union),
        removed_data=frozenset(path for result in results for path in result.removed_data),
        removed_deletes=frozenset(delete for result in results for delete in result.removed_deletes),
    )
    commit_change(table, change)
    table.refresh()


def rows(table: Table, *columns: str) -> pa.Table:
    return fp.plan_scan(table, columns=columns or None).to_arrow().sort_by("id")


def stored(result: GroupResult) -> list[pa.Table]:
    return [pq.read_table(local_path(path)) for path in result.added.path.to_pylist()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spec": 0},
        {"spec": 1},
        {"spec": 1, "strategy": "sort", "by": ("id desc",)},
        {"strategy": "zorder", "by": ("region", "id")},
        {"strategy": "hilbert", "by": ("ts", "v", "region")},
        {"strategy": "stitch"},
        {"strategy": "stitch", "spec": 0},
        {"where": "region = 'eu'", "strategy": "sort", "by": ("v", "id")},
    ],
)
def test_rows_are_the_same_before_and_after(tmp_path: Path, options: dict[str, Any]) -> None:
    table = two_spec_table(tmp_path)
    before, first = rows(table), table.current_snapshot()
    assert first is not None
    _, results = rewritten(table, **options)
    commit(table, results)
    assert rows(table).equals(before)
    assert fp.plan_scan(table, snapshot_id=first.snapshot_id).to_arrow().sort_by("id").equals(before)
    pyiceberg = table.scan().to_arrow().sort_by("id")
    assert pyiceberg.cast(before.schema).equals(before)
    spec = options.get("spec")
    assert spec is None or {file.spec_id for file in fp.plan_scan(table).files} == {spec}


def test_a_group_becomes_the_expected_number_of_even_files(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.t", EVENTS)
    for first in range(0, 4000, 500):
        table.append(events(first, first + 500))
    size = sum(file.file_size for file in fp.plan_scan(table).files)
    plan, (result,) = rewritten(table, target_file_size_bytes=size // 3)
    assert plan.groups[0].expected_outputs == 3
    counts = result.added.record_count
    assert counts.sum() == 4000
    assert len(counts) == 3
    assert counts.max() - counts.min() <= 100


@pytest.mark.parametrize(("by", "key"), [("id desc", -1), ("id", 1)])
def test_a_sort_orders_the_group_over_all_its_files(tmp_path: Path, by: str, key: int) -> None:
    table = catalog(tmp_path).create_table("db.t", EVENTS)
    for first in (5000, 0, 10_000):
        table.append(events(first, first + 5000))
    size = sum(file.file_size for file in fp.plan_scan(table).files)
    _, (result,) = rewritten(table, target_file_size_bytes=size // 2, strategy="sort", by=(by,))
    ids = np.concatenate([np.asarray(part["id"]) for part in stored(result)])
    assert len(stored(result)) == 2
    assert ids.tolist() == sorted(range(15_000), reverse=key < 0)
    assert set(result.added.array("sort_order_id").to_pylist()) == {0}, "an order the table does not have"


def test_files_in_the_table_s_sort_order_state_it(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.t", EVENTS)
    with table.update_sort_order() as update:
        update.desc("v", IdentityTransform())
    table.append(events(0, 50))
    _, (result,) = rewritten(table, strategy="sort")
    (file,) = stored(result)
    values = file["v"].drop_null().to_pylist()
    assert values == sorted(values, reverse=True)
    assert table.sort_order().fields[0].direction is SortDirection.DESC
    assert result.added.array("sort_order_id").to_pylist() == [table.sort_order().order_id]


def test_clustering_narrows_both_columns_of_every_file(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.t", EVENTS)
    rng = np.random.default_rng(3)
    rows_ = events(0, 4000)
    table.append(rows_.set_column(3, "v", pa.array(rng.random(4000))).take(pa.array(rng.permutation(4000))))
    size = fp.plan_scan(table).files[0].file_size
    _, (result,) = rewritten(table, target_file_size_bytes=size // 16, strategy="hilbert", by=("id", "v"))
    spans = [(pc.min_max(part["id"]).as_py(), pc.min_max(part["v"]).as_py()) for part in stored(result)]
    hit = [i["min"] <= 1000 <= i["max"] and v["min"] <= 0.3 <= v["max"] for i, v in spans]
    assert len(spans) >= 12
    assert sum(hit) <= len(spans) // 4


def test_the_map_finds_every_row(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    for options in ({"spec": 1}, {"strategy": "stitch"}, {"strategy": "sort", "by": ("v",), "spec": 0}):
        _, results = rewritten(table, **options)
        for result in results:
            new = dict(zip(result.added.path.to_pylist(), stored(result), strict=True))
            for path in result.removed_data:
                old = pq.read_table(local_path(path))["id"].to_pylist()
                found = {at: result.position_map.remap(path, [at]) for at in range(len(old))}
                assert [new[t]["id"][int(p[0])].as_py() for at in found for t, p in found[at].items()] == old


class TestStitching:
    """Row groups are copied only if their rows do not change."""

    def test_small_row_groups_are_joined_unless_stitching_is_requested(self, tmp_path: Path) -> None:
        table = two_spec_table(tmp_path)
        _, by_itself = rewritten(table)
        assert all("too small to copy" in result.decoded_because for result in by_itself)
        _, stitched = rewritten(table, strategy="stitch")
        assert [result.decoded_because for result in stitched] == [""] * len(stitched)
        (two_files, *_) = stitched
        assert pq.read_metadata(local_path(two_files.added.path[0].as_py())).num_row_groups == 2

    def test_statistics_of_a_stitched_file_are_those_of_its_sources(self, tmp_path: Path) -> None:
        table = catalog(tmp_path).create_table("db.t", EVENTS)
        fp.append(table, events(0, 100))
        fp.append(table, events(100, 200).set_column(3, "v", pa.array([float("nan"), 1.0] * 50)))
        table.refresh()
        _, (stitched,) = rewritten(table, strategy="stitch")
        _, (written,) = rewritten(table)
        names = (
            "record_count",
            "value_counts",
            "null_value_counts",
            "nan_value_counts",
            "lower_bounds",
            "upper_bounds",
        )
        for name in names:
            assert stitched.added.array(name).to_pylist() == written.added.array(name).to_pylist(), name

    def test_deletes_are_applied_not_copied(self, tmp_path: Path) -> None:
        table = two_spec_table(tmp_path)
        with table.transaction() as change:
            change.set_properties({"write.delete.mode": "merge-on-read"})
        fp.delete(table, where="id = 7")
        before = rows(table)
        _, results = rewritten(table, strategy="stitch")
        assert ["has deletes" in result.decoded_because for result in results].count(True) == 1
        commit(table, results)
        assert rows(table).equals(before)
        assert not any(file.deletes for file in fp.plan_scan(table).files)

    def test_files_with_an_older_schema_are_encoded_again(self, tmp_path: Path) -> None:
        table = catalog(tmp_path).create_table("db.t", EVENTS)
        table.append(events(0, 10))
        with table.update_schema() as update:
            update.rename_column("v", "w")
        _, (renamed,) = rewritten(table, strategy="stitch")
        assert renamed.decoded_because == "", "a name changes no file"
        with table.update_schema() as update:
            update.delete_column("w")
        _, (dropped,) = rewritten(table, strategy="stitch")
        assert "not those of the table" in dropped.decoded_because
        assert stored(dropped)[0].column_names == ["id", "region", "ts"]


def test_rows_keep_their_identity_in_format_3(tmp_path: Path) -> None:
    opened = catalog(tmp_path)
    with writable_metadata(opened._load_file_io()):
        table = opened.create_table("db.t", EVENTS, properties={"format-version": "3"})
    fp.append(table, events(0, 100))
    fp.append(table, events(100, 200))
    table.refresh()
    _, (result,) = rewritten(table, strategy="sort", by=("v desc", "id"))
    (file,) = stored(result)
    by_id = file.sort_by("id")
    assert by_id["_row_id"].to_pylist() == list(range(200))
    assert by_id["_last_updated_sequence_number"].to_pylist() == [1] * 100 + [2] * 100
    _, (other,) = rewritten(table, strategy="stitch")
    assert "ids" in other.decoded_because


def test_a_group_that_fails_leaves_no_file(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    plan = RewriteDataFilesPlanner(table, RewriteOptions(rewrite_all=True), cache=False).plan()
    tasks = group_tasks(plan)
    Path(local_path(tasks[0].files[-1].file.path)).unlink()
    before = set(tmp_path.rglob("*.parquet"))
    for strategy in ("binpack", "stitch"):
        task = GroupRewriter(
            GroupRewriter.of(plan).table, GroupRewriter.of(plan).target, find_strategy(strategy), plan.order
        )
        with pytest.raises(MissingFileError):
            task(tasks[0], "attempt")
    assert set(tmp_path.rglob("*.parquet")) == before
