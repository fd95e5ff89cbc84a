"""Which manifests hold the files that a snapshot removes, found with as few reads as can be.

Rule: a manifest that cannot hold a removed file is not read. What is known of the removed files is used in turn: the
manifests they were planned from, then the partition summaries against their spec and tuple, then nothing but the paths.
Fail-safe: each step only says where to look first; a file not found there is looked for in all manifests that the next
step leaves, and a file found nowhere is reported as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import UnknownType

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entries import EntriesTable, Status
from floeplan.metadata.entry_columns import EntryColumns, partition_column
from floeplan.metadata.manifest_list import ManifestListTable
from floeplan.metadata.stats import manifest_stats
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import and_, or_
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, TRUE, InList, IrExpr, IsNaN, IsNull
from floeplan.predicate.stats import to_mask
from floeplan.transaction.change import SnapshotChange

_BETWEEN = pa.scalar("\0", pa.large_string())
IDENTITY = EntryColumns(frozenset({"referenced_data_file", "content_offset"}), partition=False)
"""What tells files apart, and tells which data file a deletion vector belongs to."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files to be removed from the manifests of one kind.

    Attributes:
        keys: What ``entry_keys`` gives for them.
        hints: What is known of them: entries with spec and tuple; may lack some of them, or all.
        vectors_of: Removed data files whose deletion vectors go with them.
        older_than: Delete files with a smaller sequence number delete nothing any more; 0 if all may.
    """

    keys: pa.Array
    hints: EntriesTable
    vectors_of: EntriesTable
    older_than: int = 0

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to look for."""
        return not len(self.keys) and not len(self.vectors_of)

    @property
    def vector_paths(self) -> tuple[str, ...]:
        """The data files whose deletion vectors go."""
        return tuple(self.vectors_of.path.to_pylist())

    def hits(self, entries: EntriesTable) -> Mask:
        """The live entries that are to be removed."""
        found = to_mask(pc.is_in(entry_keys(entries), value_set=self.keys))
        if len(self.vectors_of):
            is_vector = to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
            target = to_mask(pc.is_in(entries.array("referenced_data_file"), value_set=self.vectors_of.path))
            found |= is_vector & target
        return np.asarray(found & (entries.status != Status.DELETED))

    def outdated(self, entries: EntriesTable) -> Mask:
        """Delete files that are older than all data."""
        age = entries.sequence_number
        return np.asarray((age > 0) & (age < self.older_than) & (entries.status != Status.DELETED))

    def candidates(self, manifests: ManifestListTable, union: UnionPartitionType, missing: pa.Array) -> Mask:
        """The manifests that may hold what is missing, or vectors of removed data files."""
        keys = entry_keys(self.hints)
        if not to_mask(pc.is_in(missing, value_set=keys)).all():
            return np.ones(len(manifests), dtype=np.bool_)
        sought = self.hints.filter(to_mask(pc.is_in(keys, value_set=missing)))
        return may_hold(manifests, union, sought) | may_hold(manifests, union, self.vectors_of)


def wanted_keys(change: SnapshotChange) -> tuple[pa.Array, pa.Array]:
    """The keys of the data files and of the delete files that a change removes."""
    deletes = list(change.removed_deletes)
    offsets = pa.array([file.content_offset for file in deletes], pa.int64())
    nowhere = pa.nulls(len(change.removed_data), pa.int64())
    return _keys(list(change.removed_data), nowhere), _keys([file.path for file in deletes], offsets)


def _keys(paths: pa.Array | Sequence[str], offsets: pa.Array) -> pa.Array:
    named = pa.array(paths, pa.large_string())
    return pc.binary_join_element_wise(named, offsets.cast(pa.large_string()).fill_null(""), _BETWEEN)


def entry_keys(entries: EntriesTable) -> pa.Array:
    """Path and, of a deletion vector, its offset: what tells files apart."""
    nowhere = pa.nulls(len(entries), pa.int64())
    return _keys(entries.path, entries.array("content_offset") if "content_offset" in entries else nowhere)


def live_manifests(manifests: ManifestListTable) -> Mask:
    """Manifests with files that are not deleted, or of which it is not known."""
    return np.asarray((manifests.added_files != 0) | (manifests.existing_files != 0))


def may_hold(manifests: ManifestListTable, union: UnionPartitionType, files: EntriesTable) -> Mask:
    """Manifests whose partition summaries admit one of the files, by spec and by every field of the tuple."""
    found = np.zeros(len(manifests), dtype=np.bool_)
    if not len(files):
        return found
    stats = manifest_stats(manifests, union.fields)
    for spec_id in np.unique(files.spec_id).tolist():
        tuples = _among(files.filter(files.spec_id == spec_id), union.spec(spec_id).fields)
        found |= (manifests.spec_id == spec_id) & evaluate(tuples, stats).may_true
    return found


def _among(files: EntriesTable, fields: tuple[BoundField, ...]) -> IrExpr:
    """Every field has one of the values it has in these files; a column that is not there may have any."""
    known = [f for f in fields if not f.is_void and partition_column(f.column.field_id) in files]
    return and_(*(_one_of(f, files.array(partition_column(f.column.field_id))) for f in known)) if known else TRUE


def _one_of(field: BoundField, values: pa.Array) -> IrExpr:
    column = field.column
    if isinstance(column.type, UnknownType):
        return TRUE
    distinct = pc.unique(values)
    plain = distinct.drop_null()
    special: list[IrExpr] = [IsNull(column)] if distinct.null_count else []
    if pa.types.is_floating(plain.type):
        nan = pc.is_nan(plain)
        special += [IsNaN(column)] if pc.any(nan).as_py() else []
        plain = plain.filter(pc.invert(nan))
    listed = tuple(from_physical(column.type, value) for value in plain.to_pylist())
    return or_(*special, InList(column, listed) if listed else FALSE)


def rows_of_paths(manifests: ManifestListTable, paths: pa.Array) -> Ints:
    """The rows of the list that name one of these manifests."""
    return np.flatnonzero(to_mask(pc.is_in(manifests.path, value_set=paths)))
