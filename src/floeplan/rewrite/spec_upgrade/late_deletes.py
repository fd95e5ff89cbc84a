"""Equality deletes that were added under an old spec after rows had moved out of it.

They apply within their spec and partition only. A row that moved before the delete was added stays live although its
key was deleted, and an upsert duplicates it. Snapshots that move rows record it (``floeplan.moved-from-specs``, and
``floeplan.operation`` of a move by metadata); an equality delete of such a spec with a higher sequence number is late.
Once such a snapshot has expired, and where another engine has rewritten them, the files of a rewrite still show that
their rows may come from any other spec: their data sequence number is lower than their file sequence number. Moves by
metadata and changes leave no such trace, so that in a history without its beginning every equality delete of an old
spec is compared.

Rule: the keys of a late delete are compared with the older live rows of other specs. Those that would be in its
partition under its own spec are the rows it should have deleted. The repair records the delete also in the partition
where they are now; its sequence number stays, so it applies to older rows only.

Fail-safe: a delete is repaired only where that is proven right: every row that it would newly delete is in its
partition under its own spec, and in a file whose rows all came from that spec. Under an unpartitioned spec it would
apply to the whole table: then no older file of another partition may have its keys. What cannot be read, or is more
than ``MOST_FILES`` files, is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import ancestors_of

from floeplan.errors import CorruptError, UnknownColumnError, UnsupportedError
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.partition.key import partition_codes
from floeplan.scan.file_rows import EQUALITY, FileRows, TableRows
from floeplan.scan.model import PlannedFiles
from floeplan.snapshot.passes import ScanDeletes, joint_partition_codes, match
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.equality_writers import SpecMove, came_late, spec_moves
from floeplan.vectors import Ints, Mask
from floeplan.write.partitioning import partition_values

MOST_FILES = 200
"""Data files whose keys are compared."""


@dataclass(frozen=True, slots=True)
class LateDeletes:
    """Late equality deletes of a snapshot.

    Attributes:
        delete_rows: Their rows among all delete files.
        doubled: For each the live rows that it should have deleted; -1 when keys were not compared.
        repairable: Whether recording it in ``copies`` deletes all of these and no others.
        copies: Rows of delete files, and for each the row of a data file in a partition to record it in.
    """

    delete_rows: Ints
    doubled: Ints
    repairable: Mask
    copies: tuple[Ints, Ints]

    @classmethod
    def none(cls) -> LateDeletes:
        """No late deletes."""
        return cls.not_compared(np.zeros(0, dtype=np.int64))

    @classmethod
    def not_compared(cls, delete_rows: Ints) -> LateDeletes:
        """Late deletes whose keys were not compared."""
        nothing, unknown = np.zeros(0, dtype=np.int64), np.full(len(delete_rows), -1, dtype=np.int64)
        return cls(delete_rows, unknown, unknown >= 0, (nothing, nothing))


def find_late_deletes(head: SnapshotReader, deletes: ScanDeletes) -> LateDeletes:
    """Find late equality deletes, and compare their keys with the rows that moved."""
    scoped = deletes.kinds == DeleteKind.EQUALITY_PARTITION
    if not scoped.any():
        return LateDeletes.none()
    moves = spec_moves(head)
    late = came_late(head, deletes.entries, moves)
    *_, oldest = ancestors_of(head.snapshot, head.metadata)
    may_be_late = late | (deletes.entries.spec_id != head.metadata.default_spec_id)
    is_whole = (oldest.sequence_number or 0) <= 1  # whoever expires snapshots may also forget the parent
    rows = np.flatnonzero((late if is_whole else may_be_late) & scoped)
    if not len(rows):
        return LateDeletes.none()
    try:
        return _Comparison(head, deletes, rows, moves).run()
    except (CorruptError, UnsupportedError, UnknownColumnError):
        return LateDeletes.not_compared(np.flatnonzero(late & scoped))  # what is wrong there has findings of its own


@dataclass(slots=True)
class _Comparison:
    """Compares the keys of late deletes with older live rows of other specs."""

    head: SnapshotReader
    deletes: ScanDeletes
    late: Ints
    moves: list[SpecMove]
    specs: dict[int, dict[str, int]] = field(default_factory=dict)

    def run(self) -> LateDeletes:
        head, deletes, late = self.head, self.deletes, self.late
        sources = source_types(head.metadata.schema(), head.metadata.schemas)
        columns = EntryColumns(frozenset({"snapshot_id", "key_metadata"}), stats=deletes.key_columns)
        data = head.entries(head.manifest_rows(DATA), columns)
        # As if the late deletes applied to all specs: the files that are old enough and may share a key.
        meant = deletes.everywhere(late)
        elsewhere = match(data, meant, head.union, sources)
        rows = np.flatnonzero(elsewhere.counts)
        if len(rows) > MOST_FILES:
            raise UnsupportedError(f"{len(rows)} files may be affected, more than {MOST_FILES}")
        files = _planned(data, deletes, head).take(rows)
        would = replace(files, deletes=meant.entries, delete_kinds=meant.kinds, matches=elsewhere.take(rows))
        codes = joint_partition_codes(head.union, data, meant.entries)
        doubled, right = np.zeros(len(late), dtype=np.int64), dict[tuple[int, int], tuple[int, bool]]()
        for at, row in enumerate(rows.tolist()):
            for number, found, in_partition in self._unreached(files, would, at, meant):
                doubled[number] += in_partition
                proven = found == in_partition and self._came_from(int(meant.entries.spec_id[number]), data, row)
                key = (number, int(codes[row]))
                right[key] = row, proven and right.get(key, (row, True))[1]
        wrong = {number for (number, _), (_, proven) in right.items() if not proven}
        # Recorded under an unpartitioned spec, a delete applies to other partitions of its own spec too.
        beside, beside_rows = elsewhere.deletes, elsewhere.data_rows
        own_spec = data.spec_id[beside_rows] == meant.entries.spec_id[beside]
        reached = set(beside[own_spec & (codes[beside_rows] != codes[len(data) + beside])].tolist())
        wrong |= {key[0] for key, (row, _) in right.items() if self._is_unpartitioned(data, row)} & reached
        copies = [(int(late[number]), row) for (number, _), (row, _) in right.items() if number not in wrong]
        pairs = np.array(copies, dtype=np.int64).reshape(-1, 2).T
        repairable = ~np.isin(np.arange(len(late)), list(wrong))
        return LateDeletes(late, doubled, repairable, (pairs[0], pairs[1]))

    def _unreached(
        self, files: PlannedFiles, would: PlannedFiles, at: int, meant: ScanDeletes
    ) -> Iterator[tuple[int, int, int]]:
        """For each late delete of another spec: live rows of a file with its keys, and those in its partition."""
        own, spec_ids = files[at], meant.entries.spec_id
        pairs = zip(would.matches.of(at).tolist(), would[at].deletes, strict=True)
        of_other_specs = {number: delete for number, delete in pairs if spec_ids[number] != own.spec_id}
        if not of_other_specs:
            return
        schema = self._source_schema(set(spec_ids[list(of_other_specs)].tolist()))
        known = sorted(self.head.metadata.schemas, key=lambda one: -one.schema_id)
        assert self.head.io is not None, "a reader of a table has its IO"
        table = TableRows((self.head.metadata.schema(), *known), self.head.metadata.name_mapping(), self.head.io)
        opened = FileRows(table).open(replace(own, deletes=(*own.deletes, *of_other_specs.values())))
        rows, masks = opened.matched(schema, opened.undeleted(opened.planned()))
        applied = sum(delete.kind in EQUALITY for delete in own.deletes)
        live = ~np.logical_or.reduce([np.zeros(rows.num_rows, dtype=np.bool_), *masks[:applied]])
        for number, mask in zip(of_other_specs, masks[applied:], strict=True):
            found = rows.filter(pa.array(live & mask))
            if found.num_rows:
                yield number, found.num_rows, self._in_partition(found, schema, meant.entries, number)

    def _source_schema(self, spec_ids: set[int]) -> Schema:
        """The source columns of some specs."""
        schema, fields = self.head.metadata.schema(), [self.head.union.spec(spec_id).fields for spec_id in spec_ids]
        names = {schema.find_column_name(bound.source_id) for some in fields for bound in some if not bound.is_void}
        return schema.select(*(name for name in names if name is not None))

    def _in_partition(self, rows: pa.Table, schema: Schema, deletes: EntriesTable, number: int) -> int:
        """How many rows would be in the partition of a delete under its own spec."""
        spec_id, columns = int(deletes.spec_id[number]), {}
        for bound in self.head.union.spec(spec_id).fields:
            if not bound.is_void:
                key, values = bound.column.field_id, partition_values(rows, schema, bound)
                own = deletes.array(partition_column(key)).slice(number, 1)
                columns[key] = pa.concat_arrays([own.cast(values.type), values])
        codes = partition_codes(self.head.union, np.full(rows.num_rows + 1, spec_id), columns)
        return int(np.count_nonzero(codes[1:] == codes[0]))

    def _is_unpartitioned(self, data: EntriesTable, row: int) -> bool:
        return self.head.union.spec(int(data.spec_id[row])).unpartitioned

    def _came_from(self, spec_id: int, data: EntriesTable, row: int) -> bool:
        """Whether all rows of a file were in a spec before a move."""
        added_by, path = int(data.ints("snapshot_id")[row]), data.path[row].as_py()
        for move in self.moves:
            if move.replaced is not None:
                if move.snapshot.snapshot_id == added_by and move.replaced == {spec_id}:
                    return True
            elif self._specs_before(move.snapshot.parent_snapshot_id).get(path) == spec_id:
                return True
        return False

    def _specs_before(self, parent: int | None) -> dict[str, int]:
        """The specs of all data files before a move by metadata; none if that snapshot has expired."""
        before = None if parent is None else self.head.metadata.snapshot_by_id(parent)
        if before is None:
            return {}
        if before.snapshot_id not in self.specs:
            manifests = read_manifest_list(before.manifest_list, self.head.io)
            reader = replace(self.head, snapshot=before, manifests=manifests)
            entries = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset(), partition=False))
            found = zip(entries.path.to_pylist(), entries.spec_id.tolist(), strict=True)
            self.specs[before.snapshot_id] = dict(found)
        return self.specs[before.snapshot_id]


def _planned(data: EntriesTable, deletes: ScanDeletes, head: SnapshotReader) -> PlannedFiles:
    """All data files of a head with the deletes that apply to them."""
    sources = source_types(head.metadata.schema(), head.metadata.schemas)
    return PlannedFiles.whole(data, deletes, match(data, deletes, head.union, sources), head.union)
