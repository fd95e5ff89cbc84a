"""`floeplan expire`: old snapshots forgotten, and the files that only they had removed."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli.changes import ChangedTableArgument, TrustListsOption, YesOption, pairs, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.maintain.expire import ExpireResult, expire_snapshots
from floeplan.text import counted

_DAY_MS = 24 * 3600 * 1000


def expire(
    table: ChangedTableArgument,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Age of old snapshots; as the table says by default."),
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", metavar="N", min=1, help="Newest snapshots of a branch to keep.")
    ] = None,
    yes: YesOption = False,
    trust_lists: TrustListsOption = False,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Forget old snapshots and remove the files that no other snapshot has; only says so without --yes.

    floeplan expire db.events --older-than 7 --retain-last 10 --yes
    """
    limit = None if older_than is None else int(time.time() * 1000 - older_than * _DAY_MS)
    with sign_of_life("expiring snapshots"):
        loaded = writable_table(table, catalog)
        result = expire_snapshots(
            loaded, older_than_ms=limit, retain_last=retain_last, dry_run=not yes, trust_lists=trust_lists
        )
    show(result, draw_expired, as_json=json)


def draw_expired(result: ExpireResult) -> RenderableType:
    """What is gone, or would be."""
    drawn = pairs()
    drawn.add_row("snapshots", f"{result.snapshots_before:,} → {result.snapshots_after:,}")
    for name in result.refs_removed:
        drawn.add_row("ref", name)
    drawn.add_row("files", f"{counted(result.data_files, 'data or delete file')}")
    drawn.add_row("metadata", f"{counted(result.manifests, 'manifest')}, {counted(result.manifest_lists, 'list')}")
    if result.not_removed:
        drawn.add_row("not removed", f"{counted(len(result.not_removed), 'file')}; remove-orphans will find them")
    title = "would be removed (add --yes)" if result.dry_run else "removed"
    return Group(Text(title, style="bold"), drawn)
