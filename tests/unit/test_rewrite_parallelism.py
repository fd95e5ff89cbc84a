"""Cores per group: how they are assigned, and that any number produces the same files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import FloeplanError
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.source import open_source
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.run.group import GroupResult, GroupTask
from floeplan.rewrite.run.rewrite_group import Cores, GroupRewriter, assign_cores, cores_of, group_tasks
from floeplan.rewrite.run.sorting import BufferedRows
from floeplan.rewrite.strategies.base import RowOrder, parse_order
from floeplan.tasks.runner import parallel_map
from tests.support.tables.two_specs import EVENTS, catalog, events

pytestmark = pytest.mark.unit

SMALL_GROUPS = {"write.parquet.row-group-size-bytes": "40000"}


def made(folder: Path, properties: dict[str, str]) -> Table:
    table = catalog(folder).create_table("db.t", EVENTS, properties=properties)
    for first in (4000, 0, 2000):
        fp.append(table, events(first, first + 2000))
    fp.delete(table, "id % 10 = 3", mode="merge-on-read")
    return table


def tasks_of(table: Table, **options: Any) -> tuple[GroupRewriter, list[GroupTask]]:
    plan = RewriteDataFilesPlanner(table, RewriteOptions(rewrite_all=True, **options), cache=False).plan()
    return GroupRewriter.of(plan), group_tasks(plan)


def rows_of(result: GroupResult) -> pa.Table:
    return pa.concat_tables([pq.read_table(path.removeprefix("file://")) for path in result.added.path.to_pylist()])


@pytest.mark.parametrize("cores", [2, 5])
def test_any_number_of_cores_writes_the_same_files(tmp_path: Path, cores: int) -> None:
    table = made(tmp_path, SMALL_GROUPS)
    task, tasks = tasks_of(table, strategy="sort", by=("v desc", "id"), target_file_size_bytes=24_000)
    results = [task(replace(tasks[0], cores=number), f"of-{number}") for number in (1, cores)]
    one, other = results
    assert rows_of(one).equals(rows_of(other))
    assert rows_of(one)["v"].to_pylist() == rows_of(one).sort_by([("v", "descending")])["v"].to_pylist()
    assert len(one.added) > 1
    assert one.added.record_count.tolist() == other.added.record_count.tolist()
    assert one.position_map.offset.tolist() == other.position_map.offset.tolist()
    footer = read_footer(open_source(other.added.path[0].as_py(), table.io))
    assert footer.num_row_groups > 1
    assert all((footer.chunks(leaf).column_index_offset > 0).all() for leaf in footer.leaves)


@pytest.mark.parametrize("properties", [{}, {"write.parquet.bloom-filter-enabled.column.id": "true"}])
def test_rows_are_found_where_the_map_says(tmp_path: Path, properties: dict[str, str]) -> None:
    """Columns written in parallel or, because of Bloom filters, one row group after another."""
    table = made(tmp_path, SMALL_GROUPS | properties)
    task, tasks = tasks_of(table, strategy="zorder", by=("v", "id"), target_file_size_bytes=24_000)
    result = task(replace(tasks[0], cores=2), "attempt")
    source = tasks[0].files[1].file.path
    ids = pq.read_table(source.removeprefix("file://"))["id"]
    positions = [number for number, value in enumerate(ids.to_pylist()) if value % 10 != 3][::7]
    found = result.position_map.remap(source, positions)
    moved = [
        value
        for path, places in found.items()
        for value in pq.read_table(path.removeprefix("file://"))["id"].take(pa.array(places)).to_pylist()
    ]
    assert sorted(moved) == sorted(ids.take(pa.array(positions)).to_pylist())


def test_cores_are_distributed_by_bytes(tmp_path: Path) -> None:
    _, (task,) = tasks_of(made(tmp_path, {}))

    def shared(sizes: list[int], cores: Cores) -> list[int]:
        files = [(replace(task.files[0], file=replace(task.files[0].file, file_size=size)),) for size in sizes]
        return [one.cores for one in assign_cores([replace(task, files=some) for some in files], cores)]

    assert shared([100], Cores(2, 2)) == [2]
    assert shared([100, 100], Cores(2, 2)) == [1, 1]
    assert shared([1000, 10], Cores(2, 2)) == [2, 1], "a small group does not reduce its cores"
    assert shared([100], Cores(4, 400)) == [4], "one executor has no more"
    assert shared([100, 300], Cores(16, 16)) == [4, 12]
    assert shared([1] * 50, Cores(4, 8)) == [1] * 50


def test_the_cores_of_a_session() -> None:
    context = SimpleNamespace(defaultParallelism=12)
    cluster = {"spark.master": "spark://h:7077", "spark.executor.cores": "3"}
    assert cores_of(SimpleNamespace(conf=cluster, sparkContext=context)) == Cores(3, 12)  # type: ignore[arg-type]
    local = SimpleNamespace(conf={"spark.master": "local[4]"}, sparkContext=SimpleNamespace(defaultParallelism=4))
    assert cores_of(local) == Cores(4, 4)  # type: ignore[arg-type]
    unknown = SimpleNamespace(conf={"spark.master": "yarn"}, sparkContext=context)
    assert cores_of(unknown) == Cores(1, 12)  # type: ignore[arg-type]
    here = cores_of(None)
    assert here.per_executor == here.total >= 1


@pytest.mark.parametrize("threads", [1, 3])
def test_results_and_errors_come_in_order(threads: int) -> None:
    computed = list[int]()

    def things() -> Iterator[int]:
        for number in range(100):
            computed.append(number)
            yield number

    def make(number: int) -> int:
        if number == 7:
            raise FloeplanError("seven")
        return number * number

    made = parallel_map(make, things(), threads)
    assert isinstance(made, Generator)
    assert [next(made) for _ in range(7)] == [number * number for number in range(7)]
    with closing(made), pytest.raises(FloeplanError, match="seven"):
        next(made)
    assert len(computed) <= 8 + threads
    assert list(parallel_map(abs, [-1, -2], threads)) == [1, 2]


def test_a_column_of_a_group_is_one_chunk_and_chunks_are_released(tmp_path: Path) -> None:
    schema = catalog(tmp_path).create_table("db.t", EVENTS).schema()
    pieces = [events(first, first + 10) for first in (20, 0, 10)]
    held = BufferedRows.of(pieces, RowOrder(schema, parse_order(("id",), schema)), 2)
    assert not pieces
    assert all(column.num_chunks == 1 for column in held.rows.columns)
    assert held.sorted_rows(5, 10)["id"].to_pylist() == list(range(5, 15))
    assert held.sorted_rows(7, 2, ["id"]).to_pydict() == {"id": [7, 8]}
    assert np.array_equal(np.sort(held.permutation), np.arange(30))
