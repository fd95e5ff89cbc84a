"""Conflict validation: whether a change is still correct after what others committed since it was planned.

A check looks at the entries that snapshots of certain operations wrote since the starting snapshot:

============================  =========================  ==============================================================
check                         operations                 conflict
============================  =========================  ==============================================================
NO_NEW_DATA                   append, overwrite          a data file was added that may hold matching rows
NO_NEW_DELETES                overwrite, delete          a delete file was added that may delete matching rows
NO_NEW_DELETES_FOR_REMOVED    overwrite, delete          a delete file was added for a data file to be removed
NO_REMOVED_DATA               overwrite, replace, delete a data file was removed that may have held matching rows
REFERENCED_FILES_EXIST        overwrite, replace         a data file was removed that new deletes refer to
REFERENCED_FILES_NOT_DELETED  overwrite, replace, delete a data file was removed that new deletes refer to
REMOVED_FILES_EXIST           overwrite, replace, delete a file was removed that is to be removed
NO_NEW_DVS                    overwrite, replace, delete a deletion vector was added for a data file that gets one
============================  =========================  ==============================================================

Whether a file "may" hold matching rows is evaluated on the partition values of its own spec and, for data files, on
column bounds. The bounds of a delete file say nothing about the rows it deletes.

The history of a branch is the chain of parents of its head, down to the starting snapshot. What a snapshot did is in
the manifests that it added itself.

Fail-safe: what cannot be evaluated is a conflict. A conflict costs a repeated operation, a missed one costs rows. So a
chain that does not reach the starting snapshot (expired, or the branch was rolled back or replaced) is a conflict, a
snapshot without an operation may have done anything, and the entries of a manifest without a snapshot id are checked
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import BadInputError, CommitConflictError
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, Content, EntriesTable, EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    UNKNOWN,
    ManifestListTable,
    concat_manifest_lists,
    read_manifest_list,
)
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.stats import to_mask
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import ScanDeletes, evaluate_entries, joint_partition_codes, match
from floeplan.snapshot.reader import SnapshotReader, read_manifest_lists
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange, entry_keys, removed_keys
from floeplan.vectors import Ints, Mask

MAX_NAMED_FILES = 5
"""Conflicting files that an error names; the others are counted."""

_VECTOR_FORMAT = "PUFFIN"
_DELETE_COLUMNS = frozenset({"snapshot_id", "equality_ids", "referenced_data_file", "content_offset"})


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """A change, and the table it is validated against.

    Attributes:
        metadata: The table's newest metadata.
        head: The snapshot the change would follow.
        change: What is to be committed.
        validation: What must not have happened.
        io: Reads the table's files.
        validated_until: A snapshot up to which an earlier attempt found no conflict.
        union: The partition fields of the table's specs.
    """

    metadata: TableMetadata
    head: int | None
    change: SnapshotChange
    validation: ConflictValidation
    io: FileIO
    validated_until: int | None = None
    union: UnionPartitionType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "union", UnionPartitionType.of_table(self.metadata))

    @property
    def predicate(self) -> Predicate:
        """The rows the change depends on."""
        expr = self.validation.conflict_filter
        return Predicate(expr, predicate_columns(expr), self.union)

    @property
    def referenced(self) -> frozenset[str]:
        """Data files that the new deletes are known to refer to."""
        return self.validation.referenced_data_files | _targets(self.change.added_deletes)


def validate(context: ValidationContext) -> None:
    """Run all checks of a validation.

    Raises:
        CommitConflictError: A concurrent commit conflicts with the change, or that cannot be determined.
        BadInputError: The change contradicts itself.
    """
    both = sorted(context.change.removed_data & context.referenced)
    if both:
        raise BadInputError(
            f"the change removes data file {both[0]} and also adds deletes for it", context={"file": both[0]}
        )
    rules = [rule for rule in _RULES if rule.check in context.validation.checks]
    if not rules or context.head == context.validation.starting_snapshot_id:
        return
    history = snapshots_since(context.metadata, context.head, context.validation.starting_snapshot_id)
    since = list(takewhile(lambda snapshot: snapshot.snapshot_id != context.validated_until, history))
    for content in (DATA, DELETES):
        # All rules of one content share one read of the entries they look at.
        of_content = [rule for rule in rules if rule.content == content]
        operations = frozenset[Operation]().union(*(rule.operations for rule in of_content))
        snapshots = with_operations(since, operations) if of_content else []
        if not snapshots:
            continue
        columns = EntryColumns(_DELETE_COLUMNS, stats=frozenset({POSITION_DELETE_PATH}))
        if content == DATA:
            columns = EntryColumns(frozenset({"snapshot_id"}), stats=frozenset(context.predicate.columns))
        committed = committed_entries(snapshots, content, context.metadata, columns, context.io)
        for rule in of_content:
            _apply(rule, context, committed)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Of a check: entries of this content and status, written by these operations, where ``conflicts`` is true."""

    check: Check
    content: int
    operations: frozenset[Operation]
    status: Status
    conflicts: Callable[[ValidationContext, EntriesTable], Mask]


def _apply(rule: _Rule, context: ValidationContext, committed: Committed) -> None:
    ids = {snapshot.snapshot_id for snapshot in with_operations(committed.snapshots, rule.operations)}
    concerned = np.array([snapshot.snapshot_id in ids for snapshot in committed.snapshots], dtype=np.bool_)
    of_rule = committed.filter(concerned[committed.snapshot] & (committed.entries.status == rule.status))
    if not len(of_rule.entries):
        return
    found = of_rule.filter(rule.conflicts(context, of_rule.entries))
    if not len(found.entries):
        return
    # The error names the newest conflicting snapshot and some of its files.
    newest = int(found.snapshot.min())
    snapshot = found.snapshots[newest]
    paths = found.entries.path.filter(pa.array(found.snapshot == newest)).to_pylist()
    operation = operation_of(snapshot)
    verb = "removed" if rule.status is Status.DELETED else "added"
    more = f" and {len(paths) - MAX_NAMED_FILES} more" if len(paths) > MAX_NAMED_FILES else ""
    raise CommitConflictError(
        f"this {context.change.operation} requires that {rule.check.value}, but snapshot {snapshot.snapshot_id} "
        f"({operation or 'operation unknown'}) {verb} {', '.join(paths[:MAX_NAMED_FILES])}{more}; "
        "run the operation again: it will see that snapshot",
        context={
            "check": rule.check.name,
            "operation": context.change.operation.value,
            "snapshot_id": snapshot.snapshot_id,
            "snapshot_operation": None if operation is None else operation.value,
            "files": paths[:MAX_NAMED_FILES],
            "file_count": len(paths),
        },
    )


def _may_match(context: ValidationContext, entries: EntriesTable) -> Mask:
    """Files that may hold, or delete files that may delete, rows the change depends on."""
    keep = evaluate_entries(context.predicate, entries).tri.keep
    partitions = context.validation.partitions
    if partitions is None:
        return keep
    codes = joint_partition_codes(context.union, entries, partitions)
    own, depended_on = codes[: len(entries)], codes[len(entries) :]
    # Partition tuples of different specs cannot be compared: files of other specs may lie in the partitions.
    comparable: Mask = np.isin(entries.spec_id, partitions.spec_id)
    return keep & (~comparable | np.isin(own, depended_on))


def _apply_to_removed(context: ValidationContext, entries: EntriesTable) -> Mask:
    """Delete files that apply to a data file to be removed."""
    added = context.change.added_data
    checked = np.ones(len(entries), dtype=np.bool_)
    if added is not None and len(added) and added.valid("sequence_number").all():
        # Rewritten rows that keep their data sequence number are still deleted by newer equality deletes.
        checked = entries.content == Content.POSITION_DELETES
    deletes = entries.filter(checked)
    paths, targets = context.change.removed_data, deletes.delete_targets()
    # A delete file that names one data file applies to that file alone.
    applies = _is_in(targets, paths)
    others = np.flatnonzero(~to_mask(targets.is_valid()))
    if len(others) and paths:
        # Every other newer delete file in the partition of a data file, or in none, applies to it; statistics are not
        # used. When the removed entries are unknown, all apply.
        data = _removed_entries(context)
        matched = np.arange(len(others))
        if data is not None:
            classified = ScanDeletes.of(deletes.take(others), context.union)
            sources = source_types(context.metadata.schema(), context.metadata.schemas)
            matched = match(data, classified, context.union, sources).deletes
        applies[others[matched]] = True
    found = np.zeros(len(entries), dtype=np.bool_)
    found[checked] = applies
    return found


def _removed_entries(context: ValidationContext) -> EntriesTable | None:
    """The entries of the removed data files, from the change or from the starting snapshot; ``None`` if unknown."""
    paths, known = context.change.removed_data, context.change.removed_entries
    if known is not None and paths <= set(known.path.to_pylist()):
        return known.filter(_is_in(known.path, paths))
    start = context.validation.starting_snapshot_id
    snapshot = None if start is None else context.metadata.snapshot_by_id(start)
    if snapshot is None:
        return None
    location = context.metadata.location
    manifests = read_manifest_list(snapshot.manifest_list, context.io, table_location=location)
    reader = SnapshotReader(context.metadata, snapshot, manifests, context.union, context.io)
    entries = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset()))
    return entries.filter(_is_in(entries.path, paths))


def _is_referenced(context: ValidationContext, entries: EntriesTable) -> Mask:
    return _is_in(entries.path, context.referenced)


def _is_removed(context: ValidationContext, entries: EntriesTable) -> Mask:
    return to_mask(pc.is_in(entry_keys(entries), value_set=pa.concat_arrays(removed_keys(context.change))))


def _has_vector_target(context: ValidationContext, entries: EntriesTable) -> Mask:
    """Deletion vectors for a data file that gets a new one."""
    is_vector = to_mask(pc.equal(entries.array("file_format"), _VECTOR_FORMAT))
    return is_vector & _is_in(entries.delete_targets(), _targets(context.change.added_deletes, vectors=True))


def _targets(deletes: EntriesTable | None, *, vectors: bool = False) -> frozenset[str]:
    """The data files that new delete files, or only deletion vectors, refer to."""
    if deletes is None or not len(deletes):
        return frozenset()
    named = deletes.array("referenced_data_file")
    if vectors:
        named = named.filter(pc.equal(deletes.array("file_format"), _VECTOR_FORMAT))
    return frozenset(named.drop_null().to_pylist())


def _is_in(paths: pa.Array, known: Collection[str]) -> Mask:
    return to_mask(pc.is_in(paths, value_set=pa.array(sorted(known), pa.large_string())))


_DELETING = frozenset({Operation.OVERWRITE, Operation.DELETE})
_REMOVING = frozenset({Operation.OVERWRITE, Operation.REPLACE, Operation.DELETE})
_REWRITING = frozenset({Operation.OVERWRITE, Operation.REPLACE})
_ADDING = frozenset({Operation.APPEND, Operation.OVERWRITE})

_RULES = (
    _Rule(Check.NO_NEW_DATA, DATA, _ADDING, Status.ADDED, _may_match),
    _Rule(Check.NO_NEW_DELETES, DELETES, _DELETING, Status.ADDED, _may_match),
    _Rule(Check.NO_NEW_DELETES_FOR_REMOVED, DELETES, _DELETING, Status.ADDED, _apply_to_removed),
    _Rule(Check.NO_REMOVED_DATA, DATA, _REMOVING, Status.DELETED, _may_match),
    _Rule(Check.REFERENCED_FILES_EXIST, DATA, _REWRITING, Status.DELETED, _is_referenced),
    _Rule(Check.REFERENCED_FILES_NOT_DELETED, DATA, _REMOVING, Status.DELETED, _is_referenced),
    _Rule(Check.REMOVED_FILES_EXIST, DATA, _REMOVING, Status.DELETED, _is_removed),
    _Rule(Check.REMOVED_FILES_EXIST, DELETES, _REMOVING, Status.DELETED, _is_removed),
    _Rule(Check.NO_NEW_DVS, DELETES, _REMOVING, Status.ADDED, _has_vector_target),
)


def snapshots_since(metadata: TableMetadata, head: int | None, start: int | None) -> tuple[Snapshot, ...]:
    """The snapshots from the head of a branch, newest first, down to the starting snapshot, which is not included.

    Raises:
        CommitConflictError: The chain of parents does not reach the starting snapshot.
    """
    unseen = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[Snapshot] = []
    at = head
    while at is not None and at != start and at in unseen:
        found.append(unseen.pop(at))
        at = found[-1].parent_snapshot_id
    if at != start:
        raise CommitConflictError(
            f"cannot determine what was committed since snapshot {start}: the history of snapshot {head} does not "
            "reach it, because it was expired or the branch was rolled back or replaced; run the operation again",
            context={"starting_snapshot_id": start, "head_snapshot_id": head},
        )
    return tuple(found)


def has_expired_snapshots(now: TableMetadata, then: TableMetadata) -> bool:
    """Whether snapshots expired since: files that only they referred to may have been deleted."""
    known = {snapshot.snapshot_id for snapshot in now.snapshots}
    return any(snapshot.snapshot_id not in known for snapshot in then.snapshots)


def operation_of(snapshot: Snapshot) -> Operation | None:
    """The operation of a snapshot; ``None`` without a summary."""
    return None if snapshot.summary is None else Operation(snapshot.summary.operation.value)


def with_operations(snapshots: Sequence[Snapshot], operations: Collection[Operation]) -> list[Snapshot]:
    """The snapshots with one of these operations, or without one."""
    return [s for s in snapshots if (operation := operation_of(s)) is None or operation in operations]


@dataclass(frozen=True, slots=True)
class Committed:
    """Entries that snapshots wrote; ``snapshot`` is the index of each entry's snapshot."""

    entries: EntriesTable
    snapshots: tuple[Snapshot, ...]
    snapshot: Ints

    def filter(self, keep: Mask) -> Committed:
        """The entries where the mask is true."""
        return Committed(self.entries.filter(keep), self.snapshots, self.snapshot[keep])


def committed_entries(
    snapshots: Sequence[Snapshot], content: int, metadata: TableMetadata, columns: EntryColumns, io: FileIO
) -> Committed:
    """The entries, of any status, in the data or delete manifests that these snapshots added."""
    lists = []
    found = read_manifest_lists(snapshots, io, table_location=metadata.location)
    for snapshot, listed in zip(snapshots, found, strict=True):
        written = np.isin(listed.added_snapshot_id, [snapshot.snapshot_id, UNKNOWN])
        lists.append(listed.take(np.flatnonzero(written & (listed.content == content))))
    manifests = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
    entries = read_entries(manifests, UnionPartitionType.of_table(metadata), columns, io=io)
    manifest = entries.ints("manifest")
    writer = np.repeat(np.arange(len(lists)), [len(part) for part in lists])[manifest]
    ids = np.array([snapshot.snapshot_id for snapshot in snapshots], dtype=np.int64)
    # Where the list does not tell which snapshot added a manifest, its entries do.
    own = (manifests.added_snapshot_id[manifest] != UNKNOWN) | (entries.ints("snapshot_id") == ids[writer])
    committed = Committed(entries, tuple(snapshots), writer)
    return committed if own.all() else committed.filter(own)
