"""Scan reports as a DataFrame: one row a report, whoever wrote it, with the numbers the audit adds up.

Reports are lines of JSON in files, or the ``report`` column of an Iceberg table. Three kinds are understood: those of
Floeplan; Iceberg's own JSON, as REST catalogs receive it, alone on a line or at the end of a log line; and the text
Iceberg's logging reporter prints. Reports of others lack the numbers per spec and per conjunct: what their filter says
has to do. Fail-safe: lines that are no report are counted, never an error, and numbers that cannot be are left out.

Only expressions of Spark are used: no Python worker sees a report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from floeplan.catalog import embedded_home, load_table
from floeplan.errors import BadInputError
from floeplan.scan.report import OFF

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Where reports are: files at a path or URI, or the rows of an Iceberg table.


def default_reports() -> str:
    """Where plans put their reports when nobody says."""
    chosen = os.environ.get("FLOEPLAN_REPORTS", "")
    return chosen if chosen and chosen.lower() != OFF else str(embedded_home() / "reports")


def are_files(reports: str) -> bool:
    """Whether a place names files; otherwise it names a table.

    Raises:
        BadInputError: It is a path, and nothing is there.
    """
    if "://" in reports or Path(reports).exists():
        return True
    if "/" in reports or "." not in reports:
        raise BadInputError(
            f"there are no reports at {reports}; name a folder of them, or a table as namespace.name",
            context={"reports": reports},
        )
    return False


# ---

_METRICS = (
    "result-data-files",
    "skipped-data-files",
    "total-data-manifests",
    "scanned-data-manifests",
    "result-delete-files",
    "total-file-size-in-bytes",
    "total-delete-file-size-in-bytes",
)
_SUMMARY = (
    "manifests_total",
    "manifests_kept",
    "files_total",
    "files_kept",
    "row_groups_total",
    "row_groups_kept",
    "rows_total",
    "rows_kept",
    "bytes_total",
    "bytes_kept",
    "deletes_kept",
)
_OWN = f"""STRUCT<
    timestamp: STRING, default_spec_id: INT, selectivity: DOUBLE,
    summary: STRUCT<{", ".join(f"{name}: BIGINT" for name in _SUMMARY)}>,
    specs: ARRAY<STRUCT<spec_id: INT, bytes_kept: BIGINT, notes: ARRAY<STRUCT<field: STRING>>>>,
    passes: ARRAY<STRUCT<effects: ARRAY<STRUCT<why: STRING>>>>,
    warnings: ARRAY<STRUCT<kind: STRING, context: STRUCT<text: STRING>>>>"""
REPORT = f"""`report-type` STRING, `table-name` STRING, filter STRING,
    metrics STRUCT<{", ".join(f"`{name}`: STRUCT<value: BIGINT>" for name in _METRICS)}>, floeplan {_OWN}"""
"""The parts of a report that are read; ``filter`` stays text, because expressions nest without end."""

_MOST = 2**50
_MOMENT = "try_to_timestamp(floeplan.timestamp)"
_TIME = f"CASE WHEN year({_MOMENT}) BETWEEN 1970 AND 9000 THEN {_MOMENT} END"
"""When a report says it was written, if that can be."""

_LITERAL = r'"(values?)"\s*:\s*(?:\[(?:[^\]"]|"(?:\\.|[^"\\])*")*\]|"(?:\\.|[^"\\])*"|[^,}\]]+)'
"""A key and its literal: a list, a string or a bare word. A string never holds such a key: its quotes are escaped."""

_SQL_LITERAL = r"'(?:[^']|'')*'|\b[0-9]+(?:\.[0-9]+)?\b"
_SUSPECTED = """array(CASE WHEN shape RLIKE '"type":"or"| or ' THEN 'one side of OR matches everywhere'
    WHEN shape NOT RLIKE '"type":"(eq|in|lt|gt|lt-eq|gt-eq|starts-with|is-null|is-nan)"|==|<|>|is_null'
      THEN '!= excludes almost nothing'
    ELSE 'values are spread over all files' END)"""
_HIDDEN_LITERAL = r'"?\((?:\d+-digit|hash-|date|time)[^)"]*\)"?'
"""What Iceberg's log shows instead of a literal: its kind."""


def report_lines(
    spark: SparkSession, source: str, since: datetime | None = None, catalog: str | None = None
) -> DataFrame:
    """The reports of a folder, a file or a table, as text with the time at which they were stored.

    Raises:
        BadInputError: There is neither such a folder nor such a table.
    """
    if are_files(source):
        place = source if "://" in source else Path(source).resolve().as_uri()
        lines = spark.read.text(place, recursiveFileLookup=True)
        return lines.selectExpr("_metadata.file_modification_time AS stored", "value AS line")
    from floeplan.spark.read.reader import read

    where = None if since is None else f"timestamp >= TIMESTAMP '{since.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"
    return read(spark, load_table(source, catalog), where, columns=["timestamp", "report"]).toDF("stored", "line")


def parsed_reports(lines: DataFrame) -> DataFrame:
    """One row a line that is not empty; nulls where a line is no report."""
    from pyspark.sql import functions as F  # noqa: N812

    line = F.col("line")
    json = F.when(line.startswith("{"), line).otherwise(F.regexp_extract("line", r'(\{".*\})\s*$', 1))
    parsed = lines.where(F.trim("line") != "").select(
        "stored",
        F.from_json(json, REPORT).alias("report"),
        F.when(line.contains("ScanReport{tableName="), line).alias("logged"),
    )
    return parsed.select("stored", "report.*", *_logged_columns())


def _logged_columns() -> list[Column]:
    """The numbers in the text of Iceberg's logging reporter."""
    from pyspark.sql import functions as F  # noqa: N812

    def found(pattern: str) -> Column:
        return F.nullif(F.regexp_extract("logged", pattern, 1), F.lit(""))

    def number(name: str) -> Column:
        first, *rest = name.split("-")
        java = first + "".join(map(str.capitalize, rest))
        value = found(rf"\b{java}=CounterResult\{{unit=\w+, value=(\d+)\}}")
        return F.struct(value.try_cast("long").alias("value")).alias(name)

    return [
        found(r"ScanReport\{tableName=([^,]+),").alias("logged_table"),
        F.regexp_replace(found(r", filter=(.*), schemaId="), _HIDDEN_LITERAL, "?").alias("logged_filter"),
        F.struct(*map(number, _METRICS)).alias("logged_metrics"),
    ]


def audited_columns(parsed: DataFrame) -> DataFrame:
    """The numbers of every report by the same names, whoever wrote it; ``table`` is null for a line that is none.

    ``whys`` are the reasons conjuncts were given or, where a report says nothing of them, what the filter lets suspect.
    """
    from pyspark.sql import functions as F  # noqa: N812

    metric = {name: f"coalesce(metrics.`{name}`.value, logged_metrics.`{name}`.value)" for name in _METRICS}
    shape = F.regexp_replace(F.coalesce("filter", "logged_filter"), _LITERAL, r'"$1":"?"')
    unanswered = "transform(filter(floeplan.warnings, w -> w.kind = 'not-compiled'), w -> w.context.text)"
    opaque = F.regexp_replace(F.expr(f"array_join({unanswered}, ' AND ')"), _SQL_LITERAL, "?")
    old = "filter(floeplan.specs, s -> s.spec_id != floeplan.default_spec_id)"
    numbers = _numbers(metric)
    columns = parsed.select(
        F.expr(f"coalesce({_TIME}, stored)").alias("time"),
        F.expr(f"CASE WHEN {numbers['files_kept']} IS NOT NULL THEN coalesce(`table-name`, logged_table) END").alias(
            "table"
        ),
        F.coalesce(shape, F.lit("true")).alias("shape"),
        F.coalesce(opaque, F.lit("")).alias("opaque"),
        *(F.expr(text).alias(name) for name, text in numbers.items()),
        F.expr("CASE WHEN floeplan.selectivity BETWEEN 0 AND 1 THEN floeplan.selectivity END").alias("selectivity"),
        F.expr(_sane(f"aggregate({old}, 0L, (sum, s) -> try_add(sum, s.bytes_kept))")).alias("old_spec_bytes"),
        F.expr("exists(floeplan.specs, s -> exists(s.notes, n -> n.field IS NOT NULL))").alias("partition_asked"),
        F.expr("flatten(transform(floeplan.passes, p -> p.effects.why))").alias("whys"),
        F.expr("coalesce(`report-type`, '') = 'commit-report'").alias("is_commit"),
    )
    return columns.withColumn("whys", F.coalesce("whys", F.expr(_SUSPECTED)))


def _numbers(metric: Mapping[str, str]) -> dict[str, str]:
    """Totals and kept parts per level. Iceberg counts skipped files in opened manifests only: the rest is estimated."""
    manifests, scanned, files = (
        metric[name] for name in ("total-data-manifests", "scanned-data-manifests", "result-data-files")
    )
    seen = f"try_add({files}, coalesce({metric['skipped-data-files']}, 0))"
    others = {
        "manifests_total": manifests,
        "manifests_kept": scanned,
        "files_total": f"TRY_CAST({seen} * coalesce({manifests} / nullif({scanned}, 0), 1) AS BIGINT)",
        "files_kept": files,
        "bytes_kept": metric["total-file-size-in-bytes"],
        "deletes_kept": metric["result-delete-files"],
    }
    return {name: _sane(f"coalesce(floeplan.summary.{name}, {others.get(name, 'NULL')})") for name in _SUMMARY}


def _sane(number: str) -> str:
    """A number that no table can have is as good as none."""
    return f"CASE WHEN ({number}) BETWEEN 0 AND {_MOST} THEN ({number}) END"
