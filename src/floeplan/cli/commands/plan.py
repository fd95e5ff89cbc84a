"""``floeplan plan``: the manifests, files and row groups that a scan reads, and why."""

from __future__ import annotations

from typing import Annotated

import typer

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
    TableArgument,
    WhereOption,
    column_names,
    show,
    timestamp_ms,
)
from floeplan.scan.explain import draw_pyramid, explain
from floeplan.scan.options import DistributedPlanning, ScanOptions
from floeplan.scan.plan import plan_scan

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
SparkOption = Annotated[
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
