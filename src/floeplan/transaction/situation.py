"""A change in front of the table it is to be applied to: what every check is asked about."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from floeplan.metadata.entries import EntriesTable
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.scan.passes import Predicate
from floeplan.transaction.change import SnapshotChange, Validation

VECTOR = "PUFFIN"
"""The file format of deletion vectors."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A change, and the table it is to be applied to.

    Attributes:
        metadata: The table as it is now.
        head: The snapshot the change would follow.
        change: What is to be committed.
        validation: What must not have happened.
        union: The partition fields of the table's specs.
        io: Where the table's files are.
        judged: A snapshot up to which an earlier attempt found nothing against the change.
    """

    metadata: TableMetadata
    head: int | None
    change: SnapshotChange
    validation: Validation
    union: UnionPartitionType
    io: FileIO
    judged: int | None = None

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        head: int | None,
        change: SnapshotChange,
        validation: Validation,
        io: FileIO,
        judged: int | None = None,
    ) -> Situation:
        """The situation of a change on a branch whose newest snapshot is ``head``."""
        return cls(metadata, head, change, validation, UnionPartitionType.of_table(metadata), io, judged)

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
