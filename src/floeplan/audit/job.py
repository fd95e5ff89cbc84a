"""``fp.audit``: a Spark job that aggregates scan reports to the queries that read too much.

::

    reports ──► one row per report ──► query × day ──► query ──► flagged ──► driver
               (reports.py)            sums            sums, days    thresholds, largest first

A query is flagged when it reads a large fraction of a table's files although few rows are expected to match, when it
reads at least ``alert_bytes`` bytes, or when it has many delete files or small manifests. Everything before the last
arrow runs on Spark, with the DataFrame API only; the driver receives findings, never reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floeplan.audit.findings import (
    DELETES,
    FINDINGS_SCHEMA,
    MANIFESTS,
    NO_FILTER,
    NO_PARTITION,
    OLD_SPEC,
    RATIOS,
    REASONS,
    AuditOptions,
    AuditResult,
    DayOfRuns,
    Finding,
)
from floeplan.audit.reports import audited_columns, parsed_reports, report_lines
from floeplan.catalog import open_catalog
from floeplan.dml.append import append
from floeplan.scan.explain import CURES

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
    return _result(_per_query(scans, chosen), chosen)


def _per_query(scans: DataFrame, options: AuditOptions) -> DataFrame:
    """Sums per query: first per day, for the trend, then over all days."""
    from pyspark.sql import functions as F  # noqa: N812

    # For each reason a condition that holds for reports with it.
    tests = {reason: f"array_contains(causes, '{reason}')" for reason in CURES} | {
        OLD_SPEC: "old_spec_bytes * 2 >= bytes_kept AND uses_partition",
        DELETES: f"files_kept > 0 AND deletes_kept >= {options.deletes_per_file} * files_kept",
        MANIFESTS: f"manifests_kept >= {options.min_manifests}"
        f" AND files_total < {options.files_per_manifest} * manifests_total",
        NO_FILTER: "shape = 'true' AND opaque = ''",
        NO_PARTITION: "NOT uses_partition AND (shape != 'true' OR opaque != '')",
    }
    sums = {name: F.try_sum(name) for name in ("files_kept", "bytes_kept", "deletes_kept")}
    for level in RATIOS:
        sums[f"{level}_total"] = F.try_sum(f"{level}_total")
        sums[f"{level}_known"] = F.try_sum(F.expr(f"CASE WHEN {level}_total IS NOT NULL THEN {level}_kept END"))
    sums |= {"selectivity_sum": F.try_sum("selectivity"), "estimated": F.count("selectivity")}
    sums |= {f"reason_{at}": F.count_if(F.expr(tests[name])) for at, name in enumerate(REASONS)}
    sums |= {"runs": F.count("*"), "unreadable": F.count_if(F.expr("table IS NULL AND NOT is_commit"))}
    daily = scans.groupBy(*_QUERY, F.to_date("time").alias("day")).agg(
        F.min("time").alias("first_run"), F.max("time").alias("last_run"), *(sums[name].alias(name) for name in sums)
    )
    return daily.groupBy(*_QUERY).agg(
        F.sort_array(F.collect_list(F.struct("day", "runs", "bytes_kept"))).alias("days"),
        F.min("first_run").alias("first_run"),
        F.max("last_run").alias("last_run"),
        *(F.try_sum(name).alias(name) for name in sums),
    )


def _result(queries: DataFrame, options: AuditOptions) -> AuditResult:
    """Run the job once: the findings are its rows, the totals are observed on the way."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    # A query is flagged for poor pruning, many deletes or manifests, or for reading ``alert_bytes``.
    ratio, selectivity = "files_known / files_total", "coalesce(selectivity_sum / nullif(estimated, 0), 0)"
    poorly_pruned = f"{ratio} >= {options.min_ratio} AND {ratio} > {options.min_factor} * {selectivity}"
    in_most_runs = {reason: f"reason_{at} * 2 > runs" for at, reason in enumerate(REASONS)}
    filtered = f"NOT ({in_most_runs[NO_FILTER]})"
    heavy = f"{in_most_runs[DELETES]} OR {in_most_runs[MANIFESTS]}"
    large = f"files_kept >= {options.min_files} * runs AND bytes_kept >= {options.min_bytes} * runs"
    alert = f"bytes_kept >= {options.alert_bytes} * runs"
    rule = f"runs >= {options.min_runs} AND ({alert} OR {large} AND ({filtered} AND {poorly_pruned} OR {heavy}))"
    totals, known = Observation(), F.col("table").isNotNull()
    flagged = F.coalesce(F.expr(rule), F.lit(False)) & known
    observed = queries.withColumn("flagged", flagged).observe(
        totals,
        F.count_if(known).alias("queries"),
        F.try_sum(F.when(known, F.col("runs"))).alias("runs"),
        F.try_sum("unreadable").alias("unreadable"),
        F.try_sum("bytes_kept").alias("bytes_kept"),
        F.count_if("flagged").alias("flagged_total"),
    )
    largest = observed.where("flagged").orderBy(F.desc("bytes_kept"), *_QUERY).limit(options.most).collect()
    counts = {name: int(value or 0) for name, value in totals.get.items()}
    return AuditResult(flagged=tuple(_finding(row.asDict(recursive=True)) for row in largest), **counts)


def _finding(row: dict[str, Any]) -> Finding:
    days = [(day["day"], day["runs"], day["bytes_kept"] or 0) for day in row["days"]]
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
