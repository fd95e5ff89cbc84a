"""Groups sorted in ranges by several tasks: the rows, order and files of one task, and a map that finds every row."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, DoubleType, FloatType, LongType, NestedField, StringType, TimestampType

import floeplan as fp
from floeplan.errors import FloeplanError
from floeplan.metadata.files import local_path
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.plan.ranges import RANGE_READS, SHUFFLE, leading_column, range_conditions
from floeplan.rewrite.run import range_task, stored_map
from floeplan.rewrite.run import ranges as run_ranges
from floeplan.rewrite.run.group import GroupResult, GroupTask
from floeplan.rewrite.run.ranges import RangeRewriter
from floeplan.rewrite.run.rewrite_group import Cores, GroupRewriter, task_memory
from floeplan.rewrite.run.stored_map import NumberedRowsBuilder, StoredMap, row_numbers
from floeplan.rewrite.strategies.base import Cuts, RowOrder, parse_order
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.projection import arrow_schema
from floeplan.tasks import runner
from tests.support.tables.commits import open_catalog
from tests.support.tables.ranges import divided, in_process, ranges_of, skewed_table

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", DoubleType(), required=False),
    NestedField(3, "name", StringType(), required=False),
    NestedField(4, "day", DateType(), required=False),
    NestedField(5, "at", TimestampType(), required=False),
)


def made_rows(count: int) -> pa.Table:
    """Half of the rows have one key; some are null, some are NaN."""
    rng = np.random.default_rng(3)

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=rng.random(count) < 0.1)

    v = rng.normal(size=count).round(1)
    v[rng.random(count) < 0.5] = 1.5
    v[rng.random(count) < 0.1] = np.nan
    days = rng.integers(0, 90, count).astype(np.int32)
    columns = [
        some(rng.integers(0, 2**60, count)),
        some(v),
        some([f"n{i}" for i in rng.integers(0, 50, count)]),
        some(days).cast(pa.date32()),
        some(days.astype(np.int64) * 1_000_003).cast(pa.timestamp("us")),
    ]
    arrow = arrow_schema(SCHEMA)
    return pa.table([column.cast(field.type) for column, field in zip(columns, arrow, strict=True)], schema=arrow)


def order_of(strategy: str, *by: str) -> RowOrder:
    return find_strategy(strategy).row_order(SCHEMA, parse_order(by, SCHEMA))


def cuts_of(order: RowOrder, rows: pa.Table, shares: Sequence[int]) -> Cuts:
    numbers = np.arange(0, rows.num_rows, 3)
    keys = rows.select([field.name for field in order.key_schema.fields]).take(pa.array(numbers))
    return Cuts.of(order.fitted(keys, rows.num_rows), keys, numbers, shares)


@pytest.mark.parametrize(
    ("strategy", "by"),
    [
        ("sort", ("v",)),
        ("sort", ("v desc nulls first", "name")),
        ("sort", ("name nulls last", "id desc")),
        ("zorder", ("v", "name")),
        ("hilbert", ("id", "day")),
    ],
)
def test_ranges_follow_the_order_and_divide_equal_keys(strategy: str, by: tuple[str, ...]) -> None:
    rows, order = made_rows(6000), order_of(strategy, *by)
    cuts = cuts_of(order, rows, [1, 2, 1, 1, 1])
    numbers = np.arange(rows.num_rows)
    # Whichever rows are compared together, each is in the same range.
    found = np.concatenate([cuts.assign(rows.slice(at, 700), numbers[at : at + 700]) for at in range(0, 6000, 700)])
    assert found.tolist() == cuts.assign(rows, numbers).tolist()
    assert (np.diff(found[cuts.order.exact_permutation(rows)]) >= 0).all()
    assert np.allclose(np.bincount(found), [1000, 2000, 1000, 1000, 1000], rtol=0.2)


@pytest.mark.parametrize("column", ["id", "v", "name", "day", "at"])
@pytest.mark.parametrize("how", ["asc", "asc nulls last", "desc", "desc nulls first"])
def test_the_condition_of_a_range_holds_for_its_rows(column: str, how: str) -> None:
    """Statistics are compared with it: a row that does not meet it would be lost."""
    rows, order = made_rows(2000), order_of("sort", f"{column} {how}", "id")
    cuts = cuts_of(order, rows, [1] * 40)  # some ranges have only nulls, NaN or the frequent key
    leading = leading_column(order)
    assert leading is not None
    found = cuts.assign(rows, np.arange(rows.num_rows))
    conditions = range_conditions(cuts, leading)
    assert len(conditions) == len(cuts) == found.max() + 1
    met = [matching_mask(condition, rows, SCHEMA) for condition in conditions]
    for number, mask in enumerate(met):
        assert mask[found == number].all()
    assert sum(int(mask.sum()) for mask in met) < 20 * rows.num_rows, "ranges exclude most rows"


def test_a_stored_map_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of three files, in any order, written to two new ones by each of two tasks."""
    monkeypatch.setattr(stored_map, "_ROW_GROUP_ROWS", 50)
    io = PyArrowFileIO()
    rng = np.random.default_rng(1)
    every = np.concatenate([row_numbers(source, np.arange(200)) for source in range(3)])
    shuffled = rng.permutation(np.concatenate([every[:250], every[300:]]))  # 50 rows of the second file are deleted
    expected: dict[tuple[int, int], tuple[str, int]] = {}
    maps = []
    for task, numbers in enumerate((np.sort(shuffled[:300]), shuffled[300:])):
        builder = NumberedRowsBuilder([])
        builder.add_numbers(numbers[:120])
        builder.add_numbers(numbers[120:])
        targets, half = [f"{task}-a", f"{task}-b"], len(numbers) // 2
        order = np.arange(len(numbers)) if task == 0 else rng.permutation(len(numbers))
        builder.add_written(targets, [half, len(numbers) - half], [(order, np.ones(len(order), dtype=np.int64))])
        for offset, number in enumerate(numbers[order].tolist()):
            target = (targets[0], offset) if offset < half else (targets[1], offset - half)
            expected[(number >> 40, number & (2**40 - 1))] = target
        maps.append(builder.write(io, (tmp_path / f"{task}.rowmap").as_uri()))
    assert pq.read_metadata(tmp_path / "1.rowmap").num_row_groups > 3
    assert pq.read_table(tmp_path / "0.rowmap").num_rows < 300, "consecutive rows are one run"
    found = StoredMap(io, ("x", "y", "z"), pickle.loads(pickle.dumps(tuple(maps))))
    for source, path in enumerate(("x", "y", "z")):
        for at in range(0, 210, 7):
            places = {(target, int(one)) for target, many in found.remap(path, [at]).items() for one in many}
            assert places == ({expected[source, at]} if (source, at) in expected else set())
        together = found.remap(path, np.arange(200))
        assert sum(map(len, together.values())) == sum(key[0] == source for key in expected)


def test_the_map_of_an_empty_range_has_no_rows(tmp_path: Path) -> None:
    io = PyArrowFileIO()
    empty = NumberedRowsBuilder([]).write(io, (tmp_path / "empty.rowmap").as_uri())
    assert StoredMap(io, ("x",), (empty,)).remap("x", [0, 5]) == {}


def test_a_map_refuses_rows_that_were_not_written(tmp_path: Path) -> None:
    builder = NumberedRowsBuilder([])
    builder.add_numbers(np.arange(3))
    with pytest.raises(FloeplanError, match="3 rows were read and 0 written"):
        builder.write(PyArrowFileIO(), (tmp_path / "m.rowmap").as_uri())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[int, Table]:
    """One table per format version; the tests commit nothing."""
    return {version: skewed_table(folder / str(version), version=version) for version in (2, 3)}


def rows_in_order(result: GroupResult) -> pa.Table:
    return pa.concat_tables([pq.read_table(local_path(path)) for path in result.added.path.to_pylist()])


def listed(rows: pa.Table, *columns: str) -> list[list[str]]:
    """The values, with NaN equal to NaN."""
    return [list(map(repr, column.to_pylist())) for column in rows.select(columns or rows.column_names).columns]


def check_map(task: GroupTask, result: GroupResult) -> None:
    """Every live row of the old files is where the map says, and no deleted one is."""
    new = {path: pq.read_table(local_path(path))["id"].to_pylist() for path in result.added.path.to_pylist()}
    moved = 0
    for one in task.files:
        old = pq.read_table(local_path(one.file.path))["id"].to_pylist()
        for at in range(0, len(old), 97):
            places = [(t, int(p)) for t, many in result.position_map.remap(one.file.path, [at]).items() for p in many]
            assert [new[target][place] for target, place in places] == ([] if old[at] % 10 == 3 else [old[at]])
        moved += sum(map(len, result.position_map.remap(one.file.path, np.arange(len(old))).values()))
    assert moved == sum(map(len, new.values()))


@pytest.mark.parametrize(
    ("by", "way"),
    [(("v", "name"), SHUFFLE), (("v desc nulls first",), SHUFFLE), (("id",), RANGE_READS), (("v",), RANGE_READS)],
)
@pytest.mark.parametrize("version", [2, 3])
def test_ranges_of_a_sort_are_the_sort_of_one_task(
    tables: dict[int, Table], version: int, by: tuple[str, ...], way: str
) -> None:
    group, ranges, task = divided(tables[version], strategy="sort", by=by)
    assert group.by_reads == (by == ("id",)), "by cost"
    result = in_process(group, ranges, way)
    alone = ranges.rewriter(task, "alone")
    assert len(group.tasks) > 2
    assert listed(rows_in_order(result)) == listed(rows_in_order(alone))  # in format 3 with the row lineage
    assert result.removed_deletes == alone.removed_deletes
    assert result.removed_data == alone.removed_data
    check_map(task, result)


def test_large_row_groups_are_divided_in_slices(tables: dict[int, Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_task, "DIVIDED_BYTES", (4_000, 4_000))
    group, ranges, task = divided(tables[2], strategy="sort", by=("v", "name"))
    (batch,) = group.pieces
    parts = [rows for _, rows in group.rows.divide(group.cuts, batch)]
    assert len(parts) > len(task.files) * len(group.tasks)
    assert max(rows.nbytes for rows in parts) <= 5_000
    result = in_process(group, ranges, SHUFFLE)
    assert listed(rows_in_order(result)) == listed(rows_in_order(ranges.rewriter(task, "alone")))
    check_map(task, result)


def test_tasks_that_read_keep_all_cores_busy(tables: dict[int, Table], monkeypatch: pytest.MonkeyPatch) -> None:
    _, ranges, task = divided(tables[2], strategy="sort", by=("v",))
    monkeypatch.setattr(runner, "TASK_BYTES", 1)
    monkeypatch.setattr(run_ranges, "READ_BYTES", task.bytes // 3 + 1)
    assert ranges.cores.total == 2
    assert len(ranges.divide(task).pieces) == 4, "three are enough, but leave a core idle"


@pytest.mark.parametrize("strategy", ["zorder", "hilbert"])
def test_ranges_of_a_curve_are_on_one_curve(tables: dict[int, Table], strategy: str) -> None:
    group, ranges, task = divided(tables[2], strategy=strategy, by=("v", "name"))
    assert not group.by_reads
    result = in_process(group, ranges, SHUFFLE)
    found = rows_in_order(result)
    positions: Any = group.rows.order.positions(found)[0]  # type: ignore[attr-defined]
    assert (positions[1:] >= positions[:-1]).all()
    assert sorted(found["id"].to_pylist()) == sorted(rows_in_order(ranges.rewriter(task, "alone"))["id"].to_pylist())
    check_map(task, result)


def test_ranges_that_spill_to_disk_are_sorted(tables: dict[int, Table]) -> None:
    group, ranges, task = divided(tables[2], strategy="sort", by=("v", "name"), task_memory_bytes=60_000)
    found = rows_in_order(in_process(group, ranges, SHUFFLE))
    alone = rows_in_order(ranges.rewriter(task, "alone"))
    assert listed(found, "v", "name") == listed(alone, "v", "name")
    assert sorted(found["id"].to_pylist()) == sorted(alone["id"].to_pylist())


def test_files_are_as_large_as_requested(tmp_path: Path) -> None:
    """Even where half of the rows have one key and compress better than the others."""
    table = skewed_table(tmp_path, rows=60_000)
    for by in (("name", "id desc"), ("v", "name")):
        group, ranges, _ = divided(table, strategy="sort", by=by, target_file_size_bytes=25_000)
        result = in_process(group, ranges, SHUFFLE)
        sizes = result.added.ints("file_size_in_bytes")
        assert len(sizes) >= len(group.tasks) > 2
        assert np.allclose(sizes, 25_000, rtol=0.1), (by, sizes)


def test_a_lost_row_fails_the_group(tables: dict[int, Table], folder: Path) -> None:
    group, ranges, _ = divided(tables[2], strategy="sort", by=("v",))
    before = set(folder.rglob("*"))
    with pytest.raises(FloeplanError, match="rows were read and"):
        in_process(group, ranges, SHUFFLE, lose=True)
    assert set(folder.rglob("*")) == before, "nothing is left behind"


@pytest.mark.parametrize(
    ("strategy", "by", "way"),
    [
        ("sort", ("id desc", "v"), RANGE_READS),
        ("sort", ("v",), SHUFFLE),
        ("sort", ("name", "id"), SHUFFLE),
        ("zorder", ("id", "v"), SHUFFLE),
    ],
)
def test_a_plan_tells_how_rows_will_reach_their_task(
    tables: dict[int, Table], strategy: str, by: tuple[str, ...], way: str
) -> None:
    group, ranges, task = divided(tables[2], strategy=strategy, by=by)
    options = replace(ranges.plan.options, range_task_bytes=ranges.task_bytes)
    planned = RewriteDataFilesPlanner(tables[2], options, cache=False).plan_with_stats()
    (found,) = planned.ranges
    assert (found.group_id, found.rows_by) == (task.group_id, way)
    assert found.rows_by == group.summary.rows_by
    assert found.tasks == -(-task.bytes // ranges.task_bytes)
    assert (found.moved_bytes, found.read_bytes < 2 * task.bytes) == (task.bytes if way == SHUFFLE else 0, True)
    assert ("do not follow the order" if strategy == "zorder" else "a shuffle costs 2") in found.reason
    assert planned.to_dict()["ranges"] == [asdict(found)]
    without = replace(options, range_task_bytes=None)
    assert RewriteDataFilesPlanner(tables[2], without, cache=False).plan_with_stats().ranges == ()


@pytest.mark.parametrize("column", ["day", "at", "f", "name"])
def test_bounds_of_any_type_tell_how_rows_will_reach_their_task(tmp_path: Path, column: str) -> None:
    """Rows in order, in files of equal size; nothing is known of the bounds of the last."""
    schema = Schema(
        NestedField(1, "day", DateType(), required=False),
        NestedField(2, "at", TimestampType(), required=False),
        NestedField(3, "f", FloatType(), required=False),
        NestedField(4, "name", StringType(), required=False),
    )
    table = open_catalog(tmp_path).create_table("db.in_order", schema)
    for first in range(0, 1200, 100):
        ids = np.arange(first, first + 100)
        rows = {
            "day": pa.array(ids.astype(np.int32)).cast(pa.date32()),
            "at": pa.array(ids * 10**6).cast(pa.timestamp("us")),
            "f": pa.array(ids.astype(np.float32)),
            "name": [f"{i:05d}" for i in ids],
        }
        if first == 1100:
            with table.transaction() as change:
                change.set_properties({"write.metadata.metrics.default": "none"})
        fp.append(table, pa.table(rows))
    options = RewriteOptions(
        rewrite_all=True, strategy="sort", by=(column,), target_file_size_bytes=2_000, range_task_bytes=9_000
    )
    (found,) = RewriteDataFilesPlanner(table, options, cache=False).plan_with_stats().ranges
    assert found.tasks > 2
    assert found.rows_by == RANGE_READS


def test_small_groups_stay_one_task(tables: dict[int, Table]) -> None:
    table = tables[2]
    _, ranges, task = divided(table, strategy="sort", by=("v",))
    assert ranges.job(task) is not None
    large = ranges_of(ranges.plan, ranges.rewriter, task.bytes)
    assert large.job(task) is None
    plan = RewriteDataFilesPlanner(table, RewriteOptions(rewrite_all=True), cache=False).plan()
    rewriter = GroupRewriter.of(plan)
    assert RangeRewriter.of(plan, rewriter, None, ranges.cores) is None


@pytest.mark.parametrize(
    ("settings", "option", "expected"),
    [
        ({"spark.master": "local[2]"}, None, None),
        ({"spark.master": "local[2]"}, 5000, 5000),
        ({"spark.master": "spark://host:7077", "spark.executor.memory": "1g"}, None, 2**27),
        ({"spark.master": "spark://host:7077", "spark.executor.memory": "1g"}, 7000, 7000),
    ],
)
def test_a_task_sorts_an_eighth_of_its_memory(
    tmp_path: Path, settings: dict[str, str], option: int | None, expected: int | None
) -> None:
    table = skewed_table(tmp_path, rows=60)
    options = RewriteOptions(rewrite_all=True, strategy="sort", by=("id",), range_task_bytes=option)
    plan = RewriteDataFilesPlanner(table, options, cache=False).plan()
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=settings.get))
    rewriter = GroupRewriter.of(plan, core_memory=task_memory(spark))
    found = RangeRewriter.of(plan, rewriter, spark, Cores(1, 2))
    assert (None if found is None else found.task_bytes) == expected


def test_rows_that_go_to_several_partitions(tmp_path: Path) -> None:
    """They are sorted by partition first; curves, which do not follow partitions, stay one task."""
    table = skewed_table(tmp_path)
    with table.update_spec() as update:
        update.add_field("name", BucketTransform(4), "part")
    group, ranges, task = divided(table, strategy="sort", by=("v",), spec="current", target_file_size_bytes=10**6)
    assert task.partition is None
    result, alone = in_process(group, ranges, SHUFFLE), ranges.rewriter(task, "alone")
    assert len(group.tasks) > 2
    assert listed(rows_in_order(result)) == listed(rows_in_order(alone))
    assert result.added.array("partition.1000").to_pylist() == sorted(result.added.array("partition.1000").to_pylist())
    check_map(task, result)
    _, curves, task = divided(table, strategy="zorder", by=("v", "id"), spec="current")
    assert curves.job(task) is None
