"""The target of a command: table, branch, write mode and isolation level.

Rule: arguments override table properties, which override Iceberg's defaults (copy-on-write, serializable). Format 1 has
no delete files, so its rows are always changed by copy-on-write.

Fail-safe: a read-only table, a tag and a missing branch are refused before anything is read.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from floeplan.catalog import load_table, refreshed, require_writable
from floeplan.errors import BadInputError, InvalidOptionError, UnknownSnapshotError
from floeplan.transaction.change import IsolationLevel
from floeplan.write.target import other_format

_log = logging.getLogger(__name__)

Choice = TypeVar("Choice", bound=StrEnum)


class Mode(StrEnum):
    """How rows are changed: by rewriting their files, or by delete files."""

    COPY_ON_WRITE = "copy-on-write"
    MERGE_ON_READ = "merge-on-read"


class Command(StrEnum):
    """The DML command."""

    APPEND = "append"
    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class DmlTarget:
    """A table, the head of the branch to change, and how to change it."""

    table: Table
    branch: str
    snapshot: Snapshot | None
    command: Command
    mode: Mode
    isolation: IsolationLevel
    trust_lists: bool = False
    """Whether to change rows even when the manifest list may be truncated."""
    allow_late_equality_deletes: bool = False
    """Whether to move rows out of a spec that has a live writer of equality deletes."""

    @property
    def snapshot_id(self) -> int | None:
        """The head of the branch; ``None`` for an empty table."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    @property
    def schema(self) -> Schema:
        """The current schema; rows are read and written in it."""
        return self.table.schema()

    @property
    def ref(self) -> str | None:
        """The branch as a scan names it; a new table has no main branch yet."""
        return None if self.branch == MAIN_BRANCH else self.branch

    @property
    def copies(self) -> bool:
        """Whether changed files are rewritten."""
        return self.mode is Mode.COPY_ON_WRITE


def resolve(
    table: Table | str | os.PathLike[str],
    command: Command,
    *,
    branch: str | None = None,
    mode: Mode | str | None = None,
    isolation: IsolationLevel | str | None = None,
    trust_lists: bool = False,
    allow_late_equality_deletes: bool = False,
    catalog: str | Catalog | None = None,
) -> DmlTarget:
    """Load the newest table and resolve branch, mode and isolation level."""
    found = load_table(table, catalog)
    require_writable(found)
    if isinstance(table, Table):  # one that is loaded by its name is the newest
        found = refreshed(found)
    name = branch or MAIN_BRANCH
    ref = found.metadata.refs.get(name)
    if ref is None and name != MAIN_BRANCH:
        known = ", ".join(sorted(n for n, r in found.refs().items() if r.snapshot_ref_type is SnapshotRefType.BRANCH))
        raise UnknownSnapshotError(
            f"table has no branch {name}; it has: {known or 'none'}; create it first", context={"branch": name}
        )
    if ref is not None and ref.snapshot_ref_type is SnapshotRefType.TAG:
        raise BadInputError(f"{name} is a tag, and tags do not change; write to a branch", context={"ref": name})
    properties, row_level = found.properties, Command.DELETE if command is Command.OVERWRITE else command
    chosen = _choose(Mode, mode, properties.get(f"write.{row_level}.mode"), Mode.COPY_ON_WRITE)
    if found.metadata.format_version == 1:
        if mode is not None and chosen is Mode.MERGE_ON_READ:
            raise InvalidOptionError("format version 1 has no delete files; use copy-on-write or upgrade the table")
        chosen = Mode.COPY_ON_WRITE
    level = properties.get(f"write.{row_level}.isolation-level")
    if (warning := other_format(properties, found.schema())) is not None:
        _log.warning("%s", warning)
    return DmlTarget(
        table=found,
        branch=name,
        snapshot=found.current_snapshot() if ref is None else found.snapshot_by_id(ref.snapshot_id),
        command=command,
        mode=chosen,
        isolation=_choose(IsolationLevel, isolation, level, IsolationLevel.SERIALIZABLE),
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
    )


def _choose(kind: type[Choice], argument: str | None, of_table: str | None, default: Choice) -> Choice:
    text = argument if argument is not None else of_table
    if text is None:
        return default
    try:
        return kind(str(text).lower())
    except ValueError:
        known = " or ".join(choice.value for choice in kind)
        raise InvalidOptionError(f"{text!r} is not one of {known}", context={"value": str(text)}) from None
