"""``rewrite_position_delete_files``: merge small position delete files, and turn those of format 2 into vectors.

Rule: in format 2, position delete files of a partition that are far from ``write.delete.target-file-size-bytes`` are
merged if there are enough of them and fewer remain; with the granularity ``file`` one per data file remains. From
format 3 on, all of them become deletion vectors, which readers find without opening other files. Positions of data
files that do not exist any more are dropped, and so are delete files that apply to nothing. Equality deletes stay: a
rewrite of their data files applies them.

Fail-safe: the rows of the table do not change. The commit requires that the delete files still exist and that no data
file has got a deletion vector meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.display import Displayed
from floeplan.dml.commit import ChangeBuilder, discard_on_failure
from floeplan.dml.delete_update import file_tasks, plan_rows
from floeplan.dml.target import Command, DmlTarget, resolve
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable, concat_entries
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.stats import to_mask
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.scan.model import PlannedFiles
from floeplan.snapshot.passes import joint_partition_codes
from floeplan.snapshot.reader import SnapshotReader
from floeplan.tasks.runner import run_tasks
from floeplan.transaction.catalog_commit import CommitOptions, delay_interrupt
from floeplan.transaction.change import (
    Check,
    ConflictValidation,
    Operation,
    SnapshotChange,
    delete_file_id,
    entry_keys,
)
from floeplan.transaction.commit import commit_change
from floeplan.transaction.dangling import dangling_deletes, dangling_deletes_of_one_file
from floeplan.vectors import Ints, Mask
from floeplan.write.data_files import FileTask
from floeplan.write.metrics import remove_written_files
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POSITIONS = (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
_SMALL, _LARGE = 0.75, 1.8
"""Fractions of the target size between which a delete file is well-sized; Iceberg's defaults."""
MIN_INPUT_FILES = 5


@dataclass(frozen=True, slots=True, repr=False)
class RewriteDeletesResult(Displayed):
    """What was rewritten, or would be.

    Attributes:
        rewritten_delete_files: Position delete files that were replaced.
        added_delete_files: Delete files, or deletion vectors, that replace them; ``None`` in a dry run.
        dangling_delete_files: Delete files that applied to nothing and were removed.
        rewritten_bytes: Bytes of the replaced files.
        added_bytes: Bytes of the new ones; ``None`` in a dry run.
        data_files: Data files they apply to.
        snapshot_id: The new snapshot; ``None`` when there was nothing to do.
        dry_run: Whether nothing was changed.
    """

    rewritten_delete_files: int = 0
    added_delete_files: int | None = 0
    dangling_delete_files: int = 0
    rewritten_bytes: int = 0
    added_bytes: int | None = 0
    data_files: int = 0
    snapshot_id: int | None = None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"operation": "rewrite-deletes"} | asdict(self)


def rewrite_position_delete_files(
    table: Table | str | os.PathLike[str],
    *,
    where: PredicateSource | None = None,
    rewrite_all: bool = False,
    min_input_files: int = MIN_INPUT_FILES,
    dry_run: bool = False,
    trust_lists: bool = False,
    branch: str | None = None,
    spark: SparkSession | None = None,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> RewriteDeletesResult:
    """Merge position delete files; from format 3 on, replace them by deletion vectors.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        where: Rewrite only delete files of data files that may have matching rows.
        rewrite_all: Rewrite all position delete files, regardless of size and number.
        min_input_files: The least number of files to merge in a partition; format 2 only.
        dry_run: Only report what would be rewritten.
        trust_lists: Continue even when the manifest list has fewer files than the snapshot summary counts.
        branch: The branch to change instead of ``main``.
        spark: A session for large work.
        commit: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        CommitConflictError: Another writer changed the same delete files; nothing was changed.
    """
    target = resolve(table, Command.DELETE, branch=branch, trust_lists=trust_lists, catalog=catalog)
    files = plan_rows(target, None, spark).files
    chosen = _choose(target, files, _considered(target, files, where, spark), rewrite_all, min_input_files)
    chosen = _complete(files, chosen, vectors=target.table.metadata.format_version > 2)
    head = SnapshotReader.open(target.table, target.snapshot)
    dangling = dangling_deletes_of_one_file(head)
    unused = len(dangling) + len(dangling_deletes(head, by_keys=True))
    replaced = files.deletes.filter(chosen)
    groups = _groups(target, files, chosen)
    size = int(replaced.ints("file_size_in_bytes").sum())
    data_files = sum(map(len, groups))
    if dry_run or not (groups or unused):
        added = None if groups else 0
        return RewriteDeletesResult(len(replaced), added, unused, size, added, data_files, None, dry_run)
    gone = frozenset(map(DeleteFileId, replaced.path.to_pylist(), replaced.array("content_offset").to_pylist()))
    gone |= frozenset(map(delete_file_id, entry_keys(dangling).to_pylist()))
    checks = {Check.REMOVED_FILES_EXIST, Check.NO_NEW_DVS}
    written = ChangeBuilder()
    with discard_on_failure(written, target):
        _write(target, groups, written, spark)
        new = concat_entries(written.deletes, UnionPartitionType.of_table(target.table.metadata))
        with delay_interrupt():
            written.handed_over = True
            done = commit_change(
                target.table,
                SnapshotChange(
                    Operation.REPLACE,
                    added_deletes=new if len(new) else None,
                    removed_deletes=gone,
                    drop_dangling_deletes=True,
                    summary={"floeplan.operation": "rewrite-deletes"},
                ),
                branch=target.branch,
                validation=ConflictValidation(target.snapshot_id, frozenset(checks)),
                options=replace(commit or CommitOptions(), owns_files=True),
            )
    sizes = np.where(new.valid("content_offset"), new.ints("content_size_in_bytes"), new.ints("file_size_in_bytes"))
    return RewriteDeletesResult(
        len(replaced), len(new), unused, size, int(sizes.sum()), data_files, done.snapshot_id, dry_run
    )


def _considered(
    target: DmlTarget, files: PlannedFiles, where: PredicateSource | None, spark: SparkSession | None
) -> Mask:
    """The position delete files among the deletes of a plan that apply to data files which may match."""
    position = np.isin(files.delete_kinds, _POSITIONS)
    if where is None:
        return position
    matching = plan_rows(target, where, spark).files
    applied = matching.deletes.path.take(pa.array(np.unique(matching.matches.deletes)))
    return position & to_mask(pc.is_in(files.deletes.path, value_set=applied))


def _choose(target: DmlTarget, files: PlannedFiles, considered: Mask, rewrite_all: bool, min_input_files: int) -> Mask:
    """The delete files to rewrite: in format 2 those of partitions in which fewer of them remain."""
    if rewrite_all or target.table.metadata.format_version > 2 or not considered.any():
        return considered
    options, sizes = WriteTarget.of(target.table).options, files.deletes.ints("file_size_in_bytes")
    wanted = options.delete_target_file_size
    candidates = considered & ((sizes < _SMALL * wanted) | (sizes > _LARGE * wanted))
    union = UnionPartitionType.of_table(target.table.metadata)
    codes = joint_partition_codes(union, files.entries, files.deletes)
    of_data, of_delete = np.split(codes, [len(files)])
    partitions = int(codes.max()) + 1
    inputs = np.bincount(of_delete[candidates], minlength=partitions)
    if options.delete_per_file:
        outputs = np.bincount(of_data[_rows(files, candidates)], minlength=partitions)
    else:
        size = np.bincount(of_delete[candidates], weights=sizes[candidates], minlength=partitions)
        outputs = np.maximum(np.ceil(size / wanted), 1)
    return candidates & ((inputs >= min_input_files) & (inputs > outputs))[of_delete]


def _complete(files: PlannedFiles, chosen: Mask, *, vectors: bool) -> Mask:
    """The chosen delete files, and those that must be replaced with them.

    A delete file that is recorded in several partitions is replaced in all of them. A vector hides all position delete
    files of its data file, so the others of that data file are replaced too.
    """
    position, before = np.isin(files.delete_kinds, _POSITIONS), np.zeros_like(chosen)
    while not np.array_equal(before, chosen):
        before = chosen
        chosen = to_mask(pc.is_in(files.deletes.path, value_set=files.deletes.path.filter(pa.array(chosen))))
        if vectors:
            of_same_data = np.isin(files.matches.data_rows, _rows(files, chosen))
            chosen[files.matches.deletes[of_same_data]] = True
            chosen &= position
    return chosen


def _rows(files: PlannedFiles, chosen: Mask) -> Ints:
    """The data files to which a chosen delete file applies."""
    return np.unique(files.matches.data_rows[chosen[files.matches.deletes]])


def _groups(target: DmlTarget, files: PlannedFiles, chosen: Mask) -> list[list[FileTask]]:
    """The data files of each partition, with the chosen delete files only."""
    rows = _rows(files, chosen)
    if not len(rows):
        return []
    mask = np.zeros(len(files), dtype=np.bool_)
    mask[rows] = True
    paths = set(files.deletes.path.filter(pa.array(chosen)).to_pylist())
    tasks = [
        replace(task, file=replace(task.file, deletes=tuple(one for one in task.file.deletes if one.path in paths)))
        for task in file_tasks(files, mask)
    ]
    entries = files.entries.take(rows)
    union = UnionPartitionType.of_table(target.table.metadata)
    codes = partition_codes(union, entries.spec_id, entries.partition_columns())
    found: dict[int, list[FileTask]] = {}
    for code, task in zip(codes.tolist(), tasks, strict=True):
        found.setdefault(code, []).append(task)
    return list(found.values())


def _write(target: DmlTarget, groups: list[list[FileTask]], written: ChangeBuilder, spark: SparkSession | None) -> None:
    """Write the delete files of all groups, on Spark if there is much to read."""
    task = _MergeDeletes(TableRows.of(target.table, target.schema), WriteTarget.of(target.table))
    weights = [float(sum(one.file_size for file in group for one in file.file.deletes)) for group in groups]
    discard = partial(remove_written_files, files=TableFiles.of(target.table))
    description = f"floeplan rewrite-deletes on {'.'.join(target.table.name())}"
    keep = written.deletes.append
    run_tasks(task, groups, spark, weights=weights, description=description, discard=discard, keep=keep)


@dataclass(frozen=True, slots=True)
class _MergeDeletes:
    """Merges the deletes of some partitions; pickled to run on an executor."""

    table: TableRows
    target: WriteTarget

    def __call__(self, groups: Sequence[list[FileTask]], attempt: str) -> EntriesTable:
        """Read the positions of each data file and write them again."""
        tasks, reader = [task for group in groups for task in group], FileRows(self.table)
        positions = [
            merge_positions(*(reader.positions(delete, task.file.path) for delete in task.file.deletes))
            for task in tasks
        ]
        data = concat_entries([task.entry for task in tasks], self.target.union)
        write = write_position_deletes if self.target.format_version == 2 else write_deletion_vectors
        return write(self.target, data, positions, file_name_token=attempt)
