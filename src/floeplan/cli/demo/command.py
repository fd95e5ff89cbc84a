"""``floeplan demo``: builds a table of three partition specs and queries, rewrites, upgrades, audits and advises it.

The table is always the same. It is created in the embedded catalog or in ``--catalog``; other files go to the folder
``demo`` of the embedded home. Fail-safe: a demo that fails removes what it created; ``--clean`` does so later.
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

SizeOption = Annotated[str, typer.Option("--size", metavar="SIZE", help=f"Size of the table: {', '.join(SIZES)}.")]
CleanOption = Annotated[bool, typer.Option("--clean", help="Only remove what an earlier demo created.")]


def demo(
    size: SizeOption = "medium", clean: CleanOption = False, catalog: CatalogOption = None, json: JsonOption = False
) -> None:
    """Run the main commands on a small table of three partition specs, with explanations.

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
        chapters = _run(stage, None if json else text_console())
    except BaseException:
        remove_archive(opened)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        stage.stop_spark()
    if json:
        print_json({"table": stage.name, "size": size, "chapters": [chapter.to_dict() for chapter in chapters]})


def _run(stage: Stage, console: Console | None) -> list[Chapter]:
    """Run the chapters and print each when it is done."""
    chapters: list[Chapter] = []
    for number, play in enumerate(CHAPTERS, start=1):
        with spinner(f"{number} of {len(CHAPTERS)}"):
            chapter = play(stage)
        chapters.append(chapter)
        if console is not None:
            console.print(_drawn(number, chapter))
    if console is not None:
        console.print(_farewell(stage, chapters))
    return chapters


def _drawn(number: int, chapter: Chapter) -> Group:
    commands = [Text(f"  $ {command}", style="cyan") for command in chapter.commands]
    looks = [Text(f"  {line}") for line in chapter.look]
    return Group(Text(f"{number}. {chapter.title}", style="bold"), *commands, Text(), chapter.drawing, *looks, Text())


def _farewell(stage: Stage, chapters: list[Chapter]) -> Group:
    commands = [Text(f"  {command}") for chapter in chapters for command in chapter.commands]
    end = Text(f"Remove everything the demo created: {stage.command('demo --clean')}", style="dim")
    return Group(Text("The commands of this demo:", style="bold"), *commands, Text(), end)


def program() -> str:
    """How to call Floeplan: by name if it is on the PATH, else by the path of this program."""
    return "floeplan" if shutil.which("floeplan") else shlex.quote(sys.argv[0])
