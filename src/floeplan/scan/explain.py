"""Explains a plan: the pruning pyramid, the effect of each conjunct, and advice.

The same drawing serves a terminal (colours) and plain text, and fits 80 columns: text wraps, numbers do not. Everything
is derived from the plan; nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from io import StringIO
from typing import TypeAlias

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from floeplan.display import bar_html, table_html
from floeplan.predicate.build import leaves, push_not
from floeplan.scan.planned_scan import PlannedScan, SpecSummary
from floeplan.snapshot.effects import (
    BUCKET_RANGE,
    NO_STATISTICS,
    NOT_EQUAL,
    ONE_SIDE,
    ONLY_ROWS,
    SPREAD,
    ConjunctEffect,
    Decided,
    describe,
)
from floeplan.text import human_bytes, human_count, percent

CURES = {
    BUCKET_RANGE: "bucket keeps no order: compare with = or IN, or partition by a range of the column",
    NO_STATISTICS: "no bounds were written: set write.metadata.metrics.column.<name> and rewrite the files",
    NOT_EQUAL: "list the values to keep with IN instead",
    ONE_SIDE: "both sides must prune: split the query into a UNION of two",
    SPREAD: "cluster the files by this column: rewrite with sort or zorder",
    ONLY_ROWS: "compare the bare column with a literal, without functions around it",
}
"""Advice for each reason for which a conjunct drops few files (``snapshot.effects``)."""


def advice(plan: PlannedScan) -> tuple[str, ...]:
    """What would let this scan read less; empty when there is nothing to improve."""
    lines = [
        f"{effect.predicate}: {effect.why}; {CURES[effect.why]}"
        for step in plan.passes
        for effect in step.effects
        if effect.why in CURES
    ]
    summary = plan.summary
    none_skipped = summary.manifests_total >= 10 and summary.manifests_kept == summary.manifests_total
    # Clustering helps only if partition values, which summaries are made of, decide and drop most files.
    decisions = [effect.decisions for effect in _file_effects(plan)]
    if none_skipped and any(2 * min(one.by_partition, one.dropped) > one.total for one in decisions):
        lines.append(
            "no manifest was skipped although files were: cluster the manifests by partition (rewrite-manifests)"
        )
    return tuple(dict.fromkeys(lines))


def reasons(plan: PlannedScan) -> tuple[str, ...]:
    """For each conjunct what decided it, and what keeps it from dropping more files."""
    found = []
    for effect in _file_effects(plan):
        text = describe(effect.conjunct, effect.decisions) if effect.by_spec else "no manifest is left to read"
        found.append(text if not effect.why or text.startswith(effect.why) else f"{effect.why}: {text}")
    return tuple(found)


def spec_reasons(plan: PlannedScan, spec: SpecSummary) -> tuple[str, ...]:
    """What decides each conjunct on the files of one spec: its partition fields, bounds, or nothing."""
    if not spec.manifests_total:
        return ("no files",)
    lines = []
    for effect in _file_effects(plan):
        own = {str(leaf) for leaf in leaves(push_not(effect.conjunct))}
        lifted = [note for note in spec.notes if note.field is not None and note.predicate in own]
        parts = []
        for note in lifted:
            leaf = "" if len(own) == 1 else f"{note.predicate} "
            reason = f" ({note.reason})" if note.reason and note.how != "exact" else ""
            parts.append(f"{leaf}{_HOW[note.how]} on {note.field}{reason}")
        found = effect.by_spec.get(spec.spec_id)
        if found is None:
            parts = parts or ["no manifest of this spec is left to read"]
        elif not lifted or found.decided is not Decided.PARTITION:
            parts.append(describe(effect.conjunct, found))
        lines.append(f"{effect.predicate}: {'; '.join(parts)}")
    return tuple(lines)


def _file_effects(plan: PlannedScan) -> tuple[ConjunctEffect, ...]:
    """The effects of pass 2; none for plans of appended rows, which have no passes."""
    return plan.passes[1].effects if len(plan.passes) > 1 else ()


BAR_WIDTH = 40
_SHORTEST_BAR = 8
TEXT_WIDTH = 110
_HOW = {"exact": "exact", "conservative": "conservative", "cannot": "not evaluable"}


def explain_text(plan: PlannedScan) -> str:
    """The explanation as plain text."""
    # In a notebook rich would display the text instead of writing it to the file.
    console = Console(
        file=StringIO(),
        width=TEXT_WIDTH,
        force_jupyter=False,
        no_color=True,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    console.print(explain(plan))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def draw_pyramid(plan: PlannedScan) -> RenderableType:
    """The pruning pyramid with warnings, without the details."""
    warnings = [Text(f"! {warning.message}", style="yellow") for warning in plan.warnings]
    return Group(_title(plan), draw_levels(plan), *warnings)


def explain(plan: PlannedScan) -> RenderableType:
    """The explanation for a rich console."""
    parts: list[RenderableType] = [_title(plan), draw_levels(plan), *_specs(plan)]
    evaluated = [step for step in plan.passes if step.effects]
    if evaluated:
        # How many containers each conjunct drops on its own, per pass.
        table = _table()
        table.add_column("dropped by each conjunct alone", overflow="fold")
        for step in evaluated:
            table.add_column(step.unit, justify="right", no_wrap=True)
        table.add_column("why no more are dropped", overflow="fold")
        for effects, reason in zip(zip(*(step.effects for step in evaluated), strict=True), reasons(plan), strict=True):
            dropped = [f"{effect.dropped:,}/{effect.decisions.total:,}" for effect in effects]
            table.add_row(effects[0].predicate, *dropped, reason)
        parts.append(table)
    parts += [Text(f"! {warning.message}", style="yellow") for warning in plan.warnings]
    parts += [Text(f"→ {line}", style="cyan") for line in advice(plan)]
    return Group(*parts)


def explain_html(plan: PlannedScan) -> str:
    """The pyramid, the specs and the conjuncts as HTML tables, for notebooks."""
    rows = []
    for name, total, kept, show in _levels(plan):
        bar = bar_html(kept / total) if total else ""
        of, share = ("?", "") if total is None else (show(total), percent(kept, total))
        rows.append(f"<tr><td>{name}</td><td>{of}</td><td>{bar}</td><td>{show(kept)}</td><td>{share}</td></tr>")
    specs = [
        (
            spec.spec_id,
            spec.spec,
            f"{spec.manifests_kept:,}/{spec.manifests_total:,}",
            f"{spec.files_kept:,}/{'?' if spec.files_total is None else format(spec.files_total, ',')}",
            human_bytes(spec.bytes_kept),
            "; ".join(spec_reasons(plan, spec)),
        )
        for spec in plan.specs
    ]
    headers = ("spec", "partitioned by", "manifests", "files", "bytes", "what decides each conjunct")
    effects = zip(_file_effects(plan), reasons(plan), strict=True)
    conjuncts = [(one.predicate, f"{one.dropped:,}/{one.decisions.total:,}", reason) for one, reason in effects]
    return (
        f"<p><b>{escape(repr(plan))}</b></p><table>{''.join(rows)}</table>"
        + table_html("partition specs", headers, specs)
        + (table_html("conjuncts", ("conjunct", "files dropped", "why no more"), conjuncts) if conjuncts else "")
    )


def _title(plan: PlannedScan) -> Text:
    snapshot = plan.target.snapshot
    filtered = bool(plan.passes and plan.passes[0].effects)
    name = plan.target.name
    title = Text(f"{name}  snapshot {snapshot.snapshot_id if snapshot else 'none'}\n", style="bold")
    return title.append(f"where {plan.compiled.predicate}\n" if filtered else "no filter\n", style="default not bold")


_Level: TypeAlias = tuple[str, int | None, int, Callable[[int], str]]


def _levels(plan: PlannedScan) -> list[_Level]:
    """The name of each level, its total, what is kept, and how numbers of it are shown."""
    summary = plan.summary
    levels = (
        ("manifests", summary.manifests_total, summary.manifests_kept, human_count),
        ("files", summary.files_total, summary.files_kept, human_count),
        ("row groups", summary.row_groups_total, summary.row_groups_kept, human_count),
        ("rows", summary.rows_total, summary.rows_kept, human_count),
        ("bytes", summary.bytes_total, summary.bytes_kept, human_bytes),
    )
    return [(name, total, kept, show) for name, total, kept, show in levels if kept is not None]


def draw_levels(plan: PlannedScan) -> Table:
    """The pyramid alone: what is kept of each level."""
    summary = plan.summary
    table = Table(box=None, show_header=False, padding=(0, 1))
    for justify in ("left", "right", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=justify == "right")
    for name, total, kept, show in _levels(plan):
        bar: RenderableType = _Bar(kept / total, kept > 0) if total else ""
        # The sizes of the delete files of pruned manifests are unknown, and part of the snapshot's total.
        at_most = "≤ " if name == "bytes" and summary.delete_manifests_kept < summary.delete_manifests_total else ""
        of, share = ("", "") if total is None else (at_most + show(total), percent(kept, total))
        table.add_row(Text(name, no_wrap=True), of, bar, show(kept), share)
    if summary.deletes_kept:
        table.add_row(
            "delete files", human_count(summary.deletes_total or 0), "", human_count(summary.deletes_kept), ""
        )
    return table


class _Bar:
    """A bar of the fraction that is kept: 40 columns wide, less where the numbers leave no room."""

    def __init__(self, share: float, any_kept: bool) -> None:
        self.share, self.any_kept = share, any_kept

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_SHORTEST_BAR, BAR_WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        room = min(BAR_WIDTH, options.max_width)
        # Anything kept is at least one mark wide.
        width = min(room, max(1 if self.any_kept else 0, round(room * self.share)))
        yield Text("█" * width, style="green") + Text("░" * (room - width), style="bright_black")


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)


def _specs(plan: PlannedScan) -> Iterator[RenderableType]:
    """The specs of the table, then what decides each conjunct on the files of each."""
    table = _table()
    for name in ("spec", "partitioned by", "manifests", "files", "bytes"):
        is_text = name == "partitioned by"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for spec in plan.specs:
        table.add_row(
            str(spec.spec_id),
            spec.spec,
            f"{human_count(spec.manifests_kept)}/{human_count(spec.manifests_total)}",
            f"{human_count(spec.files_kept)}/{'?' if spec.files_total is None else human_count(spec.files_total)}",
            human_bytes(spec.bytes_kept),
        )
    yield table
    if not plan.passes or not plan.passes[0].effects:
        return
    table = _table()
    table.add_column("spec", justify="right", no_wrap=True)
    table.add_column("what decides each conjunct", overflow="fold")
    for spec in plan.specs:
        table.add_row(str(spec.spec_id), "\n".join(spec_reasons(plan, spec)))
    yield table
