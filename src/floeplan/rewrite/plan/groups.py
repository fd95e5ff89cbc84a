"""Steps 5 to 8 of planning: pack candidates of one partition into groups, drop small groups, order the rest.

Files are sorted by partition, then by data sequence number and path, so the same files give the same groups with the
same ids, however manifests are arranged.

Files whose output partition must be computed from their rows are packed together: their rows go to the same new
partitions, and only together they make well-sized files. Such groups are limited to ``MAX_UNPROVEN_BYTES``, so that
there are several where there is much data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.delete_index import DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.candidates import ENOUGH_ALONE, FileSizes, OutputPartitions, Reason, ReasonBits
from floeplan.rewrite.plan.options import JobOrder, RewriteOptions
from floeplan.vectors import Ints, Mask, arrow, expand_runs, integers, offsets_of

MAX_UNPROVEN_BYTES = 4 * 1024**3
"""Maximum bytes of a group whose output partitions are computed from its rows."""

_SORTED_TOGETHER = 65_536
"""Files that are sorted by path at a time; more only where they are of one partition."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of files: group ``i`` has the files ``rows[offsets[i]:offsets[i + 1]]`` and partition ``keys[i]``."""

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
        """The sum of values over the files of each group."""
        up_to = np.concatenate(([0], np.cumsum(values[self.rows], dtype=np.int64)))
        return np.asarray(up_to[self.offsets[1:]] - up_to[self.offsets[:-1]])

    def select(self, chosen: npt.NDArray[np.integer]) -> Groups:
        """Some groups, in the given order."""
        counts = self.counts[chosen]
        rows = self.rows[expand_runs(self.offsets[chosen], counts)]
        return Groups(rows, offsets_of(counts), tuple(self.keys[i] for i in chosen.tolist()))


def pack(
    entries: EntriesTable,
    candidates: Ints,
    output: OutputPartitions,
    union: UnionPartitionType,
    options: RewriteOptions,
) -> Groups:
    """Group candidates by output partition, and pack each partition into groups within the limits."""
    if not len(candidates):
        return Groups(candidates, np.zeros(1, dtype=np.int64), ())
    sizes = entries.ints("file_size_in_bytes")
    limit, most = options.max_file_group_size_bytes, options.max_file_group_input_files

    def partitions(files: Ints) -> tuple[Ints, Sequence[PartitionKey]]:
        columns = {i: column.take(pa.array(files)) for i, column in output.columns.items()}
        return group_codes(union, output.spec_id[files], columns)

    # Files whose output partition is known, partition after partition.
    proven = candidates[output.proven[candidates]]
    every = len(proven) == len(entries)  # in their order: nothing to copy
    codes, keys = group_codes(union, output.spec_id, output.columns) if every else partitions(proven)
    order = sorted(range(len(keys)), key=lambda code: keys[code].sort_key())
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.arange(len(keys))
    ranks = rank[codes]
    known = proven[partition_order(entries, proven, ranks)]
    starts = offsets_of(np.bincount(ranks, minlength=len(keys)))[:-1]
    known_cuts = next_fit(sizes[known], starts, limit, most)
    known_keys = [keys[order[at]] for at in (np.searchsorted(starts, known_cuts, side="right") - 1).tolist()]

    # Files whose rows may go to several partitions; each group has the key of its first file.
    files = candidates[~output.proven[candidates]]
    unknown = files[reading_order(entries, files, [column.take(pa.array(files)) for column in output.lowest])]
    start = np.zeros(1, dtype=np.int64)
    cuts = next_fit(sizes[unknown], start, min(limit, MAX_UNPROVEN_BYTES), most)
    codes, keys = partitions(unknown[cuts])
    rows = np.concatenate([known, unknown])
    offsets = np.concatenate([known_cuts, len(known) + cuts, [len(rows)]])
    return Groups(rows, offsets, (*known_keys, *(keys[code] for code in codes.tolist())))


def reading_order(entries: EntriesTable, files: Ints, first_by: Sequence[pa.Array]) -> Ints:
    """The order of files by some columns, then by data sequence number and path."""
    columns = {
        **{f"by{number}": column for number, column in enumerate(first_by)},
        "sequence_number": pa.array(entries.sequence_number[files]),
        "path": entries.path.take(pa.array(files)),
    }
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return np.asarray(order.to_numpy()).astype(np.int64)


def partition_order(entries: EntriesTable, files: Ints, ranks: Ints) -> Ints:
    """The order of files by the rank of their partition, then as in ``reading_order``.

    Paths are most of what a plan holds: they are copied and sorted for a few partitions at a time.
    """
    order = integers(pc.sort_indices(arrow(ranks)).view(pa.int64())).copy()
    ends = np.cumsum(np.bincount(ranks))
    at = 0
    while at < len(order):
        end = int(ends[min(int(np.searchsorted(ends, at + _SORTED_TOGETHER)), len(ends) - 1)])
        some = order[at:end]
        order[at:end] = some[reading_order(entries, files[some], [arrow(ranks[some])])]
        at = end
    return order


def next_fit(weights: Ints, starts: Ints, limit: int, most: int) -> Ints:
    """Pack files in order: the positions at which groups start, every partition start among them.

    As Iceberg's packer with a lookback of 1: a file joins the open group while the group stays within its limits, else
    it opens the next one. A file that exceeds the limit alone forms its own group.

    Args:
        weights: Sizes of all files, partition after partition.
        starts: Where each partition starts.
        limit: Maximum bytes of a group.
        most: Maximum files of a group.
    """
    if not len(weights):
        return np.zeros(0, dtype=np.int64)
    through = np.cumsum(weights, dtype=np.int64)
    up_to = np.concatenate(([0], through))
    ends = np.append(starts[1:], len(weights))
    # Partitions that fit into one group need no loop; the others cost one binary search per group.
    large = np.flatnonzero((up_to[ends] - up_to[starts] > limit) | (ends - starts > most)).tolist()
    cuts = list[int]()
    for partition in large:
        at, end = int(starts[partition]), int(ends[partition])
        while at < end:
            cuts.append(at)
            fitting = int(np.searchsorted(through[at:end], int(up_to[at]) + limit, side="right"))
            at += max(1, min(fitting, most))
    return np.unique(np.concatenate([starts, np.array(cuts, dtype=np.int64)]))


def worth_rewriting(groups: Groups, sizes: Ints, reasons: ReasonBits, limits: FileSizes, min_files: int) -> Mask:
    """Groups with enough files, enough bytes for a new file, or a file that is rewritten in any case."""
    count, size = groups.counts, groups.sums(sizes)
    alone = groups.sums(((reasons & ENOUGH_ALONE) != 0).astype(np.int64)) > 0
    several = count > 1
    return np.asarray(
        (several & (count >= min_files)) | (several & (size > limits.target)) | (size > limits.largest) | alone
    )


def rewrites_in_vain(groups: Groups, sizes: Ints, reasons: ReasonBits, limits: FileSizes) -> Mask:
    """Groups of files that are only too small and would not become fewer: the next rewrite would pick them again."""
    other = groups.sums((reasons != Reason.TOO_SMALL).astype(np.int64)) > 0
    expected = np.array([limits.expected_outputs(size) for size in groups.sums(sizes).tolist()], dtype=np.int64)
    return np.asarray(~other & (groups.counts <= expected))


def limit_files(groups: Groups, files: int | None) -> Groups:
    """The first groups with ``files`` files in total; the last of them may be shortened."""
    if files is None or files >= len(groups.rows):
        return groups
    whole = int(np.searchsorted(groups.offsets, files, side="left"))
    return Groups(groups.rows[:files], np.append(groups.offsets[:whole], files), groups.keys[:whole])


def job_order(groups: Groups, sizes: Ints, order: JobOrder) -> Ints:
    """The order in which groups are rewritten; ties stay in the order of their partitions."""
    if order is JobOrder.NONE:
        return np.arange(len(groups))
    by = groups.sums(sizes) if order in (JobOrder.BYTES_ASC, JobOrder.BYTES_DESC) else groups.counts
    return np.argsort(-by if order in (JobOrder.BYTES_DESC, JobOrder.FILES_DESC) else by, kind="stable")


def delete_counts(groups: Groups, matches: DeleteMatches, files: int) -> Ints:
    """How many distinct delete files apply to the files of each group."""
    group = np.full(files, -1, dtype=np.int64)
    group[groups.rows] = np.repeat(np.arange(len(groups)), groups.counts)
    of_match = np.repeat(group, matches.counts)
    width = int(matches.deletes.max(initial=0)) + 1
    pairs = np.unique((of_match * width + matches.deletes)[of_match >= 0])
    return np.bincount(pairs // width, minlength=len(groups))
