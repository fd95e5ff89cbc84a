"""``floeplan plan``: what a scan reads; ``why``: what decides one file; ``scan``: the rows, with deletes applied."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.errors import FloeplanError, InvalidOptionError, UnsupportedError
from floeplan.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from floeplan.scan.plan import ScanPlan
    from floeplan.scan.why import Why

FORMATS = ("csv", "jsonl", "arrow", "parquet")

ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Show what each spec and each condition pruned, with advice.")
]
NoFootersOption = Annotated[bool, typer.Option("--no-footers", help="Plan from manifests only; open no data file.")]
PageIndexOption = Annotated[bool, typer.Option("--page-index", help="Also prune pages within row groups.")]
BloomOption = Annotated[bool, typer.Option("--bloom", help="Also use bloom filters.")]
MisplacedOption = Annotated[
    bool,
    typer.Option(
        "--misplaced-deletes", help="Apply deletes that are recorded in another partition than their data file."
    ),
]
RootOption = Annotated[
    str | None,
    typer.Option("--root", metavar="FILE", help="Plan from a root written by 'floeplan entries'."),
]
PlanSparkOption = Annotated[
    str | None, typer.Option("--spark", metavar="URL", help="Evaluate manifests on this Spark session.")
]

LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Return at most N rows.")]
CountOption = Annotated[bool, typer.Option("--count", help="Count matching rows, from metadata where possible.")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Stream the rows as csv, jsonl, arrow or parquet, to stdout without -o; by default the suffix of FILE, "
        "else parquet.",
        autocompletion=completion.one_of(*FORMATS),
    ),
]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the rows to a file.")]
SHOWN_ROWS = 20


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
    misplaced_deletes: MisplacedOption = False,
    root: RootOption = None,
    spark: PlanSparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Plan a scan and show what it would read.

    floeplan plan db.events --where "region = 'eu' AND ts >= '2024-03-01'" --explain
    """
    from floeplan.catalog import load_table
    from floeplan.scan.explain import draw_pyramid, explain
    from floeplan.scan.model import ScanOptions
    from floeplan.scan.plan import plan_scan

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
        misplaced_deletes=misplaced_deletes,
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


def why(
    table: common.TableArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A data file: its path, or the end of it if that is unambiguous.")
    ],
    where: common.WhereOption = None,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    case_insensitive: common.CaseOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Show which pass, condition and statistic keep or drop a data file.

    floeplan why db.events 00000-0.parquet --where "region = 'eu'"
    """
    from floeplan.scan.why import why as why_file

    sensitive = not case_insensitive
    found = why_file(table, file, where, snapshot_id=snapshot_id, ref=ref, case_sensitive=sensitive, catalog=catalog)
    common.show(found, draw_why, as_json=json)


def draw_why(found: Why) -> RenderableType:
    """Render the decision, then what it follows from."""
    result = Text("kept", style="green") if found.kept else Text(f"dropped in {found.dropped_in}", style="yellow")
    drawn = common.key_value_table()
    drawn.add_row("spec", str(found.spec_id))
    for name, value in (("conjunct", found.conjunct), ("statistic", found.statistic), ("reason", found.reason)):
        if value is not None:
            drawn.add_row(name, Text(value, overflow="fold"))
    return Group(Text(found.file), result, drawn)


@dataclass(frozen=True, slots=True)
class Answer:
    """The number of rows and, unless they were written to a file or only counted, the rows.

    ``limited`` if the user has said how many, so that text shows them all.
    """

    rows: int
    table: pa.Table | None = None
    output: Path | None = None
    limited: bool = False

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
    format_: FormatOption = None,
    output: OutputOption = None,
    snapshot_id: common.SnapshotOption = None,
    ref: common.RefOption = None,
    as_of: common.AsOfOption = None,
    case_insensitive: common.CaseOption = False,
    no_cache: common.NoCacheOption = False,
    no_report: common.NoReportOption = False,
    misplaced_deletes: MisplacedOption = False,
    spark: common.SparkOption = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Read matching rows.

    floeplan scan db.events --where "region = 'eu'" --columns id,ts --format csv -o rows.csv
    """
    from floeplan.catalog import load_table
    from floeplan.predicate.ir import TRUE
    from floeplan.scan.model import ScanOptions
    from floeplan.scan.plan import plan_scan

    _check_options(count=count, limited=limit is not None, format_=format_, output=output, json=json)
    planned = plan_scan(
        load_table(table, catalog),
        where,
        columns=common.column_names(columns),
        snapshot_id=snapshot_id,
        ref=ref,
        timestamp_ms=common.timestamp_ms(as_of),
        case_sensitive=not case_insensitive,
        options=ScanOptions(
            page_index=True, cache=not no_cache, report=not no_report, misplaced_deletes=misplaced_deletes
        ),
    )
    written = format_ is not None or output is not None
    shown = limit if json or written or limit is not None else SHOWN_ROWS + 1
    try:
        if count:
            answer = Answer(planned.count())
        elif written:
            answer = Answer(_stream(planned, limit, format_, output), output=output)
        else:
            rows = planned.to_arrow(limit=shown)
            answer = Answer(rows.num_rows, rows)
    except UnsupportedError as error:
        unreadable = "file" in error.context  # Spark does not read it either
        if planned.compiled.residual == TRUE or unreadable or _needs_tasks(planned, count):
            raise
        session = common.spark_for(spark).needed("this predicate")
        answer = _answer_of_spark(planned, session, count, shown)
        if written and answer.table is not None:
            rows = answer.table
            answer = Answer(_write([rows], rows.schema, format_, output), output=output)
    if not written or output is not None:
        answer = replace(answer, limited=limit is not None)
        common.show(answer, render, as_json=json)


def _check_options(*, count: bool, limited: bool, format_: str | None, output: Path | None, json: bool) -> None:
    """Refuse options that exclude each other, before anything is read."""
    if count and (output is not None or format_ is not None or limited):
        raise InvalidOptionError("--count returns a number; drop --limit, --format and --output")
    if format_ is not None and format_ not in FORMATS:
        message = f"--format is {format_!r} but must be one of {', '.join(FORMATS)}"
        raise InvalidOptionError(message, context={"option": "--format"})
    if json and format_ is not None and output is None:
        raise InvalidOptionError("--format writes rows to stdout, where --json writes its document; add -o FILE")
    if output is not None and not output.parent.is_dir():
        raise InvalidOptionError(f"--output: no such folder: {output.parent}", context={"folder": str(output.parent)})
    if output is not None and output.is_dir():
        raise InvalidOptionError(
            f"--output {output} is a folder, and a file is expected", context={"folder": str(output)}
        )


def _needs_tasks(plan: ScanPlan, count: bool) -> bool:
    """Whether metadata columns are read: by Python tasks, which evaluate predicates as this process does."""
    from floeplan.scan.metadata_columns import DELETED, is_metadata, metadata_columns_of

    named = plan.schema.fields if not count else (DELETED,) if DELETED in plan.schema.fields else ()
    filtered = metadata_columns_of(plan.compiled.predicate, plan.target.metadata)
    return any(is_metadata(field.field_id) for field in (*named, *filtered))


def _answer_of_spark(plan: ScanPlan, spark: SparkSession, count: bool, limit: int | None) -> Answer:
    """Read the planned files with Spark, for a predicate that Arrow cannot evaluate."""
    from floeplan.dml.assign import top_fields
    from floeplan.dml.spark_rows import in_utc
    from floeplan.predicate.build import field_ids
    from floeplan.spark.read.reader import read_plan_of
    from floeplan.spark.session import spark_errors_translated

    with spark_errors_translated(), in_utc(spark):
        if count:
            used = top_fields(plan.target.schema, field_ids(plan.compiled.predicate))
            return Answer(read_plan_of(spark, replace(plan, schema=used)).dataframe().count())
        frame = read_plan_of(spark, plan).dataframe()
        table = (frame if limit is None else frame.limit(limit)).toArrow()
    return Answer(table.num_rows, table)


def _stream(plan: ScanPlan, limit: int | None, format_: str | None, output: Path | None) -> int:
    """Write the rows as they are read, with a bar on a terminal."""
    from rich.progress import Progress

    from floeplan.scan.projection import arrow_schema
    from floeplan.scan.stream import stream

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        most = plan.summary.rows_kept
        task = progress.add_task("reading", total=most if limit is None else min(limit, most))

        def tables() -> Iterator[pa.Table]:
            for table in stream(plan, plan.schema, limit=limit):
                yield table
                progress.advance(task, table.num_rows)
            progress.update(task, completed=progress.tasks[0].total)

        found = tables()
        first = list(islice(found, 1))  # a predicate that only Spark can evaluate fails here, or else has written rows
        try:
            return _write(chain(first, found), arrow_schema(plan.schema), format_, output)
        except UnsupportedError as error:
            if output is not None:
                raise
            raise FloeplanError(f"{error.message}; some rows were written already: use -o FILE") from error


def _write(tables: Iterable[pa.Table], schema: pa.Schema, format_: str | None, output: Path | None) -> int:
    """Write to stdout, or to a temporary file that is renamed at the end: a failure leaves no partial file."""
    if output is None:
        try:
            with open(sys.stdout.fileno(), "wb", closefd=False) as sink:
                return _write_rows(tables, schema, str(format_), sink)
        except BrokenPipeError:  # the reader of the pipe, such as head, has seen enough
            return 0
    suffix = output.suffix.removeprefix(".")
    chosen = format_ or (suffix if suffix in FORMATS else "parquet")
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as sink:
            rows = _write_rows(tables, schema, chosen, sink)
        partial.rename(output)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _write_rows(tables: Iterable[pa.Table], schema: pa.Schema, format_: str, sink: BinaryIO) -> int:
    from floeplan.cli.row_formats import open_writer

    rows = 0
    with closing(open_writer(format_, sink, schema)) as writer:
        for table in tables:
            writer.write(table)
            rows += table.num_rows
    return rows


def render(answer: Answer) -> RenderableType:
    """Render the rows as a table, or one line."""
    if answer.output is not None:
        return Text(f"{counted(answer.rows, 'row')} written to {answer.output}")
    if answer.table is None:
        return Text(f"{answer.rows:,}")
    shown = answer.rows if answer.limited else SHOWN_ROWS
    drawn = common.RowsTable(answer.table, shown)
    more = f"only the first {SHOWN_ROWS} rows are shown; --json prints all of them"
    return drawn if answer.rows <= shown else Group(drawn, Text(more, style="dim"))
