"""`floeplan upgrade-spec`: old files brought under another partition spec."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from pyiceberg.table import Table
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import load_table, refreshed
from floeplan.cli.changes import BranchOption, ChangedTableArgument, SparkOption, pairs, sign_of_life, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, WhereOption, show
from floeplan.errors import BadInputError
from floeplan.partition.evolution import AddField, drop_all, evolved_spec
from floeplan.rewrite.spec_upgrade import CURRENT, SpecUpgradeResult, UpgradeOptions
from floeplan.rewrite.spec_upgrade import upgrade_spec as upgrade
from floeplan.spark.session import open_session
from floeplan.sql_text.parse_alter import parse_term
from floeplan.text import counted
from floeplan.transaction.evolve_spec import add_spec

_TOP_LEVEL_COMMA = re.compile(r",\s*(?![^()]*\))")


def upgrade_spec(
    table: ChangedTableArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--spec",
            metavar="SPEC",
            help="current, the id of a partition spec, or a spec written out, such as 'month(ts), bucket(8, id)', "
            "which the table gets to know without writing new data under it.",
        ),
    ] = CURRENT,
    metadata_only: Annotated[
        bool, typer.Option("--metadata-only", help="Leave what cannot be moved; rewrite no file.")
    ] = False,
    where: WhereOption = None,
    allow_coarser: Annotated[
        bool, typer.Option("--allow-coarser", help="Move files even where that drops partition information.")
    ] = False,
    files_per_commit: Annotated[
        int | None, typer.Option("--files-per-commit", metavar="N", help="Commit after every N files.")
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="Look for deletes of writers in flight for so long.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be moved; change nothing.")] = False,
    branch: BranchOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Bring files under another partition spec: by metadata alone where their partition is proven, else rewritten.

    With --where only files move of which every row is proven to match, such as cold days that are folded into months.

    floeplan upgrade-spec db.events --dry-run
    """
    loaded = load_table(table, catalog) if dry_run else writable_table(table, catalog)
    options = UpgradeOptions(
        _spec_id(loaded, to, dry_run=dry_run), allow_coarser, files_per_commit, grace, dry_run, metadata_only, where
    )
    session = None if spark is None else open_session(spark)
    with sign_of_life("moving files"):
        result = upgrade(loaded, spark=session, branch=branch or "main", options=options)
    show(result, draw_upgrade, as_json=json)


def _spec_id(table: Table, text: str, *, dry_run: bool) -> str | int:
    """The spec that is meant; one that is written out is added to the table, unless nothing is to be changed."""
    if text == CURRENT or text.strip().isdecimal():
        return text.strip()
    fields = [AddField(parse_term(term)) for term in _TOP_LEVEL_COMMA.split(text)]
    if not dry_run:
        added = add_spec(table, fields).spec.spec_id
        refreshed(table)
        return added
    spec_id = evolved_spec(table.metadata, (*drop_all(table.metadata), *fields)).spec_id
    if spec_id not in table.specs():
        raise BadInputError(
            f"the table does not know the spec {text} yet, and a dry run adds none: give one of its specs",
            context={"spec": text},
        )
    return spec_id


def draw_upgrade(result: SpecUpgradeResult) -> RenderableType:
    """What moved, what stayed and why, and what that means."""
    done = "would move" if result.dry_run else "moved"
    drawn = pairs()
    drawn.add_row(done, f"{counted(result.files_by_metadata, 'file')} by metadata alone, of {result.files_total:,}")
    drawn.add_row("deletes", f"{counted(result.deletes_carried, 'delete file')} with them")
    drawn.add_row("would rewrite" if result.dry_run else "rewrote", counted(result.files_by_rewrite, "file"))
    drawn.add_row("left", counted(result.files_left, "file"))
    for reason, files in result.reasons.items():
        drawn.add_row("not moved", f"{counted(files, 'file')}: {reason}")
    for snapshot_id in result.snapshot_ids:
        drawn.add_row("snapshot", str(snapshot_id))
    notes = [Text(f"! {note}", style="yellow") for note in result.notes]
    return Group(Text(f"to spec {result.target_spec_id}", style="bold"), drawn, *notes)
