"""Delete files that apply to no data file: an upsert of new keys adds one with every commit.

Rule: a delete applies to older data only. An equality delete is dangling when its partition (the whole table for an
unpartitioned spec) has no data file with a smaller sequence number, a position delete when it has none that existed
when the delete was written. On request the bounds of equality keys decide too, which compares each delete with each
file, as planning a scan does. An equality delete that came after rows had left its spec, and whose keys may be among
older rows elsewhere, is kept: ``doctor`` counts and repairs the rows that it should have deleted.

Fail-safe: unknown keeps a delete. The decision is made on the head that the commit follows, and files that are added
later are never older than a delete that exists now.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.partition.fields import source_types
from floeplan.predicate.stats import to_mask
from floeplan.snapshot.passes import ScanDeletes, joint_partition_codes, match
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.equality_writers import came_late, spec_moves
from floeplan.transaction.filter_manifests import may_hold
from floeplan.vectors import Ints, Mask

_SHARED = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION, DeleteKind.POSITION_PARTITION)
_NEVER = 2**62
_WRITTEN = EntryColumns(frozenset({"file_sequence_number"}), partition=False)


def dangling_deletes(
    head: SnapshotReader, *, removed: pa.Array | None = None, added: EntriesTable | None = None, by_keys: bool = False
) -> EntriesTable:
    """The entries of delete files of several data files that apply to none of a head.

    Args:
        head: The snapshot.
        removed: Paths of data files that the commit removes.
        added: Data files that the commit adds, those that inherit its sequence number included.
        by_keys: Whether bounds of equality keys decide too. Without it a table without equality deletes costs nothing.
    """
    deletes = _shared_deletes(head, equality_only=not by_keys)
    if not len(deletes.entries):
        return deletes.entries
    # Only data that is as old as the newest of them, in their partitions, can keep them.
    manifests = head.manifests
    near = manifests.min_sequence_number <= deletes.entries.sequence_number.max()
    if not (deletes.kinds == DeleteKind.EQUALITY_GLOBAL).any():
        near &= may_hold(manifests, head.union, deletes.entries)
    stats = deletes.key_columns if by_keys else frozenset[int]()
    data = _without(removed, head.entries(head.manifest_rows(DATA, near), EntryColumns(_WRITTEN.names, stats=stats)))
    existed = np.maximum(data.sequence_number, data.ints("file_sequence_number", missing=0))
    applies, staying = _applies_by_age(head, data, existed, deletes), [data]
    if added is not None:
        # A rewritten file keeps its data sequence number, but no position delete can reference it yet.
        staying.append(added.filter(added.valid("sequence_number")))
        applies |= _applies_by_age(head, staying[1], np.full(len(staying[1]), _NEVER), deletes)
    if by_keys:
        rows = np.flatnonzero(applies & (deletes.kinds != DeleteKind.POSITION_PARTITION))
        older = ScanDeletes.of(deletes.entries.take(rows), head.union)
        sources = source_types(head.metadata.schema(), head.metadata.schemas)
        applies[rows] = False
        for files in staying:
            applies[rows[match(files, older, head.union, sources).deletes]] = True
    unused = np.flatnonzero(~applies & (deletes.kinds == DeleteKind.EQUALITY_PARTITION))
    if len(unused):
        applies[unused[_meant_for_moved_rows(head, deletes, unused, removed, staying[1:])]] = True
    # A delete file that is recorded in several partitions is removed from all of them, or from none.
    used = deletes.entries.path.filter(pa.array(applies))
    return deletes.entries.filter(~to_mask(pc.is_in(deletes.entries.path, value_set=used)))


def _meant_for_moved_rows(
    head: SnapshotReader, deletes: ScanDeletes, rows: Ints, removed: pa.Array | None, added: list[EntriesTable]
) -> Ints:
    """Those of some equality deletes that came late and may have keys of older rows in any partition."""
    late = np.flatnonzero(came_late(head, deletes.entries.take(rows), spec_moves(head)))
    if not len(late):
        return late
    meant = deletes.everywhere(rows[late])
    older = head.manifests.min_sequence_number < meant.entries.sequence_number.max()
    columns = EntryColumns(frozenset(), stats=deletes.key_columns)
    data = _without(removed, head.entries(head.manifest_rows(DATA, older), columns))
    sources = source_types(head.metadata.schema(), head.metadata.schemas)
    matches = [match(files, meant, head.union, sources).deletes for files in (data, *added)]
    return np.asarray(late[np.unique(np.concatenate(matches))])


def _without(removed: pa.Array | None, data: EntriesTable) -> EntriesTable:
    """Data files that the commit does not remove."""
    if removed is None:
        return data
    return data.filter(~to_mask(pc.is_in(data.path, value_set=removed.cast(data.path.type))))


def dangling_deletes_of_one_file(head: SnapshotReader) -> EntriesTable:
    """The entries of deletion vectors and file-scoped position deletes whose data file is not in the snapshot."""
    deletes = head.deletes()
    scoped = deletes.entries.filter(~np.isin(deletes.kinds, _SHARED))
    if not len(scoped):
        return scoped
    paths = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), partition=False)).path
    return scoped.filter(~to_mask(pc.is_in(scoped.delete_targets(), value_set=paths)))


def _shared_deletes(head: SnapshotReader, *, equality_only: bool) -> ScanDeletes:
    """The delete files of several data files; not read if equality deletes suffice and the summary excludes them."""
    summary = None if head.snapshot is None else head.snapshot.summary
    none_left = summary is not None and summary.additional_properties.get("total-equality-deletes") == "0"
    if none_left and (equality_only or head.metadata.format_version > 2):
        return ScanDeletes.none(head.union)  # position deletes of format 3 are deletion vectors
    deletes = head.deletes()
    return ScanDeletes.of(deletes.entries.filter(np.isin(deletes.kinds, _SHARED)), head.union)


def _when_written(head: SnapshotReader, deletes: ScanDeletes) -> Ints:
    """For each delete the sequence number of the snapshot that added the file; never, when that is unknown."""
    if not (deletes.kinds == DeleteKind.POSITION_PARTITION).any():
        return deletes.entries.sequence_number
    entries = head.entries(np.unique(deletes.entries.ints("manifest")), _WRITTEN)
    row = pc.index_in(deletes.entries.path, value_set=entries.path).to_numpy()
    return np.asarray(entries.ints("file_sequence_number", missing=_NEVER)[row])


def _applies_by_age(head: SnapshotReader, files: EntriesTable, existed: Ints, deletes: ScanDeletes) -> Mask:
    """Which deletes are newer than a data file of their partition; ``existed`` is since when each file was there."""
    codes = joint_partition_codes(head.union, files, deletes.entries)
    number, applies = deletes.entries.sequence_number, np.zeros(len(deletes.kinds), dtype=np.bool_)
    for kind, since, of_delete in (
        (DeleteKind.EQUALITY_GLOBAL, files.sequence_number, number - 1),
        (DeleteKind.EQUALITY_PARTITION, files.sequence_number, number - 1),
        (DeleteKind.POSITION_PARTITION, existed, np.maximum(number, _when_written(head, deletes))),
    ):
        of_kind = deletes.kinds == kind
        everywhere = kind is DeleteKind.EQUALITY_GLOBAL
        of_data, of_deletes = np.split(np.zeros_like(codes) if everywhere else codes, [len(files)])
        oldest = np.full(int(codes.max(initial=-1)) + 1, _NEVER, dtype=np.int64)
        np.minimum.at(oldest, of_data, since)
        applies[of_kind] = oldest[of_deletes[of_kind]] <= of_delete[of_kind]
    return applies
