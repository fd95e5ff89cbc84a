"""Groups sorted in ranges on a standalone cluster that loses tasks, files and processes: every row is committed once.

Faults are placed when a task of a range opens its output file. What a fault leaves behind, ``remove-orphans`` finds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from pyiceberg.transforms import TruncateTransform

import floeplan as fp
from tests.support.faults import killed_workers as killing_io
from tests.support.faults.killed_workers import own_pid
from tests.support.servers import DRIVER, Client, client, spark_cluster, spark_worker
from tests.support.tables.commits import fork, leftovers
from tests.support.tables.ranges import skewed_rows, skewed_table, sort_in_ranges, sort_partitions

pytestmark = [pytest.mark.services, pytest.mark.matrix]

SPECULATION = DRIVER | {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
}
TOLERANT = DRIVER | {"spark.excludeOnFailure.taskAndStage.enabled": "true"}
"""An executor that shuts down refuses tasks for a moment. Spark sends it the same task again at once, and fails the job
after four times (SPARK-57465), unless executors are excluded for the tasks that failed on them. With that, the four
failures of a task are on four executors. Other tasks may still run there."""
BY = {"shuffle": ("v", "name"), "range-reads": ("id",)}


@pytest.fixture(scope="module")
def local_dirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where executors keep shuffle files."""
    return tmp_path_factory.mktemp("local-dirs")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers keep the logs of their executors."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster_url(work: Path, local_dirs: Path) -> Iterator[str]:
    with spark_cluster(work, environment={"SPARK_LOCAL_DIRS": str(local_dirs)}) as url:
        yield url


@pytest.fixture(scope="module")
def started() -> Iterator[ExitStack]:
    """Ends what tests started with the cluster."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def cluster(cluster_url: str) -> Iterator[Client]:
    with client(cluster_url, TOLERANT) as opened:
        yield opened


def sorted_by_one_task(table: Table, way: str) -> list[str]:
    alone = fork(table, "db.alone")
    fp.rewrite_data_files(alone, strategy="sort", by=BY[way], options={"rewrite-all": "true"})
    return rows_of(alone)


def rows_of(table: Table) -> list[str]:
    return list(map(repr, fp.plan_scan(table.refresh()).to_arrow().to_pylist()))


def sort_with_fault(cluster: Client, table: Table, way: str, fault: str, folder: Path) -> None:
    """Sort the table and check that it has the rows and files of a sort without faults."""
    expected = sorted_by_one_task(table, way)
    (folder / "kill").write_text(fault)
    harmful = {
        PY_IO_IMPL: killing_io.NAME,
        killing_io.KILL: str(folder / "kill"),
        killing_io.SPARED: str(cluster.run(own_pid)),
    }
    ranges = cluster.run(sort_in_ranges, dict(table.catalog.properties) | harmful, table.name(), BY[way])
    assert not list(folder.glob("kill*")), "nothing happened"
    assert [one["rows_by"] for one in ranges] == [way]
    assert ranges[0]["tasks"] > 2
    assert rows_of(table) == expected
    check_files(table)


def check_files(table: Table) -> None:
    assert [finding for finding in fp.doctor(table).findings if finding.severity == "error"] == []
    in_a_month = time.time() + 30 * 86_400
    assert set(fp.remove_orphans(table, now_s=in_a_month).orphans) == leftovers(table)


@pytest.mark.parametrize("way", BY)
def test_speculative_copies_of_tasks_are_committed_once(cluster_url: str, tmp_path: Path, way: str) -> None:
    """The first attempt at a task waits until Spark has made a copy of it; then both write."""
    os.mkfifo(tmp_path / "pipe")
    with client(cluster_url, SPECULATION) as speculating:
        sort_with_fault(speculating, skewed_table(tmp_path / "t"), way, f"straggler {tmp_path / 'pipe'}", tmp_path)
    assert not (tmp_path / "straggler").exists(), "no copy was made"


def test_a_rewrite_continues_after_its_driver_was_killed(cluster_url: str, tmp_path: Path) -> None:
    """With partial progress: the first group is committed, the files of the second are left behind."""
    table = skewed_table(tmp_path / "t", rows=0)
    with table.update_spec() as change:
        change.add_field("id", TruncateTransform(3000), "part")
    for first in range(0, 6000, 1000):
        fp.append(table, skewed_rows(first, 1000))
    before, place = sorted(rows_of(table)), (dict(table.catalog.properties), table.name())
    with pytest.raises(BrokenProcessPool), client(cluster_url, DRIVER) as killed:
        killed.run(sort_partitions, *place, 2)
    assert len(table.refresh().snapshots()) == 7
    assert sorted(rows_of(table)) == before
    left = leftovers(table)
    assert {Path(path).suffix for path in left} >= {".parquet", ".rowmap"}
    check_files(table)
    with client(cluster_url, DRIVER) as again:
        assert again.run(sort_partitions, *place) == (3, 1), "only what was left"
    assert len(table.refresh().snapshots()) == 8
    assert sorted(rows_of(table)) == before
    assert leftovers(table) >= left
    check_files(table)


def test_lost_shuffle_files_are_written_again(cluster: Client, tmp_path: Path, local_dirs: Path) -> None:
    sort_with_fault(cluster, skewed_table(tmp_path / "t"), "shuffle", f"shuffle {local_dirs}", tmp_path)


@pytest.mark.parametrize("way", BY)
def test_a_task_without_memory_runs_again(cluster: Client, tmp_path: Path, way: str) -> None:
    sort_with_fault(cluster, skewed_table(tmp_path / "t"), way, "memory", tmp_path)


@pytest.mark.parametrize("way", BY)
def test_an_executor_without_memory_is_replaced(cluster: Client, tmp_path: Path, work: Path, way: str) -> None:
    """The JVM exits while it receives the result of a task, whose files are then written again.

    Its heap has 512 MiB. The result fits the memory of Arrow, which is as large, but not its copies on the heap.
    """
    before = executors_out_of_memory(work)
    sort_with_fault(cluster, skewed_table(tmp_path / "t"), way, f"heap {300 * 2**20}", tmp_path)
    assert executors_out_of_memory(work) == before + 1


def executors_out_of_memory(work: Path) -> int:
    return sum("java.lang.OutOfMemoryError" in log.read_text() for log in work.glob("*/app-*/*/stderr"))


@pytest.mark.parametrize("way", BY)
def test_the_tasks_of_a_killed_worker_run_elsewhere(
    cluster: Client, cluster_url: str, started: ExitStack, tmp_path: Path, way: str
) -> None:
    """Its executor dies with it, and so do the shuffle files that it has; another worker joins the cluster before."""
    started.enter_context(spark_worker(cluster_url, tmp_path / "worker", "127.0.0.9"))
    sort_with_fault(cluster, skewed_table(tmp_path / "t"), way, "worker", tmp_path)
