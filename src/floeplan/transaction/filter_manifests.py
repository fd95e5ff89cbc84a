"""Removing files from the manifests of a snapshot.

Rule: a manifest without a removed file is listed unchanged. One with removed files is rewritten: the removed entries
become DELETED by this snapshot, the others EXISTING with their snapshot id and sequence numbers, and entries that
earlier snapshots deleted are left out. Manifests without live files are no longer listed.

Few manifests are read: first those the removed files were planned from, then those whose partition summaries admit
their spec and partition, then all. A manifest never changes, so its result is kept by path; when the snapshot is
produced again on a newer head, only new manifests are read.

Fail-safe: each step only orders the search. A file that no manifest holds is reported as missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import UnknownType

from floeplan.metadata.manifests.entries import (
    WHOLE,
    EntriesTable,
    EntryColumns,
    Status,
    carried_over,
    concat_entries,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import UNKNOWN, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.stats import manifest_stats
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import and_, or_
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, TRUE, Column, InList, IrExpr, IsNaN, IsNull
from floeplan.predicate.stats import to_mask
from floeplan.transaction.change import entry_keys
from floeplan.transaction.manifests import SnapshotManifests, TableShape
from floeplan.vectors import Ints, Mask

IDENTITY = EntryColumns(frozenset({"referenced_data_file", "content_offset"}), partition=False)
"""Columns that identify a file, and the data file of a deletion vector."""

_WHOLE = EntryColumns(WHOLE)
_Rewritten: TypeAlias = tuple[ManifestListTable, EntriesTable]
"""A rewritten manifest, and the entries that were removed from it."""


@dataclass(frozen=True, slots=True)
class FilesToRemove:
    """Files to remove from manifests of one content.

    Attributes:
        keys: Their ``entry_keys``.
        hints: What is known of them: entries with spec and partition, possibly not of all files.
        vectors_of: Removed data files, whose deletion vectors are removed too.
        older_than: Delete files with a smaller sequence number no longer apply to any data; 0 if all may.
    """

    keys: pa.Array
    hints: EntriesTable
    vectors_of: EntriesTable
    older_than: int = 0

    def hits(self, entries: EntriesTable) -> Mask:
        """The live entries to remove."""
        found = to_mask(pc.is_in(entry_keys(entries), value_set=self.keys))
        if len(self.vectors_of):
            is_vector = to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
            target = to_mask(pc.is_in(entries.array("referenced_data_file"), value_set=self.vectors_of.path))
            found |= is_vector & target
        return np.asarray(found & (entries.status != Status.DELETED))

    def candidates(self, manifests: ManifestListTable, union: UnionPartitionType, missing: pa.Array) -> Mask:
        """The manifests that may hold missing files, or deletion vectors of removed data files."""
        keys = entry_keys(self.hints)
        if not to_mask(pc.is_in(missing, value_set=keys)).all():
            return np.ones(len(manifests), dtype=np.bool_)
        sought = self.hints.filter(to_mask(pc.is_in(keys, value_set=missing)))
        return may_hold(manifests, union, sought) | may_hold(manifests, union, self.vectors_of)


@dataclass(frozen=True, slots=True)
class Filtered:
    """Manifests without the removed files.

    Attributes:
        manifests: The manifests to list, in order.
        removed: The removed entries, with their old status.
        missing: Keys of files that no manifest holds.
    """

    manifests: ManifestListTable
    removed: EntriesTable
    missing: pa.Array


@dataclass(slots=True)
class ManifestFilter:
    """Removes files from manifests of one content, again for every newer head.

    ``known`` keeps the result for a manifest by path (``None`` when it stays unchanged), for each state of the table
    that the result depends on.
    """

    writer: SnapshotManifests
    known: dict[tuple[object, ...], dict[str, _Rewritten | None]] = field(default_factory=dict)

    def apply(
        self, manifests: ManifestListTable, removing: FilesToRemove, shape: TableShape, first: pa.Array
    ) -> Filtered:
        """Remove files; ``first`` names the manifests that probably hold them."""
        keys = tuple(removing.keys.to_pylist())  # which deletes are dangling depends on the head
        depends_on = keys, removing.older_than, tuple(removing.vectors_of.path.to_pylist()), shape.key
        search = _Search(self.writer, self.known.setdefault(depends_on, {}), manifests, removing, shape)
        live = live_manifests(manifests)
        if len(removing.keys) or len(removing.vectors_of):
            likely = to_mask(pc.is_in(manifests.path, value_set=first))
            search.search_in(np.flatnonzero(live & likely), _WHOLE)
            candidates = removing.candidates(manifests, shape.union, search.missing())
            search.search_in(np.flatnonzero(live & candidates), IDENTITY)
        if shape.metadata.format_version > 1:
            # Manifests of format 1 may lack file or row counts, which later formats require.
            names = (f"{status.name.lower()}_{what}" for status in Status for what in ("files", "rows"))
            uncounted = np.logical_or.reduce([getattr(manifests, name) == UNKNOWN for name in names])
            search.rewrite(np.setdiff1d(np.flatnonzero(uncounted), list(search.rewritten())))
        # List the live manifests, with rewritten ones in place of the originals.
        rewritten, order = search.rewritten(), np.arange(len(manifests))
        order[list(rewritten)] = len(manifests) + np.arange(len(rewritten))
        listed = concat_manifest_lists([manifests, *(row for row, _ in rewritten.values())]).take(order[live])
        removed = concat_entries([removed for _, removed in rewritten.values()], shape.union)
        return Filtered(listed, removed, search.missing())


@dataclass(slots=True)
class _Search:
    """One search through the manifests of a head; ``found`` has the results by row of the list."""

    writer: SnapshotManifests
    known: dict[str, _Rewritten | None]
    manifests: ManifestListTable
    removing: FilesToRemove
    shape: TableShape
    found: dict[int, _Rewritten | None] = field(default_factory=dict)

    def search_in(self, rows: Ints, columns: EntryColumns) -> None:
        """Search these manifests for removed files, and rewrite those that hold some.

        Args:
            rows: The manifests.
            columns: What to read: all columns where files are probably found.
        """
        unread, unseen = [], np.setdiff1d(rows, list(self.found))
        for row, path in zip(unseen.tolist(), self.manifests.path.take(pa.array(unseen)).to_pylist(), strict=True):
            if path in self.known:  # an earlier attempt has read it
                self.found[row] = self.known[path]
            else:
                unread.append(row)
        if not unread:
            return
        entries = self._read(np.array(unread), columns)
        hit = np.unique(entries.ints("manifest")[self.removing.hits(entries)])
        for row in np.setdiff1d(unread, hit).tolist():
            self._remember(row, None)
        self.rewrite(hit, entries if columns is _WHOLE else None)

    def rewrite(self, rows: Ints, entries: EntriesTable | None = None) -> None:
        """Rewrite these manifests, whose whole entries are read when not given, without the removed files."""
        if not len(rows):
            return
        if entries is None:
            entries = self._read(rows, _WHOLE)
        # A delete applies only to rows with a smaller or equal sequence number: those older than all data are dropped.
        number = entries.sequence_number
        outdated = (number > 0) & (number < self.removing.older_than) & (entries.status != Status.DELETED)
        gone = self.removing.hits(entries) | outdated
        manifest = entries.ints("manifest")
        kept, removed = list[EntriesTable](), list[EntriesTable]()
        for row in rows.tolist():
            rows_of_manifest = np.arange(*np.searchsorted(manifest, [row, row + 1]))
            own = entries.take(rows_of_manifest)
            kept.append(carried_over(own, gone[rows_of_manifest], self.writer.snapshot_id))
            removed.append(own.filter(gone[rows_of_manifest]))
        specs, content = self.manifests.spec_id[rows].tolist(), int(self.manifests.content[0])
        manifests = [(own, spec_id, content) for own, spec_id in zip(kept, specs, strict=True)]
        written = self.writer.write_each(manifests, self.shape)
        for row, result in zip(rows.tolist(), zip(written, removed, strict=True), strict=True):
            self._remember(row, result)

    def _read(self, rows: Ints, columns: EntryColumns) -> EntriesTable:
        return read_entries(self.manifests, self.shape.union, columns, rows=rows, io=self.writer.io)

    def _remember(self, row: int, result: _Rewritten | None) -> None:
        self.found[row] = self.known[self.manifests.path[row].as_py()] = result

    def rewritten(self) -> dict[int, _Rewritten]:
        """The rewritten manifests by row of the list, ascending."""
        return {row: result for row, result in sorted(self.found.items(), key=itemgetter(0)) if result is not None}

    def missing(self) -> pa.Array:
        """The keys that were not found so far."""
        keys = self.removing.keys
        found = pa.concat_arrays([keys.slice(0, 0), *(entry_keys(removed) for _, removed in self.rewritten().values())])
        return keys.filter(pc.invert(pc.is_in(keys, value_set=found)))


def live_manifests(manifests: ManifestListTable) -> Mask:
    """Manifests with live files, or without counts."""
    return np.asarray((manifests.added_files != 0) | (manifests.existing_files != 0))


def may_hold(manifests: ManifestListTable, union: UnionPartitionType, files: EntriesTable) -> Mask:
    """Manifests whose spec and partition summaries admit one of the files."""
    found = np.zeros(len(manifests), dtype=np.bool_)
    if not len(files):
        return found
    stats = manifest_stats(manifests, union.fields)
    for spec_id in np.unique(files.spec_id).tolist():
        of_spec = files.filter(files.spec_id == spec_id)
        # Each partition field has one of the values it has in these files; a missing column may have any.
        admitted: IrExpr = TRUE
        for bound in union.spec(spec_id).fields:
            name = partition_column(bound.column.field_id)
            if not bound.is_void and name in of_spec:
                admitted = and_(admitted, _one_of(bound.column, of_spec.array(name)))
        found |= (manifests.spec_id == spec_id) & evaluate(admitted, stats).may_true
    return found


def _one_of(column: Column, values: pa.Array) -> IrExpr:
    """The column has one of these partition values."""
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
