"""Moving manifest entries: a ``replace`` snapshot that changes manifests and leaves every file in place.

Rule: which manifests are replaced, and by which entries, is decided on the newest head of the branch, again for every
attempt. Each entry stays EXISTING with its snapshot id, its sequence numbers and, in format 3, its first row id, so
that an engine that later expires snapshots sees no file removed.

Fail-safe: a decision that would lose a file, or list a data file twice, is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import CorruptMetadataError, FloeplanError
from floeplan.metadata.manifests.entries import Content, EntriesTable, Status, with_status
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, ManifestListTable
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import Operation, SnapshotChange, entry_keys
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.filter_manifests import Filtered
from floeplan.transaction.manifests import TableShape
from floeplan.transaction.producer import ManifestsByContent, SnapshotProducer
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class EntryMove:
    """Manifests to replace, and the entries of the new ones.

    Attributes:
        replaced: Rows of the manifest list.
        before: The live entries of those manifests, with all columns.
        after: The entries of each new manifest, all of one spec and one content.
    """

    replaced: Ints
    before: EntriesTable
    after: Sequence[EntriesTable]


DecideMove: TypeAlias = Callable[[SnapshotReader], EntryMove | None]
"""Chooses what to move on a head; ``None`` when nothing has to move."""


class _NothingToMoveError(FloeplanError):
    """The head needs no move (any more): earlier attempts wrote manifests that no snapshot refers to."""

    default_kind = "nothing-to-do"
    default_safe_to_clean = True


def move_entries(
    table: Table,
    decide: DecideMove,
    *,
    branch: str = MAIN_BRANCH,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> CommitResult | None:
    """Commit the move that ``decide`` chooses on the newest head of a branch; ``None`` when there is none.

    Raises:
        CommitConflictError: Other writers committed first at every attempt.
        CommitStateUnknownError: The move may have been committed.
    """
    change = SnapshotChange(Operation.REPLACE, merge_manifests=False, summary=summary or {})
    producer = partial(_MoveProducer, decide=decide)
    try:
        return commit_change(table, change, branch=branch, options=options or CommitOptions(), producer=producer)
    except _NothingToMoveError:
        return None


@dataclass(slots=True)
class _MoveProducer(SnapshotProducer):
    """Produces a snapshot with moved entries; the change itself neither adds nor removes files."""

    decide: DecideMove = lambda _: None

    def _filtered(
        self, listed: ManifestListTable, new: ManifestsByContent, shape: TableShape, head: Snapshot | None
    ) -> tuple[Filtered, Filtered]:
        """Write the new manifests into ``new`` and return those that stay."""
        move = self.decide(SnapshotReader(shape.metadata, head, listed, shape.union, self.io))
        if move is None:
            raise _NothingToMoveError("no manifest entry has to move")
        _check_same_files(move)
        for content in (DATA, DELETES):
            moved = [part for part in move.after if (part.content[0] == Content.DATA) == (content == DATA)]
            after = [with_status(part, np.full(len(part), Status.EXISTING), part.ints("snapshot_id")) for part in moved]
            new[content] = self._writer.write_existing_data_manifest(after, shape, content)
        staying = listed.take(np.setdiff1d(np.arange(len(listed)), move.replaced))
        return SnapshotProducer._filtered(self, staying, new, shape, head)


def _check_same_files(move: EntryMove) -> None:
    """Refuse a move that loses or invents files; only delete files may be listed under several partitions."""
    after = [entry_keys(entries) for entries in move.after]
    found = pa.concat_arrays(after) if after else pa.array([], pa.large_string())
    before = entry_keys(move.before)
    lost = before.filter(pc.invert(pc.is_in(before, value_set=found)))
    unknown = found.filter(pc.invert(pc.is_in(found, value_set=before)))
    data = sum(int(np.count_nonzero(entries.content == Content.DATA)) for entries in move.after)
    expected = int(np.count_nonzero(move.before.content == Content.DATA))
    if len(lost) or len(unknown) or data != expected:
        example = next((key for keys in (lost, unknown) for key in keys.to_pylist()), "").partition("\0")[0]
        raise CorruptMetadataError(
            f"moving entries would lose {len(lost)} files, add {len(unknown)} unknown files and list {data} data files "
            f"instead of {expected}; nothing was changed {example}".rstrip(),
            context={"file": example, "lost": len(lost), "invented": len(unknown)},
        )
