"""One line of advice for each reason a scan reads more than it might: the ways pruning fails, and their cures."""

from __future__ import annotations

from collections.abc import Iterator

from floeplan.scan.scan_plan import ScanPlan

CURES = {
    "range over bucket": "bucket keeps no order: compare with = or IN, or partition by a range of the column",
    "no statistics": "no bounds were written: set write.metadata.metrics.column.<name> and rewrite the files",
    "!= excludes almost nothing": "say what is wanted with IN instead of what is not",
    "one side of OR matches everywhere": "both sides must prune: split the query into a UNION of two",
    "values are spread over all files": "cluster the files by this column: rewrite with sort or zorder",
    "only rows can answer it": "compare the bare column with a literal, without functions around it",
}
"""What to do about each way in which pruning fails."""


def advice(plan: ScanPlan) -> tuple[str, ...]:
    """What would let this scan read less; nothing when it reads little."""
    return tuple(dict.fromkeys(_lines(plan)))


def _lines(plan: ScanPlan) -> Iterator[str]:
    for step in plan.passes:
        for effect in step.effects:
            if effect.why in CURES:
                yield f"{effect.predicate}: {effect.why}; {CURES[effect.why]}"
    summary = plan.summary
    none_skipped = summary.manifests_total >= 10 and summary.manifests_kept == summary.manifests_total
    if none_skipped and _filters_files(plan) and _concerns_partitions(plan):
        yield "no manifest was skipped although files were: cluster the manifests by partition (rewrite-manifests)"


def _concerns_partitions(plan: ScanPlan) -> bool:
    return any(note.how != "cannot" for spec in plan.specs for note in spec.notes)


def _filters_files(plan: ScanPlan) -> bool:
    total = plan.summary.files_total
    return total is not None and plan.summary.files_kept * 2 < total
