"""How plans and results appear in notebooks and at the prompt: a ``repr`` that fits a screen, and HTML tables.

Rule: nothing is computed or read for a display, and no list is shown in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from floeplan.text import excerpt

MOST_ROWS = 20
_MOST_ITEMS = 4
_SHORT = 60
_CELL = "text-align:left;padding:1px 12px 1px 0"


class Displayed:
    """A dataclass whose ``repr`` has long collections by their length, and that notebooks show as a table of fields.

    The dataclass is declared with ``repr=False``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in _shown_fields(self))})"

    def _repr_html_(self) -> str:
        """The HTML that Jupyter shows."""
        return table_html(type(self).__name__, ("", ""), _shown_fields(self))


def _shown_fields(result: Any) -> list[tuple[str, str]]:
    return [(field.name, _shown(getattr(result, field.name))) for field in fields(result)]


def _shown(value: object) -> str:
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case str():
            return repr(excerpt(value, _SHORT))
        case Displayed():
            return repr(value)
        case Mapping() | Sequence() | frozenset() | set() if _is_short(value):
            return repr(value)
        case Collection():
            return f"<{len(value):,} items>"
    return f"<{type(value).__name__}>"


def _is_short(value: Collection[object]) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value
    plain = all(item is None or isinstance(item, bool | int | float | str) for item in inner)
    return len(value) <= _MOST_ITEMS and plain and len(repr(value)) <= 2 * _SHORT


def table_html(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table of at most ``MOST_ROWS`` rows; every text is escaped."""
    listed = list(rows)
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in headers) if any(headers) else ""
    cells = [[f'<td style="{_CELL}">{escape(str(cell))}</td>' for cell in row] for row in listed[:MOST_ROWS]]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    more = f"<p>and {len(listed) - MOST_ROWS:,} more</p>" if len(listed) > MOST_ROWS else ""
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<div><b>{escape(title)}</b><table>{header}<tbody>{body}</tbody></table>{more}</div>"


def bar_html(share: float) -> str:
    """A bar of the fraction that is kept, with the fraction as its title."""
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    return (
        f'<div title="{width}" style="width:160px;background:#8883;height:10px">'
        f'<div style="width:{width};background:#2a9d6f;height:10px"></div></div>'
    )
