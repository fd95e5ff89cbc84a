"""``floeplan demo``, which ``demo`` runs: outside ``commands``, because ``demo`` draws with them."""

from __future__ import annotations

from typing import Annotated

import typer

from floeplan.cli import common

SIZES = ("small", "medium", "large")
"""The sizes of the demo's table, for help; a test compares them."""
SizeOption = Annotated[str, typer.Option("--size", metavar="SIZE", help=f"Size of the table: {', '.join(SIZES)}.")]
CleanOption = Annotated[bool, typer.Option("--clean", help="Only remove what an earlier demo created.")]


def demo(
    size: SizeOption = "medium",
    clean: CleanOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Run the main commands on a small table of three partition specs, with explanations.

    floeplan demo --size small
    """
    from floeplan.cli.demo import run_demo

    run_demo(size, clean=clean, catalog=catalog, json=json)
