"""Explains a plan: the pruning pyramid, the effect of each conjunct, and advice.

The same drawing serves a terminal (colours) and plain text. Everything is derived from the plan; nothing is read.
"""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from floeplan.scan.planned_scan import PlannedScan
from floeplan.text import human_bytes, human_count, percent

CURES = {
    "range over bucket": "bucket keeps no order: compare with = or IN, or partition by a range of the column",
    "no statistics": "no bounds were written: set write.metadata.metrics.column.<name> and rewrite the files",
    "!= excludes almost nothing": "list the values to keep with IN instead",
    "one side of OR matches everywhere": "both sides must prune: split the query into a UNION of two",
    "values are spread over all files": "cluster the files by this column: rewrite with sort or zorder",
    "only rows can answer it": "compare the bare column with a literal, without functions around it",
}
"""Advice for each reason for which a conjunct drops few files (``snapshot.passes``)."""


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
    files_skipped = summary.files_total is not None and summary.files_kept * 2 < summary.files_total
    # Clustering helps only if the predicate can be lifted through a spec.
    if none_skipped and files_skipped and any(note.how != "cannot" for spec in plan.specs for note in spec.notes):
        lines.append(
            "no manifest was skipped although files were: cluster the manifests by partition (rewrite-manifests)"
        )
    return tuple(dict.fromkeys(lines))


BAR_WIDTH = 40
TEXT_WIDTH = 110
_HOW = {"exact": "exact", "conservative": "conservative", "cannot": "not evaluable"}


def explain_text(plan: PlannedScan) -> str:
    """The explanation as plain text."""
    console = Console(
        file=StringIO(), width=TEXT_WIDTH, no_color=True, highlight=False, markup=False, emoji=False, soft_wrap=True
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
    parts: list[RenderableType] = [_title(plan), draw_levels(plan), Text(""), _specs(plan)]
    evaluated = [step for step in plan.passes if step.effects]
    if evaluated:
        # How many containers each conjunct drops on its own, per pass.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column("dropped by each conjunct alone")
        for step in evaluated:
            table.add_column(f"of {human_count(step.total)} {step.unit}", justify="right")
        table.add_column("why no more are dropped")
        for effects in zip(*(step.effects for step in evaluated), strict=True):
            dropped = [human_count(effect.dropped) if effect.dropped else "–" for effect in effects]
            whys = [effect.why for effect in effects if effect.why]
            table.add_row(effects[0].predicate, *dropped, whys[-1] if whys else "")
        parts += [Text(""), table]
    parts += [Text(f"! {warning.message}", style="yellow") for warning in plan.warnings]
    parts += [Text(f"→ {line}", style="cyan") for line in advice(plan)]
    return Group(*parts)


def _title(plan: PlannedScan) -> Text:
    snapshot = plan.target.snapshot
    filtered = bool(plan.passes and plan.passes[0].effects)
    name = plan.target.name
    title = Text(f"{name}  snapshot {snapshot.snapshot_id if snapshot else 'none'}\n", style="bold")
    return title.append(f"where {plan.compiled.predicate}\n" if filtered else "no filter\n", style="default not bold")


def draw_levels(plan: PlannedScan) -> Table:
    """The pyramid alone: what is kept of each level."""
    summary = plan.summary
    levels = [
        ("manifests", summary.manifests_total, summary.manifests_kept, human_count),
        ("files", summary.files_total, summary.files_kept, human_count),
        ("row groups", summary.row_groups_total, summary.row_groups_kept, human_count),
        ("rows", summary.rows_total, summary.rows_kept, human_count),
        ("bytes", summary.bytes_total, summary.bytes_kept, human_bytes),
    ]
    table = Table(box=None, show_header=False, padding=(0, 1))
    for justify in ("left", "right", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for name, total, kept, show in levels:
        if kept is None:
            continue
        bar = Text("")
        if total:
            # Anything kept is at least one mark wide.
            width = min(BAR_WIDTH, max(1 if kept else 0, round(BAR_WIDTH * kept / total)))
            bar = Text("█" * width, style="green") + Text("░" * (BAR_WIDTH - width), style="bright_black")
        of, share = ("", "") if total is None else (show(total), percent(kept, total))
        table.add_row(name, of, bar, show(kept), share)
    if summary.deletes_kept:
        table.add_row(
            "delete files", human_count(summary.deletes_total or 0), "", human_count(summary.deletes_kept), ""
        )
    return table


def _specs(plan: PlannedScan) -> Table:
    """The specs of the table, and how the partition fields of each evaluate the leaves of the predicate."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("spec", "partitioned by", "manifests", "files", "bytes"):
        table.add_column(name, justify="left" if name == "partitioned by" else "right")
    table.add_column("predicate on partition fields")
    for spec in plan.specs:
        notes = []
        for note in spec.notes:
            if note.field is not None:
                reason = f" ({note.reason})" if note.reason and note.how != "exact" else ""
                notes.append(f"{note.predicate}: {_HOW[note.how]} on {note.field}{reason}")
        table.add_row(
            str(spec.spec_id),
            spec.spec,
            f"{human_count(spec.manifests_kept)}/{human_count(spec.manifests_total)}",
            f"{human_count(spec.files_kept)}/{'?' if spec.files_total is None else human_count(spec.files_total)}",
            human_bytes(spec.bytes_kept),
            "\n".join(notes),
        )
    return table
