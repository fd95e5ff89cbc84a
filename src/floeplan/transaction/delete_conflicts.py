"""Which delete files of others apply to the data files that a change removes.

Rule: a delete that names one data file meets that file and no other. Any other delete meets the files that the delete
index says; for that it takes their partitions, which the change tells or the snapshot it was planned on.

Fail-safe: statistics are not asked, so that every newer delete in the partition of a data file, or in none, meets it;
a data file of which nothing is known is met by all.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest import read_entries
from floeplan.metadata.manifest_list import DATA, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.predicate.stats import to_mask
from floeplan.predicate.tristate import Mask
from floeplan.scan.deletes import match, read_deletes
from floeplan.transaction.situation import Situation


def among(paths: pa.Array, wanted: Collection[str]) -> Mask:
    """Which of the paths are among the wanted ones."""
    return to_mask(pc.is_in(paths, value_set=pa.array(sorted(wanted), pa.large_string())))


def deletes_meeting(situation: Situation, deletes: EntriesTable) -> Mask:
    """Which delete files, all newer than the starting snapshot, apply to a data file that the change removes."""
    paths = situation.change.removed_data
    targets = deletes.delete_targets()
    found = among(targets, paths)
    others = np.flatnonzero(~to_mask(targets.is_valid()))
    if len(others) and paths:
        found[others] = _meet(situation, deletes.take(others), _removed_entries(situation))
    return found


def _meet(situation: Situation, deletes: EntriesTable, data: EntriesTable | None) -> Mask:
    found = np.full(len(deletes), data is None)
    if data is not None:
        classified = read_deletes(lambda _: deletes, situation.union)
        sources = source_types(situation.metadata.schema(), situation.metadata.schemas)
        found[match(data, classified, situation.union, sources).deletes] = True
    return found


def _removed_entries(situation: Situation) -> EntriesTable | None:
    """The entries of the removed data files as far as matching needs them; ``None`` when nobody knows them."""
    paths, known = situation.change.removed_data, situation.change.removed_entries
    if known is not None and paths <= set(known.path.to_pylist()):
        return known.filter(among(known.path, paths))
    start = situation.validation.starting_snapshot_id
    snapshot = None if start is None else situation.metadata.snapshot_by_id(start)
    if snapshot is None:
        return None
    manifests = read_manifest_list(snapshot.manifest_list, situation.io)
    rows = np.flatnonzero(manifests.content == DATA)
    columns = EntryColumns(frozenset())
    entries = read_entries(manifests, situation.union, columns, rows=rows, io=situation.io).live()
    return entries.filter(among(entries.path, paths))
