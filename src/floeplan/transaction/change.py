"""What a commit does to a table, independent of the snapshot it is applied to.

A ``SnapshotChange`` names the files a snapshot adds (as whole entries) and removes (by path). A ``ConflictValidation``
names what must not have happened since the change was planned. Both are values: when another writer commits first, the
same change is validated against, and applied to, the newer snapshot.

Rule of a valid change: each file is added once, with a spec of the table and the right content, and a data file gets
one deletion vector. Format 1 has no deletes, format 2 no deletion vectors, and format 3 no new position delete files.
An append removes nothing, and a replace adds no rows. Written files remain valid under newer metadata that still has
their specs, all their columns under readable types, and no new required column that they lack. Rows that a replace only
rewrites were valid before and remain so.

Fail-safe: new data under a spec whose source columns are in no schema is refused, because its partition values would
have no meaning. Old files of such a spec can still be carried over, deleted from and removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, PrimitiveType

from floeplan.errors import BadInputError, CommitConflictError, UnsupportedError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import Content, EntriesTable, partition_column
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.stats import to_mask
from floeplan.scan.model import PlannedFiles
from floeplan.schemas import fields_by_id
from floeplan.transaction.manifests import TableShape, find_compatible_schema, validate_added_data_files
from floeplan.vectors import Mask

REPLACES_PARTITIONS = "replace-partitions"
"""The summary property of a snapshot that replaced the partitions of its files by these files, and did nothing else."""
_HINTS = ("manifest", "spec_id", "content", "file_path", "content_offset")
_SEPARATOR = pa.scalar("\0", pa.large_string())
_FIRST_FORMAT_WITH_VECTORS = 3


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
        drop_dangling_deletes: Whether delete files that apply to no data file after the change are removed too.
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
    drop_dangling_deletes: bool = False
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

    Every command but append also requires that the files it removes still exist: concurrently rewritten rows must be
    neither lost nor duplicated.

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


def removed_entry_hints(
    planned: PlannedFiles, removed_data: Collection[str], removed_deletes: Collection[DeleteFileId]
) -> EntriesTable | None:
    """The entries of removed files that a plan has, for ``SnapshotChange.removed_entries``."""
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


def removed_keys(change: SnapshotChange) -> tuple[pa.Array, pa.Array]:
    """The ``entry_keys`` of the data files and of the delete files that a change removes."""
    deletes = list(change.removed_deletes)
    offsets = pa.array([file.content_offset for file in deletes], pa.int64())
    nowhere = pa.nulls(len(change.removed_data), pa.int64())
    return _keys(list(change.removed_data), nowhere), _keys([file.path for file in deletes], offsets)


def entry_keys(entries: EntriesTable) -> pa.Array:
    """The identity of files: the path and, for a deletion vector, its offset."""
    nowhere = pa.nulls(len(entries), pa.int64())
    return _keys(entries.path, entries.array("content_offset") if "content_offset" in entries else nowhere)


def _keys(paths: pa.Array | Sequence[str], offsets: pa.Array) -> pa.Array:
    named = pa.array(paths, pa.large_string())
    return pc.binary_join_element_wise(named, offsets.cast(pa.large_string()).fill_null(""), _SEPARATOR)


def delete_file_id(key: str) -> DeleteFileId:
    """The delete file of one of the ``entry_keys``."""
    path, _, offset = key.partition("\0")
    return DeleteFileId(path, int(offset) if offset else None)


def validate_change(change: SnapshotChange, added: EntriesTable, shape: TableShape) -> None:
    """Refuse a change that is invalid on any head."""
    validate_added_data_files(added, shape.specs)
    is_puffin = to_mask(pc.equal(added.array("file_format"), "PUFFIN"))
    _refuse(added, _repeated(entry_keys(added)), "it is added twice")
    targets = pc.if_else(pa.array(is_puffin), added.array("referenced_data_file"), pa.scalar(None, pa.large_string()))
    _refuse(added, _repeated(targets), "its data file gets two deletion vectors")
    if change.added_data is not None:
        _refuse(change.added_data, change.added_data.content != Content.DATA, "it is not a data file")
    if change.added_deletes is not None:
        _refuse(change.added_deletes, change.added_deletes.content == Content.DATA, "it is not a delete file")
    removes = change.removed_data or change.removed_deletes
    if change.operation is Operation.APPEND and (removes or change.added_deletes is not None):
        raise BadInputError("an append can only add data files: use another operation")

    is_data, is_position = added.content == Content.DATA, added.content == Content.POSITION_DELETES
    if shape.metadata.format_version == 1:
        _refuse(added, ~is_data, "format 1 has no delete files: upgrade the table to format 2")
    elif shape.metadata.format_version < _FIRST_FORMAT_WITH_VECTORS:
        _refuse(added, is_position & is_puffin, "format 2 has no deletion vectors: write position delete files")
    else:
        _refuse(added, is_position & ~is_puffin, "format 3 takes deletion vectors, not position delete files")
    for spec_id in np.unique(added.spec_id[is_data]).tolist():
        find_compatible_schema(shape.metadata, shape.specs[spec_id])


def _refuse(files: EntriesTable, wrong: Mask, why: str) -> None:
    if wrong.any():
        path = files.path[int(np.argmax(wrong))].as_py()
        raise UnsupportedError(f"cannot add {path}: {why}", context={"file": path})


def _repeated(values: pa.Array) -> Mask:
    """Values that occurred before; nulls never repeat."""
    codes = values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    first = np.zeros(len(codes), dtype=np.bool_)
    first[np.unique(codes, return_index=True)[1]] = True
    return np.asarray(~first & (codes >= 0))


def validate_replacement(change: SnapshotChange, added: EntriesTable, removed: EntriesTable) -> None:
    """Refuse a replace that adds rows: it has the same rows in other files, or fewer where deletes were applied."""
    rows = [int(files.record_count[files.content == Content.DATA].sum()) for files in (added, removed)]
    if change.operation is Operation.REPLACE and rows[0] > rows[1]:
        raise BadInputError(
            f"a replacement of {rows[1]} rows cannot add {rows[0]}", context={"added": rows[0], "removed": rows[1]}
        )


def check_compatible(change: SnapshotChange, planned: TableMetadata, now: TableMetadata) -> None:
    """Refuse a change whose files do not fit the newer metadata.

    Raises:
        CommitConflictError: Schema, specs or format changed since planning; running the operation again works.
    """
    data, deletes = change.added_data, change.added_deletes
    used = {spec_id for files in (data, deletes) if files is not None for spec_id in files.spec_id.tolist()}
    dropped = sorted(used & (planned.specs().keys() - now.specs().keys()))
    if dropped:
        raise CommitConflictError(
            f"partition spec {dropped[0]} was removed from the table while files were written under it; "
            "run the operation again",
            context={"spec_id": dropped[0]},
        )
    if change.operation is not Operation.REPLACE and data is not None and len(data):
        _check_schema(planned.schema(), now.schema())
    upgraded = planned.format_version < _FIRST_FORMAT_WITH_VECTORS <= now.format_version
    if upgraded and deletes is not None and (deletes.content == Content.POSITION_DELETES).any():
        raise CommitConflictError(
            f"the table was upgraded to format {now.format_version} while position deletes were written for format "
            f"{planned.format_version}; run the operation again",
            context={"format_version": now.format_version},
        )


def _check_schema(planned: Schema, now: Schema) -> None:
    if planned == now:
        return
    before, after = fields_by_id(planned), fields_by_id(now)
    for field_id in (*before, *(after.keys() - before.keys())):
        old, new = before.get(field_id), after.get(field_id)
        name = (now if old is None else planned).find_column_name(field_id)
        changed = None
        if new is None:
            changed = f"column {name} was dropped"
        elif old is None:
            # Rows without a new column have its initial default, or null.
            if new.required and new.initial_default is None:
                changed = f"required column {name} was added"
        elif not _readable(old.field_type, new.field_type):
            changed = f"column {name} became {new.field_type}"
        elif new.required and not old.required:
            changed = f"column {name} became required"
        if changed is not None:
            raise CommitConflictError(
                f"{changed} while rows were written with the previous schema; run the operation again",
                context={"column": name},
            )


def _readable(written: IcebergType, wanted: IcebergType) -> bool:
    """Whether values can be read as another type; nested types are checked by their fields."""
    if not isinstance(written, PrimitiveType) or not isinstance(wanted, PrimitiveType):
        return type(written) is type(wanted)
    try:
        return written == wanted or promote(written, wanted) == wanted
    except ResolveError:
        return False
