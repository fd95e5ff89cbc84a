"""Appends and deletes as commits to a metadata tree of its own: the writer of the draft, in a scratch catalog.

A ``ScratchTree`` is a folder of roots and leaves. It starts empty with the schema and specs of a table and is never the
table's own metadata: nothing here writes a snapshot of a table.

Rule of a commit, which writes one root and at most one leaf:

- New files are inline rows of the root. When there are more than ``inline_files``, all inline files move to a leaf,
  which keeps the snapshot and the sequence numbers they have.
- A removed file is a DELETED row if it is inline, and otherwise a position in the deletion vector of its leaf's
  reference. A file whose own deletion vector changes is a MODIFIED row of the root. Its old version is a REPLACED row
  if it was inline, and otherwise a replaced position of its leaf.
- DELETED and REPLACED rows, and the positions of one snapshot, are not carried over to the next root.

Snapshot ids are as in Iceberg 1.12.0: a MODIFIED row keeps the snapshot that added the file and names the one that
changed its vector; DELETED and REPLACED rows name the snapshot that removed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import BadInputError
from floeplan.metadata.files import local_path, write_file
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.v4.fields import EntryStatus
from floeplan.metadata.v4.references import Reference, leaf_reference, reference_rows
from floeplan.metadata.v4.row_entries import live_rows
from floeplan.metadata.v4.writer import (
    ManifestLayout,
    ManifestOptions,
    Vectors,
    data_rows,
    manifest_bytes,
    root_properties,
)
from floeplan.vectors import Ints, Mask, one_array


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """When files move to a leaf, and what the root keeps.

    Attributes:
        inline_files: Live inline files that a root has at most.
        stats: The columns with statistics; those that Iceberg Java infers if not given.
        leaf_stats: Whether the root has statistics of its leaves.
        files: How manifests are written.
    """

    inline_files: int = 100
    stats: frozenset[int] | None = None
    leaf_stats: bool = True
    files: ManifestOptions = field(default_factory=ManifestOptions)


@dataclass(frozen=True, slots=True)
class TreeCommit:
    """What one commit wrote."""

    snapshot_id: int
    root: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf, its rows by path, and its reference."""

    rows: pa.Table
    reference: Reference


class ScratchTree:
    """A tree that commits grow."""

    def __init__(self, metadata: TableMetadata, folder: str, options: TreeOptions | None = None) -> None:
        path = local_path(folder)
        if path is None:
            raise BadInputError(f"a scratch tree is a local folder, not {folder}")
        inside = local_path(metadata.location)
        if inside is not None and f"{path}/".startswith(f"{inside}/"):
            raise BadInputError(f"{folder} is inside of the table {metadata.location}: a scratch tree must not be")
        self.metadata, self.options = metadata, options or TreeOptions()
        self.layout = ManifestLayout.of(metadata, self.options.stats)
        self._folder = f"file://{path}"
        self._inline = self.layout.table({}, 0)
        self._leaves: list[_Leaf] = []
        self.commits: list[TreeCommit] = []
        self.next_row_id = 0

    @property
    def root(self) -> str:
        """The newest root."""
        return self.commits[-1].root

    def append(self, entries: EntriesTable) -> TreeCommit:
        """Add data files; sequence numbers, snapshot and row ids of the entries are assigned."""
        snapshot_id = len(self.commits) + 1
        count = len(entries)
        rows = entries.record_count
        first = self.next_row_id + np.cumsum(rows) - rows
        self.next_row_id += int(rows.sum())
        table = entries.table
        for name, values in {"snapshot_id": snapshot_id, "sequence_number": snapshot_id}.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array([values] * count, pa.int64()))
        numbers = {"file_sequence_number": table.column("sequence_number"), "first_row_id": pa.array(first)}
        for name, array in numbers.items():
            table = table.set_column(table.schema.get_field_index(name), name, array)
        status = np.full(count, int(EntryStatus.ADDED))
        added = data_rows(self.layout, EntriesTable(table, entries.partition_types), None, status)
        return self._commit(snapshot_id, pa.concat_tables([self._carried(), added]), self._settled())

    def delete(self, paths: Sequence[str]) -> TreeCommit:
        """Remove data files by their stored location."""
        snapshot_id = len(self.commits) + 1
        inline, leaves = self._carried(), self._settled()
        hit = _located(inline, paths)
        found = int(hit.sum())
        inline = _with_status(inline, hit, EntryStatus.DELETED, snapshot_id)
        for number, leaf in enumerate(leaves):
            gone = np.flatnonzero(_located(leaf.rows, paths) & _live(leaf))
            if len(gone):
                found += len(gone)
                leaves[number] = replace(leaf, reference=_removed(leaf.reference, snapshot_id, deleted=gone))
        if found != len(set(paths)):
            raise BadInputError(f"{len(set(paths)) - found} of the files to delete are not in the tree")
        return self._commit(snapshot_id, inline, leaves)

    def set_vectors(self, paths: Sequence[str], vectors: Vectors) -> TreeCommit:
        """Give data files new deletion vectors, one for each path; the vectors' snapshot is the commit's."""
        snapshot_id = len(self.commits) + 1
        inline, leaves = self._carried(), self._settled()
        hit = _located(inline, paths)
        old = inline.filter(pa.array(hit))
        for number, leaf in enumerate(leaves):
            moved = np.flatnonzero(_located(leaf.rows, paths) & _live(leaf))
            if len(moved):
                old = pa.concat_tables([old, leaf.rows.take(pa.array(moved))])
                leaves[number] = replace(leaf, reference=_removed(leaf.reference, snapshot_id, replaced=moved))
        if len(old) != len(set(paths)):
            raise BadInputError(f"{len(set(paths)) - len(old)} of the files are not in the tree")
        order = pc.index_in(one_array(old.column("location")), value_set=pa.array(list(paths), pa.large_string()))
        parts = {"location": vectors.location, "offset": vectors.offset, "size_in_bytes": vectors.size}
        parts |= {"cardinality": vectors.cardinality, "key_metadata": vectors.key_metadata}
        taken = {name: array.take(order) for name, array in parts.items()}
        column = self.layout.struct("deletion_vector", taken, len(old), pa.array(np.ones(len(old), dtype=np.bool_)))
        everything = np.ones(len(old), dtype=np.bool_)
        changed = old.set_column(
            old.schema.get_field_index("deletion_vector"), old.schema.field("deletion_vector"), column
        )
        changed = _with_tracking(changed, {"dv_snapshot_id": pa.array([snapshot_id] * len(old), pa.int64())})
        live = _with_status(changed, everything, EntryStatus.MODIFIED, None)
        kept = _with_status(inline, hit, EntryStatus.REPLACED, snapshot_id)
        return self._commit(snapshot_id, pa.concat_tables([kept, live]), leaves)

    def _carried(self) -> pa.Table:
        """The inline rows for the next root: live ones, which exist already."""
        live = self._inline.filter(pa.array(live_rows(_status(self._inline))))
        return _with_status(live, np.ones(len(live), dtype=np.bool_), EntryStatus.EXISTING, None)

    def _settled(self) -> list[_Leaf]:
        """The leaves for the next root: their references exist already, and only it names the positions it removes."""
        settled = []
        for leaf in self._leaves:
            reference = replace(leaf.reference, status=EntryStatus.EXISTING, deleted=None, replaced=None)
            settled.append(replace(leaf, reference=reference))
        # A leaf without live files is not referred to any more.
        return [leaf for leaf in settled if _live(leaf).any()]

    def _commit(self, snapshot_id: int, inline: pa.Table, leaves: list[_Leaf]) -> TreeCommit:
        files = size = 0
        live = live_rows(_status(inline))
        if int(live.sum()) > self.options.inline_files:
            rows = inline.filter(pa.array(live)).combine_chunks()
            location = f"{self._folder}/leaf-{snapshot_id}.parquet"
            data = manifest_bytes(rows, {}, self.options.files)
            write_file(location, data)
            reference = leaf_reference(
                rows, location, len(data), snapshot_id, snapshot_id, with_stats=self.options.leaf_stats
            )
            leaves = [*leaves, _Leaf(rows, reference)]
            inline = inline.filter(pa.array(~live))
            files, size = 1, len(data)
        parts = [inline]
        if leaves:
            parts.append(reference_rows(self.layout, [leaf.reference for leaf in leaves]))
        properties = root_properties(self.metadata, snapshot_id)
        data = manifest_bytes(pa.concat_tables(parts), properties, self.options.files)
        location = f"{self._folder}/root-{snapshot_id}.parquet"
        write_file(location, data)
        # The state changes when everything is written. Every append adds a chunk, and many chunks are slow to write.
        self._inline, self._leaves = inline.combine_chunks() if len(inline) else inline, leaves
        commit = TreeCommit(snapshot_id, local_path(location) or location, files + 1, size + len(data))
        self.commits.append(commit)
        return commit


def _status(rows: pa.Table) -> Ints:
    tracking = one_array(rows.column("tracking"))
    return np.asarray(tracking.field("status")).astype(np.int64)


def _live(leaf: _Leaf) -> Mask:
    live = live_rows(_status(leaf.rows))
    if leaf.reference.removed is not None:
        live[leaf.reference.removed] = False
    return live


def _located(rows: pa.Table, paths: Sequence[str]) -> Mask:
    wanted = pa.array(list(paths), pa.large_string())
    found = pc.is_in(one_array(rows.column("location")), value_set=wanted)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _removed(
    reference: Reference, snapshot_id: int, *, deleted: Ints | None = None, replaced: Ints | None = None
) -> Reference:
    """The reference to a leaf after positions are removed; its counts are by stored status and stay."""
    new = [positions for positions in (reference.removed, deleted, replaced) if positions is not None]
    return replace(
        reference,
        status=EntryStatus.MODIFIED,
        removed=np.unique(np.concatenate(new)),
        dv_snapshot_id=snapshot_id,
        deleted=deleted,
        replaced=replaced,
    )


def _with_status(rows: pa.Table, where: Mask, status: EntryStatus, snapshot_id: int | None) -> pa.Table:
    """Another status where the mask is true, and the snapshot that set it if it is not the adding one."""
    tracking = one_array(rows.column("tracking"))
    changes = {"status": pa.array(np.where(where, int(status), _status(rows)), pa.int32())}
    if snapshot_id is not None:
        now = pa.scalar(snapshot_id, pa.int64())
        changes["snapshot_id"] = pc.if_else(pa.array(where), now, tracking.field("snapshot_id"))
    return _with_tracking(rows, changes)


def _with_tracking(rows: pa.Table, changes: dict[str, pa.Array]) -> pa.Table:
    tracking, at = one_array(rows.column("tracking")), rows.schema.get_field_index("tracking")
    parts = [changes.get(one.name, tracking.field(one.name)) for one in tracking.type]
    made = pa.StructArray.from_arrays(parts, fields=list(tracking.type))
    return rows.set_column(at, rows.schema.field(at), made)
