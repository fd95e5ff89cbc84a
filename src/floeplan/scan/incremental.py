"""Incremental scans: the files that appends added, or the files whose rows changed, between two snapshots.

Rule: the history is the chain of parents from the last snapshot down to the first, exclusive. *Appends* are the data
files that append snapshots added, even if they were removed later. *Changes* compare every snapshot with its parent,
file by file: rows of an added file are inserted, rows of a removed file are deleted, and in a file whose deletes
changed, exactly the rows that became deleted or live. REPLACE snapshots do not change rows and are skipped.

Without a first snapshot both start with all rows of the oldest snapshot that is left. For a table whose snapshots never
expired these are the rows of its first append; otherwise they include the rows of the expired snapshots.

Fail-safe: a chain that does not reach the first snapshot is an error; guessing would lose or repeat rows. Rows are
read with the table's current schema.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from floeplan.errors import BadInputError
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.entries import EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE
from floeplan.predicate.stats import to_mask
from floeplan.scan.model import FileScan, PlannedFiles, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan, planned_files
from floeplan.scan.planned_scan import Totals, summarise
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import ScanDeletes, evaluate_files, evaluate_manifests
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, read_manifest_lists, resolve_target, select

_NAMES = frozenset({"key_metadata", "first_row_id", "sort_order_id", "snapshot_id"})


def snapshots_between(table: Table, after: int | None, until: int | None) -> list[Snapshot]:
    """The snapshots after one, up to and including another (the current one when not given), oldest first.

    Without ``after`` the chain goes back to the oldest snapshot that has not expired.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    last = table.metadata.current_snapshot_id if until is None else until
    if last is not None and last not in known:
        resolve_target(table, snapshot_id=last)
    chain: list[Snapshot] = []
    at = last
    while at is not None and at != after and at in known:
        chain.append(known[at])
        at = known[at].parent_snapshot_id
    # An expired parent stays in the metadata with some engines, and is removed from it with others.
    if at != after and after is not None:
        raise BadInputError(
            f"snapshot {after} is not an ancestor of snapshot {last}, or the snapshots between them have expired; "
            "start from a snapshot that `floeplan inspect` lists",
            context={"from_snapshot": after, "to_snapshot": last},
        )
    return chain[::-1]


def plan_appends(
    table: Table,
    after: int | None,
    until: int | None = None,
    where: PredicateSource | None = None,
    columns: Sequence[str] | None = None,
) -> ScanPlan:
    """Plan the rows that append snapshots added after one snapshot, up to and including another.

    Without ``after``, all rows of the oldest snapshot come first.
    """
    started = time.perf_counter()
    chain = snapshots_between(table, after, until)
    schema = table.schema()
    target = ScanTarget(table, chain[-1] if chain else None, schema)
    compiled = compile_predicate(TRUE if where is None else where, schema)
    projected = schema if columns is None else select(schema, columns)
    union = UnionPartitionType.of_table(table.metadata)
    predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), union)
    # All data manifests of the oldest snapshot, then those that each append snapshot wrote itself.
    oldest = chain[:1] if after is None else []
    appends = [s for s in chain[len(oldest) :] if s.summary is not None and s.summary.operation is Operation.APPEND]
    chosen = [*oldest, *appends]
    lists = read_manifest_lists(chosen, table.io, table_location=table.metadata.location)
    listed = [ManifestListTable.empty()]
    for snapshot, list_ in zip(chosen, lists, strict=True):
        own = snapshot in oldest or list_.added_snapshot_id == snapshot.snapshot_id
        listed.append(list_.take(np.flatnonzero((list_.content == DATA) & own)))
    manifests = concat_manifest_lists(listed)
    # Deletes of the oldest snapshot; by their sequence numbers they apply to no file that was appended later.
    deletes = SnapshotReader.open(table, oldest[0]).deletes() if oldest else ScanDeletes.none(union)
    keep = evaluate_manifests(predicate, manifests).tri.keep
    entry_columns = EntryColumns(_NAMES, stats=frozenset(predicate.columns) | deletes.key_columns)
    entries = EntriesCache().read_entries(manifests, union, entry_columns, rows=np.flatnonzero(keep), io=table.io)
    in_oldest = entries.ints("manifest") < (len(listed[1]) if oldest else 0)
    wanted = np.where(in_oldest, entries.status != Status.DELETED, entries.status == Status.ADDED)
    evaluated = evaluate_files(predicate, entries.filter(wanted))
    files = planned_files(target, predicate, evaluated, deletes, {})
    totals = Totals(target, manifests, keep, union, compiled, None, False, None)
    summary = summarise(totals, files, (time.perf_counter() - started) * 1000)
    return ScanPlan(target, compiled, projected, files, summary, totals, (), ())


@dataclass(frozen=True, slots=True)
class FileChange:
    """A data file before and after a snapshot; ``None`` where it did not exist."""

    ordinal: int
    snapshot_id: int
    before: FileScan | None
    after: FileScan | None


def plan_changes(
    table: Table, after: int | None, until: int | None = None, where: PredicateSource | None = None
) -> list[FileChange]:
    """The files whose rows changed after one snapshot, up to and including another, in commit order.

    Without ``after``, all rows of the oldest snapshot are inserted first.
    """
    changes: list[FileChange] = []
    chain = snapshots_between(table, after, until)
    oldest = chain[:1] if after is None else []
    # A replace snapshot has the same rows in other files.
    changing = [s for s in chain if s.summary is None or s.summary.operation is not Operation.REPLACE or s in oldest]
    for ordinal, snapshot in enumerate(changing):
        files = []
        for at in (None if snapshot in oldest else snapshot.parent_snapshot_id, snapshot.snapshot_id):
            # As the current snapshot of a copy of the table, it is planned with the current schema.
            metadata = table.metadata.model_copy(update={"current_snapshot_id": at})
            past = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)
            files.append(plan_scan(past, where, options=ScanOptions(footers=False, report=False)).files)
        for before, after_ in _changed(*files):
            changes.append(FileChange(ordinal, snapshot.snapshot_id, before, after_))
    return changes


def _changed(old: PlannedFiles, new: PlannedFiles) -> Iterator[tuple[FileScan | None, FileScan | None]]:
    """Each file that was removed, added, or whose deletes changed: before and after."""
    went = ~to_mask(pc.is_in(old.entries.path, value_set=new.entries.path))
    came = ~to_mask(pc.is_in(new.entries.path, value_set=old.entries.path))
    yield from ((old[int(row)], None) for row in np.flatnonzero(went))
    yield from ((None, new[int(row)]) for row in np.flatnonzero(came))
    # Of the files that stayed, only those with deletes before or after can differ.
    stayed = pc.index_in(new.entries.path, value_set=old.entries.path)
    had = np.append(old.matches.counts, 0)[stayed.fill_null(len(old)).to_numpy(zero_copy_only=False)]
    for row in np.flatnonzero(~came & ((had > 0) | (new.matches.counts > 0))):
        before, after = old[stayed[int(row)].as_py()], new[int(row)]
        if before.deletes != after.deletes:
            yield before, after
