"""What a commit does to a table, independent of the snapshot it is applied to.

A ``SnapshotChange`` names the files a snapshot adds (as whole entries) and removes (by path). A ``ConflictValidation``
names what must not have happened since the change was planned. Both are values: when another writer commits first, the
same change is validated against, and applied to, the newer snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.scan.model import PlannedFiles


class Operation(StrEnum):
    """The operation of a snapshot summary."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DELETE = "delete"


class IsolationLevel(StrEnum):
    """Which concurrent commits conflict with a row-level change."""

    SERIALIZABLE = "serializable"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """Files added and removed by one snapshot.

    Attributes:
        operation: The operation of the snapshot summary.
        added_data: Whole entries of data files (``new_entries``), status ADDED, of any specs. A null data sequence
            number is inherited from the snapshot; a replace keeps the number it was planned with.
        added_deletes: Whole entries of delete files, of any specs.
        removed_data: Paths of data files.
        removed_deletes: Delete files that are replaced or removed with their data file.
        removed_entries: What a scan plan knows of the removed files, data and deletes. A hint where to look for them;
            without it they are found by path, which reads more manifests.
        planned_on: The snapshot whose manifests the ``manifest`` column of ``removed_entries`` counts.
        merge_manifests: Whether small manifests may be merged; a fast append leaves them alone.
        summary: Further properties of the snapshot summary.
    """

    operation: Operation
    added_data: EntriesTable | None = None
    added_deletes: EntriesTable | None = None
    removed_data: frozenset[str] = frozenset()
    removed_deletes: frozenset[DeleteFileId] = frozenset()
    removed_entries: EntriesTable | None = None
    planned_on: int | None = None
    merge_manifests: bool = True
    summary: Mapping[str, str] = field(default_factory=dict)


class Check(Enum):
    """A conflict check: what must not have happened since the starting snapshot."""

    NO_NEW_DATA = "no data file that may contain matching rows was added"
    NO_NEW_DELETES = "no delete file that may delete matching rows was added"
    NO_NEW_DELETES_FOR_REMOVED = "no delete was added for a data file that is removed"
    NO_REMOVED_DATA = "no data file that may contain matching rows was removed"
    REFERENCED_FILES_EXIST = "every data file the new deletes refer to still exists"
    REFERENCED_FILES_NOT_DELETED = "every data file the new deletes refer to still exists and was not deleted"
    REMOVED_FILES_EXIST = "every file to be removed still exists"
    NO_NEW_DVS = "no deletion vector was added for a data file that gets one"


@dataclass(frozen=True, slots=True)
class ConflictValidation:
    """What to check against the snapshots committed since the change was planned.

    Attributes:
        starting_snapshot_id: The snapshot the change was planned on; ``None`` for an empty table or branch.
        checks: What must not have happened.
        conflict_filter: The rows the change depends on; TRUE means all.
        referenced_data_files: Data files the added deletes refer to.
        partitions: Entries whose partitions are all the change depends on; files of other specs may lie in them.
    """

    starting_snapshot_id: int | None = None
    checks: frozenset[Check] = frozenset()
    conflict_filter: IrExpr = TRUE
    referenced_data_files: frozenset[str] = frozenset()
    partitions: EntriesTable | None = None


Command: TypeAlias = Literal["append", "delete", "update", "merge", "overwrite", "replace_partitions", "rewrite"]
Mode: TypeAlias = Literal["copy-on-write", "merge-on-read"]

_REWRITE = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DELETES_FOR_REMOVED})
_NEW_DELETES = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DVS})


def required_checks(
    command: Command, mode: Mode = "copy-on-write", isolation: IsolationLevel | None = IsolationLevel.SERIALIZABLE
) -> frozenset[Check]:
    """The checks of a command, as Iceberg's Spark commands make them.

    =====================  ===========================================================  ==========================
    command                snapshot isolation                                           serializable adds
    =====================  ===========================================================  ==========================
    append                 nothing                                                      nothing
    rewrite                no deletes for the files it replaces                         nothing
    copy-on-write          no deletes for the files it replaces                         no new data that may match
    merge-on-read delete   referenced files exist (a whole file deleted by others is    no new data that may match
                           no conflict)
    merge-on-read other    referenced files exist, no new deletes that may match        no new data that may match
    overwrite              no new deletes and no removed data that may match            no new data that may match
    =====================  ===========================================================  ==========================

    Every command but append also requires that the files it removes still exist: rows that were rewritten elsewhere
    meanwhile must be neither lost nor duplicated.

    Args:
        command: What is done to the table.
        mode: How delete, update and merge change rows.
        isolation: ``None`` is possible for overwrites only: as in Spark, concurrent changes of matching rows are no
            conflict. Deletes for partly matching files still are, because the overwrite rewrites those files.
    """
    match command:
        case "append":
            return frozenset()
        case "rewrite":
            return _REWRITE
        case "overwrite" | "replace_partitions":
            checks = _REWRITE | _NEW_DELETES | {Check.REFERENCED_FILES_EXIST}
            if isolation is not None:
                checks |= {Check.NO_NEW_DELETES, Check.NO_REMOVED_DATA}
            return checks | {Check.NO_NEW_DATA} if isolation is IsolationLevel.SERIALIZABLE else checks
        case "delete" | "update" | "merge":
            if mode == "copy-on-write":
                checks = _REWRITE
            elif command == "delete":
                checks = _NEW_DELETES | {Check.REFERENCED_FILES_EXIST}
            else:
                checks = _NEW_DELETES | {Check.REFERENCED_FILES_NOT_DELETED, Check.NO_NEW_DELETES}
            return checks if isolation is IsolationLevel.SNAPSHOT else checks | {Check.NO_NEW_DATA}


_HINTS = ("manifest", "spec_id", "content", "file_path", "content_offset")


def removed_entry_hints(
    planned: PlannedFiles, removed_data: Collection[str], removed_deletes: Collection[DeleteFileId]
) -> EntriesTable | None:
    """What a plan knows of removed files, for ``SnapshotChange.removed_entries``."""
    paths = [removed_data, {file.path for file in removed_deletes}]
    tables = []
    for entries, removed in zip((planned.entries, planned.deletes), paths, strict=True):
        if len(entries):
            table = entries.table
            if "content_offset" not in entries:
                table = table.append_column("content_offset", pa.nulls(len(entries), pa.int64()))
            table = table.select([*_HINTS, *(partition_column(key) for key in entries.partition_types)])
            tables.append(table.filter(pc.is_in(entries.path, pa.array(sorted(removed), pa.large_string()))))
    if not tables:
        return None
    together = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return EntriesTable(together, planned.entries.partition_types)
