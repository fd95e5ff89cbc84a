"""`floeplan demo`: a table that changed its partitioning twice, asked, rewritten, upgraded, audited and advised.

The table is made anew each time, the same every time, in the embedded default or the catalog that is named; what the
demo writes beside it goes to the folder ``demo`` of the embedded home. Fail-safe: a demo that does not get to its end
removes what it made, and ``--clean`` does so afterwards.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.text import Text

from floeplan.catalog import embedded_home, open_catalog
from floeplan.cli.common import CatalogOption, JsonOption, print_json, spinner, text_console
from floeplan.cli.demo.archive import SIZES, Archive, remove_archive
from floeplan.cli.demo.chapters import CHAPTERS, Chapter, Stage

SizeOption = Annotated[
    str, typer.Option("--size", metavar="SIZE", help=f"How much telemetry there is: {', '.join(SIZES)}.")
]
CleanOption = Annotated[bool, typer.Option("--clean", help="Remove what an earlier demo left, and do nothing else.")]


def demo(
    size: SizeOption = "medium", clean: CleanOption = False, catalog: CatalogOption = None, json: JsonOption = False
) -> None:
    """Show the main jobs on a small archive whose partitioning changed twice, and say what to look at.

    floeplan demo --size small
    """
    opened, folder = open_catalog(catalog), embedded_home() / "demo"
    remove_archive(opened)
    shutil.rmtree(folder, ignore_errors=True)
    if clean:
        if json:
            print_json({"removed": True})
        return
    named = "" if catalog is None else f" --catalog {shlex.quote(catalog)}"
    stage = Stage(Archive.of(opened, size), folder, program(), named)
    try:
        told = _tell(stage, None if json else text_console())
    except BaseException:
        remove_archive(opened)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        stage.stop_spark()
    if json:
        print_json({"table": stage.name, "size": size, "chapters": [one.to_dict() for one in told]})


def _tell(stage: Stage, console: Console | None) -> list[Chapter]:
    """Go through the chapters; each is shown as soon as it is done."""
    told: list[Chapter] = []
    for number, play in enumerate(CHAPTERS, start=1):
        with spinner(f"{number} of {len(CHAPTERS)}"):
            chapter = play(stage)
        told.append(chapter)
        if console is not None:
            console.print(_drawn(number, chapter))
    if console is not None:
        console.print(_farewell(stage, told))
    return told


def _drawn(number: int, chapter: Chapter) -> Group:
    commands = [Text(f"  $ {command}", style="cyan") for command in chapter.commands]
    looks = [Text(f"  {line}") for line in chapter.look]
    return Group(Text(f"{number}. {chapter.title}", style="bold"), *commands, Text(), chapter.drawing, *looks, Text())


def _farewell(stage: Stage, told: list[Chapter]) -> Group:
    commands = [Text(f"  {command}") for chapter in told for command in chapter.commands]
    end = Text(f"Remove everything the demo made: {stage.command('demo --clean')}", style="dim")
    return Group(Text("Step by step, by hand:", style="bold"), *commands, Text(), end)


def program() -> str:
    """How to call Floeplan from here: by its name where that is found, else by the path it was called by."""
    return "floeplan" if shutil.which("floeplan") else shlex.quote(sys.argv[0])
