"""Scan reports: as a DataFrame with the numbers that the audit sums, and as the workload of one table.

Reports are lines of JSON in files, or the ``report`` column of an Iceberg table. Three formats are supported: those of
Floeplan; Iceberg's JSON, as REST catalogs receive it, alone on a line or at the end of a log line; and the text of
Iceberg's ``LoggingMetricsReporter``. Reports of other writers lack the numbers per spec and per conjunct, so their
causes are guessed from the filter.

Fail-safe: lines that are not reports are counted, never an error, and impossible numbers are ignored. For the audit
only Spark expressions are used; no Python worker reads a report. A workload is read line by line in this process, and a
predicate that cannot be used (its columns were dropped, or its writer hid the literals) is counted, never guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from floeplan.audit.findings import RATIOS
from floeplan.catalog import load_table
from floeplan.errors import BadInputError, FloeplanError, UnknownTableError, UnsupportedError
from floeplan.predicate.build import column_of, leaves
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.read import read_batches
from floeplan.scan.report import default_folder

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def default_reports() -> str:
    """The location of reports when none is given: where scans write them."""
    return str(default_folder())


def are_files(reports: str) -> bool:
    """Whether a location is a path of files; otherwise it is the name of a table.

    Raises:
        BadInputError: It is a path that does not exist.
    """
    if "://" in reports or Path(reports).exists():
        return True
    if "/" in reports or "." not in reports:
        fix = "give a folder, or a table as namespace.name"
        if reports == default_reports():
            fix = f"plan or scan a table first, or {fix} with --reports"
        raise BadInputError(
            f"there are no reports at {reports}; {fix}",
            context={"reports": reports},
        )
    return False


def check_reports(reports: str, catalog: str | Catalog | None) -> None:
    """Check that the scan reports exist, without starting Spark.

    Raises:
        BadInputError: They do not exist.
    """
    if not are_files(reports):
        load_table(reports, catalog)


def check_table(table: str, reports: str, catalog: str | Catalog | None) -> None:
    """Check that the catalog has a table or that reports may name it, without starting Spark.

    Fail-safe: reports in a table, in an object store or in files that are not plainly text may name any table.

    Raises:
        UnknownTableError: Neither has it.
    """
    try:
        load_table(table, catalog)
    except UnknownTableError:
        if not _may_name(reports, table):
            raise
    except FloeplanError:
        return  # the reports may suffice


def _may_name(reports: str, table: str) -> bool:
    if "://" in reports or not are_files(reports):
        return True
    names = {table.encode(), json.dumps(table)[1:-1].encode()}
    path = Path(reports)
    files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    if any(file.suffix not in _TEXT_FILES for file in files):
        return True
    for file in files:
        with file.open("rb") as lines:
            if any(name in line for line in lines for name in names):
                return True
    return False


_TEXT_FILES = (".json", ".jsonl", ".log", ".txt")
_METRICS = (
    "result-data-files",
    "skipped-data-files",
    "total-data-manifests",
    "scanned-data-manifests",
    "result-delete-files",
    "total-file-size-in-bytes",
    "total-delete-file-size-in-bytes",
)
_SUMMARY = (*(f"{level}_{kind}" for level in RATIOS for kind in ("total", "kept")), "deletes_kept")
_OWN = f"""STRUCT<
    timestamp: STRING, default_spec_id: INT, layout_changed_ms: BIGINT, selectivity: DOUBLE,
    summary: STRUCT<{", ".join(f"{name}: BIGINT" for name in _SUMMARY)}>,
    specs: ARRAY<STRUCT<spec_id: INT, bytes_kept: BIGINT, undecided: BIGINT, partition_fields: ARRAY<STRING>,
        notes: ARRAY<STRUCT<field: STRING>>>>,
    passes: ARRAY<STRUCT<unit: STRING, total: BIGINT, effects: ARRAY<STRUCT<why: STRING, undecided: BIGINT>>>>,
    warnings: ARRAY<STRUCT<kind: STRING, context: STRUCT<text: STRING>>>>"""
REPORT = f"""`report-type` STRING, `table-name` STRING, filter STRING,
    metrics STRUCT<{", ".join(f"`{name}`: STRUCT<value: BIGINT>" for name in _METRICS)}>,
    metadata STRUCT<`engine-name`: STRING, `engine-version`: STRING>, floeplan {_OWN}"""
"""The fields of a report that are read; ``filter`` stays text, because expressions nest to any depth."""

_MAX_NUMBER = 2**50
_WRITTEN_AT = "try_to_timestamp(floeplan.timestamp)"
_TIME = f"CASE WHEN year({_WRITTEN_AT}) BETWEEN 1970 AND 9000 THEN {_WRITTEN_AT} END"
"""The timestamp of a report, if it is plausible."""

_ON_PARTITION = "coalesce(size(s.partition_fields) > 0, exists(s.notes, n -> n.field IS NOT NULL))"
"""Whether a filter uses a partition field of a spec; reports of earlier versions have a note for each leaf."""

_ENGINE = "substring(concat_ws(' ', metadata.`engine-name`, metadata.`engine-version`), 1, 60)"
"""The engine of a scan and its version, as its report names them; empty for a line of a log."""

# Possessive: Java would recurse for every character of a long IN list, and the overflow of its stack ends the JVM.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LITERAL = rf'"(values?)"\s*:\s*(?:\[[^\]"]*+(?:{_STRING}[^\]"]*+)*+\]|{_STRING}|[^,}}\]]+)'
"""A key and its literal: a list, a string or a bare word. A string never holds such a key: its quotes are escaped."""

_SQL_LITERAL = r"'[^']*+(?:''[^']*+)*+'|\b[0-9]+(?:\.[0-9]+)?\b"
_CAUSE_FROM_FILTER = """array(CASE WHEN shape RLIKE '"type":"or"| or ' THEN 'one side of OR matches everywhere'
    WHEN shape NOT RLIKE '"type":"(eq|in|lt|gt|lt-eq|gt-eq|starts-with|is-null|is-nan)"|==|<|>|is_null'
      THEN '!= excludes almost nothing'
    ELSE 'values are spread over all files' END)"""
_HIDDEN_LITERAL = r'"?\((?:\d+-digit|hash-|date|time)[^)"]*\)"?'
"""What Iceberg's log has instead of a literal, such as ``(4-digit-int)``."""


def report_lines(
    spark: SparkSession, source: str, since: datetime | None = None, catalog: str | None = None
) -> DataFrame:
    """The reports of a folder, a file or a table as text, with the time at which they were stored.

    Raises:
        BadInputError: There is neither such a folder nor such a table.
    """
    if are_files(source):
        uri = source if "://" in source else Path(source).resolve().as_uri()
        lines = spark.read.text(uri, recursiveFileLookup=True)
        return lines.selectExpr("_metadata.file_modification_time AS stored", "value AS line")
    from floeplan.spark.read.reader import read

    where = None if since is None else f"timestamp >= TIMESTAMP '{since.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"
    return read(spark, load_table(source, catalog), where, columns=["timestamp", "report"]).toDF("stored", "line")


def parsed_reports(lines: DataFrame) -> DataFrame:
    """One row per non-empty line; nulls where a line is not a report."""
    from pyspark.sql import functions as F  # noqa: N812

    def in_log(pattern: str) -> SparkColumn:
        return F.nullif(F.regexp_extract("logged", pattern, 1), F.lit(""))

    def number_in_log(name: str) -> SparkColumn:
        first, *rest = name.split("-")
        java = first + "".join(map(str.capitalize, rest))
        value = in_log(rf"\b{java}=CounterResult\{{unit=\w+, value=(\d+)\}}")
        return F.struct(value.try_cast("long").alias("value")).alias(name)

    line = F.col("line")
    text = F.when(line.startswith("{"), line).otherwise(F.regexp_extract("line", r'(\{".*\})\s*$', 1))
    parsed = lines.where(F.trim("line") != "").select(
        "stored",
        F.from_json(text, REPORT).alias("report"),
        F.when(line.contains("ScanReport{tableName="), line).alias("logged"),
    )
    return parsed.select(
        "stored",
        "report.*",
        in_log(r"ScanReport\{tableName=([^,]+),").alias("logged_table"),
        F.regexp_replace(in_log(r", filter=(.*), schemaId="), _HIDDEN_LITERAL, "?").alias("logged_filter"),
        F.struct(*map(number_in_log, _METRICS)).alias("logged_metrics"),
    )


def audited_columns(parsed: DataFrame) -> DataFrame:
    """The numbers of reports of all formats under the same names; ``table`` is null for a line that is not a report.

    ``causes`` are those that a plan reported for its conjuncts; without them, the likely cause by the filter.
    """
    from pyspark.sql import functions as F  # noqa: N812

    metric = {name: f"coalesce(metrics.`{name}`.value, logged_metrics.`{name}`.value)" for name in _METRICS}
    manifests, scanned = metric["total-data-manifests"], metric["scanned-data-manifests"]
    # Iceberg counts skipped files of scanned manifests only; those of the other manifests are estimated.
    in_scanned = f"try_add({metric['result-data-files']}, coalesce({metric['skipped-data-files']}, 0))"
    of_iceberg = {
        "manifests_total": manifests,
        "manifests_kept": scanned,
        "files_total": f"TRY_CAST({in_scanned} * coalesce({manifests} / nullif({scanned}, 0), 1) AS BIGINT)",
        "files_kept": metric["result-data-files"],
        "bytes_kept": metric["total-file-size-in-bytes"],
        "deletes_kept": metric["result-delete-files"],
    }
    numbers = {
        name: _plausible(f"coalesce(floeplan.summary.{name}, {of_iceberg.get(name, 'NULL')})") for name in _SUMMARY
    }
    shape = F.regexp_replace(F.coalesce("filter", "logged_filter"), _LITERAL, r'"$1":"?"')
    not_compiled = "transform(filter(floeplan.warnings, w -> w.kind = 'not-compiled'), w -> w.context.text)"
    opaque = F.regexp_replace(F.expr(f"array_join({not_compiled}, ' AND ')"), _SQL_LITERAL, "?")
    old_specs = "filter(floeplan.specs, s -> s.spec_id != floeplan.default_spec_id)"
    # The fraction of the files of pass 2 that each conjunct leaves undecided.
    files = "filter(floeplan.passes, p -> p.unit = 'files' AND p.total > 0)"
    open_shares = f"flatten(transform({files}, p -> transform(p.effects, e -> e.undecided / p.total)))"
    columns = parsed.select(
        F.expr(f"coalesce({_TIME}, stored)").alias("time"),
        F.expr(f"CASE WHEN {numbers['files_kept']} IS NOT NULL THEN coalesce(`table-name`, logged_table) END").alias(
            "table"
        ),
        F.coalesce(shape, F.lit("true")).alias("shape"),
        F.coalesce(opaque, F.lit("")).alias("opaque"),
        F.expr(_ENGINE).alias("engine"),
        *(F.expr(text).alias(name) for name, text in numbers.items()),
        F.expr("CASE WHEN floeplan.selectivity BETWEEN 0 AND 1 THEN floeplan.selectivity END").alias("selectivity"),
        F.expr(_plausible(f"aggregate({old_specs}, 0L, (sum, s) -> try_add(sum, s.bytes_kept))")).alias(
            "old_spec_bytes"
        ),
        F.expr(f"exists({old_specs}, s -> coalesce(s.undecided, 1) > 0)").alias("old_spec_undecided"),
        F.expr(f"exists(floeplan.specs, s -> {_ON_PARTITION})").alias("uses_partition"),
        F.expr(f"array_max({open_shares})").alias("undecided_ratio"),
        F.expr("timestamp_millis(floeplan.layout_changed_ms)").alias("layout_changed"),
        F.expr("floeplan.default_spec_id").alias("default_spec_id"),
        F.expr("floeplan IS NULL").alias("is_foreign"),
        F.expr("flatten(transform(floeplan.passes, p -> p.effects.why))").alias("causes"),
        F.expr("coalesce(`report-type`, '') = 'commit-report'").alias("is_commit"),
    )
    return columns.withColumn("causes", F.coalesce("causes", F.expr(_CAUSE_FROM_FILTER)))


def _plausible(number: str) -> str:
    """A number, or null if no table can have it."""
    return f"CASE WHEN ({number}) BETWEEN 0 AND {_MAX_NUMBER} THEN ({number}) END"


MOST_PREDICATES = 300
"""Only the most frequent predicates of a workload are used: each is evaluated on every candidate."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Distinct predicates and their runs, most frequent first; ``unusable`` counts runs without a usable predicate."""

    predicates: tuple[tuple[IrExpr, int], ...]
    unusable: int

    @property
    def runs(self) -> int:
        """The number of runs of all predicates."""
        return sum(runs for _, runs in self.predicates)

    def columns(self) -> list[Column]:
        """The columns that predicates use, those of most runs first."""
        counts: Counter[int] = Counter()
        found: dict[int, Column] = {}
        for predicate, weight in self.predicates:
            columns = {column.field_id: column for leaf in leaves(predicate) if (column := column_of(leaf)) is not None}
            found |= columns
            counts.update(dict.fromkeys(columns, weight))
        return [found[field_id] for field_id, _ in counts.most_common()]


def read_workload(
    reports: str, table: str, schema: Schema, *, since: datetime | None = None, catalog: str | None = None
) -> Workload:
    """The predicates of one table in a folder, a file or a table of reports.

    Raises:
        BadInputError: There are no reports at that location.
    """
    hidden = re.compile(r'"\((?:\d+-digit|hash-|date|time)[^)"]*\)"')
    filters: Counter[str] = Counter()
    unusable = 0
    for line in _lines(reports, catalog):
        start = line.find('{"')
        if start < 0 or table not in line:  # skipped without parsing
            continue
        try:
            report = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue
        named = str(report.get("table-name"))  # may have a catalog in front
        if not (named == table or named.endswith(f".{table}")) or "filter" not in report or _is_older(report, since):
            continue
        text = json.dumps(report["filter"], sort_keys=True)
        if text == "null" or hidden.search(text):
            unusable += 1
        else:
            filters[text] += 1
    predicates: Counter[IrExpr] = Counter()
    for text, runs in filters.most_common():
        try:
            predicate = compile_predicate(BooleanExpression.model_validate(json.loads(text)), schema).predicate
        except (BadInputError, ValidationError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            unusable += runs
            continue
        if len(predicates) < MOST_PREDICATES:
            predicates[predicate] += runs
    return Workload(tuple(predicates.most_common()), unusable)


def _is_older(report: dict[str, Any], since: datetime | None) -> bool:
    """Whether a report was written before a time; one without a timestamp was not."""
    own = report.get("floeplan")
    text = own.get("timestamp") if isinstance(own, dict) else None
    if since is None or not isinstance(text, str):
        return False
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        return False
    return (written if written.tzinfo else written.replace(tzinfo=UTC)) < since


def _lines(source: str, catalog: str | None) -> Iterator[str]:
    if "://" in source:
        raise UnsupportedError(f"{source}: advise reads reports from local files or from an Iceberg table")
    if are_files(source):
        path = Path(source)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as lines:
                    yield from lines
        return
    plan = plan_scan(load_table(source, catalog), columns=["report"], options=ScanOptions(report=False))
    for batch in read_batches(plan, plan.schema):
        yield from batch.column(0).to_pylist()
