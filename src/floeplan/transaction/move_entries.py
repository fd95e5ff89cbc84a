"""Entries filed elsewhere: a ``replace`` snapshot whose manifests change and whose files do not.

Rule: which manifests go, and which come in their place, is decided on the head of the branch, and again on every newer
head. Each file is carried over as EXISTING with the snapshot id, the sequence numbers and, in format 3, the first row
id it had: engines that later expire snapshots see no file removed.

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
from floeplan.metadata.manifests.entries import Content, EntriesTable, Status
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    ManifestListTable,
)
from floeplan.metadata.manifests.new_entries import with_status
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.filter_manifests import Filtered, entry_keys
from floeplan.transaction.manifests import TableShape
from floeplan.transaction.producer import SnapshotProducer
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class EntryMove:
    """Manifests that go, and what comes in their place.

    Attributes:
        replaced: Rows of the manifest list.
        before: The live entries of those manifests, whole.
        after: The entries of each new manifest, all of one spec and one kind.
    """

    replaced: Ints
    before: EntriesTable
    after: Sequence[EntriesTable]


Decide: TypeAlias = Callable[[SnapshotReader], EntryMove | None]
"""What to do on a head; ``None`` when there is nothing to do."""


class NothingToMoveError(FloeplanError):
    """The newest head is as it should be."""

    kind = "nothing-to-do"
    safe_to_clean = True


def move_entries(
    table: Table,
    decide: Decide,
    *,
    branch: str = MAIN_BRANCH,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> CommitResult | None:
    """Commit what is decided on the newest head of a branch; ``None`` when that is nothing.

    Raises:
        CommitConflictError: Other writers were faster every time.
        CommitStateUnknownError: It may have been committed.
    """
    change = SnapshotChange(Operation.REPLACE, merge_manifests=False, summary=summary or {})
    try:
        return commit_change(
            table,
            change,
            branch=branch,
            options=options or CommitOptions(),
            producer=partial(MoveProducer, decide=decide),
        )
    except NothingToMoveError:
        return None


def _nothing(_: SnapshotReader) -> EntryMove | None:
    return None


@dataclass(slots=True)
class MoveProducer(SnapshotProducer):
    """Produces the snapshot of a refiling."""

    decide: Decide = _nothing

    def _filtered(
        self,
        listed: ManifestListTable,
        new: dict[int, list[ManifestListTable]],
        shape: TableShape,
        head: Snapshot | None,
    ) -> tuple[Filtered, Filtered]:
        """The manifests that stay; those that come are added to ``new``."""
        refiling = self.decide(SnapshotReader(shape.metadata, head, listed, shape.union, self.io))
        if refiling is None:
            raise NothingToMoveError("no entry is to be filed elsewhere")
        _check(refiling)
        for content in (DATA, DELETES):
            after = [_as_existing(entries) for entries in refiling.after if _kind(entries) == content]
            new[content] = self._writer.write_existing_data_manifest(after, shape, content)
        staying = listed.take(np.setdiff1d(np.arange(len(listed)), refiling.replaced))
        return SnapshotProducer._filtered(self, staying, new, shape, head)


def _kind(entries: EntriesTable) -> int:
    return DATA if entries.content[0] == Content.DATA else DELETES


def _as_existing(entries: EntriesTable) -> EntriesTable:
    return with_status(entries, np.full(len(entries), Status.EXISTING), entries.ints("snapshot_id"))


def _check(refiling: EntryMove) -> None:
    """The same files before and after; only delete files may be listed under several partitions."""
    after = [entry_keys(entries) for entries in refiling.after]
    found = pa.concat_arrays(after) if after else pa.array([], pa.large_string())
    before = entry_keys(refiling.before)
    lost = before.filter(pc.invert(pc.is_in(before, value_set=found)))
    strange = found.filter(pc.invert(pc.is_in(found, value_set=before)))
    data = sum(int(np.count_nonzero(entries.content == Content.DATA)) for entries in refiling.after)
    expected = int(np.count_nonzero(refiling.before.content == Content.DATA))
    if len(lost) or len(strange) or data != expected:
        example = next((key for keys in (lost, strange) for key in keys.to_pylist()), "").partition("\0")[0]
        raise CorruptMetadataError(
            f"refiling would lose {len(lost)} files, invent {len(strange)} and turn {expected} data files into {data}; "
            f"nothing was changed {example}".rstrip(),
            context={"file": example, "lost": len(lost), "invented": len(strange)},
        )
