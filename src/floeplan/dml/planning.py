"""The files whose rows a command must read, and those it removes by metadata alone.

A file of which every row matches is removed without opening it when its live rows can be counted from metadata: it has
no deletes, or a single deletion vector. Files that cannot match are not opened either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from floeplan.dml.commit import ChangeBuilder
from floeplan.dml.target import DmlTarget
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.reader import find_truncation
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.stats import TriState
from floeplan.scan.model import PlannedFiles, ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.scan_plan import ScanPlan
from floeplan.spark.planning import SparkPlanning
from floeplan.text import parse_count
from floeplan.vectors import Mask
from floeplan.write.data_files import FileTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_FILE_BYTES = 8 * 1024 * 1024
OPENING_BYTES = 512 * 1024
"""Bytes that could be read and written in the time it takes to open a file and find its deletes."""


def plan_rows(
    target: DmlTarget,
    where: PredicateSource | None,
    spark: SparkSession | None,
    case_sensitive: bool = True,
    recover: bool = False,
) -> ScanPlan:
    """Plan the files that may hold rows to change; ``recover`` reads what proves their partitions under other specs.

    Raises:
        CorruptMetadataError: The manifest list may be truncated and is not trusted.
    """
    planning = None if spark is None else SparkPlanning(spark)
    footers = _footers_pay(target)
    options = ScanOptions(footers=footers, page_index=footers, report=False, planning=planning, recover=recover)
    plan = plan_scan(target.table, where, ref=target.ref, case_sensitive=case_sensitive, options=options)
    # Copy-on-write would write rows back whose delete file a truncated list has lost, and a merge insert rows again.
    if target.snapshot is not None and not target.trust_lists:
        truncated = find_truncation(target.snapshot, plan.totals.manifests)
        if truncated is not None:
            raise truncated.error("rows whose delete files it does not list would be written back")
    return plan


def _footers_pay(target: DmlTarget) -> bool:
    """Whether files are large enough for footers and page indexes to save more than they cost.

    Tasks open every planned file; reading the columns of a small one is as fast as reading its page index.
    """
    summary = None if target.snapshot is None else target.snapshot.summary
    total, files = (
        None if summary is None else parse_count(summary[name]) for name in ("total-files-size", "total-data-files")
    )
    return total is None or files is None or total >= SMALL_FILE_BYTES * files


def drop_proven(files: PlannedFiles, changes: ChangeBuilder) -> Mask:
    """Remove files of which every row matches, where metadata suffices; returns which."""
    return drop_files(files, files.states == TriState.TRUE, changes)


def drop_files(files: PlannedFiles, whole: Mask, changes: ChangeBuilder) -> Mask:
    """Remove those of the files whose live rows can be counted without reading; returns which."""
    vector_only = _has_one_vector(files)
    counted = (files.matches.counts == 0) | vector_only
    proven: Mask = whole & counted & (files.entries.record_count >= 0)
    changes.removed_data.update(files.entries.path.filter(pa.array(proven)).to_pylist())
    changes.rows_deleted += int(files.entries.record_count[proven].sum())
    vectors = files.deletes.take(files.matches.deletes[files.matches.offsets[:-1][proven & vector_only]])
    changes.rows_deleted -= int(vectors.record_count.sum())
    offsets = vectors.ints("content_offset").tolist()
    changes.removed_deletes.update(map(DeleteFileId, vectors.path.to_pylist(), offsets))
    return proven


def file_tasks(files: PlannedFiles, chosen: Mask) -> list[FileTask]:
    """Tasks for the chosen files."""
    rows = np.flatnonzero(chosen)
    entries = _locations(files.entries.take(rows))
    first = files.entries.array("first_row_id").take(pa.array(rows)).to_pylist() if _has_row_ids(files) else None
    return [
        FileTask(file, entries.take(np.array([at])), first[at] if first is not None else None)
        for at, file in enumerate(files.take(rows))
    ]


def weights(chosen: list[FileTask], share: float) -> list[float]:
    """Bytes of work for each file: a fraction of its size, and opening it."""
    return [work.file.file_size * share + OPENING_BYTES for work in chosen]


def _has_row_ids(files: PlannedFiles) -> bool:
    return "first_row_id" in files.entries


def _has_one_vector(files: PlannedFiles) -> Mask:
    found = np.zeros(len(files), dtype=np.bool_)
    single = np.flatnonzero(files.matches.counts == 1)
    kinds = files.delete_kinds[files.matches.deletes[files.matches.offsets[single]]]
    found[single] = kinds == DeleteKind.VECTOR
    return found


def _locations(entries: EntriesTable) -> EntriesTable:
    """Spec, partition and path of files."""
    names = ["spec_id", "file_path", *(partition_column(key) for key in entries.partition_types)]
    return EntriesTable(entries.table.select(names), entries.partition_types)
