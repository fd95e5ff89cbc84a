"""Rewritten groups of random tables: every live row is in the new files once, unchanged, and the map finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.table import StaticTable
from pyiceberg.types import PrimitiveType

from floeplan.errors import UnsupportedError
from floeplan.metadata.files import local_path
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import KEEP, RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.plan.ranges import RANGE_READS, SHUFFLE
from floeplan.rewrite.run.group import GroupResult, PositionMap, PositionMapBuilder, runs_of
from floeplan.rewrite.run.rewrite_group import GroupRewriter, group_tasks
from floeplan.schemas import fields_by_id
from floeplan.write.partitioning import partitions_of
from floeplan.write.target import WriteTarget
from tests.support.oracles.histories import ROW_ID, histories
from tests.support.oracles.history_files import History, moved_partition, row_partition
from tests.support.tables.ranges import in_process, ranges_of

pytestmark = pytest.mark.property


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


def writable_specs(history: History) -> list[int]:
    """Specs with existing source columns and known transforms."""
    return [i for i, s in history.specs.items() if all(f.source_id in fields_by_id(history.schema) for f in s.fields)]


@st.composite
def rewrite_options(draw: st.DrawFn, history: History) -> RewriteOptions:
    strategy = draw(st.sampled_from(("binpack", "sort", "zorder", "hilbert")))
    names = [f.name for f in history.schema.fields if isinstance(f.field_type, PrimitiveType)]
    by = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)) if strategy != "binpack" else []
    directed = [f"{name} {draw(st.sampled_from(('asc', 'desc')))}" for name in by]
    return RewriteOptions(
        rewrite_all=True,
        strategy=strategy,
        by=tuple(directed if strategy == "sort" else by),
        spec=draw(st.sampled_from((KEEP, *writable_specs(history)))),
        target_file_size_bytes=draw(st.sampled_from((1000, 100_000))),
    )


@given(st.data())
def test_rewritten_groups_hold_every_live_row_once(root: Path, data: st.DataObject) -> None:
    history = data.draw(histories(root))
    table = StaticTable.from_metadata(str(history.metadata))
    options = data.draw(rewrite_options(history))
    plan = RewriteDataFilesPlanner(table, options, cache=False).plan()
    try:
        rewriter = GroupRewriter.of(plan)
        results = [rewriter(task, "try") for task in group_tasks(plan)]
    except UnsupportedError as error:
        assume("beyond that type" not in str(error))  # a decimal that no partition value can represent
        raise
    check_rows(history, results)
    for result in results:
        check_map(history, result)
        check_partitions(history, plan, result)


@given(st.data())
def test_groups_in_ranges_hold_every_live_row_once(root: Path, data: st.DataObject) -> None:
    """Sorted and clustered groups, divided as on a cluster, by a shuffle and by range reads."""
    history = data.draw(histories(root))
    table = StaticTable.from_metadata(str(history.metadata))
    options = data.draw(rewrite_options(history).filter(lambda chosen: chosen.strategy != "binpack"))
    plan = RewriteDataFilesPlanner(table, options, cache=False).plan()
    rewriter = GroupRewriter.of(plan)
    ranges = ranges_of(plan, rewriter, data.draw(st.sampled_from((400, 5_000))))
    results = []
    try:
        for task in group_tasks(plan):
            group = ranges.divide(task)
            way = data.draw(st.sampled_from((SHUFFLE, RANGE_READS) if group.reads else (SHUFFLE,)))
            results.append(in_process(group, ranges, way))
    except UnsupportedError as error:
        assume("beyond that type" not in str(error))
        raise
    check_rows(history, results)
    sources = {file.path: [row[ROW_ID] for row in file.rows] for file in history.snapshots[-1].files(0)}
    for result in results:
        check_partitions(history, plan, result)
        new = {path: [row[ROW_ID] for row in rows_of(path)] for path in result.added.path.to_pylist()}
        moved = 0
        for path in result.removed_data:
            for at, number in enumerate(sources[path]):
                found = [
                    new[to][int(one)] for to, many in result.position_map.remap(path, [at]).items() for one in many
                ]
                assert found in ([], [number])
                moved += len(found)
        assert moved == sum(map(len, new.values()))


def rows_of(path: str) -> list[dict[int, Any]]:
    """The rows of a new file by field id."""
    table = pq.read_table(local_path(path))
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in table.schema]
    return [dict(zip(ids, row, strict=True)) for row in zip(*map(_canonical, table.columns), strict=True)]


def _canonical(column: pa.ChunkedArray) -> list[Any]:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    listed: list[Any] = column.to_pylist()
    return listed


def check_rows(history: History, results: list[GroupResult]) -> None:
    """The live rows of all files, each once, with the values a scan would show."""
    assert {path for r in results for path in r.removed_data} == {f.path for f in history.snapshots[-1].files(0)}
    fields = [field.field_id for field in history.schema.fields]
    written = [row for result in results for path in result.added.path.to_pylist() for row in rows_of(path)]
    found = sorted((row[ROW_ID], repr([row[i] for i in fields])) for row in written)
    live = [row for _, _, row in history.live(history.snapshots[-1], history.schema)]
    assert found == sorted((row[ROW_ID], repr([row[i] for i in fields])) for row in live)


def check_map(history: History, result: GroupResult) -> None:
    """Each mapped position has the expected row, identified by its row number column."""
    moved = result.position_map
    assert isinstance(moved, PositionMap)
    sources = {file.path: file for file in history.snapshots[-1].files(0)}
    new = {path: [row[ROW_ID] for row in rows_of(path)] for path in moved.targets}
    assert set(moved.targets) == set(result.added.path.to_pylist())
    assert moved.count.sum() == sum(map(len, new.values())) == moved.target_rows.sum()
    for source, path in enumerate(moved.sources):
        of_source = np.flatnonzero(moved.source == source)
        positions = [p for i in of_source for p in range(moved.source_start[i], moved.source_start[i] + moved.count[i])]
        found = moved.remap(path, np.arange(len(sources[path].rows)))
        numbers = sorted(new[target][at] for target, places in found.items() for at in places)
        assert numbers == sorted(sources[path].rows[at][ROW_ID] for at in positions)
        for at in positions:
            ((target, places),) = moved.remap(path, [at]).items()
            assert new[target][int(places[0])] == sources[path].rows[at][ROW_ID]


def check_partitions(history: History, plan: RewriteDataFilesPlan, result: GroupResult) -> None:
    """New files have the requested spec, and their rows the partition of the file.

    That is the partition of the old files or, if metadata does not prove it, the partition of each row.
    """
    group = next(g for g in plan.groups if g.group_id == result.group_id)
    union = WriteTarget.of(plan.target.table).union
    assert set(result.added.spec_id.tolist()) <= {group.output_spec_id}
    if plan.options.spec == KEEP:
        assert {p.key for p in partitions_of(result.added, union)} <= {group.key}
        return
    partition_of = moved_partition if group.proven else row_partition
    sources = {file.path: file for file in history.snapshots[-1].files(0)}
    partitions = dict(zip(result.added.path.to_pylist(), partitions_of(result.added, union), strict=True))
    for path in result.removed_data:
        for at, row in enumerate(sources[path].rows):
            values = partition_of(history, sources[path], row, group.output_spec_id)
            expected = PartitionKey.from_tuple(union.spec(group.output_spec_id), values)
            assert all(partitions[target].key == expected for target in result.position_map.remap(path, [at]))


@given(st.data())
def test_maps_of_any_row_order(data: st.DataObject) -> None:
    """Rows read in runs from several files, shuffled, and written to several new files."""
    counts = data.draw(st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=3))
    builder, where = PositionMapBuilder([f"s{i}" for i in range(len(counts))]), []
    for source, sizes in enumerate(counts):
        starts = np.cumsum([0, *(2 * size for size in sizes)])[:-1]
        builder.add_read(source, np.asarray(starts, dtype=np.int64), np.asarray(sizes, dtype=np.int64))
        where += [(source, int(s) + i) for s, n in zip(starts, sizes, strict=True) for i in range(n)]
    order = data.draw(st.permutations(range(len(where))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    portions = [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if b > a]
    for number, portion in enumerate(portions):
        middle = len(portion) // 2
        sizes = [n for n in (middle, len(portion) - middle) if n]
        names = [f"t{number}.{i}" for i in range(len(sizes))]
        numbers = np.array(portion, dtype=np.int64)
        builder.add_written(names, sizes, [runs_of(numbers[:1]), runs_of(numbers[1:])])
    made = builder.finish()
    expected = {}
    for number, portion in enumerate(portions):
        middle = len(portion) // 2
        for at, row in enumerate(portion):
            file, place = (0, at) if at < middle else (1 if middle else 0, at - middle)
            expected[where[row]] = (f"t{number}.{file}", place)
    found = {
        (source, position): (target, int(places[0]))
        for source, position in where
        for target, places in made.remap(f"s{source}", [position]).items()
    }
    assert found == expected
    assert made.remap("s0", [10_000]) == {}
