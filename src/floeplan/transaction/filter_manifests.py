"""Taking removed files out of the manifests of a snapshot.

Rule: a manifest without a removed file stays as it is, under its name. One with removed files is written again: the
removed entries DELETED by this snapshot, the others EXISTING with the snapshot id and sequence numbers they had, and
entries that earlier snapshots deleted are gone. Manifests without live files are not listed any more.

Fail-safe: what was found in a manifest is remembered by its name. A manifest never changes, so when the snapshot is
produced again on a newer head only manifests that are new there are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import UnknownType

from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, Status, partition_column
from floeplan.metadata.manifests.manifest_list import UNKNOWN, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.new_entries import carried_over, concat_entries
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

# Which manifests hold the files that a snapshot removes, found with as few reads as can be.
#
# Rule: a manifest that cannot hold a removed file is not read. What is known of the removed files is used in turn: the
# manifests they were planned from, then the partition summaries against their spec and tuple, then nothing but the
# paths.
# Fail-safe: each step only says where to look first; a file not found there is looked for in all manifests that the
# next
# step leaves, and a file found nowhere is reported as missing.


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


def removed_keys(change: SnapshotChange) -> tuple[pa.Array, pa.Array]:
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


# ---

_WHOLE = EntryColumns(WHOLE)


@dataclass(frozen=True, slots=True)
class Filtered:
    """The manifests after the removal.

    Attributes:
        manifests: Those to list, in their order.
        removed: The entries that were removed, as they were.
        missing: Keys of files that no manifest holds.
    """

    manifests: ManifestListTable
    removed: EntriesTable
    missing: pa.Array


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """What became of one manifest; ``None`` for the row of the list if nothing was removed from it."""

    row: ManifestListTable | None
    removed: EntriesTable | None


_UNTOUCHED = _Rewritten(None, None)


@dataclass(slots=True)
class ManifestFilter:
    """Removes files from manifests of one kind, again and again on newer heads.

    ``known`` says what became of a manifest, by all that this depends on beside the change itself, then by location.
    """

    writer: SnapshotManifests
    known: dict[tuple[object, ...], dict[str, _Rewritten]] = field(default_factory=dict)

    def apply(self, manifests: ManifestListTable, wanted: Wanted, shape: TableShape, first: pa.Array) -> Filtered:
        """Remove what is wanted; ``first`` names the manifests where it is likely to be."""
        circumstances = wanted.older_than, wanted.vector_paths, shape.key
        visit = _Visit(self.writer, self.known.setdefault(circumstances, {}), manifests, wanted, shape)
        live = live_manifests(manifests)
        if not wanted.nothing:
            visit.look_into(np.intersect1d(rows_of_paths(manifests, first), np.flatnonzero(live)), _WHOLE)
            visit.look_into(np.flatnonzero(live & wanted.candidates(manifests, shape.union, visit.missing())), IDENTITY)
        if shape.metadata.format_version > 1:
            visit.rewrite(np.setdiff1d(np.flatnonzero(_uncounted(manifests)), visit.rewritten_rows()))
        rows = {row: written for row in visit.rewritten_rows() if (written := visit.found[row].row) is not None}
        return Filtered(_replaced(manifests, live, rows), visit.removed(), visit.missing())


@dataclass(slots=True)
class _Visit:
    """One search through the manifests of a head; ``found`` says what became of the rows that were looked into."""

    writer: SnapshotManifests
    known: dict[str, _Rewritten]
    manifests: ManifestListTable
    wanted: Wanted
    shape: TableShape
    found: dict[int, _Rewritten] = field(default_factory=dict)

    def look_into(self, rows: Ints, columns: EntryColumns) -> None:
        """Look for removed files in these manifests, and write those again that have some.

        Args:
            rows: The manifests.
            columns: What to read at once: everything where files are likely to be found.
        """
        unread = self._unread(rows)
        if not len(unread):
            return
        entries = self._read(unread, columns)
        hit = np.unique(entries.ints("manifest")[self.wanted.hits(entries)])
        for row in np.setdiff1d(unread, hit).tolist():
            self._remember(row, _UNTOUCHED)
        if columns is _WHOLE:
            self._write(hit, entries)
        else:
            self.rewrite(hit)

    def rewrite(self, rows: Ints) -> None:
        """Write these manifests again, without what is removed."""
        if len(rows):
            self._write(rows, self._read(rows, _WHOLE))

    def _write(self, rows: Ints, entries: EntriesTable) -> None:
        gone = self.wanted.hits(entries) | self.wanted.outdated(entries)
        manifest = entries.ints("manifest")
        again, removed = list[EntriesTable](), list[EntriesTable]()
        for row in rows.tolist():
            places = np.arange(*np.searchsorted(manifest, [row, row + 1]))
            here = entries.take(places)
            again.append(carried_over(here, gone[places], self.writer.snapshot_id))
            removed.append(here.filter(gone[places]))
        for row, manifest_row, without in zip(rows.tolist(), self._written(rows, again), removed, strict=True):
            self._remember(row, _Rewritten(manifest_row, without))

    def _written(self, rows: Ints, again: list[EntriesTable]) -> list[ManifestListTable]:
        """New manifests in the place of these; of some nothing is left but the word that it is gone."""
        content = int(self.manifests.content[0])
        specs = self.manifests.spec_id[rows].tolist()
        over = [len(entries) > 0 and bool((entries.status == Status.DELETED).all()) for entries in again]
        emptied = [entries for entries, nothing_left in zip(again, over, strict=True) if nothing_left]
        others = [(e, s, content) for e, s, nothing_left in zip(again, specs, over, strict=True) if not nothing_left]
        gone = iter(self.writer.write_deleted_data_manifest(emptied, self.shape, content))
        rest = iter(self.writer.write_each(others, self.shape))
        return [next(gone if nothing_left else rest) for nothing_left in over]

    def _unread(self, rows: Ints) -> Ints:
        """The rows that neither this visit nor an earlier attempt knows anything about, in rising order."""
        unseen = np.setdiff1d(rows, list(self.found))
        paths = self.manifests.path.take(pa.array(unseen)).to_pylist()
        known = {row: self.known.get(path) for row, path in zip(unseen.tolist(), paths, strict=True)}
        self.found |= {row: found for row, found in known.items() if found is not None}
        return np.array([row for row, found in known.items() if found is None], dtype=np.int64)

    def _read(self, rows: Ints, columns: EntryColumns) -> EntriesTable:
        return read_entries(self.manifests, self.shape.union, columns, rows=rows, io=self.writer.io)

    def rewritten_rows(self) -> list[int]:
        """The rows whose manifest was written again."""
        return sorted(row for row, found in self.found.items() if found.row is not None)

    def removed(self) -> EntriesTable:
        """The entries that were removed so far."""
        return concat_entries(self._removed_parts(), self.shape.union)

    def missing(self) -> pa.Array:
        """The keys that were not found so far."""
        wanted = self.wanted.keys
        found = pa.concat_arrays([wanted.slice(0, 0), *map(entry_keys, self._removed_parts())])
        return wanted.filter(pc.invert(pc.is_in(wanted, value_set=found)))

    def _removed_parts(self) -> list[EntriesTable]:
        parts = [self.found[row].removed for row in self.rewritten_rows()]
        return [part for part in parts if part is not None]

    def _remember(self, row: int, found: _Rewritten) -> None:
        self.found[row] = self.known[self.manifests.path[row].as_py()] = found


def _uncounted(manifests: ManifestListTable) -> Mask:
    """Manifests of format 1 that do not say how many files or rows they have: later formats demand it."""
    names = (f"{status.name.lower()}_{what}" for status in Status for what in ("files", "rows"))
    return np.asarray(np.logical_or.reduce([getattr(manifests, name) == UNKNOWN for name in names]))


def _replaced(manifests: ManifestListTable, live: Mask, changed: dict[int, ManifestListTable]) -> ManifestListTable:
    """The live manifests, those that were written again in the place of what they were."""
    order = np.arange(len(manifests))
    order[list(changed)] = len(manifests) + np.arange(len(changed))
    return concat_manifest_lists([manifests, *changed.values()]).take(order[live])


def hinted_manifests(planned: ManifestListTable | None, hints: EntriesTable) -> pa.Array:
    """The manifests that entries were planned from."""
    if planned is None or "manifest" not in hints:
        return pa.array([], pa.large_string())
    rows = np.unique(hints.ints("manifest"))
    return planned.path.take(pa.array(rows[(rows >= 0) & (rows < len(planned))]))
