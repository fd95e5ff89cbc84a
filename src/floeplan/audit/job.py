"""``floeplan audit``: a Spark job that aggregates scan reports to the queries that read too much.

::

    reports ──► one row per report ──► query × day ──► query ──► flagged ──► driver
               (reports.py)            sums            sums, days    thresholds, largest first

A query is flagged when it reads a large fraction of a table's files although few rows are expected to match and the
planner left files undecided, when it reads at least ``alert_bytes`` bytes, or when it has many delete files or small
manifests. Runs before the last change of a table's layout do not count: other queries of the table show the change, and
so does the table itself, where the catalog has it. Everything before the last arrow runs on Spark, with the DataFrame
API only; the driver receives findings, never reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floeplan.audit.findings import (
    DELETES,
    FINDINGS_SCHEMA,
    LARGE,
    MANIFESTS,
    MOST_ENGINES,
    NO_FILTER,
    NO_PARTITION,
    OLD_SPEC,
    OVERLAP,
    RATIOS,
    REASONS,
    UNKNOWN_ENGINE,
    AuditResult,
    DayOfRuns,
    Finding,
)
from floeplan.audit.options import AuditOptions
from floeplan.audit.reports import audited_columns, parsed_reports, report_lines
from floeplan.catalog import load_table, open_catalog
from floeplan.dml.append import append
from floeplan.errors import FloeplanError
from floeplan.scan.explain import CURES
from floeplan.scan.report import layout_changed_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUERY = ("table", "shape", "opaque")


def audit(
    spark: SparkSession, reports: str, options: AuditOptions | None = None, *, catalog: str | None = None
) -> AuditResult:
    """Audit a store of scan reports.

    Args:
        spark: A session, classic or Connect.
        reports: A folder of JSON lines, a file, or ``namespace.name`` of an Iceberg table of reports.
        options: Thresholds of a finding.
        catalog: The catalog of the table of reports.

    Raises:
        BadInputError: There are no reports at that location.
    """
    chosen = options or AuditOptions()
    scans = audited_columns(parsed_reports(report_lines(spark, reports, chosen.since, catalog)))
    if chosen.since is not None:
        scans = scans.where(f"time >= timestamp_millis({int(chosen.since.timestamp() * 1000)})")
    if chosen.table is not None:
        name = scans["table"]  # null for lines that are not reports, which are counted
        scans = scans.where(name.isNull() | (name == chosen.table) | name.endswith(f".{chosen.table}"))
    return _result(_per_query(scans, chosen), chosen, catalog)


def _per_query(scans: DataFrame, options: AuditOptions) -> DataFrame:
    """Sums per query: first per day and engine, then over all days since the layout of the table changed."""
    from pyspark.sql import functions as F  # noqa: N812

    # For each reason a condition that holds for reports with it. What a conjunct leaves undecided needs no guess.
    undecided = f"coalesce(undecided_ratio, 0) >= {options.min_ratio}"
    tests = {reason: f"array_contains(causes, '{reason}')" for reason in CURES} | {
        OVERLAP: f"{undecided} AND NOT exists(causes, c -> c != '')",
        OLD_SPEC: "old_spec_bytes * 2 >= bytes_kept AND uses_partition AND old_spec_undecided",
        DELETES: f"files_kept > 0 AND deletes_kept >= {options.deletes_per_file} * files_kept",
        MANIFESTS: f"manifests_kept >= {options.min_manifests}"
        f" AND files_total < {options.files_per_manifest} * manifests_total",
        NO_FILTER: "shape = 'true' AND opaque = ''",
        NO_PARTITION: f"NOT uses_partition AND {undecided}",
        LARGE: "false",
    }
    pruning = " OR ".join(f"coalesce({tests[reason]}, false)" for reason in (*CURES, OVERLAP, OLD_SPEC, NO_PARTITION))
    sums = {name: F.try_sum(name) for name in ("files_kept", "bytes_kept", "deletes_kept")}
    for level in RATIOS:
        sums[f"{level}_total"] = F.try_sum(f"{level}_total")
        sums[f"{level}_known"] = F.try_sum(F.expr(f"CASE WHEN {level}_total IS NOT NULL THEN {level}_kept END"))
    sums |= {"selectivity_sum": F.try_sum("selectivity"), "estimated": F.count("selectivity")}
    sums |= {f"reason_{at}": F.count_if(F.expr(tests[name])) for at, name in enumerate(REASONS)}
    sums |= {"badly_pruned": F.count_if(F.expr(pruning)), "foreign": F.count_if("is_foreign")}
    sums |= {"runs": F.count("*"), "unreadable": F.count_if(F.expr("table IS NULL AND NOT is_commit"))}
    keys = ("layout_changed", "default_spec_id", "engine", F.to_date("time").alias("day"))
    daily = scans.groupBy(*_QUERY, *keys).agg(
        F.min("time").alias("first_run"), F.max("time").alias("last_run"), *(sums[name].alias(name) for name in sums)
    )
    counted = ~F.col("outdated")
    part = F.struct("day", "runs", "bytes_kept", "engine")
    return (
        _with_outdated(daily)
        .groupBy(*_QUERY)
        .agg(
            F.sort_array(F.collect_list(F.when(counted, part))).alias("days"),
            F.min(F.when(counted, F.col("first_run"))).alias("first_run"),
            F.max(F.when(counted, F.col("last_run"))).alias("last_run"),
            F.max(F.when(counted, F.col("default_spec_id"))).alias("default_spec_id"),
            F.try_sum("runs").alias("all_runs"),
            F.try_sum("bytes_kept").alias("all_bytes"),
            *(F.try_sum(F.when(counted, F.col(name))).alias(name) for name in sums),
        )
    )


def _with_outdated(daily: DataFrame) -> DataFrame:
    """Mark runs before the last known change of their table's layout: a rewrite, or another default spec."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    table = Window.partitionBy("table")
    known_spec = F.when(F.col("default_spec_id").isNotNull(), F.struct("last_run", "default_spec_id"))
    marked = daily.withColumn("changed", F.max("layout_changed").over(table)).withColumn(
        "newest_spec", F.max(known_spec).over(table)["default_spec_id"]
    )
    # A report without the time of the change, such as one of another engine, is compared by its own time.
    rewritten = "coalesce(coalesce(layout_changed, first_run) < changed, false)"
    return marked.withColumn("outdated", F.expr(f"{rewritten} OR coalesce(default_spec_id != newest_spec, false)"))


def _result(queries: DataFrame, options: AuditOptions, catalog: str | None) -> AuditResult:
    """Run the job once: the findings are its rows, the totals are observed on the way."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    # A query is flagged for poor pruning, many deletes or manifests, or for reading ``alert_bytes`` that its
    # selectivity does not explain.
    ratio, selectivity = "files_known / nullif(files_total, 0)", "coalesce(selectivity_sum / nullif(estimated, 0), 0)"
    unexplained = f"{ratio} > {options.min_factor} * {selectivity}"
    poorly_pruned = f"badly_pruned * 2 > runs AND {ratio} >= {options.min_ratio} AND {unexplained}"
    in_most_runs = {reason: f"reason_{at} * 2 > runs" for at, reason in enumerate(REASONS)}
    filtered = f"NOT ({in_most_runs[NO_FILTER]})"
    heavy = f"{in_most_runs[DELETES]} OR {in_most_runs[MANIFESTS]}"
    large = f"files_kept >= {options.min_files} * runs AND bytes_kept >= {options.min_bytes} * runs"
    alert = f"bytes_kept >= {options.alert_bytes} * runs AND ({in_most_runs[NO_FILTER]} OR {unexplained})"
    rule = f"runs >= {options.min_runs} AND ({alert} OR {large} AND ({filtered} AND {poorly_pruned} OR {heavy}))"
    totals, known = Observation(), F.col("table").isNotNull()
    flagged = F.coalesce(F.expr(rule), F.lit(False)) & known
    observed = queries.withColumn("flagged", flagged).observe(
        totals,
        F.count_if(known).alias("queries"),
        F.try_sum(F.when(known, F.col("all_runs"))).alias("runs"),
        F.try_sum("unreadable").alias("unreadable"),
        F.try_sum("all_bytes").alias("bytes_kept"),
        F.count_if("flagged").alias("flagged_total"),
        F.try_sum(F.col("all_runs") - F.coalesce("runs", F.lit(0))).alias("outdated"),
    )
    largest = observed.where("flagged").orderBy(F.desc("bytes_kept"), *_QUERY).limit(options.most).collect()
    counts = {name: int(value or 0) for name, value in totals.get.items()}
    rows = [row.asDict(recursive=True) for row in largest]
    layouts = {name: _layout(name, catalog) for name in {row["table"] for row in rows}}
    current = [row for row in rows if not _is_outdated(row, layouts[row["table"]])]
    counts["flagged_total"] -= len(rows) - len(current)
    counts["outdated"] += sum(row["runs"] for row in rows) - sum(row["runs"] for row in current)
    return AuditResult(flagged=tuple(map(_finding, current)), **counts)


def _layout(name: str, catalog: str | None) -> tuple[int, int | None] | None:
    """The default spec of a table and when it was last rewritten; ``None`` where it cannot be loaded."""
    if "/" in name:  # a metadata file, whose layout never changes
        return None
    try:
        metadata = load_table(name, catalog).metadata
    except FloeplanError:
        return None
    return metadata.default_spec_id, layout_changed_ms(metadata, metadata.current_snapshot())


def _is_outdated(row: dict[str, Any], layout: tuple[int, int | None] | None) -> bool:
    """Whether the layout of the table changed after the last report."""
    if layout is None:
        return False
    spec_id, changed_ms = layout
    rewritten = changed_ms is not None and row["last_run"].timestamp() * 1000 < changed_ms
    return rewritten or row["default_spec_id"] not in (None, spec_id)


def _finding(row: dict[str, Any]) -> Finding:
    runs_of, bytes_of, engines = Counter[date](), Counter[date](), Counter[str]()
    for part in row["days"]:
        runs_of[part["day"]] += part["runs"]
        bytes_of[part["day"]] += part["bytes_kept"] or 0
        engines[part["engine"] or UNKNOWN_ENGINE] += part["runs"]
    days = [(day, runs, bytes_of[day]) for day, runs in sorted(runs_of.items())]
    return Finding(
        table=row["table"],
        shape=row["shape"],
        opaque=row["opaque"],
        runs=row["runs"],
        ratios={level: _share(row[f"{level}_known"], row[f"{level}_total"]) for level in RATIOS},
        bytes_kept=row["bytes_kept"] or 0,
        bytes_per_run=(row["bytes_kept"] or 0) / row["runs"],
        selectivity=_share(row["selectivity_sum"], row["estimated"]),
        trend=trend(days),
        first_run=row["first_run"].astimezone(UTC).isoformat(),
        last_run=row["last_run"].astimezone(UTC).isoformat(),
        reasons={name: row[f"reason_{at}"] for at, name in enumerate(REASONS) if row[f"reason_{at}"]},
        days=tuple(DayOfRuns(*day) for day in days),
        guessed=row["foreign"] * 2 > row["runs"],
        engines=dict(engines.most_common(MOST_ENGINES)),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def trend(days: Sequence[tuple[date, int, int]]) -> float | None:
    """Bytes per run in the second half of the days divided by those in the first; ``None`` for a single day.

    Args:
        days: Day, runs and bytes, in order of days.
    """
    middle = days[0][0] + (days[-1][0] - days[0][0]) / 2
    halves = [[day for day in days if day[0] <= middle], [day for day in days if day[0] > middle]]
    runs = [sum(day[1] for day in half) for half in halves]
    read = [sum(day[2] for day in half) for half in halves]
    if not all(runs) or not read[0]:
        return None
    return (read[1] / runs[1]) / (read[0] / runs[0])


def store_findings(result: AuditResult, name: str, catalog: str | None = None) -> None:
    """Append the findings to an Iceberg table, which is created if needed; without findings nothing is written."""
    if not result.flagged:
        return
    now = datetime.now(UTC)
    rows = [{**finding.to_dict(), "table_name": finding.table, "found_at": now} for finding in result.flagged]
    store = open_catalog(catalog)
    store.create_namespace_if_not_exists(name.rpartition(".")[0])
    append(store.create_table_if_not_exists(name, FINDINGS_SCHEMA), pa.Table.from_pylist(rows, FINDINGS_SCHEMA))
