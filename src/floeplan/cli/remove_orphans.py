"""`floeplan remove-orphans`: files at the location of a table that nothing refers to."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli.changes import ChangedTableArgument, TrustListsOption, YesOption, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.maintain.orphans import AGE_GUARD, OrphansResult
from floeplan.maintain.orphans import remove_orphans as remove
from floeplan.text import counted, human_bytes

MOST_SHOWN = 20


def remove_orphans(
    table: ChangedTableArgument,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", help="Files younger than this are left; at least 1.")
    ] = AGE_GUARD / timedelta(days=1),
    yes: YesOption = False,
    trust_lists: TrustListsOption = False,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Remove files that neither a snapshot nor the metadata refer to; only lists them without --yes.

    floeplan remove-orphans db.events --yes
    """
    with sign_of_life("looking for orphans"):
        loaded = writable_table(table, catalog)
        found = remove(loaded, older_than=timedelta(days=older_than), dry_run=not yes, trust_lists=trust_lists)
    show(found, draw_orphans, as_json=json)


def draw_orphans(result: OrphansResult) -> RenderableType:
    """The files, and how many were looked at."""
    shown = [Text(f"  {path}") for path in result.orphans[:MOST_SHOWN]]
    if len(result.orphans) > MOST_SHOWN:
        shown.append(Text(f"  and {len(result.orphans) - MOST_SHOWN:,} more"))
    title = f"{counted(len(result.orphans), 'orphan')}, {human_bytes(result.bytes)}"
    left = len(result.orphans) - len(result.removed)
    removed = f"{len(result.removed):,} removed" + (f", {left:,} cannot be removed now" if left else "")
    done = "nothing was removed (add --yes)" if result.dry_run else removed
    seen = f"{counted(result.files_listed, 'file')} listed, {result.files_too_young:,} unknown ones too young"
    return Group(Text(f"{title}: {done}", style="bold"), *shown, Text(seen, style="dim"))
