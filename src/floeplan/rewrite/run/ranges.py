"""Sorting and clustering a group in several Spark tasks: a range of the order each.

A group that is larger than one task should hold (``range-task-bytes``) is divided in 4 steps:

1. A job reads the keys of all live rows: a sample of them, their exact number, and the sum of their row numbers. At
   the same time one task sorts and encodes a few row groups, to estimate the size of new files.
2. The sample gives ranges of whole new files (``strategies.base.Cuts``). Equal keys are divided by row number.
3. The rows reach the task of their range by a shuffle or by range reads (``range_task``), whichever reads fewer bytes
   according to the bounds in the manifests: every range reads the files whose bounds overlap it, a shuffle reads and
   moves each row once.
4. Each task sorts its range, writes its new files and, beside them, the map of where each row went (``stored_map``).

Rule: the rows and the sum of row numbers of all ranges must be those of the first job; otherwise nothing is committed.
Fail-safe: a group is one result, so all its ranges are committed or none; files of a failed job are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.metadata.manifests.entries import concat_entries
from floeplan.rewrite.plan.model import GroupRanges, RewriteDataFilesPlan
from floeplan.rewrite.plan.ranges import RANGE_READS, RangeReads, can_be_divided, choose, range_count, range_reads
from floeplan.rewrite.run.group import GroupResult, GroupTask
from floeplan.rewrite.run.range_task import (
    GroupRows,
    KeySample,
    Piece,
    RangeResult,
    RangeTask,
    Trial,
    write_range,
)
from floeplan.rewrite.run.rewrite_group import Cores, GroupRewriter, range_task_bytes, removed_deletes
from floeplan.rewrite.run.stored_map import MAX_FILES, StoredMap
from floeplan.rewrite.run.write_group import group_order
from floeplan.rewrite.strategies.base import Cuts, RowOrder
from floeplan.rewrite.strategies.curves import SAMPLE_ROWS
from floeplan.spark.exchange import run_exchange
from floeplan.spark.write import removed_on_failure
from floeplan.tasks.runner import balanced_batches, run_tasks
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_BYTES = 128 * 1024 * 1024
"""Bytes of old files that a task of the shuffle reads; more tasks lose less work when an executor is lost."""
SAMPLES_PER_RANGE = 2048
"""Sampled rows for each range; ranges then differ by about 2 % in size."""
TRIAL_FILE_BYTES = 32 * 1024 * 1024
TRIAL_COST = 16
"""Cost of sorting and encoding some rows of a file, in reads of its keys."""
_RATIOS = (0.1, 4.0)
"""Limits of the ratio of new to old bytes that a few row groups may suggest."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Files of which some rows are sorted and encoded."""

    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Keys:
    """A file whose keys are read, and the rows of the files before it."""

    source: int
    before: int


@dataclass(frozen=True, slots=True)
class GroupSample:
    """What the first job found: the files in order, and how some rows compress; ``None`` without live rows."""

    files: Sequence[KeySample]
    trial: Trial | None

    @property
    def ratio(self) -> float:
        """New to old bytes, within limits."""
        return 1.0 if self.trial is None else min(max(self.trial.ratio, _RATIOS[0]), _RATIOS[1])

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(one.rows for one in self.files)

    @property
    def checksum(self) -> int:
        """The sum of their numbers, modulo 2**64."""
        return sum(one.checksum for one in self.files) % 2**64

    @property
    def keys(self) -> pa.Table:
        """The sampled keys, in the order of row numbers."""
        return pa.concat_tables([one.keys for one in self.files], promote_options="permissive").combine_chunks()

    @property
    def numbers(self) -> Ints:
        """The numbers of the sampled rows."""
        return np.concatenate([one.numbers for one in self.files])


@dataclass(frozen=True, slots=True)
class DividedGroup:
    """A group as tasks.

    Attributes:
        task: The group.
        rows: Reads its rows.
        sample: What the first job found.
        cuts: The ranges.
        tasks: Their tasks.
        reads: What each range reads; empty where bounds say nothing about the order.
        pieces: What each task of a shuffle reads.
        summary: How rows reach their task, as shown in results.
    """

    task: GroupTask
    rows: GroupRows
    sample: GroupSample
    cuts: Cuts
    tasks: Sequence[RangeTask]
    reads: RangeReads
    pieces: list[list[Piece]]
    summary: GroupRanges

    @property
    def by_reads(self) -> bool:
        """Whether each range reads its own rows; otherwise they are moved by a shuffle."""
        return self.summary.rows_by == RANGE_READS


@dataclass(frozen=True, slots=True)
class RangeRewriter:
    """Rewrites large groups of a plan, each in several tasks.

    Attributes:
        plan: The plan.
        rewriter: The rewriter of its groups.
        spark: The session.
        cores: Its cores.
        task_bytes: Bytes of old files for one task.
    """

    plan: RewriteDataFilesPlan
    rewriter: GroupRewriter
    spark: SparkSession
    cores: Cores
    task_bytes: int

    @classmethod
    def of(
        cls, plan: RewriteDataFilesPlan, rewriter: GroupRewriter, spark: SparkSession | None, cores: Cores
    ) -> RangeRewriter | None:
        """For a session; ``None`` without one, and by default on a local master, where tasks share one machine."""
        task_bytes = range_task_bytes(plan.options, spark)
        if spark is None or task_bytes is None or plan.order.is_unsorted:
            return None
        return cls(plan, rewriter, spark, cores, task_bytes)

    def job(self, task: GroupTask) -> Callable[[], GroupResult] | None:
        """What rewrites a group in several tasks; ``None`` for one that a task can hold."""
        divided = can_be_divided(self.plan, proven=task.partition is not None)
        if not divided or len(task.files) > MAX_FILES:
            return None
        return partial(self._rewrite, task) if self._ranges(task, task.outputs) > 1 else None

    def _ranges(self, task: GroupTask, outputs: int) -> int:
        """How many tasks a group takes."""
        return range_count(task.bytes, self.task_bytes, None if task.partition is None else outputs)

    def _rewrite(self, task: GroupTask) -> GroupResult:
        group = self.divide(task)
        # What is sent to tasks: not the session, and not what only this process needs.
        rewriter, tasks, rows, cuts, reads = self.rewriter, group.tasks, group.rows, group.cuts, group.reads
        description = f"floeplan rewrite {self.plan.target.name}: group {task.group_id} in {len(tasks)} ranges"
        with removed_on_failure(self.spark, rewriter.target.files) as report:

            def write(number: int, received: Iterator[pa.Table], attempt_id: str) -> RangeResult:
                result = write_range(rewriter, rows.order, tasks[number], received, attempt_id)
                report(result.added, [result.map_file.path])
                return result

            def read_and_write(numbers: Sequence[int], attempt_id: str) -> RangeResult:
                (number,) = numbers
                return write(number, rows.of_range(cuts, number, *reads[number]), attempt_id)

            if group.by_reads:
                numbers = list(range(len(tasks)))
                results = run_tasks(
                    read_and_write, numbers, self.spark, description=description, discard=self._discard, one_each=True
                )
            else:
                results = run_exchange(
                    partial(rows.divide, cuts),
                    group.pieces,
                    write,
                    len(tasks),
                    self.spark,
                    description=description,
                    discard=self._discard,
                )
        return self.result(group, results)

    def divide(self, task: GroupTask) -> DividedGroup:
        """Steps 1 to 3: the ranges of a group, and what their tasks read."""
        order = group_order(task, self.rewriter.target, self.rewriter.strategy, self.rewriter.order)
        assert order is not None
        rows = GroupRows(self.rewriter.table, self.rewriter.target, task.files, order)
        sample = self._sample(task, rows)
        rows = replace(rows, order=order.fitted(sample.keys, sample.rows))
        tasks, cuts = self._ranges_of(task, sample, rows.order)
        group = next(group for group in self.plan.groups if group.group_id == task.group_id)
        reads = range_reads(self.plan.files.entries.take(group.rows), cuts)
        sizes = [one.file.file_size for one in task.files]
        return DividedGroup(
            task=task,
            rows=rows,
            sample=sample,
            cuts=cuts,
            tasks=tasks,
            reads=reads,
            pieces=self._pieces(task, sample),
            summary=choose(task.group_id, task.bytes, sizes, reads, len(tasks)),
        )

    def _sample(self, task: GroupTask, rows: GroupRows) -> GroupSample:
        """Step 1: the keys of all files, in the order of the files."""
        counts = np.array([one.file.record_count for one in task.files], dtype=np.int64)
        wanted = max(SAMPLE_ROWS, SAMPLES_PER_RANGE * self._ranges(task, task.outputs))
        every = max(1, -(-int(counts.sum()) // wanted))
        before = (np.cumsum(counts) - counts).tolist()
        sizes = np.array([one.file.file_size for one in task.files], dtype=np.int64)
        largest = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[largest]), TRIAL_FILE_BYTES)) + 1
        descriptors: list[_Keys | _Trial] = [_Trial(tuple(largest[:enough].tolist()))]
        descriptors += [_Keys(source, first) for source, first in enumerate(before)]
        found = run_tasks(
            partial(_read_keys, rows, every),
            descriptors,
            self.spark,
            weights=[TRIAL_COST * float(sizes[largest[:enough]].sum()), *sizes.tolist()],
            description=f"floeplan rewrite {self.plan.target.name}: keys of group {task.group_id}",
        )
        samples = sorted((one for samples, _ in found for one in samples), key=lambda one: one.source)
        return GroupSample(samples, next((trial for _, trial in found if trial is not None), None))

    def _ranges_of(self, task: GroupTask, sample: GroupSample, order: RowOrder) -> tuple[list[RangeTask], Cuts]:
        """Step 2: the ranges, each of whole files where the group has one partition."""
        keys = sample.keys
        live = sample.rows / max(1, sum(one.file.record_count for one in task.files))
        given = self.plan.options.compression_factor
        ratio = sample.ratio if given == 1.0 else given
        outputs = task.sizes.expected_outputs(max(1, int(task.bytes * live * ratio)))
        ranges = self._ranges(task, outputs)
        files = [len(part) for part in np.array_split(np.arange(outputs), ranges)] if task.partition else [1] * ranges
        weights = None if sample.trial is None else sample.trial.weights_of(order, keys, sample.numbers)
        cuts = Cuts.of(order, keys, sample.numbers, files, weights)
        if len(cuts) < ranges:  # fewer sampled rows than ranges
            files = [max(1, outputs // len(cuts)) if task.partition else 1] * len(cuts)
        of_range = cuts.assign(keys, sample.numbers)
        cores = max(1, min(self.cores.per_executor, self.cores.total // len(cuts)))
        share = np.bincount(of_range, minlength=len(cuts)) / max(1, len(of_range))
        tasks = [
            RangeTask(
                group_id=task.group_id,
                files=(),
                output_spec_id=task.output_spec_id,
                partition=task.partition,
                outputs=files[number],
                max_file_bytes=task.max_file_bytes,
                sizes=task.sizes,
                nan_counts=(),
                cores=cores,
                number=number,
                rows=int(sample.rows * share[number]),
                size=int(task.bytes * live * share[number]),
                sample=keys.filter(pa.array(of_range == number)),
            )
            for number in range(len(cuts))
        ]
        return tasks, cuts

    def _pieces(self, task: GroupTask, sample: GroupSample) -> list[list[Piece]]:
        """The row groups that each task of a shuffle reads."""
        pieces, sizes = list[Piece](), list[float]()
        for one in sample.files:
            size = task.files[one.source].file.file_size
            ends = np.cumsum(one.row_groups)
            total = max(1, int(one.row_groups.sum()))
            # Consecutive row groups of about the bytes of a task.
            part = ((ends - one.row_groups) * size // total // READ_BYTES).astype(np.int64)
            cuts = np.flatnonzero(np.diff(part)) + 1
            bounds = [0, *ends[cuts - 1].tolist(), total]
            pieces += [Piece(one.source, low, high) for low, high in pairwise(bounds)]
            sizes += [size * (high - low) / total for low, high in pairwise(bounds)]
        # As many as keep all cores busy to the end.
        cores = self.cores.total
        tasks = cores * max(1, -(-task.bytes // (READ_BYTES * cores)))
        return balanced_batches(pieces, np.array(sizes, dtype=np.float64), tasks)

    def result(self, group: DividedGroup, results: Sequence[RangeResult]) -> GroupResult:
        """All ranges as the result of the group, if every live row is in one of them."""
        task, rows = group.task, sum(one.rows for one in results)
        if (rows, sum(one.checksum for one in results) % 2**64) != (group.sample.rows, group.sample.checksum):
            for one in results:
                self._discard(one)
            raise FloeplanError(f"{group.sample.rows} rows were read and {rows} written; nothing is committed")
        maps, sources = tuple(one.map_file for one in results), tuple(one.file.path for one in task.files)
        return GroupResult(
            group_id=task.group_id,
            bytes=task.bytes,
            added=concat_entries([one.added for one in results], self.rewriter.target.union),
            removed_data=sources,
            removed_deletes=removed_deletes(task),
            position_map=StoredMap(self.rewriter.target.io, sources, maps),
            decoded_because=f"strategy {self.rewriter.strategy.name} orders rows",
            map_files=tuple(one.path for one in maps),
            ranges=group.summary,
        )

    def _discard(self, result: RangeResult) -> None:
        self.rewriter.target.files.remove([*result.added.path.to_pylist(), result.map_file.path])


def _read_keys(
    rows: GroupRows, every: int, batch: Sequence[_Keys | _Trial], _: str
) -> tuple[list[KeySample], Trial | None]:
    """A task of the first job."""
    samples, trial = list[KeySample](), None
    for one in batch:
        if isinstance(one, _Trial):
            trial = rows.trial(one.sources)
        else:
            samples.append(rows.sample(one.source, one.before, every))
    return samples, trial
