"""Steps 5 to 8 of planning: candidates into groups of one partition each, small groups left out, the rest ordered.

Files whose new partition takes their rows to tell are one partition here: rows of all of them go to the same new ones,
and only together they make good files. Those groups are no larger than ``SCATTERED_BYTES``, so that there is more than
one where there is much.

Files are ordered by partition, then by age and path, so that the same files give the same groups with the same
numbers, however manifests are arranged. Everything is columns; what remains at the end is one row per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.delete_index import DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.candidates import ENOUGH_ALONE, FileSizes, Reason
from floeplan.rewrite.plan.options import JobOrder, RewriteOptions
from floeplan.rewrite.plan.output import OutputPartitions
from floeplan.vectors import Ints, Mask

# Packing files into groups: next-fit within a partition, in the order of the files.
#
# Rule, as Iceberg's packer with a lookback of one: a file joins the open group when the group stays within its limits,
# else it opens the next one. A file that alone exceeds the limit is a group of its own.


def next_fit(weights: Ints, starts: Ints, limit: int, most: int) -> Ints:
    """Where groups start: positions in ``weights``, of which every partition start is one.

    Partitions that fit into one group cost no step of their own; the others cost one search a group.

    Args:
        weights: Sizes of all files, partition after partition.
        starts: Where each partition starts.
        limit: Bytes in a group at most.
        most: Files in a group at most.
    """
    through = np.cumsum(weights, dtype=np.int64)
    ends = np.append(starts[1:], len(weights))
    total = _sums(through, starts, ends)
    large = np.flatnonzero((total > limit) | (ends - starts > most)).tolist()
    cuts = [_next_fit(through, int(starts[at]), int(ends[at]), limit, most) for at in large]
    return np.unique(np.concatenate([starts, *cuts]))


def _next_fit(through: Ints, start: int, end: int, limit: int, most: int) -> Ints:
    """Where groups start within one partition."""
    cuts = []
    at = start
    while at < end:
        cuts.append(at)
        before = int(through[at - 1]) if at else 0
        fitting = int(np.searchsorted(through[at:end], before + limit, side="right"))
        at += max(1, min(fitting, most))
    return np.array(cuts, dtype=np.int64)


def _sums(through: Ints, starts: Ints, ends: Ints) -> Ints:
    upto = np.concatenate(([0], through))
    return np.asarray(upto[ends] - upto[starts])


# ---

SCATTERED_BYTES = 4 * 1024**3
"""Bytes of a group whose rows are in many partitions, at most."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of files: group ``i`` has the files ``rows[offsets[i]:offsets[i + 1]]``, all of partition ``keys[i]``."""

    rows: Ints
    offsets: Ints
    keys: tuple[PartitionKey, ...]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def counts(self) -> Ints:
        """Files in each group."""
        return np.diff(self.offsets)

    def of(self, group: int) -> Ints:
        """The files of one group."""
        return self.rows[self.offsets[group] : self.offsets[group + 1]]

    def sums(self, values: Ints) -> Ints:
        """The sum of something over the files of each group."""
        upto = np.concatenate(([0], np.cumsum(values[self.rows], dtype=np.int64)))
        return np.asarray(upto[self.offsets[1:]] - upto[self.offsets[:-1]])

    def select(self, chosen: npt.NDArray[np.integer]) -> Groups:
        """Some groups, in the order given."""
        counts = self.counts[chosen]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        rows = self.rows[np.repeat(self.offsets[:-1][chosen], counts) + inside]
        return Groups(rows, offsets, tuple(self.keys[i] for i in chosen.tolist()))


def pack(
    entries: EntriesTable,
    candidates: Ints,
    output: OutputPartitions,
    union: UnionPartitionType,
    options: RewriteOptions,
) -> Groups:
    """Group candidates by the partition they go to, and pack each partition into groups within the limits."""
    if not len(candidates):
        return Groups(candidates, np.zeros(1, dtype=np.int64), ())
    known = output.proven[candidates]
    parts = [
        _packed(entries, candidates[known], output, union, options),
        _scattered(entries, candidates[~known], output, union, options),
    ]
    return Groups(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([parts[0].offsets, parts[0].offsets[-1] + parts[1].offsets[1:]]),
        parts[0].keys + parts[1].keys,
    )


def _packed(
    entries: EntriesTable, files: Ints, output: OutputPartitions, union: UnionPartitionType, options: RewriteOptions
) -> Groups:
    """Groups of files whose partition is known."""
    picked = {i: column.take(pa.array(files)) for i, column in output.columns.items()}
    codes, keys = group_codes(union, output.spec_id[files], picked)
    order = sorted(range(len(keys)), key=lambda code: keys[code].sort_key())
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.arange(len(keys))
    rows = files[_sorted(entries, files, [pa.array(rank[codes])])]
    starts = np.concatenate(([0], np.cumsum(np.bincount(rank[codes], minlength=len(keys)))[:-1]))[: len(keys)]
    cuts = _cuts(entries, rows, starts, options.max_file_group_size_bytes, options)
    partition = np.searchsorted(starts, cuts, side="right") - 1
    return Groups(rows, np.append(cuts, len(rows)), tuple(keys[order[at]] for at in partition.tolist()))


def _scattered(
    entries: EntriesTable, files: Ints, output: OutputPartitions, union: UnionPartitionType, options: RewriteOptions
) -> Groups:
    """Groups of files whose rows are in several partitions, as far as is known; each has the key of its first file."""
    rows = files[_sorted(entries, files, [begin.take(pa.array(files)) for begin in output.begins])]
    limit = min(options.max_file_group_size_bytes, SCATTERED_BYTES)
    cuts = _cuts(entries, rows, np.zeros(min(1, len(rows)), dtype=np.int64), limit, options)
    first = rows[cuts]
    codes, keys = group_codes(
        union, output.spec_id[first], {i: column.take(pa.array(first)) for i, column in output.columns.items()}
    )
    return Groups(rows, np.append(cuts, len(rows)), tuple(keys[code] for code in codes.tolist()))


def _cuts(entries: EntriesTable, rows: Ints, starts: Ints, limit: int, options: RewriteOptions) -> Ints:
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    return next_fit(entries.ints("file_size_in_bytes")[rows], starts, limit, options.max_file_group_input_files)


def worth_rewriting(
    groups: Groups, sizes: Ints, reasons: npt.NDArray[np.uint8], limits: FileSizes, min_files: int
) -> Mask:
    """Groups with files enough, with bytes for more than one good file, or with a file that is reason enough."""
    count, size = groups.counts, groups.sums(sizes)
    alone = groups.sums(((reasons & ENOUGH_ALONE) != 0).astype(np.int64)) > 0
    several = count > 1
    return np.asarray(
        (several & (count >= min_files)) | (several & (size > limits.target)) | (size > limits.largest) | alone
    )


def no_fewer_files(groups: Groups, sizes: Ints, reasons: npt.NDArray[np.uint8], limits: FileSizes) -> Mask:
    """Groups of files that are only too small and would become as many again: the next rewrite would pick those too."""
    other = groups.sums((reasons != Reason.TOO_SMALL).astype(np.int64)) > 0
    expected = np.array([limits.expected_outputs(size) for size in groups.sums(sizes).tolist()], dtype=np.int64)
    return np.asarray(~other & (groups.counts <= expected))


def at_most(groups: Groups, files: int | None) -> Groups:
    """The first groups with so many files in all; the last of them may lose its end."""
    if files is None or files >= len(groups.rows):
        return groups
    whole = int(np.searchsorted(groups.offsets, files, side="left"))
    return replace(
        groups,
        rows=groups.rows[:files],
        offsets=np.append(groups.offsets[:whole], files),
        keys=groups.keys[:whole],
    )


def job_order(groups: Groups, sizes: Ints, order: JobOrder) -> Ints:
    """The order in which groups are rewritten; groups that are equal in it stay in the order of their partitions."""
    match order:
        case JobOrder.NONE:
            by = np.zeros(len(groups), dtype=np.int64)
        case JobOrder.BYTES_ASC | JobOrder.BYTES_DESC:
            by = groups.sums(sizes)
        case JobOrder.FILES_ASC | JobOrder.FILES_DESC:
            by = groups.counts
    return np.argsort(-by if order in (JobOrder.BYTES_DESC, JobOrder.FILES_DESC) else by, kind="stable")


def delete_counts(groups: Groups, matches: DeleteMatches, files: int) -> Ints:
    """How many delete files apply to files of each group, each counted once."""
    group = np.full(files, -1, dtype=np.int64)
    group[groups.rows] = np.repeat(np.arange(len(groups)), groups.counts)
    of_match = np.repeat(group, matches.counts)
    width = int(matches.deletes.max(initial=0)) + 1
    pairs = np.unique((of_match * width + matches.deletes)[of_match >= 0])
    return np.bincount(pairs // width, minlength=len(groups))


def _sorted(entries: EntriesTable, files: Ints, first_by: Sequence[pa.Array]) -> Ints:
    """The order of files by some columns, then by age and path."""
    columns = {
        **{f"by{number}": column for number, column in enumerate(first_by)},
        "age": pa.array(entries.sequence_number[files]),
        "path": entries.path.take(pa.array(files)),
    }
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return np.asarray(order.to_numpy()).astype(np.int64)
