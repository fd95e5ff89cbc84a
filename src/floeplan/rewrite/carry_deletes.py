"""Carrying over deletes that other writers added to replaced files, in the commit that replaces them.

============================  =========================================================================================
a concurrent delete           how it is carried over
============================  =========================================================================================
position delete, vector       its positions are mapped to the new files: as deletion vectors in format 3, as position
                              delete files in format 2
equality, unpartitioned spec  still applies: new files keep the data sequence number of the planned snapshot
equality, one partition       the same, if the new files are in the partition of the old ones
============================  =========================================================================================

Fail-safe: a delete that cannot be carried over fails its group and no other: an equality delete of a partition that
rows leave or enter, or any equality delete when new files do not keep the data sequence number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.errors import CommitConflictError
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Status, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.run.group import GroupResult
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.model import PlannedFiles
from floeplan.snapshot.passes import DELETE_COLUMNS, ScanDeletes, match
from floeplan.transaction.change import delete_file_id, entry_keys
from floeplan.transaction.validation import committed_entries, snapshots_since
from floeplan.vectors import Ints
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)
_OF_ONE_FILE = (DeleteKind.POSITION_FILE, DeleteKind.VECTOR)
_FIRST_WITH_VECTORS = 3
_DATA = EntryColumns(frozenset({"snapshot_id"}), partition=False)
_DELETES = replace(DELETE_COLUMNS, names=DELETE_COLUMNS.names | {"snapshot_id"})


@dataclass(frozen=True, slots=True)
class ConcurrentChanges:
    """What other writers committed since the plan, up to a head.

    A delete file counts if it was added since and still exists; one that a commit removes and adds again exists.

    Attributes:
        table: The table with that head.
        head: The head's snapshot id.
        removed_data: Paths of removed data files, which can no longer be replaced.
        removed_deletes: Removed delete files.
        deletes: Added delete files.
    """

    table: Table
    head: int | None
    removed_data: pa.Array
    removed_deletes: frozenset[DeleteFileId]
    deletes: ScanDeletes

    @classmethod
    def of(cls, table: Table, head: int | None, start: int | None) -> ConcurrentChanges:
        """What was committed between two snapshots of a branch.

        Raises:
            CommitConflictError: The history of the head does not reach the start.
        """
        union = UnionPartitionType.of_table(table.metadata)
        snapshots = snapshots_since(table.metadata, head, start)
        data = committed_entries(snapshots, DATA, table.metadata, _DATA, table.io).entries
        deletes = committed_entries(snapshots, DELETES, table.metadata, _DELETES, table.io)
        # The newest snapshot that added and that removed each delete file; snapshots are numbered newest first.
        entries, snapshot, keys = deletes.entries, deletes.snapshot, entry_keys(deletes.entries)
        code = np.asarray(keys.dictionary_encode().indices, dtype=np.int64)
        newest = dict[Status, Ints]()
        for status in (Status.ADDED, Status.DELETED):
            newest[status] = np.full(int(code.max(initial=-1)) + 1, len(deletes.snapshots), dtype=np.int64)
            of_status = entries.status == status
            np.minimum.at(newest[status], code[of_status], snapshot[of_status])
        there = (newest[Status.ADDED] <= newest[Status.DELETED])[code]
        is_newest = (entries.status == Status.ADDED) & (snapshot == newest[Status.ADDED][code])
        left = pc.unique(keys.filter(pa.array((entries.status == Status.DELETED) & ~there)))
        return cls(
            table=table,
            head=head,
            removed_data=data.path.filter(pa.array(data.status == Status.DELETED)),
            removed_deletes=frozenset(map(delete_file_id, left.to_pylist())),
            deletes=ScanDeletes.of(entries.filter(is_newest & there), union),
        )


@dataclass(slots=True)
class CarriedDeletes:
    """Concurrent deletes for some groups.

    Attributes:
        positions: Positions to delete in new files, by path.
        replaced: File-scoped delete files of replaced files, which the commit removes.
    """

    positions: dict[str, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    replaced: set[DeleteFileId] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Deleted rows."""
        return sum(len(part) for parts in self.positions.values() for part in parts)

    def add(self, other: CarriedDeletes) -> None:
        """Add the deletes of another group."""
        for path, parts in other.positions.items():
            self.positions[path] += parts
        self.replaced |= other.replaced

    def write(self, target: WriteTarget, added: EntriesTable, token: str) -> EntriesTable | None:
        """Write them as position deletes or deletion vectors of the new files; return their entries."""
        if not self.positions:
            return None
        files = files_at(added, self.positions)
        positions = [merge_positions(*self.positions[path]) for path in files.path.to_pylist()]
        vectors = target.format_version >= _FIRST_WITH_VECTORS
        write = write_deletion_vectors if vectors else write_position_deletes
        return write(target, files, positions, file_name_token=token)


@dataclass(frozen=True, slots=True)
class DeleteCarrier:
    """Carries concurrent deletes over to the new files of groups.

    Attributes:
        concurrent: What others committed.
        keeps_sequence_number: Whether new files have the data sequence number of the planned snapshot.
        files: The files of the plan with the deletes that others added.
        rows_with_deletes: The row of each file to which one of them applies, by path.
    """

    concurrent: ConcurrentChanges
    keeps_sequence_number: bool
    files: PlannedFiles
    rows_with_deletes: Mapping[str, int]

    @classmethod
    def of(cls, planned: PlannedFiles, concurrent: ConcurrentChanges, *, keeps_sequence_number: bool) -> DeleteCarrier:
        """Match concurrent deletes with all files of a plan at once."""
        deletes = concurrent.deletes
        matches = _match(planned.entries, concurrent)
        files = replace(planned, deletes=deletes.entries, delete_kinds=deletes.kinds, matches=matches)
        rows = np.flatnonzero(matches.counts)
        paths = planned.entries.path.take(pa.array(rows)).to_pylist()
        return cls(concurrent, keeps_sequence_number, files, dict(zip(paths, rows.tolist(), strict=True)))

    def carry(self, group: GroupResult, added: EntriesTable) -> CarriedDeletes:
        """Map concurrent deletes of the group's files; ``added`` are its new files with their data sequence number.

        Raises:
            CommitConflictError: One of them cannot be carried over.
        """
        found = CarriedDeletes()
        if not len(self.files.deletes):
            return found
        rows = [self.rows_with_deletes[path] for path in group.removed_data if path in self.rows_with_deletes]
        self._check_equality_deletes(group, rows, added)
        reader = DeleteFileReader(self.concurrent.table.io)
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

    def _check_equality_deletes(self, group: GroupResult, rows: Sequence[int], added: EntriesTable) -> None:
        """Refuse equality deletes that would apply to fewer or more rows after the rewrite."""
        kinds = self.files.delete_kinds
        before = np.concatenate([np.zeros(0, dtype=np.int64), *(self.files.matches.of(row) for row in rows)])
        if not self.keeps_sequence_number:
            wrong = before[np.isin(kinds[before], _EQUALITY)]
        elif (kinds == DeleteKind.EQUALITY_PARTITION).any() and (
            _partitions(files_at(self.files.entries, group.removed_data)) != _partitions(added)
        ):
            # New files are not in the partition of the old ones: deletes of either partition are concerned.
            concerned = np.union1d(before, _match(added, self.concurrent).deletes)
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


def files_at(entries: EntriesTable, paths: Iterable[str]) -> EntriesTable:
    """The entries of the files at some paths."""
    return entries.filter(to_mask(pc.is_in(entries.path, value_set=pa.array(sorted(paths), entries.path.type))))


def _match(data: EntriesTable, concurrent: ConcurrentChanges) -> DeleteMatches:
    metadata = concurrent.table.metadata
    sources = source_types(metadata.schema(), metadata.schemas)
    return match(data, concurrent.deletes, UnionPartitionType.of_table(metadata), sources)


def _partitions(files: EntriesTable) -> set[tuple[object, ...]]:
    """The specs and partition tuples of files."""
    names = ["spec_id", *(partition_column(key) for key in files.partition_types)]
    return set(zip(*(files.array(name).to_pylist() for name in names), strict=True))
