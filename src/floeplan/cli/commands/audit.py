"""`floeplan audit`: which queries read more than they should, why, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.audit.advisor import AdviceResult, AdviseOptions, apply_candidate
from floeplan.audit.advisor import advise as advise_table
from floeplan.audit.candidates import KINDS
from floeplan.audit.findings import RATIOS, AuditOptions, AuditResult, Finding
from floeplan.audit.job import audit as audit_reports
from floeplan.audit.job import store_findings
from floeplan.audit.reports import are_files, default_reports
from floeplan.catalog import load_table
from floeplan.cli.common import (
    CatalogOption,
    JsonOption,
    SparkOption,
    TableArgument,
    show,
    spark_for,
    spinner,
    writable_table,
)
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.text import counted, human_bytes, percent

BAR_WIDTH = 12
_DEFAULTS = AuditOptions()
_SPAN = re.compile(r"(\d+)([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}

ReportsOption = Annotated[
    str | None,
    typer.Option(
        "--reports",
        metavar="DIR|TABLE",
        help="A folder of reports (JSON lines, or logs with reports in them) or a table of them; by default "
        "$FLOEPLAN_REPORTS, else the folder beside the embedded catalog.",
    ),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="2024-03-01, a time, or an age such as 7d, 12h, 30m.")
]
FindingsOption = Annotated[
    str | None, typer.Option("--findings", metavar="TABLE", help="Append the findings to this Iceberg table too.")
]
MinRatioOption = Annotated[float, typer.Option("--min-ratio", help="Share of files below which a query is fine.")]
MinFactorOption = Annotated[
    float, typer.Option("--min-factor", help="Times the expected share of rows a query may read before it is flagged.")
]
MinFilesOption = Annotated[int, typer.Option("--min-files", help="Files per run below which a query is fine.")]
MinBytesOption = Annotated[int, typer.Option("--min-bytes", help="Bytes per run below which a query is fine.")]
MinRunsOption = Annotated[int, typer.Option("--min-runs", help="Runs below which a query is left alone.")]
AlertOption = Annotated[int, typer.Option("--alert-bytes", help="Bytes per run that are an alert by themselves.")]
DeletesOption = Annotated[
    float, typer.Option("--deletes-per-file", help="Delete files per data file from which on they are a reason.")
]
ManifestsOption = Annotated[
    int, typer.Option("--min-manifests", help="Manifests per run from which on small ones are a reason.")
]
PerManifestOption = Annotated[float, typer.Option("--files-per-manifest", help="Manifests with fewer files are small.")]
MostOption = Annotated[int, typer.Option("--most", metavar="N", help="Show so many findings, the largest first.")]


def audit(
    reports: ReportsOption = None,
    since: SinceOption = None,
    findings: FindingsOption = None,
    min_ratio: MinRatioOption = _DEFAULTS.min_ratio,
    min_factor: MinFactorOption = _DEFAULTS.min_factor,
    min_files: MinFilesOption = _DEFAULTS.min_files,
    min_bytes: MinBytesOption = _DEFAULTS.min_bytes,
    min_runs: MinRunsOption = _DEFAULTS.min_runs,
    alert_bytes: AlertOption = _DEFAULTS.alert_bytes,
    deletes_per_file: DeletesOption = _DEFAULTS.deletes_per_file,
    min_manifests: ManifestsOption = _DEFAULTS.min_manifests,
    files_per_manifest: PerManifestOption = _DEFAULTS.files_per_manifest,
    most: MostOption = _DEFAULTS.most,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Find the queries that read much more than they want, over all scan reports.

    floeplan audit --since 7d
    """
    options = AuditOptions(
        since=since_time(since, datetime.now(UTC)),
        min_ratio=min_ratio,
        min_factor=min_factor,
        min_files=min_files,
        min_bytes=min_bytes,
        min_runs=min_runs,
        alert_bytes=alert_bytes,
        deletes_per_file=deletes_per_file,
        min_manifests=min_manifests,
        files_per_manifest=files_per_manifest,
        most=most,
    )
    place = reports or default_reports()
    if not are_files(place):
        load_table(place, catalog)
    with spinner("auditing"):
        result = audit_reports(spark_for(spark).needed("the audit"), place, options, catalog=catalog)
        if findings is not None:
            store_findings(result, findings, catalog)
    show(result, draw, as_json=json)


def since_time(text: str | None, now: datetime) -> datetime | None:
    """A time, or an age counted back from now."""
    if text is None:
        return None
    if age := _SPAN.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"--since {text!r} is neither a time such as 2024-03-01 nor an age such as 7d",
            context={"option": "--since"},
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def draw(result: AuditResult) -> RenderableType:
    """One line about the whole, then each finding with its bars."""
    head = (
        f"{counted(result.queries, 'query').replace('querys', 'queries')} in {counted(result.runs, 'run')}, "
        f"{human_bytes(result.bytes_kept)} read; {result.flagged_total:,} flagged"
    )
    parts: list[RenderableType] = [Text(head, style="bold")]
    if result.unreadable:
        parts.append(Text(f"! {counted(result.unreadable, 'line')} without a scan report", style="yellow"))
    return Group(*parts, *(_finding(finding) for finding in result.flagged))


def _finding(finding: Finding) -> RenderableType:
    title = Text(f"\n{finding.table}  where {finding.filter}", style="bold")
    size = f"{human_bytes(round(finding.bytes_per_run))} a run, {human_bytes(finding.bytes_kept)} in all"
    wanted = "" if finding.selectivity is None else f", about {finding.selectivity:.2%} of the rows wanted"
    numbers = Text(f"{finding.fingerprint}  {counted(finding.runs, 'run')}, {size}{wanted}{_trend(finding.trend)}")
    cause = Text(f"{finding.reason}", style="yellow") + Text(f" → {finding.advice}", style="cyan")
    return Group(title, numbers, _bars(finding), cause)


def _trend(trend: float | None) -> str:
    if trend is None or 0.9 <= trend <= 1.1:
        return ""
    return f", {'growing' if trend > 1 else 'shrinking'} {trend:.1f}×"


def _bars(finding: Finding) -> Table:
    """Kept shares, from the manifests down to the bytes."""
    table = Table(box=box.MINIMAL, show_header=True, pad_edge=False)
    known = {level: share for level in RATIOS if (share := finding.ratios[level]) is not None}
    for level in known:
        table.add_column(level.replace("_", " "))
    table.add_row(*(_bar(share) for share in known.values()))
    return table


def _bar(share: float) -> Text:
    width = min(BAR_WIDTH, max(1 if share else 0, round(BAR_WIDTH * share)))
    bar = Text("█" * width, style="green") + Text("░" * (BAR_WIDTH - width), style="bright_black")
    return bar + Text(f" {share:.0%}")


# `floeplan advise`: which partitioning, order or clustering would let the logged queries read less.


SampleOption = Annotated[
    int | None, typer.Option("--sample", metavar="ROWS", min=1, help="Read so many rows instead of trusting bounds.")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help=f"Only candidates of: {', '.join(KINDS)}.")
]
ApplyOption = Annotated[bool, typer.Option("--apply", help="Do what the first candidate says.")]
CandidatesOption = Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show so many candidates.")]


@dataclass(frozen=True, slots=True)
class Advice:
    """The candidates and, when the first was applied, what came of it."""

    result: AdviceResult
    applied: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return self.result.to_dict() | ({} if self.applied is None else {"applied": dict(self.applied)})


def advise(
    table: TableArgument,
    reports: ReportsOption = None,
    since: SinceOption = None,
    sample: SampleOption = None,
    kind: KindOption = None,
    most: MostOption = 10,
    apply: ApplyOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Estimate what other layouts would save the queries that were logged.

    floeplan advise db.events --since 30d
    """
    if kind is not None and kind not in KINDS:
        raise InvalidOptionError(f"--kind {kind!r} is none of {', '.join(KINDS)}", context={"option": "--kind"})
    chosen = writable_table(table, catalog) if apply else load_table(table, catalog)
    options = AdviseOptions(since=since_time(since, datetime.now(UTC)), sample=sample, kind=kind, most=most)
    with spinner("trying layouts"):
        result = advise_table(chosen, reports or default_reports(), options, catalog=catalog)
    advice = Advice(result)
    if apply:
        if not result.candidates:
            raise BadInputError(f"there is nothing to apply to {result.table}: no candidate saves anything")
        with spinner("applying"):
            advice = replace(advice, applied=apply_candidate(chosen, result.candidates[0], spark_for(spark).session))
    show(advice, draw_candidates, as_json=json)


def draw_candidates(advice: Advice) -> RenderableType:
    """The candidates as a table, best first."""
    result = advice.result
    asked = f"{counted(result.predicates, 'predicate')} in {counted(result.runs, 'run')}"
    head = Text(f"{result.table}  {counted(result.files, 'file')}, {human_bytes(result.bytes)}; {asked}", style="bold")
    parts: list[RenderableType] = [head]
    if result.unusable:
        parts.append(Text(f"! {counted(result.unusable, 'run')} whose literals are not known were left out", "yellow"))
    if not result.candidates:
        return Group(*parts, Text("no candidate saves anything worth naming"))
    parts += [_table(result), Text(f"→ {result.candidates[0].command}", style="cyan")]
    if advice.applied is not None:
        parts.append(Text(f"applied: {result.candidates[0].kind} by {', '.join(result.candidates[0].columns)}"))
    return Group(*parts)


def _table(result: AdviceResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kind", "by"):
        table.add_column(name)
    for name in ("read now", "then", "", "to rewrite"):
        table.add_column(name, justify="right")
    table.add_column("estimated from")
    for candidate in result.candidates:
        before, after = candidate.estimated_bytes_before, candidate.estimated_bytes_after
        table.add_row(
            candidate.kind,
            ", ".join(candidate.columns),
            human_bytes(before),
            human_bytes(after),
            percent(after, before),
            human_bytes(candidate.bytes_rewritten) if candidate.bytes_rewritten else "metadata only",
            candidate.basis,
        )
    return table
