"""`floeplan expire`: old snapshots forgotten, and the files that only they had removed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated

import typer
from pyiceberg.table import Table as IcebergTable
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.audit.candidates import asked_columns
from floeplan.audit.workload import read_workload
from floeplan.catalog import load_table
from floeplan.cli.commands.audit import ReportsOption
from floeplan.cli.common import (
    BranchOption,
    CatalogOption,
    ChangedTableArgument,
    JsonOption,
    TableArgument,
    TrustListsOption,
    YesOption,
    key_value_table,
    show,
    spinner,
    writable_table,
)
from floeplan.maintain.doctor import SAMPLED_FILES, DoctorResult, Finding, Severity
from floeplan.maintain.doctor import doctor as examine
from floeplan.maintain.expire import ExpireResult, expire_snapshots
from floeplan.maintain.orphans import AGE_GUARD, OrphansResult
from floeplan.maintain.orphans import remove_orphans as remove
from floeplan.maintain.rewrite_manifests import RewriteManifestsResult
from floeplan.maintain.rewrite_manifests import rewrite_manifests as rewrite
from floeplan.text import counted, human_bytes

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
    with spinner("expiring snapshots"):
        loaded = writable_table(table, catalog)
        result = expire_snapshots(
            loaded, older_than_ms=limit, retain_last=retain_last, dry_run=not yes, trust_lists=trust_lists
        )
    show(result, draw_expired, as_json=json)


def draw_expired(result: ExpireResult) -> RenderableType:
    """What is gone, or would be."""
    drawn = key_value_table()
    drawn.add_row("snapshots", f"{result.snapshots_before:,} → {result.snapshots_after:,}")
    for name in result.refs_removed:
        drawn.add_row("ref", name)
    drawn.add_row("files", f"{counted(result.data_files, 'data or delete file')}")
    drawn.add_row("metadata", f"{counted(result.manifests, 'manifest')}, {counted(result.manifest_lists, 'list')}")
    if result.not_removed:
        drawn.add_row("not removed", f"{counted(len(result.not_removed), 'file')}; remove-orphans will find them")
    title = "would be removed (add --yes)" if result.dry_run else "removed"
    return Group(Text(title, style="bold"), drawn)


# `floeplan remove-orphans`: files at the location of a table that nothing refers to.


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
    with spinner("looking for orphans"):
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


# `floeplan rewrite-manifests`: manifests clustered by partition.


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
    with spinner("clustering manifests"):
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


# `floeplan doctor`: what is wrong with a table, and mending it.


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def doctor(
    table: TableArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what metadata alone can mend: stray deletes and wrong summaries.")
    ] = False,
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=0, help="Compare rows of so many files with their partition."),
    ] = SAMPLED_FILES,
    reports: ReportsOption = None,
    branch: BranchOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Look for faults of a table, each with what helps; exit 1 when one of them is an error.

    floeplan doctor db.events --sample 100
    """
    loaded = writable_table(table, catalog) if repair else load_table(table, catalog)
    with spinner("looking at the table"):
        filtered = () if reports is None else filtered_columns(loaded, reports, catalog)
        result = examine(loaded, repair=repair, branch=branch or "main", sample=sample, filtered=filtered)
    show(result, draw_findings, as_json=json)
    if not result.healthy:
        raise typer.Exit(1)


def filtered_columns(table: IcebergTable, reports: str, catalog: str | None) -> list[str]:
    """The columns that logged queries filter by."""
    name, schema = ".".join(table.name()), table.metadata.schema()
    asked = asked_columns(read_workload(reports, name, schema, catalog=catalog))
    return [".".join(column.path) for column in asked]


def draw_findings(result: DoctorResult) -> RenderableType:
    """The findings, worst first."""
    parts: list[RenderableType] = []
    if result.repaired is not None:
        done = f"snapshot {result.repaired.snapshot_id}" if result.repaired.snapshot_id else "nothing to mend"
        parts.append(Text(f"{counted(result.repaired.delete_files, 'delete file')} filed anew: {done}", style="bold"))
        if result.manifests_repaired:
            parts.append(Text(f"{counted(result.manifests_repaired, 'manifest')} written anew", style="bold"))
    worst_first = sorted(result.findings, key=lambda finding: list(Severity).index(finding.severity))
    parts += [_line(finding) for finding in worst_first]
    return Group(*parts) if result.findings else Group(*parts, Text("nothing is wrong with it", style="green"))


def _line(finding: Finding) -> Text:
    where = "" if finding.spec_id is None else f" (spec {finding.spec_id})"
    line = Text(f"{finding.severity.value:<8}", style=_STYLES[finding.severity])
    line.append(f"{finding.kind}{where}: {finding.message}", style="default")
    return line if finding.fix is None else line.append(f"\n        → {finding.fix}", style="cyan")
