"""docs/images/benchmarks.svg: every ratio of the page as a dot on a logarithmic scale, one line per suite."""

from __future__ import annotations

import math
from html import escape

from bench.results import HERE, Row, SuiteResult, is_floor, row_name, verdict

PICTURE = HERE.parent / "docs" / "images" / "benchmarks.svg"
COLOURS = {"met": "#2e9e5b", "missed": "#d1495b", None: "#8a94a6"}
LABELS = {"met": "bar met", "missed": "bar missed", None: "no bar"}
LEFT, WIDTH, LINE, TOP = 110, 640, 46, 58


def picture(results: list[SuiteResult]) -> str:
    shown = [(result.suite, compared(result.rows)) for result in results]
    shown = [(suite, rows) for suite, rows in shown if rows]
    ratios = [float(row["ratio"]) for _, rows in shown for row in rows]
    scale = _Scale(min(ratios), max(ratios))
    height = TOP + LINE * len(shown) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" role="img" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">',
        "<title>Ratios of Floeplan to its peers, by suite</title>",
        "<style>text{fill:#57606a}@media (prefers-color-scheme: dark){text{fill:#b6bec9}}</style>",
        *_legend(),
        *(_mark(scale, power, height) for power in scale.powers),
    ]
    for number, (suite, rows) in enumerate(shown):
        middle = TOP + LINE * number + LINE / 2
        parts.append(f'<text x="{LEFT - 16}" y="{middle + 4:.0f}" text-anchor="end">{escape(suite)}</text>')
        parts += [_dot(scale, row, middle + _aside(place)) for place, row in enumerate(rows)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def compared(rows: list[Row]) -> list[Row]:
    """The rows that have a peer; floors are excluded."""
    return [row for row in rows if row.get("ratio") and row.get("peer") is not None and not is_floor(row)]


class _Scale:
    """The position of a ratio on the logarithmic scale."""

    def __init__(self, least: float, most: float) -> None:
        self.first, self.last = math.floor(math.log10(least)), max(1, math.ceil(math.log10(most)))
        self.powers = range(self.first, self.last + 1)

    def __call__(self, ratio: float) -> float:
        return LEFT + WIDTH * (math.log10(ratio) - self.first) / (self.last - self.first)


def _legend() -> list[str]:
    parts = [f'<text x="{LEFT}" y="18">ratio to the peer: left of 1 Floeplan needs less</text>']
    for number, (kind, label) in enumerate(LABELS.items()):
        x = LEFT + WIDTH - 270 + 95 * number
        parts.append(f'<circle cx="{x}" cy="14" r="5" fill="{COLOURS[kind]}"/><text x="{x + 10}" y="18">{label}</text>')
    return parts


def _mark(scale: _Scale, power: int, height: int) -> str:
    x, width = scale(10.0**power), 2 if power == 0 else 0.6
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 8}" stroke="#8a94a6" stroke-width="{width}"/>'
    return f'{line}<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{10.0**power:g}</text>'


def _aside(place: int) -> float:
    """A small vertical offset, so that equal dots are visible."""
    return (place * 7 % 5 - 2) * 5.5


def _dot(scale: _Scale, row: Row, y: float) -> str:
    title = escape(f"{row_name(row)}: {float(row['ratio']):.3g}")
    colour = COLOURS[verdict(row)]
    x = scale(float(row["ratio"]))
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" fill-opacity="0.75"><title>{title}</title></circle>'
    )
