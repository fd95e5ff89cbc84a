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

from floeplan.errors import CommitConflictError
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import partition_column
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.compaction_map import Ints
from floeplan.rewrite.since import Since, is_among
from floeplan.rewrite.work import GroupResult
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.deletes import match
from floeplan.scan.model import PlannedFiles
from floeplan.transaction.change import DeleteFileId
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

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
                for target, moved in group.moved.remap(file.path, reader.positions(delete, file.path)).items():
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
