"""`floeplan audit`: which queries read more than they should, why, and what to do about it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.audit.findings import RATIOS, AuditResult, Finding
from floeplan.audit.findings_table import store_findings
from floeplan.audit.job import audit as audit_reports
from floeplan.audit.options import AuditOptions
from floeplan.audit.places import are_files, default_reports
from floeplan.catalog import load_table
from floeplan.cli.changes import SparkOption, sign_of_life, spark_for
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.errors import InvalidOptionError
from floeplan.text import counted, human_bytes

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
    with sign_of_life("auditing"):
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
