"""Contenders that plan a scan; as a program, runs one of them in a new process.

Prints JSON: for each plan the CPU seconds, the files kept and the rows in them, and the peak memory of the process. The
paths kept are written to a file after the clock has stopped. Everything is imported before it starts.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # Arrow imports it on first use, which is not part of planning
import pyarrow as pa
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyiceberg.table import StaticTable

from floeplan.metadata.avro.decoder import AvroReader
from floeplan.metadata.files import read_files
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import TRUE
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import evaluate_manifests
from scripts.fetch_jars import ensure_jars

JAVA_ITERATIONS = 6
"""Plans of one query in the JVM; the best of them counts, so the first ones are warm-up."""

BETWEEN_QUERIES = "; "

Test = tuple[str, str, str | float]

QUERIES: dict[str, tuple[Test, ...]] = {
    "one day, one region": (
        ("ts", ">=", "2022-06-15T00:00:00+00:00"),
        ("ts", "<", "2022-06-16T00:00:00+00:00"),
        ("region", "=", "eu"),
    ),
    "30 days": (("ts", ">=", "2022-06-01T00:00:00+00:00"), ("ts", "<", "2022-07-01T00:00:00+00:00")),
    "bounds only": (("amount", ">=", 500.0), ("amount", "<", 510.0)),
    "no filter": (),
}
JAVA_OPERATORS = {">=": "greaterThanOrEqual", "<": "lessThan", "=": "equal"}
COLD = ScanOptions(footers=False, cache=False, report=False)


@dataclass(frozen=True, slots=True)
class Kept:
    """The files a planner kept. ``paths`` is called after the clock has stopped."""

    files: int
    rows: int | None = None
    paths: Callable[[], list[str]] | None = None


def text(query: str, stamp: str = "") -> str | None:
    """A query as PyIceberg's text or, with ``stamp`` before its timestamps, as SQL; ``None`` for every row."""
    if not QUERIES[query]:
        return None
    literal = {"ts": f"{stamp}'{{}}'", "region": "'{}'", "amount": "{}"}
    return " AND ".join(f"{column} {op} {literal[column].format(value)}" for column, op, value in QUERIES[query])


def ours(table: StaticTable, query: str, options: ScanOptions) -> Kept:
    plan = plan_scan(table, text(query, "TIMESTAMP "), options=options)
    return Kept(plan.summary.files_kept, plan.summary.rows_kept, plan.files.entries.path.to_pylist)


def ours_as_objects(table: StaticTable, query: str) -> Kept:
    """Also creates an object per file, as the other planners do; callers that work on columns do not need them."""
    plan = plan_scan(table, text(query, "TIMESTAMP "), options=COLD)
    return Kept(len(list(plan.files)), plan.summary.rows_kept)


def pyiceberg(table: StaticTable, query: str) -> Kept:
    where = text(query)
    tasks = list((table.scan() if where is None else table.scan(row_filter=where)).plan_files())
    rows = sum(task.file.record_count for task in tasks)
    return Kept(len(tasks), rows, lambda: [task.file.file_path for task in tasks])


def floor(table: StaticTable, query: str) -> Callable[[], Kept]:
    """Only reading and decompressing the manifest list and the manifests that the first pass keeps."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    where = compile_predicate(text(query, "TIMESTAMP ") or TRUE, table.schema()).predicate
    predicate = Predicate(where, predicate_columns(where), UnionPartitionType.of_table(table.metadata))
    manifests = read_manifest_list(snapshot.manifest_list)
    kept = np.flatnonzero(evaluate_manifests(predicate, manifests).tri.keep)
    paths = [snapshot.manifest_list, *manifests.path.take(pa.array(kept)).to_pylist()]

    def run() -> Kept:
        reader = AvroReader()
        for path, data in zip(paths, read_files(paths), strict=True):
            for _ in reader.blocks(data, reader.header(data, path), path):
                pass
        return Kept(len(paths) - 1)

    return run


def in_python(name: str, metadata: str, query: str) -> tuple[dict[str, Any], list[str] | None]:
    table = StaticTable.from_metadata(metadata)
    contenders: dict[str, Callable[[], Kept]] = {
        "cold": lambda: ours(table, query, COLD),
        "cached": lambda: ours(table, query, replace(COLD, cache=True)),
        "as objects": lambda: ours_as_objects(table, query),
        "PyIceberg": lambda: pyiceberg(table, query),
        "read and inflate": floor(table, query) if name == "read and inflate" else lambda: Kept(0),
    }
    run = contenders[name]
    started = time.process_time()
    kept = run()
    seconds = time.process_time() - started
    answer = {"cpu": seconds, "files": kept.files, "rows": kept.rows, "megabytes": peak(resource.RUSAGE_SELF)}
    return answer, kept.paths() if kept.paths else None


def in_java(metadata: str, queries: list[str]) -> dict[str, dict[str, float]]:
    """All queries in one JVM, the best of several plans each; CPU time of the whole process."""
    from pyspark.find_spark_home import _find_spark_home

    classpath = ":".join([f"{_find_spark_home()}/jars/*", *map(str, ensure_jars())])
    opened = "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED"
    port, process = launch_gateway(
        classpath=classpath, javaopts=["-Xmx4g", opened], die_on_exit=True, return_proc=True, redirect_stderr=None
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        answers = {query: _best_java_plan(gateway.jvm, metadata, query) for query in queries}
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
    megabytes = peak(resource.RUSAGE_CHILDREN)
    return {query: answer | {"megabytes": megabytes} for query, answer in answers.items()}


def _best_java_plan(jvm: Any, metadata: str, query: str) -> dict[str, float]:
    iceberg = jvm.org.apache.iceberg
    io = iceberg.hadoop.HadoopFileIO(jvm.org.apache.hadoop.conf.Configuration())
    table = iceberg.BaseTable(iceberg.StaticTableOperations(metadata, io), "events")
    drain = iceberg.relocated.com.google.common.collect.Iterables.size
    clock = jvm.java.lang.management.ManagementFactory.getOperatingSystemMXBean()
    seconds, files = [], 0
    for _ in range(JAVA_ITERATIONS):
        scan = table.newScan().filter(_java_filter(iceberg.expressions.Expressions, query))
        started = clock.getProcessCpuTime()
        tasks = scan.planFiles()
        files = drain(tasks)
        tasks.close()
        seconds.append((clock.getProcessCpuTime() - started) / 1e9)
    return {"cpu": min(seconds), "first": seconds[0], "files": files}


def _java_filter(expressions: Any, query: str) -> Any:
    found = expressions.alwaysTrue()
    for column, operator, value in QUERIES[query]:
        found = getattr(expressions, "and")(found, getattr(expressions, JAVA_OPERATORS[operator])(column, value))
    return found


def peak(who: int) -> float:
    """Peak resident megabytes."""
    return resource.getrusage(who).ru_maxrss / 1024


def main() -> None:
    name, metadata, query, kept = sys.argv[1:]
    if name == "Iceberg Java":
        print(json.dumps(in_java(metadata, query.split(BETWEEN_QUERIES))))
        return
    answer, paths = in_python(name, metadata, query)
    if paths is not None:
        Path(kept).write_text("\n".join(sorted(paths)))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
