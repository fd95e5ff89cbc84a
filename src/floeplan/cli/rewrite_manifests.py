"""`floeplan rewrite-manifests`: manifests clustered by partition."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.changes import BranchOption, ChangedTableArgument, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.maintain.rewrite_manifests import RewriteManifestsResult
from floeplan.maintain.rewrite_manifests import rewrite_manifests as rewrite


def rewrite_manifests(
    table: ChangedTableArgument,
    spec: Annotated[
        list[int] | None, typer.Option("--spec", metavar="ID", help="Only manifests of this spec; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    branch: BranchOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Cluster manifests by partition, so that a plan leaves most of them unread.

    floeplan rewrite-manifests db.events
    """
    loaded = load_table(table, catalog) if dry_run else writable_table(table, catalog)
    with sign_of_life("clustering manifests"):
        result = rewrite(loaded, spec_ids=spec, dry_run=dry_run, branch=branch or "main")
    show(result, draw_manifests, as_json=json)


def draw_manifests(result: RewriteManifestsResult) -> RenderableType:
    """Manifests before and after, per spec."""
    if not result.specs:
        return Text("the manifests are clustered as well as can be; nothing was changed")
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("spec", "of"):
        drawn.add_column(name)
    for name in ("entries", "manifests", "manifests a partition is in"):
        drawn.add_column(name, justify="right")
    for one in result.specs:
        drawn.add_row(
            str(one.spec_id),
            one.content,
            f"{one.entries:,}",
            f"{one.manifests_before:,} → {one.manifests_after:,}",
            f"{one.overlap_before:.1f} → {one.overlap_after:.1f}",
        )
    end = "nothing was changed" if result.dry_run else f"snapshot {result.snapshot_id}"
    return Group(drawn, Text(f"{result.manifests_before:,} → {result.manifests_after:,} manifests; {end}"))
