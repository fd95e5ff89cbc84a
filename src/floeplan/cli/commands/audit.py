"""``floeplan audit`` finds queries that read too much; ``floeplan advise`` estimates layouts that would help."""

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
from floeplan.audit.findings import RATIOS, AuditOptions, AuditResult, Finding
from floeplan.audit.job import audit as audit_reports
from floeplan.audit.job import store_findings
from floeplan.audit.layout import KINDS
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
        help="Scan reports: a folder of JSON lines or logs, or a table. By default $FLOEPLAN_REPORTS, or the reports "
        "folder of the embedded catalog.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only reports since a time or an age, e.g. 2024-03-01, 7d, 12h, 30m."),
]
FindingsOption = Annotated[
    str | None, typer.Option("--findings", metavar="TABLE", help="Also append the findings to this Iceberg table.")
]
MinRatioOption = Annotated[
    float, typer.Option("--min-ratio", help="Do not flag queries that keep a smaller fraction of the files.")
]
MinFactorOption = Annotated[
    float, typer.Option("--min-factor", help="Flag queries that read this many times the expected rows.")
]
MinFilesOption = Annotated[int, typer.Option("--min-files", help="Do not flag queries that read fewer files per run.")]
MinBytesOption = Annotated[int, typer.Option("--min-bytes", help="Do not flag queries that read fewer bytes per run.")]
MinRunsOption = Annotated[int, typer.Option("--min-runs", help="Do not flag queries with fewer runs.")]
AlertOption = Annotated[
    int, typer.Option("--alert-bytes", help="Always flag queries that read this many bytes per run.")
]
DeletesOption = Annotated[
    float, typer.Option("--deletes-per-file", help="Delete files per data file that count as a cause.")
]
ManifestsOption = Annotated[
    int, typer.Option("--min-manifests", help="Manifests per run that count as a cause if they are small.")
]
PerManifestOption = Annotated[float, typer.Option("--files-per-manifest", help="A manifest with fewer files is small.")]
MostOption = Annotated[int, typer.Option("--most", metavar="N", help="Show at most N results, largest first.")]


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
    """Find queries that read much more than they need, from scan reports.

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
    location = reports or default_reports()
    if not are_files(location):
        load_table(location, catalog)  # fails before Spark is started if there is no such table
    with spinner("auditing"):
        result = audit_reports(spark_for(spark).needed("the audit"), location, options, catalog=catalog)
        if findings is not None:
            store_findings(result, findings, catalog)
    show(result, draw, as_json=json)


def since_time(text: str | None, now: datetime) -> datetime | None:
    """Parse ``--since``: a time, or an age before ``now``."""
    if text is None:
        return None
    if age := _SPAN.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"--since {text!r} is neither a time such as 2024-03-01 nor an age such as 7d",
            context={"option": "--since"},
        ) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def draw(result: AuditResult) -> RenderableType:
    """Render a summary line, then each finding with its kept fractions."""
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
    size = f"{human_bytes(round(finding.bytes_per_run))} per run, {human_bytes(finding.bytes_kept)} in total"
    needed = "" if finding.selectivity is None else f", needs about {finding.selectivity:.2%} of the rows"
    numbers = Text(f"{finding.fingerprint}  {counted(finding.runs, 'run')}, {size}{needed}{_trend(finding.trend)}")
    cause = Text(f"{finding.reason}", style="yellow") + Text(f" → {finding.advice}", style="cyan")
    return Group(title, numbers, _bars(finding), cause)


def _trend(trend: float | None) -> str:
    if trend is None or 0.9 <= trend <= 1.1:
        return ""
    return f", {'growing' if trend > 1 else 'shrinking'} {trend:.1f}×"


def _bars(finding: Finding) -> Table:
    """Kept fractions, from manifests down to bytes."""
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


SampleOption = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Sample N rows instead of using column bounds.")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help=f"Only candidates of this kind: {', '.join(KINDS)}.")
]
ApplyOption = Annotated[bool, typer.Option("--apply", help="Apply the first candidate.")]
CandidatesOption = Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show at most N candidates.")]


@dataclass(frozen=True, slots=True)
class Advice:
    """The candidates, and the result of applying the first one."""

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
    """Estimate how much other partition specs and sort orders would save, from scan reports.

    floeplan advise db.events --since 30d
    """
    if kind is not None and kind not in KINDS:
        raise InvalidOptionError(
            f"--kind is {kind!r} but must be one of {', '.join(KINDS)}", context={"option": "--kind"}
        )
    chosen = writable_table(table, catalog) if apply else load_table(table, catalog)
    options = AdviseOptions(since=since_time(since, datetime.now(UTC)), sample=sample, kind=kind, most=most)
    with spinner("estimating layouts"):
        result = advise_table(chosen, reports or default_reports(), options, catalog=catalog)
    advice = Advice(result)
    if apply:
        if not result.candidates:
            raise BadInputError(f"nothing to apply to {result.table}: no candidate reduces the bytes read")
        with spinner("applying"):
            advice = replace(advice, applied=apply_candidate(chosen, result.candidates[0], spark_for(spark).session))
    show(advice, draw_candidates, as_json=json)


def draw_candidates(advice: Advice) -> RenderableType:
    """Render the candidates as a table, best first."""
    result = advice.result
    workload = f"{counted(result.predicates, 'predicate')} in {counted(result.runs, 'run')}"
    size = f"{counted(result.files, 'file')}, {human_bytes(result.bytes)}"
    head = Text(f"{result.table}  {size}; {workload}", style="bold")
    parts: list[RenderableType] = [head]
    if result.unusable:
        parts.append(Text(f"! {counted(result.unusable, 'run')} without known literals ignored", "yellow"))
    if not result.candidates:
        return Group(*parts, Text("no candidate reduces the bytes read"))
    parts += [_table(result), Text(f"→ {result.candidates[0].command}", style="cyan")]
    if advice.applied is not None:
        parts.append(Text(f"applied: {result.candidates[0].kind} by {', '.join(result.candidates[0].columns)}"))
    return Group(*parts)


def _table(result: AdviceResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kind", "by"):
        table.add_column(name)
    for name in ("reads now", "would read", "", "to rewrite"):
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
