"""`floeplan demo`: pruning a file, planning over an archive and changing a table, as a story to be told again by hand.

The file and the archive are made once, the same every time, in the home of the embedded default; a second run finds
them there. The archive has metadata only: planning needs no more.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import embedded_home
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.cli.demo_changes import Change, draw_changes, make_changes
from floeplan.cli.prune import Answer, render
from floeplan.parquet.reader import read
from floeplan.parquet.source import open_source
from floeplan.scan.explain import explain
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.scan_plan import ScanPlan
from floeplan.testing.archive import write_artemis_archive
from floeplan.text import human_bytes

ROWS = 400_000
ROW_GROUP_ROWS = 50_000
PAGE_ROWS = 1_250
HIDDEN_ROW = 123_456
NAN_ROWS = (70_001, 210_002, 210_003)
ARCHIVE_DAYS = 100
WEEK = (
    "mission_id = 'apollo-7' AND sample_timestamp_ns >= TIMESTAMP_NTZ '2022-03-01' "
    "AND sample_timestamp_ns < TIMESTAMP_NTZ '2022-03-08'"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the file: why it is asked, and what to look at in the answer."""

    title: str
    where: str
    look: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """A question, the command that asks it, and its answer."""

    step: Step
    command: str
    answer: Answer
    full_read: int
    """Bytes a reader without metadata pruning fetches: all of the file."""


@dataclass(frozen=True, slots=True)
class Story:
    """The demo's result."""

    file: str
    chapters: tuple[Chapter, ...]
    plan: ScanPlan
    plan_command: str
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the demo."""
        steps = [
            {"title": one.step.title, "command": one.command, "full_read_bytes": one.full_read}
            | {"result": one.answer.to_dict()}
            for one in self.chapters
        ]
        plan = {"command": self.plan_command, "summary": self.plan.summary.to_dict()}
        changes = [change.to_dict() for change in self.changes]
        return {"file": self.file, "steps": steps, "plan": plan, "changes": changes}


def demo(catalog: CatalogOption = None, json: JsonOption = False) -> None:
    """Prune one Parquet file three ways, plan a scan of an archive, change a table, and say what to look at."""
    file = write_readings(embedded_home() / "demo" / "readings.parquet")
    archive = write_archive(embedded_home() / "demo" / "artemis")
    command = f'{program()} plan {shlex.quote(str(archive))} --where "{WEEK}" --no-footers --explain'
    plan = plan_scan(str(archive), WEEK, options=ScanOptions(footers=False, report=False))
    changes = make_changes(catalog, program())
    show(Story(str(file), tuple(_tell(step, file) for step in steps()), plan, command, changes), tell, as_json=json)


def steps() -> list[Step]:
    """The three questions."""
    return [
        Step(
            "One second in a file sorted by time",
            f"ts = TIMESTAMP_NTZ '{np.datetime64('2024-03-01') + np.timedelta64(HIDDEN_ROW, 's')}'",
            "Row groups go by their statistics, pages by the page index: one page of one row group is left.",
        ),
        Step(
            "A threshold that only NaN exceeds, and statistics never mention NaN",
            "celsius > 1000",
            "As in Spark, NaN is larger than everything. No row was lost: what cannot be ruled out is read, and the "
            f"{len(NAN_ROWS)} rows that match are NaN.",
        ),
        Step(
            "One sensor in a column that is not sorted",
            f"sensor = {int(_sensors()[HIDDEN_ROW])}",
            "Minimum and maximum help nowhere; the bloom filters of all other row groups answered no, with one block "
            "of 32 bytes each.",
        ),
    ]


def program() -> str:
    """How to call Floeplan from here: by its name where that is found, else by the path it was called by."""
    return "floeplan" if shutil.which("floeplan") else shlex.quote(sys.argv[0])


def _tell(step: Step, file: Path) -> Chapter:
    source = open_source(file)
    result = read(source, step.where)
    command = f'{program()} prune {shlex.quote(str(file))} --where "{step.where}" --read'
    return Chapter(step, command, Answer(step.where, source.size, result.prune, result, None), source.size)


def tell(story: Story) -> RenderableType:
    """The story as text."""
    parts: list[RenderableType] = []
    for number, chapter in enumerate(story.chapters, start=1):
        read_bytes = chapter.answer.read.bytes_read if chapter.answer.read else 0
        parts += [
            Text(f"{number}. {chapter.step.title}", style="bold"),
            Text(),
            render(chapter.answer),
            Text(),
            Text(f"  {chapter.step.look}"),
            Text(f"  {human_bytes(read_bytes)} read; the whole file is {human_bytes(chapter.full_read)}."),
            Text(),
        ]
    parts += [
        Text(f"{len(story.chapters) + 1}. One week of one mission in an archive of many", style="bold"),
        Text(),
        explain(story.plan),
        Text(),
        Text("  The manifest list alone ruled out all but a handful of manifests, and their entries all other files."),
        Text(),
        Text(f"{len(story.chapters) + 2}. A table that changes its mind about partitioning", style="bold"),
        Text(),
        draw_changes(story.changes),
    ]
    commands = [*(chapter.command for chapter in story.chapters), story.plan_command]
    return Group(*parts, Text("Ask again, or something else:", style="bold"), *(Text(f"  {one}") for one in commands))


def write_archive(root: Path) -> Path:
    """Telemetry of forty missions over a hundred days, one partition a mission and day; metadata only."""
    for made in root.glob("metadata/*.metadata.json"):
        return made
    return write_artemis_archive(root, days=ARCHIVE_DAYS)


def _sensors() -> npt.NDArray[np.int64]:
    return np.random.default_rng(7).integers(0, 2**62, ROWS)


def write_readings(path: Path) -> Path:
    """Sensor readings: one a second, sorted by ``ts``; a bloom filter on ``sensor``; NaN among ``celsius``."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(8)
    celsius = random.normal(15.0, 8.0, ROWS).round(2)
    celsius[list(NAN_ROWS)] = np.nan
    table = pa.table(
        {
            "ts": pa.array(np.datetime64("2024-03-01", "us") + np.arange(ROWS) * np.timedelta64(1, "s")),
            "sensor": _sensors(),
            "celsius": celsius,
            "site": pa.array(["harbour", "ridge", "valley"]).take(pa.array(random.integers(0, 3, ROWS))),
        }
    )
    unfinished = path.with_suffix(".part")
    pq.write_table(
        table,
        unfinished,
        row_group_size=ROW_GROUP_ROWS,
        max_rows_per_page=PAGE_ROWS,
        use_dictionary=["celsius", "site"],
        write_page_index=True,
        bloom_filter_options={"sensor": {"ndv": ROW_GROUP_ROWS, "fpp": 0.01}},
    )
    return unfinished.rename(path)
