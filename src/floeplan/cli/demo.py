"""Runs ``floeplan demo``: queries, rewrites, upgrades, audits and advises a table of three partition specs.

A chapter is an operation, the equivalent command, and what to notice. Every number comes from the result of the
operation. The facts of a chapter are the same in every run; drawings also contain values that are not, such as snapshot
ids.

The table (``demo_archive``) is always the same. It is created in the embedded catalog or in ``--catalog``; other files
go to the folder ``demo`` of the embedded home. Fail-safe: a demo that fails removes what it created; ``--clean`` does
so later.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.audit.advisor import AdviseOptions, advise, apply_candidate
from floeplan.audit.candidates import Candidate
from floeplan.audit.findings import AuditResult
from floeplan.audit.job import audit
from floeplan.audit.options import AuditOptions
from floeplan.catalog import embedded_home, open_catalog
from floeplan.cli import common
from floeplan.cli.commands.audit import draw as draw_audit
from floeplan.cli.commands.audit import draw_candidates
from floeplan.cli.commands.inspect import draw_specs
from floeplan.cli.commands.rewrite import draw_plan, draw_rewrite, draw_upgrade
from floeplan.cli.demo_archive import NAME, TIME, WEEK, Archive, lose_rows, remove_archive
from floeplan.explorer.site import write_report
from floeplan.maintenance.inspect import inspect_table
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.scan.explain import explain
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.report import JsonLinesReportStore
from floeplan.text import human_bytes, percent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINCE_FEBRUARY = f"{TIME} >= TIMESTAMP_NTZ '2024-02-01'"
CLUSTERED_BY = ("mission_id", TIME)
REWRITE = RewriteOptions(where=SINCE_FEBRUARY, strategy="zorder", by=CLUSTERED_BY, rewrite_all=True)
PAYLOAD = "payload_id BETWEEN 400 AND 404"
LOGGED = (WEEK, WEEK, *(f"payload_id BETWEEN {low} AND {low + 4}" for low in (100, 400, 700, 900)))
_SHOWN_GROUPS = 6
_LEVELS = ("manifests", "files", "row_groups", "rows", "bytes")


def run_demo(size: str, *, clean: bool, catalog: str | None, json: bool) -> None:
    """Run the chapters; with ``clean``, only remove what an earlier demo created."""
    opened, folder = open_catalog(catalog), embedded_home() / "demo"
    remove_archive(opened)
    shutil.rmtree(folder, ignore_errors=True)
    if clean:
        if json:
            common.print_json({"removed": True})
        return
    program = "floeplan" if shutil.which("floeplan") else shlex.quote(sys.argv[0])
    named = "" if catalog is None else f" --catalog {shlex.quote(catalog)}"
    stage = Stage(Archive.of(opened, size), folder, program, named)
    chapters: list[Chapter] = []
    console = None if json else common.text_console()
    try:
        for number, play in enumerate(CHAPTERS, start=1):
            with common.spinner(f"{number} of {len(CHAPTERS)}"):
                chapters.append(play(stage))
            if console is not None:
                console.print(chapters[-1].drawn(number))
    except BaseException:
        remove_archive(opened)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        stage.stop_spark()
    if console is None:
        common.print_json({"table": NAME, "size": size, "chapters": [chapter.to_dict() for chapter in chapters]})
        return
    commands = [Text(f"  {command}") for chapter in chapters for command in chapter.commands]
    end = Text(f"Remove everything the demo created: {stage.command('demo --clean')}", style="dim")
    console.print(Group(Text("The commands of this demo:", style="bold"), *commands, Text(), end))


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step.

    Attributes:
        title: The operation.
        commands: The equivalent commands.
        drawing: The result as text.
        look: What to notice.
        facts: Values of the result that are the same in every run.
    """

    title: str
    commands: tuple[str, ...]
    drawing: RenderableType
    look: tuple[str, ...]
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"title": self.title, "commands": list(self.commands), "facts": dict(self.facts)}

    def drawn(self, number: int) -> RenderableType:
        """The chapter as text."""
        commands = [Text(f"  $ {command}", style="cyan") for command in self.commands]
        looks = [Text(f"  {line}") for line in self.look]
        return Group(Text(f"{number}. {self.title}", style="bold"), *commands, Text(), self.drawing, *looks, Text())


@dataclass(slots=True)
class Stage:
    """The state of a demo: where it runs, and what chapters pass on."""

    archive: Archive
    folder: Path
    program: str
    named: str
    plans: list[ScanPlan] = field(default_factory=list)
    audited: AuditResult | None = None
    _spark: SparkSession | None = None

    @property
    def reports(self) -> Path:
        """The folder of scan reports."""
        return self.folder / "reports"

    def table(self) -> Table:
        """Load the table."""
        return self.archive.catalog.load_table(NAME)

    def command(self, text: str) -> str:
        """A command line of Floeplan."""
        return f"{self.program} {text}{self.named}"

    def plan(self, where: str, *, logged: bool = False) -> ScanPlan:
        """Plan a query; ``logged`` writes a scan report."""
        report = JsonLinesReportStore(self.reports) if logged else False
        return plan_scan(self.table(), where, options=ScanOptions(report=report))

    def spark(self) -> SparkSession:
        """A local session, started when it is first needed."""
        if self._spark is None:
            from floeplan.spark.session import open_session

            # The JVM prints to stderr while it starts; failures are raised anyway.
            stderr = os.dup(2)
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), 2)
            try:
                self._spark = open_session("local[*]")
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
        return self._spark

    def stop_spark(self) -> None:
        """Stop the session, if one was started."""
        if self._spark is not None:
            self._spark.stop()


def tell_history(stage: Stage) -> Chapter:
    """Build the archive."""
    eras: list[str] = []
    found = inspect_table(stage.archive.build(eras.append))
    lines = [Text(f"  {era}") for era in eras]
    facts = {
        "files_by_spec": {str(spec.spec_id): spec.files for spec in found.files_by_spec},
        "rows": sum(spec.rows for spec in found.files_by_spec),
        "delete_files": found.delete_files["position"],
    }
    look = (
        "Old files keep their spec. The delete and the upsert added delete files, each with the spec of its data file.",
    )
    commands = (stage.command(f"inspect {NAME}"),)
    drawing = Group(*lines, draw_specs(found))
    return Chapter("An archive of eight missions under three specs", commands, drawing, look, facts)


def ask_for_a_week(stage: Stage) -> Chapter:
    """Plan one week of one mission, across a change of the partition spec."""
    plan = stage.plan(WEEK)
    stage.plans.append(plan)
    look = (
        "One predicate prunes three specs: by column bounds, by day, and by mission and month.",
        "The remaining files of February contain all missions, so metadata cannot prune them.",
    )
    command = stage.command(f'plan {NAME} --where "{WEEK}" --explain')
    return Chapter("A week of one mission", (command,), explain(plan), look, _kept(plan))


def show_other_tools(stage: Stage) -> Chapter:
    """The same table in other tools; PyIceberg runs here."""
    plan, table = stage.plans[0], stage.table()
    # The same predicate in PyIceberg's syntax.
    where = WEEK.replace("TIMESTAMP_NTZ ", "").replace("-26'", "-26T00:00:00'").replace("-04'", "-04T00:00:00'")
    tasks = list(table.scan(row_filter=where).plan_files())
    refusal = "accepted"
    try:
        table.transaction().dynamic_partition_overwrite(plan.to_arrow(limit=1))
    except (ValueError, NotImplementedError) as error:
        refusal = f"refused, {str(error).split(':')[0]}"
    loss = lose_rows(stage.archive.catalog)
    old = [spec for spec in plan.specs if spec.spec_id != table.metadata.default_spec_id]
    old_files = sum(spec.files_total or 0 for spec in old)
    lines = (
        f"PyIceberg's plan_files: {len(tasks)} files, without totals, specs or reasons.",
        f"PyIceberg's dynamic_partition_overwrite: {refusal}",
        f"PyIceberg's append_data_file, with a file of an older spec: no error, and a query for its month "
        f"returns {loss.found} of {loss.rows:,} rows. floeplan doctor reports: {', '.join(loss.findings)}.",
        f"Iceberg 1.12's rewrite_data_files on Spark moves every file of an old spec ({old_files:,} here) to the "
        "current one and reports nothing per spec.",
        "DuckDB 1.5's DELETE on files of an old spec records its delete files under the current spec: in other engines "
        "the rows reappear.",
        "See docs/engines.md for measurements per engine.",
    )
    facts = {
        "pyiceberg_files": len(tasks),
        "pyiceberg_overwrite": refusal,
        "rows_lost": loss.rows - loss.found,
        "old_spec_files": old_files,
    }
    drawing = Group(*(Text(f"  · {line}") for line in lines))
    return Chapter("The same table in other tools", (), drawing, (), facts)


def preview_rewrite(stage: Stage) -> Chapter:
    """Plan a rewrite."""
    result = RewriteDataFilesPlanner(stage.table(), REWRITE).plan_with_stats()
    groups = result.plan.groups
    facts = {
        "groups": len(groups),
        "files": sum(len(group.rows) for group in groups),
        "expected_outputs": sum(group.expected_outputs for group in groups),
        "left": dict(result.plan.skipped),
    }
    look = ("Groups never mix specs or partitions. January is skipped: its bounds prove that no row matches.",)
    drawing = draw_plan(result, most=_SHOWN_GROUPS)
    return Chapter("What a rewrite would do", (_rewrite_command(stage, dry=True),), drawing, look, facts)


def rewrite_along_a_curve(stage: Stage) -> Chapter:
    """Cluster February and March by mission and time, and plan the query again."""
    done = run_rewrite(stage.table(), REWRITE)
    after = stage.plan(WEEK)
    before = stage.plans[0]
    stage.plans.append(after)
    facts = {
        "files_rewritten": done.files_rewritten,
        "files_added": done.files_added,
        "delete_files_removed": done.delete_files_removed,
        "before": _kept(before),
        "after": _kept(after),
        "same_rows": before.count() == after.count(),
    }
    look = ("The same rows, without delete files; partitions and specs are unchanged.",)
    drawing = Group(draw_rewrite(done), Text(), side_by_side(before, after))
    return Chapter("The rewrite, along a Z-order curve", (_rewrite_command(stage),), drawing, look, facts)


def upgrade_by_metadata(stage: Stage) -> Chapter:
    """Move old files to the current spec without touching data."""
    result = upgrade_spec(stage.table(), options=UpgradeOptions(metadata_only=True))
    after = stage.plan(WEEK)
    facts = {
        "files_by_metadata": result.files_by_metadata,
        "files_left": result.files_left,
        "reasons": dict(result.reasons),
        "manifests_before": stage.plans[1].summary.manifests_kept,
        "manifests_after": after.summary.manifests_kept,
    }
    look = (
        "January's files contain one mission and month each, which their bounds prove: only metadata changed.",
        f"The week is now in {after.summary.manifests_kept} manifests instead of "
        f"{stage.plans[1].summary.manifests_kept}. Files of several missions need a rewrite, which happens without "
        "--metadata-only.",
    )
    command = stage.command(f"upgrade-spec {NAME} --metadata-only")
    return Chapter("A spec upgrade by metadata alone", (command,), draw_upgrade(result), look, facts)


def audit_the_queries(stage: Stage) -> Chapter:
    """Log some queries and audit them."""
    for where in LOGGED:
        stage.plan(where, logged=True)
    title = "Which queries read too much"
    commands = (stage.command(f"audit --reports {shlex.quote(str(stage.reports))}"),)
    if find_spec("pyspark") is None:
        missing = Text("  The audit runs on Spark, which is not installed: install floeplan[spark].")
        return Chapter(title, commands, missing, (), {"flagged": None})
    stage.audited = result = audit(stage.spark(), str(stage.reports), AuditOptions())
    facts = {"queries": result.queries, "flagged": [(one.filter, one.reason) for one in result.flagged]}
    look = ("The week is not flagged. The payload is not a partition field, and its values are spread over all files.",)
    return Chapter(title, commands, draw_audit(result), look, facts)


def take_advice(stage: Stage) -> Chapter:
    """Apply the best candidate for both queries."""
    table = stage.table()
    before = stage.plan(PAYLOAD)
    advised = advise(table, str(stage.reports), AdviseOptions(kind="zorder", most=3))
    best: Candidate = advised.candidates[0]
    apply_candidate(table, best)
    after = stage.plan(PAYLOAD)
    facts = {
        "applied": [best.kind, *best.columns],
        "before": _kept(before),
        "after": _kept(after),
        "same_rows": before.count() == after.count(),
    }
    drawing = Group(draw_candidates(advised), Text(), side_by_side(before, after))
    look = ("The estimate is from sampled rows. The second table is what the same query reads after the rewrite.",)
    reports = shlex.quote(str(stage.reports))
    command = stage.command(f"advise {NAME} --reports {reports} --kind zorder --apply")
    return Chapter("Advice, applied", (command,), drawing, look, facts)


def write_the_page(stage: Stage) -> Chapter:
    """Write a static report."""
    audited = None if stage.audited is None else stage.audited.to_dict()
    site = write_report(stage.table(), stage.folder / "site", (WEEK, PAYLOAD), audit=audited)
    address = Path(site.path).resolve().as_uri()
    lines = Group(Text(f"  {address}", style="bold cyan"), Text("  Open it in a browser; it needs no server."))
    commands = (
        stage.command(f'report {NAME} -o site --where "{WEEK}" --reports {shlex.quote(str(stage.reports))}'),
        stage.command(f"serve {NAME}"),
    )
    return Chapter("The table as a page", commands, lines, (), {"files": site.files, "plans": site.plans})


CHAPTERS: tuple[Callable[[Stage], Chapter], ...] = (
    tell_history,
    ask_for_a_week,
    show_other_tools,
    preview_rewrite,
    rewrite_along_a_curve,
    upgrade_by_metadata,
    audit_the_queries,
    take_advice,
    write_the_page,
)


def side_by_side(before: ScanPlan, after: ScanPlan) -> RenderableType:
    """What a query reads before and after, per level."""
    drawn = common.header_table("the same query reads", ">before", ">of", ">after", ">of", ">ratio")
    for level in _LEVELS:
        show = human_bytes if level == "bytes" else "{:,}".format
        numbers = [getattr(plan.summary, f"{level}_{kind}") for plan in (before, after) for kind in ("kept", "total")]
        if any(number is None for number in numbers):
            continue
        share = percent(numbers[2], numbers[0])
        drawn.add_row(level.replace("_", " "), *(show(number) for number in numbers), share)
    deletes = [before.summary.deletes_kept or 0, after.summary.deletes_kept or 0]
    if any(deletes):
        drawn.add_row("delete files", str(deletes[0]), "", str(deletes[1]), "", percent(deletes[1], deletes[0]))
    return drawn


def _rewrite_command(stage: Stage, *, dry: bool = False) -> str:
    text = f'rewrite {NAME} --where "{SINCE_FEBRUARY}" --strategy zorder --by {",".join(CLUSTERED_BY)}'
    return stage.command(f"{text} --option rewrite-all=true{' --dry-run' if dry else ''}")


def _kept(plan: ScanPlan) -> dict[str, int | None]:
    return {f"{level}_kept": getattr(plan.summary, f"{level}_kept") for level in _LEVELS}
