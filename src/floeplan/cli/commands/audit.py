"""``floeplan audit`` finds queries that read too much; ``floeplan advise`` estimates layouts that would help."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.audit.options import AuditOptions
from floeplan.cli import common, completion
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.text import counted, human_bytes, percent
from floeplan.times import is_age, time_before

if TYPE_CHECKING:
    from floeplan.audit.advisor import AdviceResult
    from floeplan.audit.findings import AuditResult, Finding

BAR_WIDTH = 12
KINDS = ("spec", "sort", "zorder", "binpack", "upgrade-spec", "manifests")
SAMPLED_ROWS = 20_000
"""The kinds of candidates and the rows to sample, for help; a test compares them with those of the advisor."""
_DEFAULTS = AuditOptions()

SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only reports since a time or an age, e.g. 2024-03-01, 7d, 12h, 30m."),
]
TableOption = Annotated[
    str | None,
    typer.Option("--table", metavar="TABLE", help="Only queries of this table.", autocompletion=completion.tables),
]
FindingsOption = Annotated[
    str | None, typer.Option("--findings", metavar="TABLE", help="Also append the findings to this Iceberg table.")
]
MinRatioOption = Annotated[
    float,
    typer.Option(
        "--min-ratio", metavar="N", min=0, help="Do not flag queries that keep a smaller fraction of the files."
    ),
]
MinFactorOption = Annotated[
    float,
    typer.Option("--min-factor", metavar="N", min=0, help="Flag queries that read this many times the expected rows."),
]
MinFilesOption = Annotated[
    int, typer.Option("--min-files", metavar="N", min=0, help="Do not flag queries that read fewer files per run.")
]
MinBytesOption = Annotated[
    int, typer.Option("--min-bytes", metavar="N", min=0, help="Do not flag queries that read fewer bytes per run.")
]
MinRunsOption = Annotated[
    int, typer.Option("--min-runs", metavar="N", min=0, help="Do not flag queries with fewer runs.")
]
AlertOption = Annotated[
    int,
    typer.Option(
        "--alert-bytes",
        metavar="N",
        min=0,
        help="Flag queries that read this many bytes per run, unless their filter explains it.",
    ),
]
DeletesOption = Annotated[
    float,
    typer.Option("--deletes-per-file", metavar="N", min=0, help="Delete files per data file that count as a cause."),
]
ManifestsOption = Annotated[
    int,
    typer.Option(
        "--min-manifests", metavar="N", min=0, help="Manifests per run that count as a cause if they are small."
    ),
]
PerManifestOption = Annotated[
    float, typer.Option("--files-per-manifest", metavar="N", min=0, help="A manifest with fewer files is small.")
]
MostOption = Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show at most N queries, largest first.")]
SampleOption = Annotated[
    int, typer.Option("--sample", metavar="N", min=0, help="Sample about N rows; 0 estimates from column bounds.")
]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help=f"Only candidates of this kind: {', '.join(KINDS)}.",
        autocompletion=completion.one_of(*KINDS),
    ),
]
ApplyOption = Annotated[bool, typer.Option("--apply", help="Apply the first candidate.")]
CandidatesOption = Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show at most N candidates.")]


def audit(
    reports: common.ReportsOption = None,
    since: SinceOption = None,
    table: TableOption = None,
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
    spark: common.SparkJobOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Find queries that read much more than they need, from scan reports.

    floeplan audit --since 7d
    """
    from floeplan.audit.job import audit as audit_reports
    from floeplan.audit.job import store_findings
    from floeplan.audit.reports import check_reports, check_table, default_reports
    from floeplan.catalog import load_table
    from floeplan.spark.session import spark_errors_translated

    options = AuditOptions(
        since=since_time(since, datetime.now(UTC)),
        table=table,
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
    check_reports(location, catalog)  # before Spark is started
    if table is not None:
        check_table(table, location, catalog)
    if findings is not None and "." not in findings:
        raise InvalidOptionError(
            f"--findings is {findings!r} but must be namespace.name", context={"option": "--findings"}
        )
    with common.spinner("auditing"):
        session = common.spark_for(spark).needed("the audit")  # says what to install where there is no PySpark
        with spark_errors_translated():
            result = audit_reports(session, location, options, catalog=catalog)
        if table is not None and not (result.runs or result.outdated):
            load_table(table, catalog)  # refuses a misspelt name; the catalog need not have the tables of reports
        if findings is not None:
            store_findings(result, findings, catalog)
    common.show(result, draw, as_json=json)


def since_time(text: str | None, now: datetime) -> datetime | None:
    """Parse ``--since``: a time, or an age before ``now``."""
    if text is None:
        return None
    if is_age(text):
        return time_before(now, text, "--since")
    return common.parse_time(text, f"--since {text!r} is neither a time such as 2024-03-01 nor an age such as 7d")


def draw(result: AuditResult) -> RenderableType:
    """Render a summary line, then each finding with its kept fractions."""
    queries = f"{result.queries:,} {'query' if result.queries == 1 else 'queries'}"
    read = f"{counted(result.runs, 'run')}, {human_bytes(result.bytes_kept)} read"
    parts: list[RenderableType] = [Text(f"{queries} in {read}; {result.flagged_total:,} flagged", style="bold")]
    if result.unreadable:
        parts.append(Text(f"! {counted(result.unreadable, 'line')} without a scan report", style="yellow"))
    if result.outdated:
        outdated = f"{counted(result.outdated, 'run')} before the last layout change of a table are not counted"
        parts.append(Text(outdated, style="dim"))
    return Group(*parts, *(_finding(finding) for finding in result.flagged))


def _finding(finding: Finding) -> RenderableType:
    from floeplan.audit.findings import RATIOS

    title = Text(f"\n{finding.table}  where {finding.filter}", style="bold")
    size = f"{human_bytes(round(finding.bytes_per_run))} per run, {human_bytes(finding.bytes_kept)} in total"
    needed = "" if finding.selectivity is None else f", needs about {percent(finding.selectivity, 1)} of the rows"
    trend = ""
    if finding.trend is not None and not 0.9 <= finding.trend <= 1.1:
        trend = f", {'growing' if finding.trend > 1 else 'shrinking'} {finding.trend:.1f}×"
    numbers = Text(f"{finding.fingerprint}  {counted(finding.runs, 'run')}, {size}{needed}{trend}")
    # Kept fractions, from manifests down to bytes, one below the other: beside each other they exceed 80 columns.
    known = {level: share for level in RATIOS if (share := finding.ratios[level]) is not None}
    bars = Table.grid(padding=(0, 2, 0, 0))
    for level, share in known.items():
        bars.add_row(Text(f" {level.replace('_', ' ')}"), _bar(share), Text(percent(share, 1), justify="right"))
    guessed = " (guessed from the filter)" if finding.guessed else ""
    cause = Text(f"{finding.reason}{guessed}", style="yellow") + Text(f" → {finding.advice}", style="cyan")
    return Group(title, numbers, bars, cause)


def _bar(share: float) -> Text:
    width = min(BAR_WIDTH, max(1 if share else 0, round(BAR_WIDTH * share)))
    return Text("█" * width, style="green") + Text("░" * (BAR_WIDTH - width), style="bright_black")


def advise(
    table: common.TableArgument,
    reports: common.ReportsOption = None,
    since: SinceOption = None,
    sample: SampleOption = SAMPLED_ROWS,
    kind: KindOption = None,
    most: CandidatesOption = 10,
    apply: ApplyOption = False,
    spark: common.SparkRewriteOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Estimate what other partition specs and sort orders would save, from scan reports.

    floeplan advise db.events --since 30d
    """
    from floeplan.audit.advisor import AdviseOptions, apply_candidate
    from floeplan.audit.advisor import advise as advise_table
    from floeplan.audit.reports import default_reports
    from floeplan.catalog import load_table

    if kind is not None and kind not in KINDS:
        raise InvalidOptionError(
            f"--kind is {kind!r} but must be one of {', '.join(KINDS)}", context={"option": "--kind"}
        )
    chosen = common.writable_table(table, catalog) if apply else load_table(table, catalog)
    options = AdviseOptions(since=since_time(since, datetime.now(UTC)), sample=sample, kind=kind, most=most)
    with common.spinner("estimating layouts"):
        result = advise_table(chosen, reports or default_reports(), options, catalog=catalog)
    if apply:
        if not result.candidates:
            raise BadInputError(f"nothing to apply to {result.table}: no candidate reduces what the runs read")
        with common.spinner("applying"):
            applied = apply_candidate(chosen, result.candidates[0], common.spark_for(spark).session)
        result = replace(result, applied=applied)
    common.show(result, draw_candidates, as_json=json)


def draw_candidates(result: AdviceResult) -> RenderableType:
    """Render the candidates as a table, best first."""
    workload = f"{counted(result.predicates, 'predicate')} in {counted(result.runs, 'run')}"
    size = f"{counted(result.files, 'file')}, {human_bytes(result.bytes)}"
    parts: list[RenderableType] = [Text(f"{result.table}  {size}; {workload}", style="bold")]
    if result.unusable:
        parts.append(Text(f"! {counted(result.unusable, 'run')} without known literals ignored", "yellow"))
    if not result.candidates:
        none = "no candidate reduces what the runs read" if result.runs else "no scan reports of this table"
        return Group(*parts, Text(none))
    table = common.header_table("", "kind", "by", ">reads", ">of now", ">opens", ">of now", ">rewrites", "confidence")
    for column in table.columns:
        column.no_wrap = column.header != "by"
    shown = 0
    for candidate in result.candidates:
        before, after = candidate.estimated_bytes_before, candidate.estimated_bytes_after
        files_before, files_after = candidate.files_opened
        # Tied candidates follow the first of their rank.
        table.add_row(
            "=" if candidate.rank == shown else str(candidate.rank),
            candidate.kind,
            Text(", ".join(candidate.columns) or "–", overflow="fold"),
            human_bytes(after),
            percent(after, before),
            f"{files_after:,}",
            percent(files_after, files_before),
            human_bytes(candidate.bytes_rewritten) if candidate.bytes_rewritten else "metadata",
            candidate.confidence,
        )
        shown = candidate.rank
    kinds: dict[str, dict[str, None]] = {}
    for candidate in result.candidates:
        kinds.setdefault(candidate.basis, {})[candidate.kind] = None
    parts.append(table)
    parts += [Text(f"{', '.join(some)}: estimated from {basis}", style="dim") for basis, some in kinds.items()]
    parts.append(
        Text(
            "ranked by bytes read, plus read.split.open-file-cost (4 MiB by default) for each file opened", style="dim"
        )
    )
    best = result.candidates[0]
    parts.append(Text(f"→ {best.command}", style="cyan"))
    if result.applied is not None:
        parts.append(Text(f"applied: {best.kind} by {', '.join(best.columns)}"))
    return Group(*parts)
