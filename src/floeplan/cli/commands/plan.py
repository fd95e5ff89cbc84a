"""``floeplan plan``: what a scan reads, and why; ``floeplan scan``: the matching rows, with deletes applied."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

from floeplan.catalog import load_table
from floeplan.cli import common
from floeplan.dml.assign import top_fields
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.scan.explain import draw_pyramid, explain
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.projection import arrow_schema
from floeplan.scan.read import read_batches
from floeplan.spark.session import spark_errors_translated
from floeplan.text import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Show what each spec and each condition pruned, with advice.")
]
NoFootersOption = Annotated[bool, typer.Option("--no-footers", help="Plan from manifests only; open no data file.")]
PageIndexOption = Annotated[bool, typer.Option("--page-index", help="Also prune pages within row groups.")]
BloomOption = Annotated[bool, typer.Option("--bloom", help="Also use bloom filters.")]
RootOption = Annotated[
    str | None, typer.Option("--root", metavar="FILE", help="Plan from a root manifest written by 'floeplan entries'.")
]
PlanSparkOption = Annotated[
    str | None, typer.Option("--spark", metavar="URL", help="Evaluate manifests on this Spark session.")
]

LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Return at most N rows.")]
CountOption = Annotated[bool, typer.Option("--count", help="Count matching rows, from metadata where possible.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.parquet", help="Write the rows to a Parquet file.")
]
_SHOWN_ROWS = 20


def plan(
    table: common.TableArgument,
    where: common.WhereOption = None,
    columns: common.ColumnsOption = None,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    as_of: common.AsOfOption = None,
    explain_plan: ExplainOption = False,
    no_footers: NoFootersOption = False,
    page_index: PageIndexOption = False,
    bloom: BloomOption = False,
    case_insensitive: common.CaseOption = False,
    no_cache: common.NoCacheOption = False,
    no_report: common.NoReportOption = False,
    root: RootOption = None,
    spark: PlanSparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Plan a scan and show what it would read.

    floeplan plan db.events --where "region = 'eu' AND ts >= '2024-03-01'" --explain
    """
    loaded = load_table(table, catalog)
    planning = None
    if spark is not None:  # imported here because planning without Spark must not import pyspark
        from floeplan.spark.planning import SparkPlanning
        from floeplan.spark.session import open_session

        planning = SparkPlanning(open_session(spark))
    options = ScanOptions(
        footers=not no_footers,
        page_index=page_index,
        bloom_filter=bloom,
        cache=not no_cache,
        root=root,
        recover=len(loaded.metadata.partition_specs) > 1,
        planning=planning,
        report=not no_report,
    )
    planned = plan_scan(
        loaded,
        where,
        columns=common.column_names(columns),
        snapshot_id=snapshot_id,
        ref=ref,
        timestamp_ms=common.timestamp_ms(as_of),
        case_sensitive=not case_insensitive,
        options=options,
    )
    common.show(planned, explain if explain_plan else draw_pyramid, as_json=json)


@dataclass(frozen=True, slots=True)
class Answer:
    """The number of rows and, unless they were written to a file or only counted, the rows."""

    rows: int
    table: pa.Table | None = None
    output: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"rows": self.rows}
        if self.table is not None:
            document["data"] = common.json_rows(self.table, self.table.num_rows)
        if self.output is not None:
            document["output"] = str(self.output)
        return document


def scan(
    table: common.TableArgument,
    where: common.WhereOption = None,
    columns: common.ColumnsOption = None,
    limit: LimitOption = None,
    count: CountOption = False,
    output: OutputOption = None,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    as_of: common.AsOfOption = None,
    case_insensitive: common.CaseOption = False,
    no_cache: common.NoCacheOption = False,
    no_report: common.NoReportOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Read matching rows.

    floeplan scan db.events --where "region = 'eu'" --columns id,ts --limit 10
    """
    if count and (output is not None or limit is not None):
        raise InvalidOptionError("--count returns a number; drop --limit and --output")
    if output is not None and not output.parent.is_dir():
        raise InvalidOptionError(f"--output: no such folder: {output.parent}", context={"folder": str(output.parent)})
    planned = plan_scan(
        load_table(table, catalog),
        where,
        columns=common.column_names(columns),
        snapshot_id=snapshot_id,
        ref=ref,
        timestamp_ms=common.timestamp_ms(as_of),
        case_sensitive=not case_insensitive,
        options=ScanOptions(page_index=True, cache=not no_cache, report=not no_report),
    )
    shown = limit if json or limit is not None else _SHOWN_ROWS + 1
    try:
        if count:
            answer = Answer(planned.count())
        elif output is None:
            rows = planned.to_arrow(limit=shown)
            answer = Answer(rows.num_rows, rows)
        else:
            batches = read_batches(planned, planned.schema)
            with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
                tracked = progress.track(batches, total=len(planned.files), description="reading")
                answer = Answer(_write(tracked, arrow_schema(planned.schema), limit, output), output=output)
    except UnsupportedError:
        if planned.compiled.residual == TRUE:
            raise
        session = common.spark_for(spark).needed("this predicate")
        answer = _answer_of_spark(planned, session, count, limit if output is not None else shown, output)
    common.show(answer, render, as_json=json)


def _answer_of_spark(
    plan: ScanPlan, spark: SparkSession, count: bool, limit: int | None, output: Path | None
) -> Answer:
    """Read the planned files with Spark, for a predicate that Arrow cannot evaluate."""
    from floeplan.dml.spark_rows import in_utc
    from floeplan.spark.read.reader import read_plan_of

    with spark_errors_translated(), in_utc(spark):
        if count:
            used = top_fields(plan.target.schema, field_ids(plan.compiled.predicate))
            return Answer(read_plan_of(spark, replace(plan, schema=used)).dataframe().count())
        frame = read_plan_of(spark, plan).dataframe()
        table = (frame if limit is None else frame.limit(limit)).toArrow()
    if output is None:
        return Answer(table.num_rows, table)
    return Answer(_write([table], table.schema, limit, output), output=output)


def _write(batches: Iterable[pa.Table], schema: pa.Schema, limit: int | None, output: Path) -> int:
    """Write to a temporary file and rename it at the end, so that a failure leaves no partial output."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    rows = 0
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            for batch in batches:
                wanted = batch if limit is None else batch.slice(0, limit - rows)
                writer.write_table(wanted)
                rows += wanted.num_rows
                if rows == limit:
                    break
        partial.rename(output)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def render(answer: Answer) -> RenderableType:
    """Render the rows as a table, or one line."""
    if answer.output is not None:
        return Text(f"{counted(answer.rows, 'row')} written to {answer.output}")
    return Text(f"{answer.rows:,}") if answer.table is None else common.rows_table(answer.table, _SHOWN_ROWS)
