"""The memory of a rewrite task does not depend on the size of its group.

A separate process does the work. The kernel reports its peak memory, and Arrow the peak memory of rows, which the
budget of a sort limits. Beyond the budget, only the documented overhead is allowed. The files of a group are links to
one file, so that only the output needs storage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from tests.support.tables.two_specs import catalog

pytestmark = [pytest.mark.load, pytest.mark.matrix]

LARGE = os.environ.get("FLOEPLAN_LOAD") == "large"
FILES, ROWS = (280, 1_000_000) if LARGE else (6, 100_000)
"""5 GB, or 10 MB."""
TASK_MEGABYTES = 600
SORT_MEMORY = (512 if LARGE else 16) * 1024**2
ROW_GROUP = 128 * 1024**2
"""Buffered output rows."""
LEAST_BUDGET, MAP_BYTES = 600 * 1024**2, 8
"""The minimum memory of a sort that spills to disk, and the bytes per row of the position map."""
COLUMNS = {"id": pa.int64(), "few": pa.string(), "n": pa.int64(), "note": pa.string()}
SCHEMA = pa.schema(
    [
        pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})
        for number, (name, type_) in enumerate(COLUMNS.items(), 1)
    ]
)
TASK = """
import sys
from pathlib import Path
import pyarrow as pa
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.run.rewrite_group import GroupRewriter
from floeplan.rewrite.run.rewrite_group import group_tasks
from tests.support.tables.two_specs import catalog

strategy, memory = sys.argv[2], int(sys.argv[3])
by = ("n",) if strategy == "sort" else ()
options = RewriteOptions(rewrite_all=True, strategy=strategy, by=by, target_file_size_bytes=2**40)
plan = RewriteDataFilesPlanner(catalog(Path(sys.argv[1])).load_table("db.t"), options, cache=False).plan()
(task,) = group_tasks(plan)
result = GroupRewriter.of(plan, memory=memory)(task, "attempt")
status = Path("/proc/self/status").read_text().splitlines()
most = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(int(result.added.record_count.sum()), len(result.added), most * 1024, pa.default_memory_pool().max_memory())
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 2**62, ROWS)
    columns = [np.arange(ROWS), [f"k{i % 50}" for i in range(ROWS)], numbers, [f"note {n:x}" for n in numbers]]
    first = tmp_path / "0.parquet"
    settings = {"compression": "zstd", "compression_level": 3, "max_rows_per_page": 20_000, "row_group_size": ROWS // 4}
    rows = pa.table(columns, schema=SCHEMA)
    pq.write_table(rows, first, write_page_index=True, use_dictionary=["few"], **settings)
    paths = [tmp_path / f"{number}.parquet" for number in range(FILES)]
    for path in paths[1:]:
        path.hardlink_to(first)
    made = catalog(tmp_path).create_table("db.t", SCHEMA)
    made.add_files([str(path) for path in paths], check_duplicate_files=False)
    return made


def rewritten(folder: Path, strategy: str, memory: int = 0) -> list[int]:
    """Rows and files of the rewritten group, the peak bytes of the process, and those of its rows."""
    command = [sys.executable, "-c", TASK, str(folder), strategy, str(memory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1000)


@pytest.mark.parametrize("level", [None, "1"])
def test_packing_takes_the_same_memory_for_any_group(tmp_path: Path, table: Table, level: str | None) -> None:
    """Pages are copied, or rows encoded again because a compression level is configured."""
    if level is not None:
        with table.transaction() as change:
            change.set_properties({"write.parquet.compression-level": level})
    rows, files, taken, _ = rewritten(tmp_path, "binpack")
    assert (rows, files) == (ROWS * FILES, 1)
    (made,) = (tmp_path / "db" / "t" / "data").iterdir()
    assert (beginning(made) == beginning(tmp_path / "0.parquet")) is (level is None), "the first page"
    assert taken <= TASK_MEGABYTES * 10**6


def test_rows_that_are_sorted_stay_within_their_budget(tmp_path: Path, table: Table) -> None:
    rows, files, taken, of_rows = rewritten(tmp_path, "sort", SORT_MEMORY)
    assert (rows, files) == (ROWS * FILES, 1)
    assert of_rows <= SORT_MEMORY + ROW_GROUP
    assert taken <= max(SORT_MEMORY, LEAST_BUDGET) + MAP_BYTES * rows
