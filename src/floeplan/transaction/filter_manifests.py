"""Taking removed files out of the manifests of a snapshot.

Rule: a manifest without a removed file stays as it is, under its name. One with removed files is written again: the
removed entries DELETED by this snapshot, the others EXISTING with the snapshot id and sequence numbers they had, and
entries that earlier snapshots deleted are gone. Manifests without live files are not listed any more.

Fail-safe: what was found in a manifest is remembered by its name. A manifest never changes, so when the snapshot is
produced again on a newer head only manifests that are new there are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entries import EntriesTable, Status
from floeplan.metadata.entry_columns import WHOLE, EntryColumns
from floeplan.metadata.manifest import read_entries
from floeplan.metadata.manifest_list import UNKNOWN, ManifestListTable, concat_manifest_lists
from floeplan.transaction.entry_tables import carried_over, concat_entries
from floeplan.transaction.manifests import SnapshotManifests, TableShape
from floeplan.transaction.removal import IDENTITY, Wanted, entry_keys, live_manifests, rows_of_paths

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
