"""Whether a change is still right after what others committed since it was planned.

A check looks at the entries that snapshots of certain operations wrote since the starting snapshot:

============================  =========================  ==============================================================
check                         operations                 conflict
============================  =========================  ==============================================================
NO_NEW_DATA                   append, overwrite          a data file was added that may hold matching rows
NO_NEW_DELETES                overwrite, delete          a delete file was added that may delete matching rows
NO_NEW_DELETES_FOR_REMOVED    overwrite, delete          a delete file was added for a data file to be removed
NO_REMOVED_DATA               overwrite, replace, delete a data file was removed that may have held matching rows
REFERENCED_FILES_EXIST        overwrite, replace         a data file was removed that new deletes refer to
REFERENCED_FILES_NOT_DELETED  overwrite, replace, delete the same
REMOVED_FILES_EXIST           overwrite, replace, delete a file was removed that is to be removed
NO_NEW_DVS                    overwrite, replace, delete a deletion vector was added for a data file that gets one
============================  =========================  ==============================================================

"May" is the evaluator's word: partition values of each file's own spec and, for data files, column bounds. The bounds
of a delete file say nothing of the rows it deletes.

Fail-safe: what cannot be evaluated is a conflict. A conflict costs a repeated operation, a missed one costs rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import BadInputError, CommitConflictError
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, Content, EntriesTable, EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.stats import to_mask
from floeplan.snapshot.deletes import ScanDeletes, joint_partition_codes, match
from floeplan.snapshot.passes import Predicate, judge_entries
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange
from floeplan.transaction.filter_manifests import entry_keys, wanted_keys
from floeplan.transaction.history import Committed, committed_entries, operation_of, snapshots_since, with_operations
from floeplan.vectors import Mask

# A change in front of the table it is to be applied to: what every check is asked about.


VECTOR = "PUFFIN"
"""The file format of deletion vectors."""


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """A change, and the table it is to be applied to.

    Attributes:
        metadata: The table as it is now.
        head: The snapshot the change would follow.
        change: What is to be committed.
        validation: What must not have happened.
        union: The partition fields of the table's specs.
        io: Where the table's files are.
        validated_until: A snapshot up to which an earlier attempt found nothing against the change.
    """

    metadata: TableMetadata
    head: int | None
    change: SnapshotChange
    validation: ConflictValidation
    union: UnionPartitionType
    io: FileIO
    validated_until: int | None = None

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        head: int | None,
        change: SnapshotChange,
        validation: ConflictValidation,
        io: FileIO,
        validated_until: int | None = None,
    ) -> ValidationContext:
        """The situation of a change on a branch whose newest snapshot is ``head``."""
        return cls(metadata, head, change, validation, UnionPartitionType.of_table(metadata), io, validated_until)

    @property
    def predicate(self) -> Predicate:
        """The rows the change depends on."""
        expr = self.validation.conflict_filter
        return Predicate(expr, predicate_columns(expr), self.union)

    @property
    def referenced(self) -> frozenset[str]:
        """Data files the new deletes refer to, as far as it is known."""
        return self.validation.referenced_data_files | targets_of(self.change.added_deletes)


def targets_of(deletes: EntriesTable | None, *, vectors: bool = False) -> frozenset[str]:
    """Data files that new delete files name."""
    if deletes is None or not len(deletes):
        return frozenset()
    named = deletes.array("referenced_data_file")
    if vectors:
        named = named.filter(pc.equal(deletes.array("file_format"), VECTOR))
    return frozenset(named.drop_null().to_pylist())


# Which delete files of others apply to the data files that a change removes.
#
# Rule: a delete that names one data file meets that file and no other. Any other delete meets the files that the delete
# index says; for that it takes their partitions, which the change tells or the snapshot it was planned on.
#
# Fail-safe: statistics are not asked, so that every newer delete in the partition of a data file, or in none, meets it;
# a data file of which nothing is known is met by all.


def among(paths: pa.Array, wanted: Collection[str]) -> Mask:
    """Which of the paths are among the wanted ones."""
    return to_mask(pc.is_in(paths, value_set=pa.array(sorted(wanted), pa.large_string())))


def deletes_meeting(situation: ValidationContext, deletes: EntriesTable) -> Mask:
    """Which delete files, all newer than the starting snapshot, apply to a data file that the change removes."""
    paths = situation.change.removed_data
    targets = deletes.delete_targets()
    found = among(targets, paths)
    others = np.flatnonzero(~to_mask(targets.is_valid()))
    if len(others) and paths:
        found[others] = _meet(situation, deletes.take(others), _removed_entries(situation))
    return found


def _meet(situation: ValidationContext, deletes: EntriesTable, data: EntriesTable | None) -> Mask:
    found = np.full(len(deletes), data is None)
    if data is not None:
        classified = ScanDeletes.of(deletes, situation.union)
        sources = source_types(situation.metadata.schema(), situation.metadata.schemas)
        found[match(data, classified, situation.union, sources).deletes] = True
    return found


def _removed_entries(situation: ValidationContext) -> EntriesTable | None:
    """The entries of the removed data files as far as matching needs them; ``None`` when nobody knows them."""
    paths, known = situation.change.removed_data, situation.change.removed_entries
    if known is not None and paths <= set(known.path.to_pylist()):
        return known.filter(among(known.path, paths))
    start = situation.validation.starting_snapshot_id
    snapshot = None if start is None else situation.metadata.snapshot_by_id(start)
    if snapshot is None:
        return None
    manifests = read_manifest_list(snapshot.manifest_list, situation.io)
    reader = SnapshotReader(situation.metadata, snapshot, manifests, situation.union, situation.io)
    entries = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset()))
    return entries.filter(among(entries.path, paths))


# ---

SHOWN_FILES = 5
"""Conflicting files that an error names; the others are counted."""

_DELETE_NAMES = frozenset({"snapshot_id", "equality_ids", "referenced_data_file", "content_offset"})


def validate(situation: ValidationContext) -> None:
    """Make all checks of a validation.

    Raises:
        CommitConflictError: Something happened that must not have, or it cannot be told.
        BadInputError: The change contradicts itself.
    """
    _check_change(situation)
    checks = [check for check in Check if check in situation.validation.checks]
    if not checks or situation.head == situation.validation.starting_snapshot_id:
        return
    history = snapshots_since(situation.metadata, situation.head, situation.validation.starting_snapshot_id)
    since = list(takewhile(lambda snapshot: snapshot.snapshot_id != situation.validated_until, history))
    rules = [(check, rule) for check in checks for rule in _RULES[check]]
    for content in (DATA, DELETES):
        of_content = [(check, rule) for check, rule in rules if rule.content == content]
        operations = frozenset[Operation]().union(*(rule.operations for _, rule in of_content))
        snapshots = with_operations(since, operations) if of_content else []
        if not snapshots:
            continue
        committed = committed_entries(snapshots, content, situation.union, _columns(situation, content), situation.io)
        for check, rule in of_content:
            _apply(check, rule, situation, committed)


def _check_change(situation: ValidationContext) -> None:
    both = sorted(situation.change.removed_data & situation.referenced)
    if both:
        raise BadInputError(
            f"the change removes data file {both[0]} and also adds deletes for it", context={"file": both[0]}
        )


def _columns(situation: ValidationContext, content: int) -> EntryColumns:
    if content == DELETES:
        return EntryColumns(_DELETE_NAMES, stats=frozenset({POSITION_DELETE_PATH}))
    return EntryColumns(frozenset({"snapshot_id"}), stats=frozenset(situation.predicate.columns))


@dataclass(frozen=True, slots=True)
class _Rule:
    """Entries of this content and status, written by such operations, are conflicts where ``conflicts`` says so."""

    content: int
    operations: frozenset[Operation]
    status: Status
    conflicts: Callable[[ValidationContext, EntriesTable], Mask]


def _apply(check: Check, rule: _Rule, situation: ValidationContext, committed: Committed) -> None:
    asked = {snapshot.snapshot_id for snapshot in with_operations(committed.snapshots, rule.operations)}
    concerned = np.array([snapshot.snapshot_id in asked for snapshot in committed.snapshots], dtype=np.bool_)
    of_rule = committed.filter(concerned[committed.snapshot] & (committed.entries.status == rule.status))
    if not len(of_rule.entries):
        return
    conflicting = of_rule.filter(rule.conflicts(situation, of_rule.entries))
    if len(conflicting.entries):
        raise conflict(check, rule.status, situation.change, conflicting)


def conflict(check: Check, status: Status, change: SnapshotChange, found: Committed) -> CommitConflictError:
    """The error for entries that must not have been committed: it names the newest snapshot and some of its files."""
    newest = int(found.snapshot.min())
    snapshot = found.snapshots[newest]
    paths = found.entries.path.filter(pa.array(found.snapshot == newest)).to_pylist()
    operation = operation_of(snapshot)
    verb = "removed" if status is Status.DELETED else "added"
    more = f" and {len(paths) - SHOWN_FILES} more" if len(paths) > SHOWN_FILES else ""
    return CommitConflictError(
        f"this {change.operation} needs that {check.value}, but snapshot {snapshot.snapshot_id} "
        f"({operation or 'operation unknown'}) {verb} {', '.join(paths[:SHOWN_FILES])}{more}; "
        "run the operation again: it will see that snapshot",
        context={
            "check": check.name,
            "operation": change.operation.value,
            "snapshot_id": snapshot.snapshot_id,
            "snapshot_operation": None if operation is None else operation.value,
            "files": paths[:SHOWN_FILES],
            "file_count": len(paths),
        },
    )


def _may_match(situation: ValidationContext, entries: EntriesTable) -> Mask:
    """Whether files may hold, or delete files delete, rows the change depends on."""
    keep = judge_entries(situation.predicate, entries).tri.keep
    partitions = situation.validation.partitions
    return keep if partitions is None else keep & _in_partitions(situation.union, entries, partitions)


def _in_partitions(union: UnionPartitionType, entries: EntriesTable, partitions: EntriesTable) -> Mask:
    """Whether entries lie in one of the partitions; tuples of other specs cannot be compared, so they may."""
    codes = joint_partition_codes(union, entries, partitions)
    own, wanted = codes[: len(entries)], codes[len(entries) :]
    comparable: Mask = np.isin(entries.spec_id, partitions.spec_id)
    return ~comparable | np.isin(own, wanted)


def _deletes_removed(situation: ValidationContext, entries: EntriesTable) -> Mask:
    """Whether deletes apply to a data file to be removed.

    Rows written again with the sequence number they had are still met by newer equality deletes.
    """
    added = situation.change.added_data
    keeps_age = added is not None and len(added) > 0 and bool(added.valid("sequence_number").all())
    asked = entries.content == Content.POSITION_DELETES if keeps_age else np.ones(len(entries), dtype=np.bool_)
    found = np.zeros(len(entries), dtype=np.bool_)
    found[asked] = deletes_meeting(situation, entries.filter(asked))
    return found


def _is_referenced(situation: ValidationContext, entries: EntriesTable) -> Mask:
    return among(entries.path, situation.referenced)


def _is_removed_data(situation: ValidationContext, entries: EntriesTable) -> Mask:
    return to_mask(pc.is_in(entry_keys(entries), value_set=wanted_keys(situation.change)[0]))


def _is_removed_delete(situation: ValidationContext, entries: EntriesTable) -> Mask:
    return to_mask(pc.is_in(entry_keys(entries), value_set=wanted_keys(situation.change)[1]))


def _same_vector_target(situation: ValidationContext, entries: EntriesTable) -> Mask:
    is_vector = to_mask(pc.equal(entries.array("file_format"), VECTOR))
    return is_vector & among(entries.delete_targets(), targets_of(situation.change.added_deletes, vectors=True))


_APPEND, _OVERWRITE, _REPLACE, _DELETE = (
    Operation.APPEND,
    Operation.OVERWRITE,
    Operation.REPLACE,
    Operation.DELETE,
)
_DELETING = frozenset({_OVERWRITE, _DELETE})
_REMOVING = frozenset({_OVERWRITE, _REPLACE, _DELETE})

_RULES: Mapping[Check, tuple[_Rule, ...]] = {
    Check.NO_NEW_DATA: (_Rule(DATA, frozenset({_APPEND, _OVERWRITE}), Status.ADDED, _may_match),),
    Check.NO_NEW_DELETES: (_Rule(DELETES, _DELETING, Status.ADDED, _may_match),),
    Check.NO_NEW_DELETES_FOR_REMOVED: (_Rule(DELETES, _DELETING, Status.ADDED, _deletes_removed),),
    Check.NO_REMOVED_DATA: (_Rule(DATA, _REMOVING, Status.DELETED, _may_match),),
    Check.REFERENCED_FILES_EXIST: (_Rule(DATA, frozenset({_OVERWRITE, _REPLACE}), Status.DELETED, _is_referenced),),
    Check.REFERENCED_FILES_NOT_DELETED: (_Rule(DATA, _REMOVING, Status.DELETED, _is_referenced),),
    Check.REMOVED_FILES_EXIST: (
        _Rule(DATA, _REMOVING, Status.DELETED, _is_removed_data),
        _Rule(DELETES, _REMOVING, Status.DELETED, _is_removed_delete),
    ),
    Check.NO_NEW_DVS: (_Rule(DELETES, _REMOVING, Status.ADDED, _same_vector_target),),
}
