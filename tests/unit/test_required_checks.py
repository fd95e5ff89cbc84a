"""The checks of each command, as in Iceberg's Spark commands, and that removed files exist."""

from __future__ import annotations

import pytest

from floeplan.transaction.change import Check, Command, IsolationLevel, Mode, required_checks

pytestmark = pytest.mark.unit

SNAPSHOT, SERIALIZABLE = IsolationLevel.SNAPSHOT, IsolationLevel.SERIALIZABLE
REWRITE = {Check.REMOVED_FILES_EXIST, Check.NO_NEW_DELETES_FOR_REMOVED}
DELTA = {Check.REMOVED_FILES_EXIST, Check.NO_NEW_DVS}
OVERWRITE = REWRITE | DELTA | {Check.REFERENCED_FILES_EXIST}


@pytest.mark.parametrize(
    ("command", "mode", "checks"),
    [
        ("delete", "copy-on-write", REWRITE),
        ("update", "copy-on-write", REWRITE),
        ("merge", "copy-on-write", REWRITE),
        ("delete", "merge-on-read", DELTA | {Check.REFERENCED_FILES_EXIST}),
        ("update", "merge-on-read", DELTA | {Check.REFERENCED_FILES_NOT_DELETED, Check.NO_NEW_DELETES}),
        ("merge", "merge-on-read", DELTA | {Check.REFERENCED_FILES_NOT_DELETED, Check.NO_NEW_DELETES}),
        ("overwrite", "copy-on-write", OVERWRITE | {Check.NO_NEW_DELETES, Check.NO_REMOVED_DATA}),
        ("replace_partitions", "copy-on-write", OVERWRITE | {Check.NO_NEW_DELETES, Check.NO_REMOVED_DATA}),
    ],
)
def test_serializable_adds_the_check_for_new_matching_data(command: Command, mode: Mode, checks: set[Check]) -> None:
    assert required_checks(command, mode, SNAPSHOT) == checks
    assert required_checks(command, mode, SERIALIZABLE) == checks | {Check.NO_NEW_DATA}
    assert required_checks(command, mode) == checks | {Check.NO_NEW_DATA}


@pytest.mark.parametrize("isolation", [None, SNAPSHOT, SERIALIZABLE])
def test_appends_and_rewrites_ignore_isolation(isolation: IsolationLevel | None) -> None:
    assert required_checks("append", isolation=isolation) == set()
    assert required_checks("rewrite", isolation=isolation) == REWRITE


def test_an_overwrite_without_isolation_ignores_concurrent_rows() -> None:
    assert required_checks("overwrite", isolation=None) == OVERWRITE
