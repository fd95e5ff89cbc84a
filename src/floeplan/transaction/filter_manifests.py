"""Removing files from the manifests of a snapshot.

Rule: a manifest without a removed file is listed unchanged. One with removed files is rewritten: the removed entries
become DELETED by this snapshot, the others EXISTING with their snapshot id and sequence numbers, and entries that
earlier snapshots deleted are left out. Manifests without live files are no longer listed.

Few manifests are read: first those the removed files were planned from, then those whose partition summaries admit
their spec and partition, then all. A manifest never changes, so its result is kept by path; when the snapshot is
produced again on a newer head, only new manifests are read.

Fail-safe: each step only says where to look first. A file that no manifest holds is reported as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import and_, or_
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, TRUE, InList, IrExpr, IsNaN, IsNull
from floeplan.predicate.stats import to_mask
from floeplan.transaction.change import SnapshotChange
from floeplan.transaction.manifests import SnapshotManifests, TableShape
from floeplan.vectors import Ints, Mask

_SEPARATOR = pa.scalar("\0", pa.large_string())
IDENTITY = EntryColumns(frozenset({"referenced_data_file", "content_offset"}), partition=False)
"""Columns that identify a file, and the data file of a deletion vector."""


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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not len(self.keys) and not len(self.vectors_of)

    @property
    def vector_paths(self) -> tuple[str, ...]:
        """The data files whose deletion vectors are removed."""
        return tuple(self.vectors_of.path.to_pylist())

    def hits(self, entries: EntriesTable) -> Mask:
        """The live entries to remove."""
        found = to_mask(pc.is_in(entry_keys(entries), value_set=self.keys))
        if len(self.vectors_of):
            is_vector = to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
            target = to_mask(pc.is_in(entries.array("referenced_data_file"), value_set=self.vectors_of.path))
            found |= is_vector & target
        return np.asarray(found & (entries.status != Status.DELETED))

    def outdated(self, entries: EntriesTable) -> Mask:
        """Delete files older than all data: a delete applies only to rows with a smaller or equal sequence number."""
        number = entries.sequence_number
        return np.asarray((number > 0) & (number < self.older_than) & (entries.status != Status.DELETED))

    def candidates(self, manifests: ManifestListTable, union: UnionPartitionType, missing: pa.Array) -> Mask:
        """The manifests that may hold missing files, or deletion vectors of removed data files."""
        keys = entry_keys(self.hints)
        if not to_mask(pc.is_in(missing, value_set=keys)).all():
            return np.ones(len(manifests), dtype=np.bool_)
        sought = self.hints.filter(to_mask(pc.is_in(keys, value_set=missing)))
        return may_hold(manifests, union, sought) | may_hold(manifests, union, self.vectors_of)


def removed_keys(change: SnapshotChange) -> tuple[pa.Array, pa.Array]:
    """The keys of the data files and of the delete files that a change removes."""
    deletes = list(change.removed_deletes)
    offsets = pa.array([file.content_offset for file in deletes], pa.int64())
    nowhere = pa.nulls(len(change.removed_data), pa.int64())
    return _keys(list(change.removed_data), nowhere), _keys([file.path for file in deletes], offsets)


def _keys(paths: pa.Array | Sequence[str], offsets: pa.Array) -> pa.Array:
    named = pa.array(paths, pa.large_string())
    return pc.binary_join_element_wise(named, offsets.cast(pa.large_string()).fill_null(""), _SEPARATOR)


def entry_keys(entries: EntriesTable) -> pa.Array:
    """The identity of files: the path and, for a deletion vector, its offset."""
    nowhere = pa.nulls(len(entries), pa.int64())
    return _keys(entries.path, entries.array("content_offset") if "content_offset" in entries else nowhere)


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
        tuples = _among(files.filter(files.spec_id == spec_id), union.spec(spec_id).fields)
        found |= (manifests.spec_id == spec_id) & evaluate(tuples, stats).may_true
    return found


def _among(files: EntriesTable, fields: tuple[BoundField, ...]) -> IrExpr:
    """Each field has one of the values it has in these files; a missing column may have any."""
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
    """The rows of these manifests in the list."""
    return np.flatnonzero(to_mask(pc.is_in(manifests.path, value_set=paths)))


_WHOLE = EntryColumns(WHOLE)


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


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The result for one manifest: its row in the list, and the removed entries; ``None`` when it stays unchanged."""

    row: ManifestListTable | None
    removed: EntriesTable | None


_UNTOUCHED = _Rewritten(None, None)


@dataclass(slots=True)
class ManifestFilter:
    """Removes files from manifests of one content, again for every newer head.

    ``known`` keeps the result for a manifest by path, for each state of the table that the result depends on.
    """

    writer: SnapshotManifests
    known: dict[tuple[object, ...], dict[str, _Rewritten]] = field(default_factory=dict)

    def apply(
        self, manifests: ManifestListTable, removing: FilesToRemove, shape: TableShape, first: pa.Array
    ) -> Filtered:
        """Remove files; ``first`` names the manifests that probably hold them."""
        depends_on = removing.older_than, removing.vector_paths, shape.key
        search = _Search(self.writer, self.known.setdefault(depends_on, {}), manifests, removing, shape)
        live = live_manifests(manifests)
        if not removing.is_empty:
            likely = np.intersect1d(rows_of_paths(manifests, first), np.flatnonzero(live))
            search.search_in(likely, _WHOLE)
            candidates = removing.candidates(manifests, shape.union, search.missing())
            search.search_in(np.flatnonzero(live & candidates), IDENTITY)
        if shape.metadata.format_version > 1:
            search.rewrite(np.setdiff1d(np.flatnonzero(_uncounted(manifests)), search.rewritten_rows()))
        rows = {row: written for row in search.rewritten_rows() if (written := search.found[row].row) is not None}
        return Filtered(_replaced(manifests, live, rows), search.removed(), search.missing())


@dataclass(slots=True)
class _Search:
    """One search through the manifests of a head; ``found`` has the results by row of the list."""

    writer: SnapshotManifests
    known: dict[str, _Rewritten]
    manifests: ManifestListTable
    removing: FilesToRemove
    shape: TableShape
    found: dict[int, _Rewritten] = field(default_factory=dict)

    def search_in(self, rows: Ints, columns: EntryColumns) -> None:
        """Search these manifests for removed files, and rewrite those that hold some.

        Args:
            rows: The manifests.
            columns: What to read: all columns where files are probably found.
        """
        unread = self._unread(rows)
        if not len(unread):
            return
        entries = self._read(unread, columns)
        hit = np.unique(entries.ints("manifest")[self.removing.hits(entries)])
        for row in np.setdiff1d(unread, hit).tolist():
            self._remember(row, _UNTOUCHED)
        if columns is _WHOLE:
            self._write(hit, entries)
        else:
            self.rewrite(hit)

    def rewrite(self, rows: Ints) -> None:
        """Rewrite these manifests without the removed files."""
        if len(rows):
            self._write(rows, self._read(rows, _WHOLE))

    def _write(self, rows: Ints, entries: EntriesTable) -> None:
        gone = self.removing.hits(entries) | self.removing.outdated(entries)
        manifest = entries.ints("manifest")
        again, removed = list[EntriesTable](), list[EntriesTable]()
        for row in rows.tolist():
            rows_of_manifest = np.arange(*np.searchsorted(manifest, [row, row + 1]))
            own = entries.take(rows_of_manifest)
            again.append(carried_over(own, gone[rows_of_manifest], self.writer.snapshot_id))
            removed.append(own.filter(gone[rows_of_manifest]))
        for row, manifest_row, without in zip(rows.tolist(), self._written(rows, again), removed, strict=True):
            self._remember(row, _Rewritten(manifest_row, without))

    def _written(self, rows: Ints, again: list[EntriesTable]) -> list[ManifestListTable]:
        """The rewritten manifests; some hold nothing but DELETED entries."""
        content = int(self.manifests.content[0])
        specs = self.manifests.spec_id[rows].tolist()
        over = [len(entries) > 0 and bool((entries.status == Status.DELETED).all()) for entries in again]
        emptied = [entries for entries, nothing_left in zip(again, over, strict=True) if nothing_left]
        others = [(e, s, content) for e, s, nothing_left in zip(again, specs, over, strict=True) if not nothing_left]
        gone = iter(self.writer.write_deleted_data_manifest(emptied, self.shape, content))
        rest = iter(self.writer.write_each(others, self.shape))
        return [next(gone if nothing_left else rest) for nothing_left in over]

    def _unread(self, rows: Ints) -> Ints:
        """The rows that neither this search nor an earlier attempt has read, ascending."""
        unseen = np.setdiff1d(rows, list(self.found))
        paths = self.manifests.path.take(pa.array(unseen)).to_pylist()
        known = {row: self.known.get(path) for row, path in zip(unseen.tolist(), paths, strict=True)}
        self.found |= {row: found for row, found in known.items() if found is not None}
        return np.array([row for row, found in known.items() if found is None], dtype=np.int64)

    def _read(self, rows: Ints, columns: EntryColumns) -> EntriesTable:
        return read_entries(self.manifests, self.shape.union, columns, rows=rows, io=self.writer.io)

    def rewritten_rows(self) -> list[int]:
        """The rows whose manifest was rewritten."""
        return sorted(row for row, found in self.found.items() if found.row is not None)

    def removed(self) -> EntriesTable:
        """The entries that were removed so far."""
        return concat_entries(self._removed_parts(), self.shape.union)

    def missing(self) -> pa.Array:
        """The keys that were not found so far."""
        removing = self.removing.keys
        found = pa.concat_arrays([removing.slice(0, 0), *map(entry_keys, self._removed_parts())])
        return removing.filter(pc.invert(pc.is_in(removing, value_set=found)))

    def _removed_parts(self) -> list[EntriesTable]:
        parts = [self.found[row].removed for row in self.rewritten_rows()]
        return [part for part in parts if part is not None]

    def _remember(self, row: int, found: _Rewritten) -> None:
        self.found[row] = self.known[self.manifests.path[row].as_py()] = found


def _uncounted(manifests: ManifestListTable) -> Mask:
    """Manifests of format 1 without file or row counts, which later formats require."""
    names = (f"{status.name.lower()}_{what}" for status in Status for what in ("files", "rows"))
    return np.asarray(np.logical_or.reduce([getattr(manifests, name) == UNKNOWN for name in names]))


def _replaced(manifests: ManifestListTable, live: Mask, changed: dict[int, ManifestListTable]) -> ManifestListTable:
    """The live manifests, with rewritten ones in place of the originals."""
    order = np.arange(len(manifests))
    order[list(changed)] = len(manifests) + np.arange(len(changed))
    return concat_manifest_lists([manifests, *changed.values()]).take(order[live])


def hinted_manifests(planned: ManifestListTable | None, hints: EntriesTable) -> pa.Array:
    """The manifests that hints were planned from."""
    if planned is None or "manifest" not in hints:
        return pa.array([], pa.large_string())
    rows = np.unique(hints.ints("manifest"))
    return planned.path.take(pa.array(rows[(rows >= 0) & (rows < len(planned))]))
