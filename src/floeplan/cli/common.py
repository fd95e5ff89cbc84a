"""What the commands share: their common options, and the two ways to show a result.

Rule: with `--json` stdout carries one JSON document and nothing else; progress, warnings and logs go to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console, RenderableType

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="namespace.name, or the path or URI of a *.metadata.json.")
]
WhereOption = Annotated[str | None, typer.Option("--where", metavar="EXPR", help="A Spark-SQL boolean expression.")]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="A catalog of PyIceberg's configuration; with none configured, the embedded default 'local'.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]

PIPE_WIDTH = 160
"""Columns of text that is not going to a terminal."""


class Result(Protocol):
    """Anything a command shows."""

    def to_dict(self) -> Mapping[str, Any]: ...


ResultT = TypeVar("ResultT", bound=Result)


def show(result: ResultT, render: Callable[[ResultT], RenderableType], *, as_json: bool) -> None:
    """Print a result: its document as JSON, or what `render` draws of it."""
    if as_json:
        print_json(result.to_dict())
    else:
        text_console().print(render(result))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document; NaN and values JSON does not know are errors, not guesses."""
    sys.stdout.write(json.dumps(document, allow_nan=False, ensure_ascii=False) + "\n")


def text_console() -> Console:
    """Return a console on stdout that takes text literally: no markup, no highlighting of what looks like a number."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)
