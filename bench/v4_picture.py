"""docs/images/v4-*.svg: the figures of docs/v4.md as bars, from the rows that docs/benchmarks.md shows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.results import HERE, Row, SuiteResult, cell

IMAGES = HERE.parent / "docs" / "images"
LEFT, WIDTH, LINE = 330, 360, 20
COLOURS = ("#3b7dd8", "#8a94a6", "#e3903b", "#2e9e5b", "#9b5fc0", "#d1495b")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: the text before it, its length, and the number behind it."""

    label: str
    value: float
    shown: str
    colour: str = COLOURS[0]


def write_pictures(result: SuiteResult) -> None:
    for name, text in pictures(result).items():
        (IMAGES / f"v4-{name}.svg").write_text(text)


def pictures(result: SuiteResult) -> dict[str, str]:
    """The pictures by name."""
    return {
        "planning": _planning(result.rows),
        "recovery": _recovery(result.rows),
        "leaves": _leaves(result.rows),
        "commits": _commits(result.rows),
    }


def _planning(rows: Sequence[Row]) -> str:
    groups = {}
    for case in ("one day", "all files"):
        chosen = [row for row in rows if row["case"] == case and row["metric"] == "CPU s"]
        bars = [Bar("metadata tree", _ours(chosen[0]), f"{_ours(chosen[0]):.3g} s")]
        for number, row in enumerate(chosen, 1):
            peer, seconds = str(row["peer"]).rsplit(" ", 1)
            bars.append(Bar(peer, float(seconds), f"{seconds} s", COLOURS[number % len(COLOURS)]))
        groups[f"CPU of a plan, {case}"] = bars
    return chart("CPU of plans of 400,000 files, logarithmic", groups, logarithmic=True)


def _recovery(rows: Sequence[Row]) -> str:
    kinds = {"whole bounds": COLOURS[0], "bounds truncated to 16": COLOURS[2], "files of another spec": COLOURS[1]}
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        found = re.fullmatch(r"partition value from bounds: (.* of a .*), (.*)", str(row["case"]))
        if found and found[2] in kinds:
            share = _ours(row)
            groups.setdefault(found[1], []).append(Bar(found[2], share, f"{share:.0%}", kinds[found[2]]))
    return chart("Share of files whose partition value follows from bounds", groups)


def _leaves(rows: Sequence[Row]) -> str:
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        if row["metric"] != "leaves":
            continue
        query, _, option = str(row["case"]).removeprefix("leaves kept: ").partition(", with ")
        summaries = str(row["peer"]).rsplit(" ", 1)[1]
        if not option:
            groups[query] = [Bar("partition summaries", float(summaries), f"{float(summaries):,.0f}", COLOURS[1])]
        label = "content statistics" + (" and bucket ranges" if option else "")
        groups[query].append(Bar(label, _ours(row), f"{_ours(row):,.0f}", COLOURS[2 if option else 0]))
    return chart("Leaves of 100 files that a predicate keeps, logarithmic", groups, logarithmic=True)


def _commits(rows: Sequence[Row]) -> str:
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        found = re.fullmatch(r"append to (\d+) columns, (.*)", str(row["case"]))
        if found is None or row["metric"] != "bytes":
            continue
        group = groups.setdefault(f"{found[1]} columns", [])
        if not group:
            group.append(_size("v3 manifest and list", str(row["peer"]).rsplit(" ", 1)[1], COLOURS[1]))
        colour = COLOURS[2] if "statistics of 3" in found[2] or "no statistics" in found[2] else COLOURS[0]
        group.append(_size(found[2], _ours(row), colour))
    return chart("Bytes that an append writes, logarithmic", groups, logarithmic=True)


def _ours(row: Row) -> float:
    """The value as the page shows it."""
    return float(cell(row["ours"]))


def _size(label: str, size: float | str, colour: str) -> Bar:
    return Bar(label, float(size), f"{float(size) / 1000:,.1f} kB", colour)


def chart(title: str, groups: dict[str, list[Bar]], *, logarithmic: bool = False) -> str:
    """Horizontal bars in groups; a logarithmic scale begins a tenth below the smallest value."""
    values = [bar.value for bars in groups.values() for bar in bars if bar.value > 0]
    least, most = min(values) / 10, max(values)
    parts = [f'<text x="0" y="16" font-weight="bold">{escape(title)}</text>']
    y = 30
    for name, bars in groups.items():
        parts.append(f'<text x="0" y="{y + 15}" font-weight="bold">{escape(name)}</text>')
        for bar in bars:
            y += LINE
            share = bar.value / most
            if logarithmic:
                share = math.log(bar.value / least) / math.log(most / least) if bar.value > 0 else 0.0
            length = WIDTH * share
            parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(
                f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{LINE - 5}" rx="2" fill="{bar.colour}"/>'
            )
            parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}">{escape(bar.shown)}</text>')
        y += LINE + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {y + 6}" role="img" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">'
    )
    style = "<style>text{fill:#57606a}@media (prefers-color-scheme: dark){text{fill:#b6bec9}}</style>"
    return "\n".join([head, f"<title>{escape(title)}</title>", style, *parts, "</svg>"]) + "\n"
