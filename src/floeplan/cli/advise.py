"""`floeplan advise`: which partitioning, order or clustering would let the logged queries read less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.audit.advisor import AdviceResult, AdviseOptions
from floeplan.audit.advisor import advise as advise_table
from floeplan.audit.apply import apply_candidate
from floeplan.audit.candidates import KINDS
from floeplan.audit.places import default_reports
from floeplan.catalog import load_table
from floeplan.cli.audit import ReportsOption, SinceOption, since_time
from floeplan.cli.changes import SparkOption, sign_of_life, spark_for, writable_table
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.errors import BadInputError, InvalidOptionError
from floeplan.text import counted, human_bytes, percent

SampleOption = Annotated[
    int | None, typer.Option("--sample", metavar="ROWS", min=1, help="Read so many rows instead of trusting bounds.")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help=f"Only candidates of: {', '.join(KINDS)}.")
]
ApplyOption = Annotated[bool, typer.Option("--apply", help="Do what the first candidate says.")]
MostOption = Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show so many candidates.")]


@dataclass(frozen=True, slots=True)
class Advice:
    """The candidates and, when the first was applied, what came of it."""

    result: AdviceResult
    applied: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return self.result.to_dict() | ({} if self.applied is None else {"applied": dict(self.applied)})


def advise(
    table: TableArgument,
    reports: ReportsOption = None,
    since: SinceOption = None,
    sample: SampleOption = None,
    kind: KindOption = None,
    most: MostOption = 10,
    apply: ApplyOption = False,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Estimate what other layouts would save the queries that were logged.

    floeplan advise db.events --since 30d
    """
    if kind is not None and kind not in KINDS:
        raise InvalidOptionError(f"--kind {kind!r} is none of {', '.join(KINDS)}", context={"option": "--kind"})
    chosen = writable_table(table, catalog) if apply else load_table(table, catalog)
    options = AdviseOptions(since=since_time(since, datetime.now(UTC)), sample=sample, kind=kind, most=most)
    with sign_of_life("trying layouts"):
        result = advise_table(chosen, reports or default_reports(), options, catalog=catalog)
    advice = Advice(result)
    if apply:
        if not result.candidates:
            raise BadInputError(f"there is nothing to apply to {result.table}: no candidate saves anything")
        with sign_of_life("applying"):
            advice = replace(advice, applied=apply_candidate(chosen, result.candidates[0], spark_for(spark).session))
    show(advice, draw, as_json=json)


def draw(advice: Advice) -> RenderableType:
    """The candidates as a table, best first."""
    result = advice.result
    asked = f"{counted(result.predicates, 'predicate')} in {counted(result.runs, 'run')}"
    head = Text(f"{result.table}  {counted(result.files, 'file')}, {human_bytes(result.bytes)}; {asked}", style="bold")
    parts: list[RenderableType] = [head]
    if result.unusable:
        parts.append(Text(f"! {counted(result.unusable, 'run')} whose literals are not known were left out", "yellow"))
    if not result.candidates:
        return Group(*parts, Text("no candidate saves anything worth naming"))
    parts += [_table(result), Text(f"→ {result.candidates[0].command}", style="cyan")]
    if advice.applied is not None:
        parts.append(Text(f"applied: {result.candidates[0].kind} by {', '.join(result.candidates[0].columns)}"))
    return Group(*parts)


def _table(result: AdviceResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kind", "by"):
        table.add_column(name)
    for name in ("read now", "then", "", "to rewrite"):
        table.add_column(name, justify="right")
    table.add_column("estimated from")
    for candidate in result.candidates:
        before, after = candidate.estimated_bytes_before, candidate.estimated_bytes_after
        table.add_row(
            candidate.kind,
            ", ".join(candidate.columns),
            human_bytes(before),
            human_bytes(after),
            percent(after, before),
            human_bytes(candidate.bytes_rewritten) if candidate.bytes_rewritten else "metadata only",
            candidate.basis,
        )
    return table
