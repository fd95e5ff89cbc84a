"""``floeplan plan``: the manifests, files and row groups that a scan reads, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
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
from floeplan.cli.common import (
    AsOfOption,
    CaseOption,
    CatalogOption,
    ColumnsOption,
    JsonOption,
    NoCacheOption,
    NoReportOption,
    RefOption,
    SnapshotOption,
    SparkOption,
    TableArgument,
    WhereOption,
    column_names,
    json_rows,
    rows_table,
    show,
    spark_for,
    timestamp_ms,
)
from floeplan.dml.assign import top_fields
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.scan.explain import draw_pyramid, explain
from floeplan.scan.model import DistributedPlanning, ScanOptions
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
    str | None,
    typer.Option("--root", metavar="FILE", help="Plan from a root manifest written by 'floeplan entries'."),
]
PlanSparkOption = Annotated[
    str | None,
    typer.Option("--spark", metavar="URL", help="Evaluate manifests on this Spark session."),
]


def plan(
    table: TableArgument,
    where: WhereOption = None,
    columns: ColumnsOption = None,
    snapshot_id: SnapshotOption = None,
    ref: RefOption = None,
    as_of: AsOfOption = None,
    explain_plan: ExplainOption = False,
    no_footers: NoFootersOption = False,
    page_index: PageIndexOption = False,
    bloom: BloomOption = False,
    case_insensitive: CaseOption = False,
    no_cache: NoCacheOption = False,
    no_report: NoReportOption = False,
    root: RootOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Plan a scan and show what it would read.

    floeplan plan db.events --where "region = 'eu' AND ts >= '2024-03-01'" --explain
    """
    loaded = load_table(table, catalog)
    options = ScanOptions(
        footers=not no_footers,
        page_index=page_index,
        bloom_filter=bloom,
        cache=not no_cache,
        root=root,
        recover=len(loaded.metadata.partition_specs) > 1,
        planning=None if spark is None else _distributed(spark),
        report=not no_report,
    )
    planned = plan_scan(
        loaded,
        where,
        columns=column_names(columns),
        snapshot_id=snapshot_id,
        ref=ref,
        timestamp_ms=timestamp_ms(as_of),
        case_sensitive=not case_insensitive,
        options=options,
    )
    show(planned, explain if explain_plan else draw_pyramid, as_json=json)


def _distributed(url: str) -> DistributedPlanning:
    """Plan on Spark; imported here because planning without Spark must not import pyspark."""
    from floeplan.spark.planning import SparkPlanning
    from floeplan.spark.session import open_session

    return SparkPlanning(open_session(url))


# ``floeplan scan``: matching rows of a table, with deletes applied.


LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Return at most N rows.")]
CountOption = Annotated[bool, typer.Option("--count", help="Count matching rows, from metadata where possible.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.parquet", help="Write the rows to a Parquet file.")
]
_SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The number of rows and, unless they were written to a file or only counted, the rows."""

    rows: int
    table: pa.Table | None = None
    output: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"rows": self.rows}
        if self.table is not None:
            document["data"] = json_rows(self.table, self.table.num_rows)
        if self.output is not None:
            document["output"] = str(self.output)
        return document


def scan(
    table: TableArgument,
    where: WhereOption = None,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    count: CountOption = False,
    output: OutputOption = None,
    snapshot_id: SnapshotOption = None,
    ref: RefOption = None,
    as_of: AsOfOption = None,
    case_insensitive: CaseOption = False,
    no_cache: NoCacheOption = False,
    no_report: NoReportOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
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
        columns=column_names(columns),
        snapshot_id=snapshot_id,
        ref=ref,
        timestamp_ms=timestamp_ms(as_of),
        case_sensitive=not case_insensitive,
        options=ScanOptions(page_index=True, cache=not no_cache, report=not no_report),
    )
    try:
        answer = _answer(planned, limit, count, output, json)
    except UnsupportedError:
        if planned.compiled.residual == TRUE:
            raise
        answer = _answer_of_spark(planned, spark_for(spark).needed("this predicate"), limit, count, output, json)
    show(answer, render, as_json=json)


def render(answer: Answer) -> RenderableType:
    """Render the rows as a table, or one line."""
    if answer.output is not None:
        return Text(f"{counted(answer.rows, 'row')} written to {answer.output}")
    return Text(f"{answer.rows:,}") if answer.table is None else rows_table(answer.table, _SHOWN_ROWS)


def _answer(plan: ScanPlan, limit: int | None, count: bool, output: Path | None, as_json: bool) -> Answer:
    if count:
        return Answer(plan.count())
    if output is not None:
        return Answer(_write(_with_progress(plan), arrow_schema(plan.schema), limit, output), output=output)
    table = plan.to_arrow(limit=_shown(limit, as_json))
    return Answer(table.num_rows, table)


def _answer_of_spark(
    plan: ScanPlan, spark: SparkSession, limit: int | None, count: bool, output: Path | None, as_json: bool
) -> Answer:
    """Read the planned files with Spark, for a predicate that Arrow cannot evaluate."""
    from floeplan.dml.spark_rows import in_utc
    from floeplan.spark.read.reader import read_plan_of

    with spark_errors_translated(), in_utc(spark):
        if count:
            used = top_fields(plan.target.schema, field_ids(plan.compiled.predicate))
            return Answer(read_plan_of(spark, replace(plan, schema=used)).dataframe().count())
        frame = read_plan_of(spark, plan).dataframe()
        most = limit if output is not None else _shown(limit, as_json)
        table = (frame if most is None else frame.limit(most)).toArrow()
    if output is None:
        return Answer(table.num_rows, table)
    return Answer(_write([table], table.schema, limit, output), output=output)


def _shown(limit: int | None, as_json: bool) -> int | None:
    return limit if as_json or limit is not None else _SHOWN_ROWS + 1


def _write(batches: Iterable[pa.Table], schema: pa.Schema, limit: int | None, output: Path) -> int:
    """Write to a temporary file and rename it at the end, so that a failure leaves no partial output."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    rows = 0
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            for batch in _limited(batches, limit):
                writer.write_table(batch)
                rows += batch.num_rows
        partial.rename(output)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _limited(batches: Iterable[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _with_progress(plan: ScanPlan) -> Iterator[pa.Table]:
    """Read the batches of a plan, with a progress bar if stderr is a terminal."""
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        yield from progress.track(read_batches(plan, plan.schema), total=len(plan.files), description="reading")
