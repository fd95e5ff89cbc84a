"""``floeplan maintain``: the maintenance of all tables, for schedulers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.text import counted, human_bytes

if TYPE_CHECKING:
    from floeplan.fleet.report import MaintainResult, TableReport, WorkReport

_STYLES = {
    "error": "bold red",
    "unreadable": "bold red",
    "warning": "yellow",
    "failed": "bold red",
    "conflict": "yellow",
    "done": "green",
    "partial": "green",
}
_GAINS = Text(
    "A gain counts read.split.open-file-cost (4 MiB by default) for each file or manifest no longer opened.",
    style="dim",
)
_MOST_TABLES = 50


def maintain(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Tables, as namespace.name with * as a wildcard; all by default.",
            autocompletion=completion.tables,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="A TOML file with what may be done with which tables."),
    ] = None,
    budget_bytes: Annotated[
        str | None,
        typer.Option("--budget-bytes", metavar="N", help="Rewrite at most this much data, e.g. 50GiB."),
    ] = None,
    budget_minutes: Annotated[
        float | None, typer.Option("--budget-minutes", metavar="N", min=0, help="Start no work after N minutes.")
    ] = None,
    budget_files: Annotated[
        int | None, typer.Option("--budget-files", metavar="N", min=0, help="Rewrite at most N data files.")
    ] = None,
    dry_run: common.DryRunOption = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show the settings of each table, its work and how it ranks; change nothing."),
    ] = False,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", metavar="FILE", help="Write metrics in Prometheus' text format.")
    ] = None,
    reports: common.ReportsOption = None,
    spark: common.SparkRewriteOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Maintain all tables of a catalog: the most valuable work first, within a budget.

    floeplan maintain --policy policy.toml --budget-minutes 60
    """
    from floeplan.errors import InvalidOptionError
    from floeplan.fleet.policy_file import option_bytes
    from floeplan.fleet.report import write_metrics
    from floeplan.fleet.run import MaintainOptions, run_maintenance
    from floeplan.spark.session import open_session

    if metrics is not None and (metrics.is_dir() or not metrics.absolute().parent.is_dir()):
        reason = "is a folder, and a file is expected" if metrics.is_dir() else "is in a folder that does not exist"
        raise InvalidOptionError(f"--metrics {metrics} {reason}", context={"option": "--metrics"})
    options = MaintainOptions(
        tables=tuple(tables or ()),
        policy=policy,
        budget_bytes=option_bytes(budget_bytes, "--budget-bytes"),
        budget_minutes=budget_minutes,
        budget_files=budget_files,
        dry_run=dry_run or explain,
        reports=reports,
    )
    options.resolved()  # refuses a bad policy before Spark starts
    session = None if spark is None else open_session(spark)
    with common.spinner("maintaining tables"):
        result = run_maintenance(options, catalog=catalog, spark=session)
    if metrics is not None:
        write_metrics(result, metrics, time.time())
    common.show(result, draw_explained if explain else draw, as_json=json)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def draw(result: MaintainResult) -> RenderableType:
    """Render the tables with findings or work, then all work in its order, and what is left."""
    parts: list[RenderableType] = [_summary(result)]
    shown = [table for table in result.tables if table.health != "healthy" or table.work]
    if shown:
        listing = common.header_table("table", "health", ">files", ">bytes", ">small", ">deletes")
        for table in shown[:_MOST_TABLES]:
            facts = table.facts
            health = Text(table.health, style=_STYLES.get(table.health, ""))
            counts = (f"{count:,}" for count in (facts.small_files, facts.delete_files))
            name = Text(table.table, overflow="fold")
            listing.add_row(name, health, f"{facts.files:,}", human_bytes(facts.bytes), *counts)
        parts.append(listing)
        if len(shown) > _MOST_TABLES:
            parts.append(Text(f"and {counted(len(shown) - _MOST_TABLES, 'more table')}; --json has them all"))
    parts += [Text(f"! {table.table}: {table.error}", style="red") for table in result.tables if table.error]
    parts += _work(result)
    for table in shown[:_MOST_TABLES]:
        parts += [Text(f"{table.table} waits: {text}", style="dim") for text in table.waits]
        if not table.work and not table.waits:  # what is left is for the owner of the table
            parts += [Text(f"{table.table} {one.kind}: {one.message}", style="dim") for one in table.findings]
    parts += [Text(f"! {note}", style="yellow") for note in result.notes]
    if result.not_looked_at:
        missed = counted(len(result.not_looked_at), "table")
        parts.append(Text(f"{missed} not looked at: the time of the run was spent"))
    return Group(*parts)


def _summary(result: MaintainResult) -> Text:
    unhealthy = sum(table.health != "healthy" for table in result.tables)
    tables = f"{counted(len(result.tables), 'table')}, {unhealthy:,} with findings"
    spent = f"{human_bytes(result.spent_bytes)} rewritten in {result.seconds:.1f} s"
    return Text(f"{tables}; {'dry run, nothing was changed' if result.dry_run else spent}", style="bold")


def _work(result: MaintainResult) -> list[RenderableType]:
    """Every piece of work in its order: predicted and achieved gain side by side."""
    lines: list[RenderableType] = []
    every = _in_order(result.tables)
    for name, one in every[:_MOST_TABLES]:
        achieved = "" if one.achieved is None else f", achieved {human_bytes(one.achieved['gain'])}"
        status = Text(f"  {one.status.value}", style=_STYLES.get(one.status.value, ""))
        gain = f": predicted gain {human_bytes(one.work.gain)}{achieved}"
        lines.append(Text(f"{name} {one.work.kind}").append_text(status).append(gain))
        lines.append(Text(f"    {one.work.reason}", style="dim"))
        lines += [Text(f"    {one.why}", style="yellow")] if one.why else []
    if len(every) > _MOST_TABLES:
        lines.append(Text(f"and {counted(len(every) - _MOST_TABLES, 'more piece')} of work; --json has them all"))
    return [*lines, *([_GAINS] if every else [])]


def _in_order(tables: Sequence[TableReport]) -> list[tuple[str, WorkReport]]:
    from floeplan.fleet.ranking import ranked

    return ranked(tables)


def draw_explained(result: MaintainResult) -> RenderableType:
    """Render what the policy means: the defaults once, then each table with what differs, its work, and the order."""
    from floeplan.fleet.policy import Settings

    defaults = Settings().to_dict()
    parts: list[RenderableType] = [_summary(result), Text("\ndefaults", style="bold"), _settings(defaults)]
    for table in result.tables:
        rules = ", ".join(map(str, table.rules))
        origin = f"rules at line {rules}" if rules else "defaults"
        parts.append(Text(f"\n{table.table}  {table.health}; {origin}", style="bold"))
        own = {name: value for name, value in table.settings.to_dict().items() if value != defaults[name]}
        parts += [_settings(own)] if own else []
        parts += [Text(f"  {one.kind}: {one.message}", style="dim") for one in table.findings]
        parts += [_explained(one) for one in table.work] or [Text("  no work", style="dim")]
        parts += [Text(f"  waits: {text}", style="yellow") for text in table.waits]
        parts += [Text(f"  yields: {table.foreign}", style="yellow")] if table.foreign else []
        parts += [Text(f"  ! {table.error}", style="red")] if table.error else []
    # A run does not start work that has failed already.
    tables = [replace(one, work=tuple(work for work in one.work if work.status == "planned")) for one in result.tables]
    every = _in_order(tables)[:_MOST_TABLES]
    parts += [Text("\norder", style="bold")] if every else []
    parts += [Text(f"  {number}. {name} {one.work.kind}") for number, (name, one) in enumerate(every, 1)]
    parts += [_GAINS] if every else []
    return Group(*parts, *(Text(f"! {note}", style="yellow") for note in result.notes))


def _settings(settings: Mapping[str, object]) -> RenderableType:
    drawn = common.key_value_table()
    for name, value in settings.items():
        note = f" ({_least_files(value)})" if name == "compact-min-files" else ""
        drawn.add_row(f"  {name}", f"{_setting(value)}{note}")
    return drawn


def _least_files(compact_min_files: object) -> str:
    """From how many files on the planner compacts a partition, and a table."""
    from floeplan.fleet.policy import Settings

    assert isinstance(compact_min_files, int)
    least = Settings(compact_min_files=compact_min_files).min_input_files
    return f"partitions with at least {counted(least, 'small file')}"


def _setting(value: object) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _explained(one: WorkReport) -> Text:
    if one.status == "failed":
        return Text(f"  ! {one.work.kind}: {one.why}", style="red")
    learned = f", earlier work achieved {one.factor:.2f} of its prediction" if one.factor != 1.0 else ""
    gain = f"gain {human_bytes(one.work.gain)} for {human_bytes(one.work.bytes)}{learned}"
    return Text(f"  → {one.work.kind}: {one.work.reason}; {gain}")
