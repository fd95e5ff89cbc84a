"""Rows for people and for JSON."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from rich.table import Table
from rich.text import Text


def rows_table(table: pa.Table, limit: int) -> Table:
    """The first rows, columns side by side."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in table.schema.names:
        drawn.add_column(Text(name), no_wrap=True, overflow="ellipsis", max_width=40)
    for row in zip(*(column.to_pylist() for column in table.slice(0, limit).columns), strict=True):
        drawn.add_row(*(Text("NULL", style="dim") if value is None else Text(str(value)) for value in row))
    return drawn


def json_rows(table: pa.Table, limit: int) -> list[dict[str, Any]]:
    """The first rows as JSON objects: what JSON has no form for becomes text."""
    return [{name: json_value(value) for name, value in row.items()} for row in table.slice(0, limit).to_pylist()]


def json_value(value: Any) -> Any:
    """A Python value as JSON: NaN and infinities, decimals, instants as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID() | timedelta():
            return str(value)
    return str(value)
