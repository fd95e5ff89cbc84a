"""A group sorted in ranges within this process: what its tasks do on Spark, one after the other."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import floeplan as fp
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.plan.ranges import SHUFFLE
from floeplan.rewrite.run.group import GroupResult, GroupTask
from floeplan.rewrite.run.range_task import RangeResult, write_range
from floeplan.rewrite.run.ranges import DividedGroup, RangeRewriter
from floeplan.rewrite.run.rewrite_group import Cores, GroupRewriter, group_tasks
from floeplan.tasks import runner
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.commits import open_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", DoubleType(), required=False),
    NestedField(3, "name", StringType(), required=False),
)


def skewed_rows(first: int, count: int) -> pa.Table:
    """Ids in order; half of the values of ``v`` are equal, some are null, some are NaN."""
    rng = np.random.default_rng(first)
    v = rng.normal(size=count).round(2)
    v[rng.random(count) < 0.5] = 0.5
    v[rng.random(count) < 0.05] = np.nan
    names = pa.array([f"name {i}" for i in rng.integers(0, 500, count)])
    ids, values = np.arange(first, first + count), pa.array(v, mask=rng.random(count) < 0.1)
    return pa.table({"id": ids, "v": values, "name": names})


def skewed_table(folder: Path, rows: int = 6000, version: int = 2) -> Table:
    """Six files, the tenth row of ten deleted by position."""
    folder.mkdir(exist_ok=True)
    catalog = open_catalog(folder)
    with writable_metadata(catalog._load_file_io()):
        table = catalog.create_table("db.skewed", SCHEMA, properties={"format-version": str(version)})
    for first in range(0, rows, max(1, rows // 6)):
        fp.append(table, skewed_rows(first, rows // 6))
    fp.delete(table, "id % 10 = 3", mode="merge-on-read")
    return table


def ranges_of(plan: RewriteDataFilesPlan, rewriter: GroupRewriter, task_bytes: int) -> RangeRewriter:
    """The rewriter of ranges, without a session."""
    return RangeRewriter(plan, rewriter, None, Cores(1, 2), task_bytes)  # type: ignore[arg-type]


def divided(table: Table, **options: Any) -> tuple[DividedGroup, RangeRewriter, GroupTask]:
    """The only group of a table, divided into ranges of a few files."""
    chosen = RewriteOptions(rewrite_all=True, **{"target_file_size_bytes": 5_000} | options)
    plan = RewriteDataFilesPlanner(table, chosen, cache=False).plan()
    (task,) = group_tasks(plan)
    rewriter = GroupRewriter.of(plan, memory=chosen.task_memory_bytes)
    ranges = ranges_of(plan, rewriter, task.bytes // 5 if task.outputs > 4 else task.bytes // 3)
    return ranges.divide(task), ranges, task


def in_process(group: DividedGroup, ranges: RangeRewriter, way: str, *, lose: bool = False) -> GroupResult:
    """Run all tasks of a group; ``lose`` drops one row on its way."""
    received: dict[int, list[pa.Table]] = defaultdict(list)
    if way == SHUFFLE:
        for batch in reversed(group.pieces):
            for number, rows in group.rows.divide(group.cuts, batch):
                received[number].append(rows.slice(1) if lose else rows)
                lose = False
    else:
        for number, (condition, sources) in enumerate(group.reads):
            received[number] = list(group.rows.of_range(group.cuts, number, condition, sources))
    results = list[RangeResult]()
    for number in sorted(received):
        task = group.tasks[number]
        results.append(write_range(ranges.rewriter, group.rows.order, task, received[number], f"range{number}"))
    return ranges.result(group, results)


def sort_in_ranges(
    spark: SparkSession, properties: Mapping[str, str], name: Sequence[str], by: Sequence[str]
) -> list[dict[str, Any]]:
    """Sort a small table in Spark tasks as if it were large; returns how its groups were divided."""
    runner.LOCAL_BYTES = -1
    catalog = SqlCatalog("local", **properties)
    options = {"rewrite-all": "true", "target-file-size-bytes": "5000", "range-task-bytes": "8000"}
    done = fp.rewrite_data_files(catalog.load_table(tuple(name)), spark=spark, strategy="sort", by=by, options=options)
    catalog.close()
    found: list[dict[str, Any]] = done.to_dict()["ranges"]
    return found


def sort_partitions(
    spark: SparkSession, properties: Mapping[str, str], name: Sequence[str], die_at_commit: int | None = None
) -> tuple[int, int]:
    """Sort each partition in ranges and commit it alone; returns the files that were rewritten and the commits.

    The process is killed before the commit of a number, counted from 1.
    """
    runner.LOCAL_BYTES = -1
    catalog = SqlCatalog("local", **properties)
    options = {
        "rewrite-all": "true",
        "target-file-size-bytes": "5000",
        "range-task-bytes": "8000",
        "partial-progress.enabled": "true",
        "partial-progress.max-commits": "10",
    }
    commits = 0

    def on_step(step: str) -> None:
        nonlocal commits
        commits += step == "before-commit"
        if commits == die_at_commit:
            os.kill(os.getpid(), signal.SIGKILL)

    done = fp.rewrite_data_files(
        catalog.load_table(tuple(name)),
        spark=spark,
        strategy="sort",
        by=["v", "name"],
        options=options,
        commit=CommitOptions(on_step=on_step),
    )
    catalog.close()
    assert len(done.ranges) == len(done.planning.plan.groups)
    return done.files_rewritten, len(done.snapshot_ids)
