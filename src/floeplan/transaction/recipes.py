"""Which checks a command needs, by its mode and isolation level.

The checks are those Iceberg's Spark commands make. Always added is that files to be removed are still there: a change
names the files it removes, and rows that were rewritten elsewhere meanwhile must be neither lost nor doubled.

=====================  ==========================================================  =========================
command                snapshot isolation                                          serializable adds
=====================  ==========================================================  =========================
append                 nothing                                                     nothing
rewrite                no deletes for the files it replaces                        nothing
copy-on-write          no deletes for the files it replaces                        no new data that may match
merge-on-read delete   files it refers to exist (whole deletion by others is fine)  no new data that may match
merge-on-read other    files it refers to exist, no new deletes that may match     no new data that may match
overwrite              no new deletes and no removed data that may match           no new data that may match
=====================  ==========================================================  =========================

An overwrite without isolation level takes no notice of rows others add or delete, as in Spark; it may however rewrite
files that match in part, so deletes for those remain a conflict.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from floeplan.transaction.change import Check, IsolationLevel

Command: TypeAlias = Literal["append", "delete", "update", "merge", "overwrite", "replace_partitions", "rewrite"]
Mode: TypeAlias = Literal["copy-on-write", "merge-on-read"]

_REWRITE = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DELETES_FOR_REMOVED})
_NEW_DELETES = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DVS})


def validation_for(
    command: Command, mode: Mode = "copy-on-write", isolation: IsolationLevel | None = IsolationLevel.SERIALIZABLE
) -> frozenset[Check]:
    """The checks of a command.

    Args:
        command: What is done to the table.
        mode: How rows are changed; of importance to delete, update and merge.
        isolation: ``None`` is possible for overwrites only and means that no rows of others are looked at.
    """
    match command:
        case "append":
            return frozenset()
        case "rewrite":
            return _REWRITE
        case "overwrite" | "replace_partitions":
            return _overwrite(isolation)
        case "delete" | "update" | "merge":
            checks = _REWRITE if mode == "copy-on-write" else _merge_on_read(command)
            return checks if isolation is IsolationLevel.SNAPSHOT else checks | {Check.NO_NEW_DATA}


def _merge_on_read(command: Command) -> frozenset[Check]:
    if command == "delete":
        return _NEW_DELETES | {Check.REFERENCED_FILES_EXIST}
    return _NEW_DELETES | {Check.REFERENCED_FILES_NOT_DELETED, Check.NO_NEW_DELETES}


def _overwrite(isolation: IsolationLevel | None) -> frozenset[Check]:
    checks = _REWRITE | _NEW_DELETES | {Check.REFERENCED_FILES_EXIST}
    if isolation is not None:
        checks |= {Check.NO_NEW_DELETES, Check.NO_REMOVED_DATA}
    return checks | {Check.NO_NEW_DATA} if isolation is IsolationLevel.SERIALIZABLE else checks
