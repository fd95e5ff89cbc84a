"""Which delete files apply to given data files, when only the paths of those are known.

Rule: a delete that names one data file meets that file and no other. Any other delete meets the files that the delete
index says, and for that the entries of the data files are read from the snapshot the change was planned on.

Fail-safe: statistics are not asked, so that every newer delete in the partition of a data file, or in none, meets it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest import read_entries
from floeplan.metadata.manifest_list import DATA, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.predicate.tristate import Mask
from floeplan.scan.deletes import match, read_deletes


def among(paths: pa.Array, wanted: Collection[str]) -> Mask:
    """Which of the paths are among the wanted ones."""
    return to_mask(pc.is_in(paths, value_set=pa.array(sorted(wanted), pa.large_string())))


def deletes_meeting(
    deletes: EntriesTable,
    paths: frozenset[str],
    metadata: TableMetadata,
    snapshot_id: int | None,
    union: UnionPartitionType,
    io: FileIO,
) -> Mask:
    """Which delete files apply to one of the data files.

    Args:
        deletes: Delete files, all newer than the data files.
        paths: The data files.
        metadata: The table.
        snapshot_id: A snapshot that has the data files; without one, deletes that name no file meet them all.
        union: The partition fields of the table's specs.
        io: Where the table's files are.
    """
    targets = deletes.delete_targets()
    found = among(targets, paths)
    others = np.flatnonzero(~to_mask(targets.is_valid()))
    if len(others) and paths:
        found[others] = _meet(
            deletes.take(others), _entries_of(paths, metadata, snapshot_id, union, io), metadata, union
        )
    return found


def _meet(deletes: EntriesTable, data: EntriesTable | None, metadata: TableMetadata, union: UnionPartitionType) -> Mask:
    found = np.full(len(deletes), data is None)
    if data is not None:
        classified = read_deletes(lambda _: deletes, union)
        matched = match(data, classified, union, source_types(metadata.schema(), metadata.schemas))
        found[matched.deletes] = True
    return found


def _entries_of(
    paths: frozenset[str], metadata: TableMetadata, snapshot_id: int | None, union: UnionPartitionType, io: FileIO
) -> EntriesTable | None:
    """The entries of the data files, without statistics; ``None`` when it is not known where to look."""
    snapshot = None if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return None
    manifests = read_manifest_list(snapshot.manifest_list, io)
    rows = np.flatnonzero(manifests.content == DATA)
    entries = read_entries(manifests, union, EntryColumns(frozenset()), rows=rows, io=io).live()
    return entries.filter(among(entries.path, paths))
