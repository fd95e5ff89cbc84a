"""Profiles as images: flame graphs whose widths are shares of the CPU time, and bar charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from bench.sampler import Stack

WIDTH, HIGH, LEAST = 1000.0, 22, 0.006
PALETTE = ("#f2a65a", "#eec170", "#f58549", "#e3b505", "#f7b267", "#e8985e")
TEXT = "<style>text{fill:#57606a}.in{fill:#22272e}@media (prefers-color-scheme: dark){text{fill:#b6bec9}}</style>"


@dataclass(slots=True)
class _Layer:
    """A function in a stack, with the time of everything it called."""

    name: str
    seconds: float = 0.0
    inside: dict[str, _Layer] = field(default_factory=dict)


def flame(title: str, seconds: Mapping[Stack, float]) -> str:
    """Callers above callees, the widest first."""
    root = _Layer(f"{title}: {sum(seconds.values()):.2f} s of CPU")
    for stack, used in seconds.items():
        layer = root
        layer.seconds += used
        for name in stack:
            layer = layer.inside.setdefault(name, _Layer(name))
            layer.seconds += used
    parts: list[str] = []
    depth = _draw(root, 0.0, 0, root.seconds, parts)
    return _svg(title, (depth + 1) * HIGH + 4, parts)


def _draw(layer: _Layer, x: float, depth: int, total: float, parts: list[str]) -> int:
    share = layer.seconds / total
    width, y = WIDTH * share, depth * HIGH
    colour = "#c9d1d9" if depth == 0 else PALETTE[hash_of(layer.name) % len(PALETTE)]
    label = f"{layer.name} {share:.0%}" if depth else layer.name
    parts.append(
        f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.6, 0.4):.1f}" height="{HIGH - 2}" rx="2" fill="{colour}">'
        f"<title>{escape(label)} ({layer.seconds:.2f} s)</title></rect>"
    )
    room = int(width / 6.4)
    if room > 4:
        shown = label if len(label) <= room else f"{label[: room - 1]}…"
        parts.append(f'<text class="in" x="{x + 4:.1f}" y="{y + 14}">{escape(shown)}</text>')
    deepest = depth
    for child in sorted(layer.inside.values(), key=lambda child: -child.seconds):
        if child.seconds / total >= LEAST:
            deepest = max(deepest, _draw(child, x, depth + 1, total, parts))
            x += WIDTH * child.seconds / total
    return deepest


def bars(title: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """Seconds by kind, one group of bars for each column."""
    most = max(value for column in columns.values() for value in column.values())
    parts, y = [f'<text x="0" y="16">{escape(title)}</text>'], 34
    for name, column in columns.items():
        parts.append(f'<text x="0" y="{y + 14}" font-weight="bold">{escape(name)}: {sum(column.values()):.2f} s</text>')
        for place, (kind, value) in enumerate(sorted(column.items(), key=lambda item: -item[1])):
            top = y + HIGH * (place + 1)
            parts.append(f'<text x="190" y="{top + 14}" text-anchor="end">{escape(kind)}</text>')
            length = 680 * value / most
            colour = PALETTE[hash_of(kind) % len(PALETTE)]
            parts.append(f'<rect x="200" y="{top}" width="{length:.1f}" height="{HIGH - 4}" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{206 + length:.1f}" y="{top + 14}">{value:.2f} s</text>')
        y += HIGH * (len(column) + 1) + 16
    return _svg(title, y, parts)


def hash_of(name: str) -> int:
    """A hash that is the same in every run."""
    return sum(map(ord, name))


def largest(seconds: Mapping[Stack, float], number: int) -> list[tuple[str, float]]:
    """Functions by their own time."""
    own: Counter[str] = Counter()
    for stack, used in seconds.items():
        own[stack[-1] if stack else "elsewhere"] += used
    return own.most_common(number)


def _svg(title: str, height: float, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11"><title>{escape(title)}</title>{TEXT}'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
