"""``floeplan rewrite`` compacts and clusters data files; ``floeplan upgrade-spec`` moves files to another spec."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.text import counted, human_bytes
from floeplan.times import parse_age

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from floeplan.rewrite.plan.model import RewriteDataFilesPlanningResult, RewriteFileGroup, RewriteResult
    from floeplan.rewrite.progress import Progress
    from floeplan.rewrite.spec_upgrade.upgrade import SpecUpgradeResult

MOST_GROUPS = 60
"""Groups listed individually."""
STRATEGIES = ("binpack", "sort", "zorder", "hilbert", "stitch")
"""The registered strategies, for help: a test compares them with the registry, which takes long to import."""

PartitionFilterOption = Annotated[
    str | None,
    typer.Option(
        "--partition-filter",
        metavar="EXPR",
        help="Only partitions that may contain matching rows.",
        autocompletion=completion.conditions,
    ),
]
StrategyOption = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help=f"One of {', '.join(STRATEGIES)}.",
        autocompletion=completion.one_of(*STRATEGIES),
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option("--by", metavar="a,b", help="Columns to sort or cluster by.", autocompletion=completion.columns),
]
SpecOption = Annotated[
    str,
    typer.Option(
        "--spec",
        metavar="SPEC",
        help="Partition spec of the new files: keep, current or a spec id.",
        autocompletion=completion.one_of("keep", "current"),
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Fail (exit 4) if a filter cannot be evaluated for a candidate file.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="k=v", help="An option of Iceberg's rewrite_data_files; repeatable."),
]
ProgressOption = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="HOW",
        help="auto (a bar on a terminal), bar, json (lines on stderr) or none.",
        autocompletion=completion.one_of("auto", "bar", "json", "none"),
    ),
]


def rewrite(
    table: common.TableArgument,
    where: common.WhereOption = None,
    partition_filter: PartitionFilterOption = None,
    strategy: StrategyOption = "binpack",
    by: ByOption = None,
    spec: SpecOption = "keep",
    strict: StrictOption = False,
    dry_run: common.DryRunOption = False,
    option: OptionOption = None,
    branch: common.BranchOption = None,
    progress: ProgressOption = "auto",
    spark: common.SparkRewriteOption = None,
    case_insensitive: common.CaseOption = False,
    no_cache: common.NoCacheOption = False,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Rewrite data files of the wrong size, with deletes, or of an old partition spec.

    floeplan rewrite db.events --partition-filter "region = 'eu'" --spec current --dry-run
    """
    from floeplan.catalog import load_table
    from floeplan.rewrite.execute import run_rewrite
    from floeplan.rewrite.plan.options import RewriteOptions
    from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
    from floeplan.rewrite.run.rewrite_group import range_task_bytes
    from floeplan.spark.session import open_session

    parsed = {}
    for text in option or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOptionError(f"--option {text!r} has no value; write name=value", context={"option": text})
        parsed[name.strip()] = value.strip()
    options = RewriteOptions(
        partition_filter=partition_filter,
        where=where,
        case_sensitive=not case_insensitive,
        strict=strict,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
        strategy=strategy,
        by=tuple(common.column_names(by) or ()),
        spec=spec,
    ).with_options(parsed)
    reported = _progress(progress)
    if dry_run:
        if spark is not None and options.range_task_bytes is None:
            options = replace(options, range_task_bytes=range_task_bytes(options, open_session(spark)))
        planner = RewriteDataFilesPlanner(load_table(table, catalog), options, ref=branch, cache=not no_cache)
        common.show(planner.plan_with_stats(), draw_plan, as_json=json)
        return
    result = run_rewrite(
        common.writable_table(table, catalog),
        options,
        spark=None if spark is None else open_session(spark),
        branch=branch,
        cache=not no_cache,
        progress=reported,
    )
    common.show(result, draw_rewrite, as_json=json)
    if result.failures:
        raise typer.Exit(1)


def draw_plan(result: RewriteDataFilesPlanningResult, most: int = MOST_GROUPS) -> RenderableType:
    """Render the file groups, the skipped files with their reasons, and warnings."""
    plan = result.plan
    parts: list[RenderableType] = [Text(plan.target.name, style="bold")]
    parts += [_groups(plan.groups[:most])] if plan.groups else []
    if len(plan.groups) > most:
        parts.append(Text(f"and {counted(len(plan.groups) - most, 'more group')}"))
    outputs = sum(group.expected_outputs for group in plan.groups)
    size = human_bytes(sum(group.bytes for group in plan.groups))
    files = counted(sum(len(group.rows) for group in plan.groups), "file")
    planned = f"{counted(len(plan.groups), 'group')}: {files} ({size}) into about {outputs:,}"
    parts.append(Text(planned if plan.groups else "no files to rewrite"))
    parts += [
        Text(f"group {one.group_id}: {one.tasks:,} Spark tasks by {one.rows_by}\n  {one.reason}")
        for one in result.ranges[:most]
    ]
    parts += [Text(f"skipped: {counted(count, 'file')} {reason}") for reason, count in plan.skipped.items()]
    parts += [Text(f"! {warning.message}", style="yellow") for warning in result.warnings]
    return Group(*parts)


def draw_rewrite(result: RewriteResult) -> RenderableType:
    """Render what was rewritten, and the groups that failed."""
    if not result.snapshot_ids and not result.failures:
        return Group(draw_plan(result.planning), Text("nothing to rewrite; nothing was committed"))
    drawn = common.key_value_table()
    rewritten, added = human_bytes(result.bytes_rewritten), human_bytes(result.bytes_added)
    drawn.add_row("files", f"{result.files_rewritten:,} ({rewritten}) into {result.files_added:,} ({added})")
    drawn.add_row("delete files", f"{result.delete_files_removed:,} removed")
    if result.deletes_carried:
        drawn.add_row("concurrent deletes", f"{counted(result.deletes_carried, 'row')} deleted again in the new files")
    if result.groups_stitched:
        drawn.add_row("copied", f"{counted(result.groups_stitched, 'group')} copied without decoding")
    if result.ranges:
        tasks, ways = sum(one.tasks for one in result.ranges), sorted({one.rows_by for one in result.ranges})
        groups = counted(len(result.ranges), "group")
        drawn.add_row("in ranges", f"{groups} by {counted(tasks, 'Spark task')} ({', '.join(ways)})")
    drawn.add_row("snapshots", ", ".join(map(str, result.snapshot_ids)))
    failures = [Text(f"! group {one.group_id}: {one.error.message}", style="yellow") for one in result.failures]
    warnings = [Text(f"! {warning.message}", style="yellow") for warning in result.planning.warnings]
    return Group(Text(f"rewrite of {result.planning.plan.target.name}", style="bold"), drawn, *failures, *warnings)


def _progress(how: str) -> Progress:
    from floeplan.rewrite.progress import NO_PROGRESS, BarProgress, JsonProgress

    if how == "bar" or (how == "auto" and sys.stderr.isatty()):
        return BarProgress()
    if how == "json":
        return JsonProgress()
    if how in ("auto", "none"):
        return NO_PROGRESS
    message = f"--progress is {how!r} but must be auto, bar, json or none"
    raise InvalidOptionError(message, context={"option": "--progress"})


def _groups(groups: Sequence[RewriteFileGroup]) -> Table:
    numbers = (">files", ">bytes", ">deletes", ">outputs")
    table = common.header_table("group", "spec", "partition", *numbers, "reasons")
    for group in groups:
        specs = "+".join(map(str, group.source_spec_ids))
        if group.source_spec_ids != (group.output_spec_id,):
            specs += f" → {group.output_spec_id}"
        partition = ", ".join(f"{name}={value}" for name, value in group.partition.items()) or "–"
        table.add_row(
            str(group.group_id),
            specs,
            partition if group.proven else f"{partition} (from its rows)",
            f"{len(group.rows):,}",
            human_bytes(group.bytes),
            f"{group.delete_files:,}",
            f"{group.expected_outputs:,}",
            ", ".join(f"{reason} {files:,}" for reason, files in group.reasons.items()),
        )
    return table


def upgrade_spec(
    table: common.ChangedTableArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--spec",
            metavar="SPEC",
            help="current, a spec id, or a new spec such as 'month(ts), bucket(8, id)', added to the table but not "
            "made the default.",
        ),
    ] = "current",
    metadata_only: Annotated[
        bool, typer.Option("--metadata-only", help="Move files by metadata only; rewrite none.")
    ] = False,
    where: common.WhereOption = None,
    allow_coarser: Annotated[
        bool, typer.Option("--allow-coarser", help="Also move files to a coarser partition.")
    ] = False,
    files_per_commit: Annotated[
        int | None, typer.Option("--files-per-commit", metavar="N", help="Commit after every N files.")
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="AGE", help="Watch for deletes of concurrent writers this long, e.g. 30s.")
    ] = "0s",
    dry_run: common.DryRunOption = False,
    branch: common.BranchOption = None,
    spark: common.SparkRewriteOption = None,
    trust_lists: common.TrustListsOption = False,
    allow_late_equality_deletes: common.LateDeletesOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Move files to another partition spec, by metadata alone where possible.

    A file is moved by metadata if its bounds prove its partition; others are
    rewritten. --where moves only files in which all rows match, e.g. old days
    that are folded into months.

    floeplan upgrade-spec db.events --dry-run
    """
    from floeplan.catalog import load_table
    from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
    from floeplan.rewrite.spec_upgrade.upgrade import upgrade_spec as upgrade
    from floeplan.spark.session import open_session

    loaded = load_table(table, catalog) if dry_run else common.writable_table(table, catalog)
    options = UpgradeOptions(
        to=_spec_id(loaded, to, dry_run=dry_run),
        allow_coarser=allow_coarser,
        files_per_commit=files_per_commit,
        grace_seconds=parse_age(grace, "--grace", "s"),
        dry_run=dry_run,
        metadata_only=metadata_only,
        where=where,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
    )
    session = None if spark is None else open_session(spark)
    with common.spinner("moving files"):
        result = upgrade(loaded, spark=session, branch=branch or "main", options=options)
    common.show(result, draw_upgrade, as_json=json)


def _spec_id(table: IcebergTable, text: str, *, dry_run: bool) -> str | int:
    """The target of the upgrade; a new spec is added to the table first."""
    from floeplan.catalog import refreshed
    from floeplan.partition.evolution import AddField, drop_all, evolved_spec
    from floeplan.rewrite.spec_upgrade.upgrade import CURRENT
    from floeplan.sql_text.parse import parse_term
    from floeplan.transaction.evolve_spec import add_spec

    if text == CURRENT or text.strip().isdecimal():
        return text.strip()
    # Split at commas outside parentheses: bucket(8, id) is one term.
    fields = [AddField(parse_term(term)) for term in re.split(r",\s*(?![^()]*\))", text)]
    if not dry_run:
        added = add_spec(table, fields).spec.spec_id
        refreshed(table)
        return added
    spec_id = evolved_spec(table.metadata, (*drop_all(table.metadata), *fields)).spec_id
    if spec_id not in table.specs():
        raise BadInputError(
            f"the table has no spec {text}, and a dry run does not add one; use an existing spec",
            context={"spec": text},
        )
    return spec_id


def draw_upgrade(result: SpecUpgradeResult) -> RenderableType:
    """Render which files were moved, rewritten or left, and why."""
    done = "would move" if result.dry_run else "moved"
    drawn = common.key_value_table()
    drawn.add_row(done, f"{counted(result.files_by_metadata, 'file')} by metadata alone, of {result.files_total:,}")
    drawn.add_row("deletes", f"{counted(result.deletes_carried, 'delete file')} moved with them")
    drawn.add_row("would rewrite" if result.dry_run else "rewrote", counted(result.files_by_rewrite, "file"))
    drawn.add_row("left", counted(result.files_left, "file"))
    for reason, files in result.reasons.items():
        drawn.add_row("not movable", f"{counted(files, 'file')}: {reason}")
    for snapshot_id in result.snapshot_ids:
        drawn.add_row("snapshot", str(snapshot_id))
    notes = [Text(f"! {note}", style="yellow") for note in result.notes]
    return Group(Text(f"to spec {result.target_spec_id}", style="bold"), drawn, *notes)
