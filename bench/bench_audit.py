"""Time of the audit job, and whether it grows linearly with the number of scan reports.

The reports come from plans over a table with three specs and are repeated with other timestamps; a quarter of them have
the form of Iceberg's own scan reports. CPU seconds of all processes. The first run of a session is not counted, because
it includes JIT compilation.
"""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.cpu_clock import CpuClock
from bench.results import bar_text
from floeplan.audit.job import audit
from floeplan.catalog import load_table
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.report import scan_report
from floeplan.spark.session import open_session
from tests.support.tables.archive import write_evolved_archive

SIZES = {"small": (2_500, 5_000, 10_000), "default": (250_000, 500_000, 1_000_000), "large": (1_000_000, 2_000_000)}
BAR_SECONDS_PER_MILLION, CORES, LINEAR = 60.0, 2, 1.2
ENOUGH = 250_000
"""The number of reports from which on the time limit applies: with fewer, starting a job dominates."""
_START = datetime(2024, 1, 1, tzinfo=UTC)
_WHERE = (
    "region = '{region}'",
    "region = '{region}' AND ts >= TIMESTAMP '2021-03-{day:02d} 00:00:00+00:00'",
    "id BETWEEN {number} AND {number}00",
    "amount > {number}.5",
    "id != {number}",
    "region = '{region}' OR amount < {number}",
    "ts >= TIMESTAMP '2021-02-{day:02d} 00:00:00+00:00' AND upper(note) = 'X{number}'",
    "user_id IN ({number}, {number}1)",
)
_FILE_LINES = 50_000


def run(size: str) -> list[dict[str, Any]]:
    numbers = SIZES[size]
    spark = open_session("local[2]")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="floeplan-bench-") as folder:
        lines = report_lines(Path(folder))
        for number in (numbers[0], *numbers):
            place = write_reports(Path(folder) / "reports", lines, number)
            clock, began = CpuClock(), time.perf_counter()
            result = audit(spark, str(place))
            rows.append(_row(number, time.perf_counter() - began, clock.seconds()))
            assert (result.runs, result.unreadable) == (number, 0)
    spark.stop()
    first = rows[1]["cpu"] / numbers[0]
    return [
        row | {"ratio": ratio, "bar": f"{row['bar']}{bar_text(ratio, LINEAR, 'ratio ')}"}
        for row, number in zip(rows[1:], numbers, strict=True)
        for ratio in (row["cpu"] / number / first,)
    ]


def _row(number: int, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "suite": "audit",
        "case": f"{number:,} reports (wall {wall:.1f} s)",
        "metric": "CPU s on two cores; ratio: a report's share over that of the first row",
        "ours": cpu,
        "cpu": cpu,
        "bar": f"{bar_text(cpu, CORES * BAR_SECONDS_PER_MILLION * number / 1e6)}, " if number >= ENOUGH else "",
    }


def report_lines(folder: Path) -> list[tuple[str, str]]:
    """The text before and after the timestamp, for a few hundred reports."""
    table = load_table(str(write_evolved_archive(folder / "archive", manifests=30, entries=20)))
    options = ScanOptions(footers=False, report=False)
    lines = []
    for at in range(160):
        where = _WHERE[at % len(_WHERE)].format(region=("eu", "us", "ap")[at % 3], day=1 + at % 28, number=at + 1)
        report = scan_report(plan_scan(table, where, options=options))
        if at % 4 == 3:
            del report["floeplan"]
            lines.append((json.dumps(report), ""))
        else:
            before, _, after = json.dumps(report).partition(report["floeplan"]["timestamp"])
            lines.append((before, after))
    return lines


def write_reports(place: Path, lines: list[tuple[str, str]], number: int) -> Path:
    place.mkdir(exist_ok=True)
    for first in range(0, number, _FILE_LINES):
        with (place / f"scan-{first}.jsonl").open("w") as file:
            for at in range(first, min(first + _FILE_LINES, number)):
                before, after = lines[at % len(lines)]
                timestamp = (_START + timedelta(seconds=at * 30)).isoformat(timespec="milliseconds") if after else ""
                file.write(f"{before}{timestamp}{after}\n")
    return place
