"""`floeplan rewrite`: which data files are rewritten, into what, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.changes import writable_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, WhereOption, show
from floeplan.cli.scan_options import CaseOption, NoCacheOption, column_names
from floeplan.errors import InvalidOptionError
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.options import RewriteOptions
from floeplan.rewrite.plan import RewriteDataFilesPlanningResult, RewriteFileGroup
from floeplan.rewrite.planner import RewriteDataFilesPlanner
from floeplan.rewrite.progress import NO_PROGRESS, BarProgress, JsonProgress, Progress
from floeplan.rewrite.result import RewriteResult
from floeplan.spark.session import open_session
from floeplan.text import counted, human_bytes

MOST_GROUPS = 60
"""Groups that are drawn one by one."""

PartitionFilterOption = Annotated[
    str | None,
    typer.Option("--partition-filter", metavar="EXPR", help="Rewrite whole partitions that may hold a matching row."),
]
StrategyOption = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="binpack, sort, zorder, hilbert or stitch.")
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="a,b", help="Columns to sort or cluster by.")]
SpecOption = Annotated[
    str, typer.Option("--spec", metavar="SPEC", help="Spec of the new files: keep, current or a spec id.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse (exit 4) when a filter cannot decide about a candidate file.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="k=v", help="An option of Iceberg's rewrite_data_files; may be repeated."),
]
BranchOption = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="The branch to rewrite.")]
ProgressOption = Annotated[
    str,
    typer.Option("--progress", metavar="HOW", help="auto: a bar on a terminal; bar, json (lines on stderr) or none."),
]
SparkOption = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="URL",
        envvar="FLOEPLAN_SPARK",
        help="Rewrite on this Spark session; by default in this process, on all its cores.",
    ),
]


def rewrite(
    table: TableArgument,
    where: WhereOption = None,
    partition_filter: PartitionFilterOption = None,
    strategy: StrategyOption = "binpack",
    by: ByOption = None,
    spec: SpecOption = "keep",
    strict: StrictOption = False,
    dry_run: DryRunOption = False,
    option: OptionOption = None,
    branch: BranchOption = None,
    progress: ProgressOption = "auto",
    spark: SparkOption = None,
    case_insensitive: CaseOption = False,
    no_cache: NoCacheOption = False,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite small, large, deleted-from and old-spec files, partition by partition.

    floeplan rewrite db.events --partition-filter "region = 'eu'" --spec current --dry-run
    """
    options = RewriteOptions(
        partition_filter=partition_filter,
        where=where,
        case_sensitive=not case_insensitive,
        strict=strict,
        strategy=strategy,
        by=tuple(column_names(by) or ()),
        spec=spec,
    ).with_options(_pairs(option or ()))
    if dry_run:
        planner = RewriteDataFilesPlanner(load_table(table, catalog), options, ref=branch, cache=not no_cache)
        show(planner.plan_with_stats(), draw_plan, as_json=json)
        return
    result = run_rewrite(
        writable_table(table, catalog),
        options,
        spark=None if spark is None else open_session(spark),
        branch=branch,
        cache=not no_cache,
        progress=_progress(progress),
    )
    show(result, draw_result, as_json=json)
    if result.failures:
        raise typer.Exit(1)


def draw_plan(result: RewriteDataFilesPlanningResult, most: int = MOST_GROUPS) -> RenderableType:
    """The groups per spec and partition, what is left and why, and what to know about it."""
    plan = result.plan
    parts: list[RenderableType] = [Text(plan.target.name, style="bold"), _groups(plan.groups[:most])]
    if len(plan.groups) > most:
        parts.append(Text(f"and {counted(len(plan.groups) - most, 'more group')}"))
    outputs = sum(group.expected_outputs for group in plan.groups)
    size = human_bytes(sum(group.bytes for group in plan.groups))
    files = counted(sum(len(group.rows) for group in plan.groups), "file")
    parts.append(Text(f"{counted(len(plan.groups), 'group')}: {files} ({size}) into about {outputs}"))
    parts += [Text(f"left: {counted(count, 'file')} {reason}") for reason, count in plan.skipped.items()]
    parts += [Text(f"! {warning.message}", style="yellow") for warning in result.warnings]
    return Group(*parts)


def draw_result(result: RewriteResult) -> RenderableType:
    """What was done, as a small table, and what was left undone."""
    if not result.snapshot_ids and not result.failures:
        return Group(draw_plan(result.planning), Text("nothing to rewrite, so nothing was committed"))
    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim")
    drawn.add_column()
    rewritten, added = human_bytes(result.bytes_rewritten), human_bytes(result.bytes_added)
    drawn.add_row("files", f"{result.files_rewritten:,} ({rewritten}) into {result.files_added:,} ({added})")
    drawn.add_row("delete files", f"{result.delete_files_removed:,} removed")
    if result.deletes_carried:
        drawn.add_row("carried over", f"{counted(result.deletes_carried, 'row')} deleted by others meanwhile")
    drawn.add_row("stitched", f"{counted(result.groups_stitched, 'group')} of {len(result.planning.plan.groups):,}")
    drawn.add_row("snapshots", ", ".join(map(str, result.snapshot_ids)))
    failures = [Text(f"! group {one.group_id}: {one.error.message}", style="yellow") for one in result.failures]
    warnings = [Text(f"! {warning.message}", style="yellow") for warning in result.planning.warnings]
    return Group(Text(f"rewrite of {result.planning.plan.target.name}", style="bold"), drawn, *failures, *warnings)


def _progress(how: str) -> Progress:
    match how:
        case "auto":
            return BarProgress() if sys.stderr.isatty() else NO_PROGRESS
        case "bar":
            return BarProgress()
        case "json":
            return JsonProgress()
        case "none":
            return NO_PROGRESS
    raise InvalidOptionError(
        f"--progress is {how!r} but must be auto, bar, json or none", context={"option": "--progress"}
    )


def _groups(groups: Sequence[RewriteFileGroup]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("group", "spec", "partition"):
        table.add_column(name)
    for name in ("files", "bytes", "deletes", "outputs"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for group in groups:
        table.add_row(
            str(group.group_id),
            _specs(group),
            _partition(group),
            f"{len(group.rows):,}",
            human_bytes(group.bytes),
            f"{group.delete_files:,}",
            f"{group.expected_outputs:,}",
            ", ".join(f"{reason} {files:,}" for reason, files in group.reasons.items()),
        )
    return table


def _specs(group: RewriteFileGroup) -> str:
    old = "+".join(map(str, group.source_spec_ids))
    return old if group.source_spec_ids == (group.output_spec_id,) else f"{old} → {group.output_spec_id}"


def _partition(group: RewriteFileGroup) -> str:
    text = ", ".join(f"{name}={value}" for name, value in group.partition.items()) or "–"
    return text if group.proven else f"{text} (by its rows)"


def _pairs(options: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOptionError(
                f"--option {text!r} has no value; write it as name=value", context={"option": text}
            )
        pairs[name.strip()] = value.strip()
    return pairs
