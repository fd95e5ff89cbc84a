"""What the commands share: their common options, and the two ways to show a result.

Rule: with `--json` stdout carries one JSON document and nothing else; progress, warnings and logs go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console, RenderableType

from floeplan.redact import document_text, without_secrets

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
        return
    console = text_console()
    with console.capture() as drawn:
        console.print(render(result))
    sys.stdout.write(without_secrets(drawn.get()))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document; NaN and values JSON does not know are errors, not guesses.

    Half characters, which a shell can hand over and no encoding knows, stay as the escapes JSON has for them.
    """
    sys.stdout.write(document_text(document).encode("utf-8", "backslashreplace").decode() + "\n")


def text_console() -> Console:
    """Return a console on stdout that takes text literally: no markup, no highlighting of what looks like a number."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)
