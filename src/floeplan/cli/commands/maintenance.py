"""``expire``, ``remove-orphans``, ``rewrite-manifests``, ``rewrite-deletes``, ``upgrade-format`` and ``doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.text import counted, human_bytes
from floeplan.times import age_text, parse_age

if TYPE_CHECKING:
    from floeplan.maintenance.doctor import DoctorResult
    from floeplan.maintenance.expire import ExpireResult
    from floeplan.maintenance.orphans import OrphansResult
    from floeplan.maintenance.rewrite_deletes import RewriteDeletesResult
    from floeplan.maintenance.rewrite_manifests import RewriteManifestsResult
    from floeplan.transaction.upgrade_format import FormatUpgradeResult

MOST_PATHS = 20
SAMPLED_FILES = 10
AGE_GUARD = "3d"
"""Defaults of the library, for help; a test compares them."""
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def expire(
    table: common.ChangedTableArgument,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="Expire snapshots older than this, e.g. 7d or 12h; by default history.expire.max-snapshot-age-ms.",
        ),
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", metavar="N", min=1, help="Snapshots of each branch to keep.")
    ] = None,
    yes: common.YesOption = False,
    dry_run: common.DefaultDryRunOption = False,
    trust_lists: common.TrustListsOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Expire old snapshots and delete unreferenced files (dry run unless --yes).

    floeplan expire db.events --older-than 7d --retain-last 10 --yes
    """
    from floeplan.maintenance.expire import expire_snapshots

    limit = None if older_than is None else parse_age(older_than, "--older-than")
    applied = common.applies(yes, dry_run)
    with common.spinner("expiring snapshots"):
        loaded = common.writable_table(table, catalog)
        result = expire_snapshots(
            loaded, older_than=limit, retain_last=retain_last, dry_run=not applied, trust_lists=trust_lists
        )
    common.show(result, draw_expired, as_json=json)


def draw_expired(result: ExpireResult) -> RenderableType:
    """Render what was, or would be, removed."""
    drawn = common.key_value_table()
    drawn.add_row("snapshots", f"{result.snapshots_before:,} → {result.snapshots_after:,}")
    for name in result.refs_removed:
        drawn.add_row("ref", name)
    drawn.add_row("files", counted(result.data_files, "data or delete file"))
    drawn.add_row(
        "metadata", f"{counted(result.manifests, 'manifest')}, {counted(result.manifest_lists, 'manifest list')}"
    )
    if result.not_removed:
        drawn.add_row("not removed", f"{counted(len(result.not_removed), 'file')}; run remove-orphans later")
    title = "dry run, would remove (add --yes to apply)" if result.dry_run else "removed"
    return Group(Text(title, style="bold"), drawn)


def remove_orphans(
    table: common.ChangedTableArgument,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Keep files newer than this, e.g. 7d; at least 1d.")
    ] = AGE_GUARD,
    yes: common.YesOption = False,
    dry_run: common.DefaultDryRunOption = False,
    trust_lists: common.TrustListsOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Delete unreferenced files (dry run unless --yes).

    floeplan remove-orphans db.events --yes
    """
    from floeplan.maintenance.orphans import remove_orphans as remove

    age, applied = parse_age(older_than, "--older-than"), common.applies(yes, dry_run)
    with common.spinner("listing files"):
        loaded = common.writable_table(table, catalog)
        found = remove(loaded, older_than=age, dry_run=not applied, trust_lists=trust_lists)
    common.show(found, lambda result: draw_orphans(result, age_text(age)), as_json=json)


def draw_orphans(result: OrphansResult, older_than: str) -> RenderableType:
    """Render the unreferenced files."""
    paths = [Text(f"  {path}") for path in result.orphans[:MOST_PATHS]]
    if len(result.orphans) > MOST_PATHS:
        paths.append(Text(f"  and {len(result.orphans) - MOST_PATHS:,} more"))
    title = f"{counted(len(result.orphans), 'unreferenced file')}, {human_bytes(result.bytes)}"
    left = len(result.orphans) - len(result.removed)
    removed = f"{len(result.removed):,} removed" + (f", {left:,} could not be removed" if left else "")
    done = "dry run, nothing was removed (add --yes to apply)" if result.dry_run else removed
    kept = f"{counted(result.files_too_young, 'unreferenced file')} newer than {older_than} (kept)"
    listed = Text(f"{counted(result.files_listed, 'file')} listed, {kept}", style="dim")
    return Group(Text(f"{title}: {done}", style="bold"), *paths, listed)


def rewrite_manifests(
    table: common.ChangedTableArgument,
    spec: Annotated[
        list[int] | None, typer.Option("--spec", metavar="ID", help="Only manifests of this spec; repeatable.")
    ] = None,
    dry_run: common.DryRunOption = False,
    branch: common.BranchOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Cluster manifests by partition, so that planning can skip some.

    floeplan rewrite-manifests db.events
    """
    from floeplan.catalog import load_table
    from floeplan.maintenance.rewrite_manifests import rewrite_manifests as rewrite

    loaded = load_table(table, catalog) if dry_run else common.writable_table(table, catalog)
    with common.spinner("clustering manifests"):
        result = rewrite(loaded, spec_ids=spec, dry_run=dry_run, branch=branch or "main")
    common.show(result, draw_manifests, as_json=json)


def rewrite_deletes(
    table: common.ChangedTableArgument,
    where: common.WhereOption = None,
    rewrite_all: Annotated[
        bool, typer.Option("--rewrite-all", help="Rewrite all position delete files, regardless of size and number.")
    ] = False,
    min_input_files: Annotated[
        int, typer.Option("--min-input-files", metavar="N", min=1, help="Merge at least N files of a partition.")
    ] = 5,
    dry_run: common.DryRunOption = False,
    branch: common.BranchOption = None,
    spark: common.SparkRewriteOption = None,
    trust_lists: common.TrustListsOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Merge small position delete files; from format 3 on, replace them by deletion vectors.

    floeplan rewrite-deletes db.events --dry-run
    """
    from floeplan.maintenance.rewrite_deletes import rewrite_position_delete_files

    loaded = common.writable_table(table, catalog)
    with common.spinner("merging deletes"):
        result = rewrite_position_delete_files(
            loaded,
            where=where,
            rewrite_all=rewrite_all,
            min_input_files=min_input_files,
            dry_run=dry_run,
            trust_lists=trust_lists,
            branch=branch,
            spark=common.spark_for(spark).session,
        )
    common.show(result, draw_deletes, as_json=json)


def draw_deletes(result: RewriteDeletesResult) -> RenderableType:
    """Render what was, or would be, merged."""
    if not result.rewritten_delete_files and not result.dangling_delete_files:
        return Text("no position delete files to merge")
    drawn = common.key_value_table()
    merged = f"{result.rewritten_delete_files:,} ({human_bytes(result.rewritten_bytes)})"
    if result.added_delete_files is not None and result.added_bytes is not None:
        merged += f" → {result.added_delete_files:,} ({human_bytes(result.added_bytes)})"
    drawn.add_row("delete files", merged)
    drawn.add_row("data files", f"{result.data_files:,}")
    if result.dangling_delete_files:
        drawn.add_row("dangling", counted(result.dangling_delete_files, "delete file"))
    if result.snapshot_id is not None:
        drawn.add_row("snapshot", str(result.snapshot_id))
    title = "dry run: nothing was changed" if result.dry_run else "merged"
    return Group(Text(title, style="bold"), drawn)


def upgrade_format(
    table: common.ChangedTableArgument,
    to: Annotated[int, typer.Option("--to", metavar="2|3|4", help="The format version.")],
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Raise the format version of a table; snapshots and files stay as they are.

    floeplan upgrade-format db.events --to 3 --dry-run
    """
    from floeplan.catalog import load_table
    from floeplan.transaction.upgrade_format import upgrade_format as upgrade

    loaded = load_table(table, catalog) if dry_run else common.writable_table(table, catalog)
    common.show(upgrade(loaded, to, dry_run=dry_run), draw_format, as_json=json)


def draw_format(result: FormatUpgradeResult) -> RenderableType:
    """Render what differs from now on."""
    if not result.changes:
        return Text(f"the table has format {result.to_version} already; nothing was changed")
    done = "would be upgraded" if result.dry_run else "was upgraded"
    title = Text(f"format {result.from_version} {done} to {result.to_version}", style="bold")
    return Group(title, *(Text(f"  {change}") for change in result.changes))


def draw_manifests(result: RewriteManifestsResult) -> RenderableType:
    """Render the manifests before and after, per spec."""
    if not result.specs:
        return Text("manifests are already clustered; nothing was changed")
    drawn = common.header_table("spec", "content", ">entries", ">manifests", ">opened for one partition")
    for one in result.specs:
        drawn.add_row(
            str(one.spec_id),
            one.content,
            f"{one.entries:,}",
            f"{one.manifests_before:,} → {one.manifests_after:,}",
            f"{one.opened_before:.1f} → {one.opened_after:.1f}",
        )
    end = "nothing was changed" if result.dry_run else f"snapshot {result.snapshot_id}"
    counts = f"{result.manifests_before:,} → {result.manifests_after:,} manifests: {result.gain}; {end}"
    return Group(drawn, Text(counts))


def doctor(
    table: common.TableArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair misplaced delete files and wrong manifest summaries.")
    ] = False,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", min=0, help="Compare the rows of at most N files with their partition values."
        ),
    ] = SAMPLED_FILES,
    reports: common.ReportsOption = None,
    branch: common.BranchOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Check a table for problems and suggest fixes. Exits with 1 if a finding is an error.

    floeplan doctor db.events --sample 100
    """
    from floeplan.audit.reports import read_workload
    from floeplan.catalog import load_table
    from floeplan.maintenance.doctor import doctor as examine

    loaded = common.writable_table(table, catalog) if repair else load_table(table, catalog)
    with common.spinner("checking the table"):
        filtered: list[str] = []
        if reports is not None:
            name, schema = ".".join(loaded.name()), loaded.metadata.schema()
            workload = read_workload(reports, name, schema, catalog=catalog)
            filtered = [".".join(column.path) for column in workload.columns()]
        result = examine(loaded, repair=repair, branch=branch or "main", sample=sample, filtered=filtered)
    common.show(result, draw_findings, as_json=json)
    if not result.healthy:
        raise typer.Exit(1)


def draw_findings(result: DoctorResult) -> RenderableType:
    """Render the findings, errors first."""
    parts: list[RenderableType] = []
    if result.repaired is not None:
        done = f"snapshot {result.repaired.snapshot_id}" if result.repaired.snapshot_id else "nothing to repair"
        parts.append(Text(f"{counted(result.repaired.delete_files, 'delete file')} moved: {done}", style="bold"))
        if result.manifests_repaired:
            parts.append(Text(f"{counted(result.manifests_repaired, 'manifest')} rewritten", style="bold"))
    worst_first = sorted(result.findings, key=lambda finding: list(_STYLES).index(finding.severity.value))
    for finding in worst_first:
        where = "" if finding.spec_id is None else f" (spec {finding.spec_id})"
        line = Text(f"{finding.severity.value:<8}", style=_STYLES[finding.severity.value])
        line.append(f"{finding.kind}{where}: {finding.message}", style="default")
        parts.append(line if finding.fix is None else line.append(f"\n        → {finding.fix}", style="cyan"))
    return Group(*parts) if result.findings else Group(*parts, Text("No problems found.", style="green"))
