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

Fail-safe: what cannot be judged is a conflict. A conflict costs a repeated operation, a missed one costs rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.errors import BadInputError, CommitConflictError
from floeplan.metadata.entries import POSITION_DELETE_PATH, Content, EntriesTable, Status
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.predicate.tristate import Mask
from floeplan.scan.deletes import joint_partition_codes
from floeplan.scan.passes import judge_entries
from floeplan.transaction.change import Check, Operation, SnapshotChange
from floeplan.transaction.delete_conflicts import among, deletes_meeting
from floeplan.transaction.history import Committed, committed_entries, operation_of, snapshots_since, with_operations
from floeplan.transaction.removal import entry_keys, wanted_keys
from floeplan.transaction.situation import VECTOR, Situation, targets_of

SHOWN_FILES = 5
"""Conflicting files that an error names; the others are counted."""

_DELETE_NAMES = frozenset({"snapshot_id", "equality_ids", "referenced_data_file", "content_offset"})


def validate(situation: Situation) -> None:
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
    since = list(takewhile(lambda snapshot: snapshot.snapshot_id != situation.judged, history))
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


def _check_change(situation: Situation) -> None:
    both = sorted(situation.change.removed_data & situation.referenced)
    if both:
        raise BadInputError(
            f"the change removes data file {both[0]} and also adds deletes for it", context={"file": both[0]}
        )


def _columns(situation: Situation, content: int) -> EntryColumns:
    if content == DELETES:
        return EntryColumns(_DELETE_NAMES, stats=frozenset({POSITION_DELETE_PATH}))
    return EntryColumns(frozenset({"snapshot_id"}), stats=frozenset(situation.predicate.columns))


@dataclass(frozen=True, slots=True)
class _Rule:
    """Entries of this content and status, written by such operations, are conflicts where ``conflicts`` says so."""

    content: int
    operations: frozenset[Operation]
    status: Status
    conflicts: Callable[[Situation, EntriesTable], Mask]


def _apply(check: Check, rule: _Rule, situation: Situation, committed: Committed) -> None:
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


def _may_match(situation: Situation, entries: EntriesTable) -> Mask:
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


def _deletes_removed(situation: Situation, entries: EntriesTable) -> Mask:
    """Whether deletes apply to a data file to be removed.

    Rows written again with the sequence number they had are still met by newer equality deletes.
    """
    added = situation.change.added_data
    keeps_age = added is not None and len(added) > 0 and bool(added.valid("sequence_number").all())
    asked = entries.content == Content.POSITION_DELETES if keeps_age else np.ones(len(entries), dtype=np.bool_)
    found = np.zeros(len(entries), dtype=np.bool_)
    found[asked] = deletes_meeting(situation, entries.filter(asked))
    return found


def _is_referenced(situation: Situation, entries: EntriesTable) -> Mask:
    return among(entries.path, situation.referenced)


def _is_removed_data(situation: Situation, entries: EntriesTable) -> Mask:
    return to_mask(pc.is_in(entry_keys(entries), value_set=wanted_keys(situation.change)[0]))


def _is_removed_delete(situation: Situation, entries: EntriesTable) -> Mask:
    return to_mask(pc.is_in(entry_keys(entries), value_set=wanted_keys(situation.change)[1]))


def _same_vector_target(situation: Situation, entries: EntriesTable) -> Mask:
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
