"""The metadata tree of the Iceberg v4 draft: planning, partition values from bounds, pruning of leaves, commits.

Plans of 400,000 files are compared with manifests and with the column cache of Floeplan, each in a new process, and
with Iceberg Java's readers of v3 and v4 manifests in a warm JVM (the best of five runs). Bars: a cold selective plan
takes at most 0.5 times the CPU of Avro manifests, a full one 0.7 times, and both 0.5 times that of Java's v4 reader.
The floor of a plan is pyarrow reading the same columns of the same leaves, and nothing else.

The other rows answer questions about the draft: the share of files whose partition value follows from their bounds,
the leaves that statistics keep against partition summaries, and what an append writes. docs/v4.md shows them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.planning_tables import CACHE, evolved
from bench.results import bar_text
from bench.v4_commits import commit_costs
from bench.v4_leaves import kept_leaves
from bench.v4_recovery import shares
from floeplan.catalog import load_table
from floeplan.metadata.v4.convert import write_tree
from tests.support.tree_judge import TreeJudge

MANIFESTS = {"small": 200, "default": 4_000, "large": 4_000}
APPENDS = {"small": 100, "default": 1_000, "large": 1_000}
COLUMNS = {"small": (6, 20), "default": (6, 20, 100, 500), "large": (6, 20, 100, 500)}
REPETITIONS = 3
ONE_DAY = "ts >= TIMESTAMP '2024-03-01 00:00:00+00:00' AND ts < TIMESTAMP '2024-03-02 00:00:00+00:00'"
MANIFEST_PATH, CACHED = "Avro manifests", "column cache"
JAVA = {"plan-v3": "Iceberg Java planner", "plan": "Iceberg Java tree reader"}

Row = dict[str, Any]


def run(size: str) -> list[Row]:
    metadata = evolved(MANIFESTS[size])
    table = load_table(str(metadata))
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        tree = write_tree(table, f"{folder}/tree", table.current_snapshot())
        rows = list(_planning(str(metadata), tree.root))
        rows += [
            _row(f"partition value from bounds: {case}", "share of files", share)
            for case, share in shares(table, Path(folder))
        ]
        for kept in kept_leaves(table, folder):
            case = f"leaves kept: {kept.query}"
            summaries = "partition summaries", kept.summaries
            rows.append(_row(case, "leaves", kept.stats, *summaries))
            rows.append(_row(f"{case}, with bucket ranges", "leaves", kept.stats_and_buckets, *summaries))
        for columns in COLUMNS[size]:
            v3, *variants = commit_costs(Path(folder), columns, APPENDS[size])
            for one in variants:
                case = f"append to {columns} columns, {one.variant}"
                rows.append(_row(case, "bytes", one.bytes, "v3", v3.bytes))
                if one.variant.endswith("inline"):
                    rows.append(_row(case, "files", one.files, "v3", v3.files))
    return rows


def _row(
    case: str, metric: str, ours: float, peer: str = "", theirs: float | None = None, bar: str | None = None
) -> Row:
    shown = {"suite": "v4", "case": case, "metric": metric, "ours": ours, "bar": bar}
    if theirs is None:
        return shown | {"peer": peer or None, "ratio": None}
    text = f"{theirs:.0f}" if theirs >= 1000 else f"{theirs:.3g}"  # counts of leaves, bytes and requests as they are
    return shown | {"peer": f"{peer} {text}", "ratio": ours / theirs if theirs else None}


def _planning(metadata: str, root: str) -> Iterator[Row]:
    judge = TreeJudge(warm=True)
    filters = {"one day": _java_filter(), "all files": None}
    try:
        for case, where in (("one day", ONE_DAY), ("all files", None)):
            most = 0.5 if where else 0.7
            ours, avro, cached, floor = (
                _best(name, metadata, root, where) for name in ("v4 tree", MANIFEST_PATH, CACHED, "decoding")
            )
            assert ours["files"] == avro["files"] == cached["files"], (case, ours, avro, cached)
            ratio = ours["cpu"] / avro["cpu"]
            yield _row(case, "CPU s", ours["cpu"], MANIFEST_PATH, avro["cpu"], bar_text(ratio, most, ""))
            yield _row(f"{case}, decoding the columns (floor)", "CPU s", floor["cpu"], MANIFEST_PATH, avro["cpu"])
            for what, peer in JAVA.items():
                answer = judge.ask(what, metadata=metadata, root=root, runs=5, filter=filters[case])
                assert answer["count"] >= ours["files"], (case, peer, answer, ours)
                seconds = min(answer["cpu_ns"]) / 1e9
                bar = bar_text(ours["cpu"] / seconds, 0.5, "") if what == "plan" else None
                yield _row(case, "CPU s", ours["cpu"], peer, seconds, bar)
            yield _row(f"{case}, decoding the columns (floor)", "CPU s", floor["cpu"], peer, seconds)
            yield _row(case, "CPU s", ours["cpu"], CACHED, cached["cpu"])
            traffic = _answer("traffic", metadata, root, where)
            for name in ("bytes", "requests"):
                yield _row(case, name, traffic[name], MANIFEST_PATH, avro[name])
    finally:
        judge.close()


def _java_filter() -> str:
    day = [{"type": t, "term": "ts", "value": f"2024-03-0{n}T00:00:00+00:00"} for t, n in (("gt-eq", 1), ("lt", 2))]
    return json.dumps({"type": "and", "left": day[0], "right": day[1]})


def _best(contender: str, metadata: str, root: str, where: str | None) -> dict[str, float]:
    return min((_answer(contender, metadata, root, where) for _ in range(REPETITIONS)), key=lambda found: found["cpu"])


def _answer(contender: str, metadata: str, root: str, where: str | None) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.v4_contenders", contender, metadata, root, *([where] if where else [])]
    environment = os.environ | {"FLOEPLAN_CACHE": str(Path(root).parent.parent / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{contender}: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(done.stdout))
