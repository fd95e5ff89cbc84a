"""Deletes that other writers added to replaced files, carried over to the new files in the same commit.

============================  =========================================================================================
a newer delete                what becomes of it
============================  =========================================================================================
position delete, vector       its positions go through the compaction map onto the new files: as deletion vectors in
                              format 3, as position delete files in format 2
equality, whole table         still meets the rows: they keep the age they had when the rewrite was planned
equality, one partition       the same, if the new files are in the partition of the old ones
============================  =========================================================================================

Fail-safe: a delete that cannot be carried over refuses its group and no other: an equality delete of a partition that
rows leave or come to, or any equality delete when new files are not to keep the age of the old ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.errors import CommitConflictError
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import (
    POSITION_DELETE_PATH,
    EntriesTable,
    EntryColumns,
    Status,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.run.group_task import GroupResult
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.model import PlannedFiles
from floeplan.snapshot.deletes import ScanDeletes, match
from floeplan.transaction.filter_manifests import entry_keys
from floeplan.transaction.history import Committed, committed_entries, snapshots_since
from floeplan.transaction.producer import delete_file_id
from floeplan.vectors import Ints
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

# What other writers did to a branch since a rewrite was planned, as far as it concerns the files that are replaced.
#
# Rule: a data file that left the table cannot be replaced any more. A delete file counts if it was added since and is
# still there; a file that was taken out and put in again by one commit is there.
#
# Fail-safe: a history that does not reach the snapshot of the plan cannot be judged and is a conflict.


_DATA = EntryColumns(frozenset({"snapshot_id"}), partition=False)
_DELETES = EntryColumns(
    frozenset(
        {
            "snapshot_id",
            "equality_ids",
            "referenced_data_file",
            "content_offset",
            "content_size_in_bytes",
            "key_metadata",
        }
    ),
    stats=frozenset({POSITION_DELETE_PATH}),
)


@dataclass(frozen=True, slots=True)
class Since:
    """What happened up to a head.

    Attributes:
        table: The table with that head.
        head: The head's snapshot id.
        removed_data: Paths of data files that left the table.
        removed_deletes: Delete files that did.
        deletes: Delete files that came.
    """

    table: Table
    head: int | None
    removed_data: pa.Array
    removed_deletes: frozenset[DeleteFileId]
    deletes: ScanDeletes

    @classmethod
    def of(cls, table: Table, head: int | None, start: int | None) -> Since:
        """What happened between two snapshots of a branch.

        Raises:
            CommitConflictError: The history of the head does not reach the start.
        """
        union = UnionPartitionType.of_table(table.metadata)
        snapshots = snapshots_since(table.metadata, head, start)
        data = committed_entries(snapshots, DATA, union, _DATA, table.io).entries
        deletes = committed_entries(snapshots, DELETES, union, _DELETES, table.io)
        came, left = _latest(deletes)
        return cls(
            table=table,
            head=head,
            removed_data=data.path.filter(pa.array(data.status == Status.DELETED)),
            removed_deletes=frozenset(map(delete_file_id, left.to_pylist())),
            deletes=ScanDeletes.of(came, union),
        )


def _latest(deletes: Committed) -> tuple[EntriesTable, pa.Array]:
    """The delete files that are there and were not, and the keys of those that left; snapshots count newest first."""
    entries, snapshot = deletes.entries, deletes.snapshot
    keys = entry_keys(entries)
    code = np.asarray(keys.dictionary_encode().indices, dtype=np.int64)
    count = int(code.max(initial=-1)) + 1
    newest = {status: np.full(count, len(deletes.snapshots), dtype=np.int64) for status in Status}
    for status in Status:
        of_status = entries.status == status
        np.minimum.at(newest[status], code[of_status], snapshot[of_status])
    there = newest[Status.ADDED] <= newest[Status.DELETED]
    is_newest = (entries.status == Status.ADDED) & (snapshot == newest[Status.ADDED][code])
    left = (entries.status == Status.DELETED) & ~there[code]
    return entries.filter(is_newest & there[code]), pc.unique(keys.filter(pa.array(left)))


def is_among(values: pa.Array, wanted: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which values are among the wanted ones."""
    return to_mask(pc.is_in(values, value_set=wanted.cast(values.type)))


# ---

_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)
_OF_ONE_FILE = (DeleteKind.POSITION_FILE, DeleteKind.VECTOR)
_FIRST_WITH_VECTORS = 3
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Carried:
    """Deletes of others for some groups.

    Attributes:
        positions: Rows to delete of new files, by path.
        replaced: Newer delete files that served a replaced file alone.
    """

    positions: dict[str, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    replaced: set[DeleteFileId] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """How many rows they delete."""
        return sum(len(part) for parts in self.positions.values() for part in parts)

    def add(self, other: Carried) -> None:
        """Take in what was found for another group."""
        for path, parts in other.positions.items():
            self.positions[path] += parts
        self.replaced |= other.replaced

    def write(self, target: WriteTarget, added: EntriesTable, token: str) -> EntriesTable | None:
        """Write them as deletes of the new files; their entries."""
        if not self.positions:
            return None
        files = added.filter(is_among(added.path, pa.array(sorted(self.positions), pa.large_string())))
        positions = [merge_positions(*self.positions[path]) for path in files.path.to_pylist()]
        vectors = target.format_version >= _FIRST_WITH_VECTORS
        write = write_deletion_vectors if vectors else write_position_deletes
        return write(target, files, positions, file_name_token=token)


@dataclass(frozen=True, slots=True)
class DeleteCarrier:
    """Carries the deletes of others over to the new files of groups.

    Attributes:
        since: What others did.
        keeps_age: Whether new files have the sequence number of the snapshot the plan was made on.
        files: The files of the plan with the deletes that others added.
        met: The row of each file that has any, by path.
    """

    since: Since
    keeps_age: bool
    files: PlannedFiles
    met: Mapping[str, int]

    @classmethod
    def of(cls, planned: PlannedFiles, since: Since, *, keeps_age: bool) -> DeleteCarrier:
        """For the files of a plan: deletes are matched with all of them at once."""
        deletes = since.deletes
        matches = _match(planned.entries, since)
        files = replace(planned, deletes=deletes.entries, delete_kinds=deletes.kinds, matches=matches)
        rows = np.flatnonzero(matches.counts)
        paths = planned.entries.path.take(pa.array(rows)).to_pylist()
        return cls(since, keeps_age, files, dict(zip(paths, rows.tolist(), strict=True)))

    def carry(self, group: GroupResult, added: EntriesTable) -> Carried:
        """What becomes of newer deletes of the group's files; ``added`` are its new files with their age.

        Raises:
            CommitConflictError: One of them cannot be carried over.
        """
        found = Carried()
        if not len(self.files.deletes):
            return found
        rows = [self.met[path] for path in group.removed_data if path in self.met]
        self._refuse_equality(group, rows, added)
        reader = DeleteFileReader(self.since.table.io)
        for row in rows:
            file = self.files[row]
            for delete in file.deletes:
                if delete.kind in _EQUALITY:
                    continue
                if delete.kind in _OF_ONE_FILE:
                    found.replaced.add(DeleteFileId(delete.path, delete.content_offset))
                for target, moved in group.position_map.remap(file.path, reader.positions(delete, file.path)).items():
                    found.positions[target].append(moved)
        return found

    def _refuse_equality(self, group: GroupResult, rows: Sequence[int], added: EntriesTable) -> None:
        """Equality deletes that would miss rows they meet now, or meet rows they miss now."""
        kinds = self.files.delete_kinds
        before = np.concatenate([self.files.matches.of(row) for row in rows] or [_NONE])
        if not self.keeps_age:
            wrong = before[np.isin(kinds[before], _EQUALITY)]
        elif (kinds == DeleteKind.EQUALITY_PARTITION).any() and not self._stays(group, added):
            concerned = np.union1d(before, _match(added, self.since).deletes)
            wrong = concerned[kinds[concerned] == DeleteKind.EQUALITY_PARTITION]
        else:
            return
        if len(wrong):
            path = self.files.deletes.path[int(wrong[0])].as_py()
            raise CommitConflictError(
                f"equality delete {path} was added for files that are being rewritten and cannot be carried over; "
                "run the rewrite again",
                context={"file": path},
            )

    def _stays(self, group: GroupResult, added: EntriesTable) -> bool:
        """Whether new files are in the partition of the old ones."""
        entries = self.files.entries
        old = entries.filter(is_among(entries.path, pa.array(group.removed_data, pa.large_string())))
        return _places(old) == _places(added)


def _match(data: EntriesTable, since: Since) -> DeleteMatches:
    metadata = since.table.metadata
    sources = source_types(metadata.schema(), metadata.schemas)
    return match(data, since.deletes, UnionPartitionType.of_table(metadata), sources)


def _places(files: EntriesTable) -> set[tuple[object, ...]]:
    """The specs and partition tuples files are in."""
    names = ["spec_id", *(partition_column(key) for key in files.partition_types)]
    return set(zip(*(files.array(name).to_pylist() for name in names), strict=True))
