"""Incremental scans: the files that appends added, or the files whose rows changed, between two snapshots.

Rule: the history is the chain of parents from the last snapshot down to the first, exclusive. *Appends* are the data
files that append snapshots added, even if they were removed later. *Changes* compare every snapshot with its parent,
file by file: rows of an added file are inserted, rows of a removed file are deleted, and in a file whose deletes
changed, exactly the rows that became deleted or live. REPLACE snapshots do not change rows and are skipped.

Fail-safe: a chain that does not reach the first snapshot is an error; guessing would lose or repeat rows. Rows are
read with the table's current schema.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from floeplan.errors import BadInputError
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.entries import EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import PredicateSource, compile_predicate
from floeplan.predicate.ir import TRUE
from floeplan.predicate.stats import to_mask
from floeplan.scan.model import FileScan, PlannedFiles, ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.planned_scan import Totals, summarise
from floeplan.scan.projection import PartitionNames
from floeplan.scan.scan_plan import ScanPlan
from floeplan.snapshot.passes import Predicate, ScanDeletes, evaluate_files, evaluate_manifests, match
from floeplan.snapshot.reader import ScanTarget, read_manifest_lists, resolve_target, select
from floeplan.vectors import Mask

_NAMES = frozenset({"key_metadata", "first_row_id", "sort_order_id", "snapshot_id"})


def snapshots_between(table: Table, after: int | None, until: int | None) -> list[Snapshot]:
    """The snapshots after one, up to and including another (the current one when not given), oldest first.

    Without ``after`` the chain goes back to the beginning.
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
    if at != after:
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
    """Plan the rows that append snapshots added after one snapshot, up to and including another."""
    started = time.perf_counter()
    chain = snapshots_between(table, after, until)
    schema = table.schema()
    target = ScanTarget(table, chain[-1] if chain else None, schema)
    compiled = compile_predicate(TRUE if where is None else where, schema)
    projected = schema if columns is None else select(schema, columns)
    union = UnionPartitionType.of_table(table.metadata)
    predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), union)
    manifests = _added_manifests(table, [snapshot for snapshot in chain if _is_append(snapshot)])
    keep = evaluate_manifests(predicate, manifests).tri.keep
    entry_columns = EntryColumns(_NAMES, stats=frozenset(predicate.columns))
    entries = EntriesCache().read_entries(manifests, union, entry_columns, rows=np.flatnonzero(keep), io=table.io)
    evaluated = evaluate_files(predicate, entries.filter(entries.status == Status.ADDED))
    residuals, codes = evaluated.residuals(compiled.predicate)
    deletes = ScanDeletes.none(union)
    files = PlannedFiles(
        entries=evaluated.entries,
        states=evaluated.states,
        residuals=residuals,
        residual_of=codes,
        deletes=deletes.entries,
        delete_kinds=deletes.kinds,
        matches=match(evaluated.entries, deletes, union, source_types(schema, table.metadata.schemas)),
        row_groups={},
        names=PartitionNames(union, evaluated.entries.partition_types),
    )
    totals = Totals(target, manifests, keep, union, compiled, None, False, None)
    summary = summarise(totals, files, (time.perf_counter() - started) * 1000)
    return ScanPlan(target, compiled, projected, files, summary, totals, (), ())


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _added_manifests(table: Table, snapshots: Sequence[Snapshot]) -> ManifestListTable:
    """The data manifests that each snapshot wrote itself."""
    found = [ManifestListTable.empty()]
    for snapshot, listed in zip(snapshots, read_manifest_lists(snapshots, table.io), strict=True):
        found.append(
            listed.take(np.flatnonzero((listed.content == DATA) & (listed.added_snapshot_id == snapshot.snapshot_id)))
        )
    return concat_manifest_lists(found)


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
    """The files whose rows changed after one snapshot, up to and including another, in commit order."""
    chain = [s for s in snapshots_between(table, after, until) if not _is_replace(s)]
    changes: list[FileChange] = []
    for ordinal, snapshot in enumerate(chain):
        old, new = (_files_at(table, at, where) for at in (snapshot.parent_snapshot_id, snapshot.snapshot_id))
        for before, after_ in _changed(old, new):
            changes.append(FileChange(ordinal, snapshot.snapshot_id, before, after_))
    return changes


def _is_replace(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _files_at(table: Table, snapshot_id: int | None, where: PredicateSource | None) -> PlannedFiles:
    """The files of a snapshot, planned with the current schema."""
    metadata = table.metadata.model_copy(update={"current_snapshot_id": snapshot_id})
    past = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)
    return plan_scan(past, where, options=ScanOptions(footers=False, report=False)).files


def _changed(old: PlannedFiles, new: PlannedFiles) -> Iterator[tuple[FileScan | None, FileScan | None]]:
    went = ~to_mask(pc.is_in(old.entries.path, value_set=new.entries.path))
    came = ~to_mask(pc.is_in(new.entries.path, value_set=old.entries.path))
    yield from ((old[int(row)], None) for row in np.flatnonzero(went))
    yield from ((None, new[int(row)]) for row in np.flatnonzero(came))
    stayed = pc.index_in(new.entries.path, value_set=old.entries.path)
    for row in np.flatnonzero(~came & _maybe_other_deletes(old, new, stayed)):
        before, after = old[stayed[int(row)].as_py()], new[int(row)]
        if before.deletes != after.deletes:
            yield before, after


def _maybe_other_deletes(old: PlannedFiles, new: PlannedFiles, stayed: pa.Array) -> Mask:
    """Files with deletes before or after; only these can differ."""
    was = np.append(old.matches.counts, 0)[stayed.fill_null(len(old)).to_numpy(zero_copy_only=False)]
    return np.asarray((was > 0) | (new.matches.counts > 0))
