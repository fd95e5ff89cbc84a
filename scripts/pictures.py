"""Regenerate the images of the documentation from the demo: `docs/images/*.svg`.

Images embed no external fonts and are deterministic.
"""

from __future__ import annotations

import os
import re
import tempfile
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console, Group, RenderableType
from rich.text import Text

from floeplan.catalog import open_catalog
from floeplan.cli.commands.prune import Answer, render
from floeplan.cli.demo import (
    Stage,
    ask_for_a_week,
    rewrite_along_a_curve,
    side_by_side,
    tell_history,
    upgrade_by_metadata,
)
from floeplan.cli.demo_archive import WEEK, Archive
from floeplan.parquet.prune.request import PruneRequest
from floeplan.parquet.source import open_source
from floeplan.scan.explain import draw_levels

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FONT_FACE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)


def export(name: str, title: str, drawing: RenderableType, width: int) -> None:
    """Write terminal output as an SVG file."""
    console = Console(record=True, width=width, file=StringIO(), highlight=False, markup=False, emoji=False)
    console.print(drawing)
    svg = console.export_svg(title=title, unique_id=name)
    svg = FONT_FACE.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def draw_demo() -> None:
    """The week of one mission: before and after the rewrite, and with old files under the current spec."""
    stage = Stage(Archive.of(open_catalog(), "medium"), Path("demo"), "floeplan", "")
    tell_history(stage)
    ask_for_a_week(stage)
    rewrite_along_a_curve(stage)
    before, after = stage.plans
    upgrade_by_metadata(stage)
    question = WEEK.replace(" AND ", "\n    AND ")
    command = Text(f'$ floeplan plan floeplan_demo.telemetry --where "{question}"\n', style="cyan")
    export("pyramid", "a week of one mission", Group(command, draw_levels(stage.plan(WEEK))), 92)
    export(
        "rewrite", "the same query, before and after a rewrite along a Z-order curve", side_by_side(before, after), 80
    )


def draw_file() -> None:
    """One file: row groups and pages."""
    rows = 400_000
    table = pa.table(
        {
            "ts": pa.array(np.datetime64("2024-03-01", "us") + np.arange(rows) * np.timedelta64(1, "s")),
            "celsius": np.random.default_rng(8).normal(15.0, 8.0, rows).round(2),
        }
    )
    pq.write_table(table, "readings.parquet", row_group_size=50_000, max_rows_per_page=1_250, write_page_index=True)
    where = "ts >= TIMESTAMP_NTZ '2024-03-02 09:00:00' AND ts < TIMESTAMP_NTZ '2024-03-02 20:00:00'"
    source = open_source("readings.parquet")
    result = PruneRequest("readings.parquet").with_predicate(where).prune()
    export("prune", "floeplan prune", render(Answer(where, source.size, result, None, None)), 100)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"FLOEPLAN_HOME": scratch, "FLOEPLAN_CACHE": f"{scratch}/cache", "FLOEPLAN_REPORTS": "off"}
        os.chdir(scratch)
        draw_file()
        draw_demo()
        os.chdir(IMAGES)


if __name__ == "__main__":
    main()
