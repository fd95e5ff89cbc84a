"""Step 2 of planning: the filters of a rewrite, asked of manifests, partitions and files.

``partition_filter`` keeps or drops whole partitions. ``where`` does that too and then leaves out files that provably
hold no matching row, by partition value and column bounds together. Both are ``MultiSpecPartitionFilter``.

A file is *undecided* when its spec is partitioned and nothing could have excluded it: no part of the filter can be
lifted through the spec (an unevaluable spec included), or evaluating its partition failed, and no bounds stand in.
Fail-safe: undecided files are rewritten, with a warning; ``strict`` refuses them instead.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import column_of
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import IrExpr
from floeplan.rewrite.plan.candidates import Skip
from floeplan.rewrite.plan.filter import FilterStats, MultiSpecPartitionFilter, decidable, lifts
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.scan.summary import PlanWarning
from floeplan.snapshot.passes import Predicate, evaluate_entries, evaluate_manifests
from floeplan.text import counted
from floeplan.vectors import Mask


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter under the name of its option; ``bounds`` tells whether it also looks at the bounds of files."""

    name: str
    partitions: MultiSpecPartitionFilter
    bounds: bool

    @property
    def question(self) -> Predicate:
        """The predicate as the passes of a scan take it."""
        return Predicate(self.partitions.predicate, self.partitions.columns, self.partitions.union)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Candidate files of one spec that a filter could not decide, and why not."""

    filter: str
    spec_id: int
    kind: str
    reason: str
    files: int
    partitions: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """One line for people."""
        files = counted(self.files, "candidate file")
        return f"{self.filter} {_KINDS[self.kind]} spec {self.spec_id} ({self.reason}); {files} included undecided"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self) | {"partitions": list(self.partitions)}


_KINDS = {
    "unevaluable-spec": "cannot be evaluated for",
    "evaluation-error": "failed on partitions of",
    "not-lifted": "says nothing about the partitions of",
}


@dataclass(frozen=True, slots=True)
class Screened:
    """What the filters left of some entries: a ``Skip`` each, and the partition of each by its number."""

    skip: npt.NDArray[np.int8]
    codes: npt.NDArray[np.int64]
    keys: Sequence[PartitionKey]
    fail_open: Mask
    """Per partition: kept because a filter could not tell."""

    def fail_open_files(self, rows: npt.NDArray[np.integer]) -> int:
        """How many of these files are in partitions kept because a filter could not tell."""
        return int(np.count_nonzero(self.fail_open[self.codes[rows]])) if len(self.keys) else 0


class Screening:
    """The filters of one plan."""

    def __init__(self, filters: Sequence[NamedFilter], union: UnionPartitionType) -> None:
        self.filters = tuple(filters)
        self.union = union

    @classmethod
    def bind(cls, options: RewriteOptions, schema: Schema, union: UnionPartitionType) -> Screening:
        """Bind what filters there are to the table's schema; an invalid one is a hard error."""
        bind = partial(MultiSpecPartitionFilter.bind, schema=schema, union=union, case_sensitive=options.case_sensitive)
        given = (("partition-filter", options.partition_filter, False), ("where", options.where, True))
        return cls(
            [NamedFilter(name, bind(source), bounds) for name, source, bounds in given if source is not None], union
        )

    @property
    def stat_columns(self) -> frozenset[int]:
        """Columns whose bounds are asked."""
        return frozenset(field_id for item in self.filters if item.bounds for field_id in item.partitions.columns)

    def keep_manifests(self, manifests: ManifestListTable) -> Mask:
        """Manifests, of data and of deletes, that may hold a file of a partition that may match; live ones."""
        keep: Mask = ~((manifests.added_files == 0) & (manifests.existing_files == 0))
        for item in self.filters:
            keep &= evaluate_manifests(item.question, manifests).tri.keep
        return keep

    def screen(self, entries: EntriesTable) -> Screened:
        """Judge the partitions of the entries, each once, and the files in those that are kept."""
        skip = np.zeros(len(entries), dtype=np.int8)
        if not self.filters:
            return Screened(skip, np.zeros(0, dtype=np.int64), (), np.zeros(0, dtype=np.bool_))
        codes, keys = group_codes(self.union, entries.spec_id, entries.partition_columns())
        keep = np.ones(len(keys), dtype=np.bool_)
        fail_open = np.zeros(len(keys), dtype=np.bool_)
        for item in self.filters:
            keep &= item.partitions.matches_all(keys)
            fail_open |= _flags(keys, item.partitions.fail_open_keys)
        skip[~keep[codes]] = Skip.OUTSIDE_FILTER
        for item in self.filters:
            if item.bounds:
                rows = np.flatnonzero(skip == Skip.NONE)
                doubtful = _flags(keys, item.partitions.errors)[codes[rows]]
                skip[rows[~_may_match(item, entries.take(rows), doubtful)]] = Skip.NO_MATCHING_ROWS
        return Screened(skip, codes, keys, fail_open & keep)

    def stats(self, screened: Screened, candidates: npt.NDArray[np.integer]) -> FilterStats:
        """The counters, over all filters: a spec or a partition counts once."""
        specs = {spec_id for item in self.filters for spec_id in item.partitions.unevaluable_specs}
        errors = {key for item in self.filters for key in item.partitions.errors}
        open_partitions = int(np.count_nonzero(screened.fail_open))
        return FilterStats(len(specs), len(errors), open_partitions, screened.fail_open_files(candidates))

    def undecided(
        self, entries: EntriesTable, screened: Screened, candidates: npt.NDArray[np.integer]
    ) -> list[Undecided]:
        """The candidates that are in the plan only because nothing could decide them, by filter and spec."""
        return [found for item in self.filters for found in _undecided(item, entries, screened, candidates)]


def _flags(keys: Sequence[PartitionKey], among: Container[PartitionKey]) -> Mask:
    return np.fromiter((key in among for key in keys), dtype=np.bool_, count=len(keys))


def _may_match(item: NamedFilter, entries: EntriesTable, doubtful: Mask) -> Mask:
    """Whether files may hold a matching row; where partition values cannot be evaluated, by bounds alone."""
    keep = np.ones(len(entries), dtype=np.bool_)
    for rows, by_bounds in ((np.flatnonzero(~doubtful), False), (np.flatnonzero(doubtful), True)):
        if len(rows):
            some = entries if len(rows) == len(entries) else entries.take(rows)
            keep[rows] = _by_bounds(item, some) if by_bounds else evaluate_entries(item.question, some).tri.keep
    return keep


def _by_bounds(item: NamedFilter, entries: EntriesTable) -> Mask:
    return evaluate(item.partitions.predicate, file_stats(entries, item.partitions.columns.values())).may_true


def _undecided(
    item: NamedFilter, entries: EntriesTable, screened: Screened, candidates: npt.NDArray[np.integer]
) -> list[Undecided]:
    files = entries.take(candidates)
    codes, partitions = screened.codes[candidates], item.partitions
    failed = _flags(screened.keys, partitions.errors)[codes]
    partitioned = np.isin(files.spec_id, [i for i, spec in partitions.union.specs.items() if not spec.unpartitioned])
    knows = partial(_known, item, files, failed)
    rows = np.flatnonzero(partitioned & ~decidable(partitions.predicate, len(files), knows))
    found = []
    for spec_id in np.unique(files.spec_id[rows]).tolist():
        for errors in (False, True):
            some = rows[(files.spec_id[rows] == spec_id) & (failed[rows] == errors)]
            if len(some):
                keys = [screened.keys[code] for code in np.unique(codes[some])[:3].tolist()]
                found.append(_describe(item, spec_id, keys if errors else (), len(some)))
    return found


def _known(item: NamedFilter, files: EntriesTable, failed: Mask, leaf: IrExpr) -> Mask:
    """The files whose partition, or whose bounds where they are asked, say something about a leaf."""
    specs = [i for i, spec in item.partitions.union.specs.items() if lifts(leaf, spec.fields)]
    known = np.isin(files.spec_id, specs) & ~failed
    column = column_of(leaf)
    if item.bounds and column is not None:
        for part in ("lower", "upper", "null_count"):
            known |= files.valid(f"{part}.{column.field_id}")
    return known


def _describe(item: NamedFilter, spec_id: int, failed: Sequence[PartitionKey], files: int) -> Undecided:
    evaluator = item.partitions.evaluators[spec_id]
    if failed:
        reason = item.partitions.errors[failed[0]]
        examples = tuple(str(key.partition) for key in failed)
        return Undecided(item.name, spec_id, "evaluation-error", reason, files, examples)
    if evaluator.obstacle:
        return Undecided(item.name, spec_id, "unevaluable-spec", evaluator.obstacle, files)
    reason = "; ".join(map(str, evaluator.projection.notes))
    return Undecided(item.name, spec_id, "not-lifted", reason, files)


# Warnings for programs and people: structured, each thing said once, and never more than a reader can take.


MOST_WARNINGS = 20


class WarningLog:
    """Collects warnings; one more of a kind about the same thing is not added, and beyond a limit they are counted."""

    def __init__(self, most: int = MOST_WARNINGS) -> None:
        self._most = most
        self._found: dict[tuple[str, Hashable], PlanWarning] = {}

    def add(self, kind: str, about: Hashable, message: str, context: Mapping[str, Any]) -> None:
        """Note something, unless the same kind was noted about the same thing."""
        self._found.setdefault((kind, about), PlanWarning(kind, message, context))

    def finish(self) -> tuple[PlanWarning, ...]:
        """The first warnings, and how many more there were."""
        found = tuple(self._found.values())
        if len(found) <= self._most:
            return found
        more = len(found) - self._most
        return (*found[: self._most], PlanWarning("more", f"{more} more warnings were left out", {"warnings": more}))
