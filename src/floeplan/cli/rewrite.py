"""`floeplan rewrite`: which data files would be rewritten, into what, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, WhereOption, show
from floeplan.cli.scan_options import CaseOption, NoCacheOption, column_names
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.rewrite.options import RewriteOptions
from floeplan.rewrite.plan import RewriteDataFilesPlanningResult, RewriteFileGroup
from floeplan.rewrite.planner import RewriteDataFilesPlanner
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
    case_insensitive: CaseOption = False,
    no_cache: NoCacheOption = False,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Plan the rewrite of small, large, deleted-from and old-spec files, partition by partition.

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
    if not dry_run:
        raise UnsupportedError("rewrite only plans; add --dry-run to see the plan")
    planner = RewriteDataFilesPlanner(load_table(table, catalog), options, ref=branch, cache=not no_cache)
    show(planner.plan_with_stats(), draw_plan, as_json=json)


def draw_plan(result: RewriteDataFilesPlanningResult) -> RenderableType:
    """The groups per spec and partition, what is left and why, and what to know about it."""
    plan = result.plan
    parts: list[RenderableType] = [Text(plan.target.name, style="bold"), _groups(plan.groups[:MOST_GROUPS])]
    if len(plan.groups) > MOST_GROUPS:
        parts.append(Text(f"and {counted(len(plan.groups) - MOST_GROUPS, 'more group')}"))
    outputs = sum(group.expected_outputs for group in plan.groups)
    size = human_bytes(sum(group.bytes for group in plan.groups))
    files = counted(sum(len(group.rows) for group in plan.groups), "file")
    parts.append(Text(f"{counted(len(plan.groups), 'group')}: {files} ({size}) into about {outputs}"))
    parts += [Text(f"left: {counted(count, 'file')} {reason}") for reason, count in plan.skipped.items()]
    parts += [Text(f"! {warning.message}", style="yellow") for warning in result.warnings]
    return Group(*parts)


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
