"""`make profiles`: CPU profiles of the three hottest paths; writes docs/images/profile-*.svg and prints tables.

Planning: one scan of 400,000 files, uncached and from the cache. Tasks: a delete and a rewrite of a table of 2,000,000
rows, run in this process to be sampled. Reading: a table with 5 % of its rows deleted by position, on Spark, by kind of
process and thread and inside the tasks, compared with Iceberg's own reader.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import process_tree
from bench.flame import bars, flame, largest
from bench.jvm_samples import task_samples
from bench.planning_tables import evolved
from bench.read_tables import make_tables
from bench.results import HERE
from bench.sampler import Sampler, Stack, in_turn
from bench.spark_session import start_session
from floeplan.tasks import runner as dml_runner
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IMAGES = HERE.parent / "docs" / "images"
WHERE = "region = 'eu' AND ts >= '2023-01-01' AND ts < '2023-01-31'"
FILES, ROWS, TURNS, READS, AT_ONCE, PLANS = 8, 250_000, 30, 30, 10, 5
TASKS = "Spark tasks"
THREADS = {
    "Executor task": TASKS,
    "C1 CompilerThre": "JIT compiler",
    "C2 CompilerThre": "JIT compiler",
    "GC Thread": "garbage collector",
    "G1": "garbage collector",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FLOEPLAN_CACHE": f"{folder}/cache", "FLOEPLAN_REPORTS": "off"}
        _planning()
        lake = Lake(Path(folder))
        tables = make_tables(lake.open_catalog(), FILES, ROWS, 2)
        _tasks(tables)
        _reading(lake, tables)


def _planning() -> None:
    metadata = str(evolved(4_000))
    cold = fp.ScanOptions(report=False, footers=False, cache=False)
    fp.plan_scan(str(evolved(40)), WHERE, options=cold)  # imports are not part of planning
    title = "a plan of 30 days of one region of 400,000 files, nothing cached"
    _drawn("planning", title, lambda: fp.plan_scan(metadata, WHERE, options=cold))
    warm = fp.ScanOptions(report=False, footers=False)
    fp.plan_scan(metadata, WHERE, options=warm)
    _drawn("planning-cached", "the same plan from the cache", lambda: fp.plan_scan(metadata, WHERE, options=warm))


def _tasks(tables: dict[str, Table]) -> None:
    """Every turn deletes other rows; the first one imports modules and is not sampled."""
    table, values = tables["clean"], iter(range(100))
    options = {"rewrite-all": "true"}

    def delete() -> None:
        value = next(values)
        fp.delete(table.refresh(), f"qty = {10 * value} OR note = 'note {value}'", mode="merge-on-read")

    def rewrite() -> None:
        fp.rewrite_data_files(table.refresh(), strategy="sort", by=["region", "ts"], options=options)

    with in_turn(dml_runner):
        delete()
        _drawn("delete", "a delete by two columns", delete)
        rewrite()
        _drawn("rewrite", "a rewrite that sorts by two columns", rewrite, turns=2)


def _reading(lake: Lake, tables: dict[str, Table]) -> None:
    spark = start_session(lake)
    name = ".".join((NAME, *tables["positions"].name()))
    contenders: dict[str, Callable[[], DataFrame]] = {
        "Floeplan": lambda: fp.read(spark, tables["positions"]),
        "Iceberg": lambda: spark.table(name),
    }
    try:
        for _ in range(TURNS):
            for read in contenders.values():
                _all_columns(read())
        used = _read_in_turns(contenders)
        for who, read in contenders.items():
            _draw_tasks(spark, who, read, used[who][TASKS])
    finally:
        spark.stop()
    title = f"reading {FILES * ROWS:,} rows, 5 % of them deleted by position: CPU seconds"
    (IMAGES / "profile-reading-threads.svg").write_text(bars(title, used))
    for who, kinds in used.items():
        print(f"\n# reading, {who}\n" + "\n".join(f"{value:8.2f} s  {kind}" for kind, value in kinds.items()))


def _read_in_turns(contenders: dict[str, Callable[[], DataFrame]]) -> dict[str, dict[str, float]]:
    """CPU seconds of one read of each contender by kind of process and thread.

    Contenders alternate: the JVM compiles code all the time, so a later contender would have an advantage.
    """
    used: dict[str, Counter[str]] = {who: Counter() for who in contenders}
    for _ in range(READS // AT_ONCE):
        for who, read in contenders.items():
            used[who].update(_threads(lambda read=read: [_all_columns(read()) for _ in range(AT_ONCE)]))
    return {
        who: {kind: seconds / READS for kind, seconds in kinds.most_common() if seconds >= 0.01 * READS}
        for who, kinds in used.items()
    }


def _draw_tasks(spark: SparkSession, who: str, read: Callable[[], DataFrame], seconds: float) -> None:
    """Draw the profile of the tasks of a read."""
    with task_samples(spark) as samples:
        for _ in range(READS):
            _all_columns(read())
    share = seconds / samples.total()
    name = "reading" if who == "Floeplan" else f"reading-{who.lower()}"
    title = f"the tasks that read {FILES * ROWS:,} rows, 5 % deleted, {who}"
    _draw(name, title, {stack: number * share for stack, number in samples.items()})


def _all_columns(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _threads(act: Callable[[], object]) -> dict[str, float]:
    """CPU seconds of an action by kind of process and thread."""
    before = _thread_ticks()
    act()
    used: Counter[str] = Counter()
    for key, (kind, ticks) in _thread_ticks().items():
        used[kind] += (ticks - before.get(key, (kind, 0))[1]) / os.sysconf("SC_CLK_TCK")
    return dict(used)


def _thread_ticks() -> dict[tuple[int, int], tuple[str, int]]:
    found = {}
    for process in process_tree():
        for thread in _listed(Path(f"/proc/{process}/task")):
            try:
                name = (thread / "comm").read_text().strip()
                program = Path(f"/proc/{process}/comm").read_text().strip()
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[process, int(thread.name)] = _kind(process, program, name), int(fields[11]) + int(fields[12])
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _kind(process: int, program: str, thread: str) -> str:
    if program != "java":
        return "driver, Python" if process == os.getpid() else "Python workers"
    return next((kind for start, kind in THREADS.items() if thread.startswith(start)), "rest of the JVM")


def _drawn(name: str, title: str, act: Callable[[], object], turns: int = PLANS) -> None:
    """The flame graph and the table of an action, as the mean of several turns."""
    with Sampler() as sampler:
        for _ in range(turns):
            act()
    _draw(name, title, {stack: used / turns for stack, used in sampler.seconds.items()})


def _draw(name: str, title: str, seconds: dict[Stack, float]) -> None:
    (IMAGES / f"profile-{name}.svg").write_text(flame(title, seconds))
    total = sum(seconds.values())
    print(f"\n# {title}: {total:.2f} s of CPU")
    for function, used in largest(seconds, 12):
        print(f"{used:8.3f} s {used / total:5.0%}  {function}")


if __name__ == "__main__":
    main()
