"""The delete files of a scan: read from the delete manifests, classified, and matched with the kept data files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.delete_index import DataFiles, DeleteFiles, DeleteKind, DeleteMatches, match_deletes
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, Content, EntriesTable, EntryColumns
from floeplan.metadata.manifests.new_entries import no_entries
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.fields import SourceTypes
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import to_mask

DELETE_COLUMNS = EntryColumns(
    frozenset({"equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes", "key_metadata"}),
    stats=frozenset({POSITION_DELETE_PATH}),
)
"""What is read of a delete entry. The bounds of ``file_path`` tell whether a position delete names a single file."""


@dataclass(frozen=True, slots=True)
class ScanDeletes:
    """Live delete files with the kind and the equality keys of each."""

    entries: EntriesTable
    kinds: npt.NDArray[np.int8]
    equality_ids: tuple[tuple[int, ...], ...]

    @classmethod
    def none(cls, union: UnionPartitionType) -> ScanDeletes:
        """No delete files."""
        return cls(no_entries(union, EntryColumns(DELETE_COLUMNS.names)), np.zeros(0, dtype=np.int8), ())

    @classmethod
    def of(cls, entries: EntriesTable, union: UnionPartitionType) -> ScanDeletes:
        """Classify delete entries that were read; DELETED ones are left out."""
        live = entries.live()
        return cls(live, _kinds(live, union), _equality_ids(live))

    @property
    def key_columns(self) -> frozenset[int]:
        """Field ids of all equality keys: their bounds decide which data files an equality delete may apply to."""
        return frozenset(field_id for keys in set(self.equality_ids) for field_id in keys)


def match(data: EntriesTable, deletes: ScanDeletes, union: UnionPartitionType, sources: SourceTypes) -> DeleteMatches:
    """Match the deletes with the data files; keys may be columns that the table has dropped since."""
    if not len(deletes.entries) or not len(data):
        return DeleteMatches.none(len(data))
    columns = [Column(i, sources[i][0], (str(i),)) for i in sorted(deletes.key_columns & sources.keys())]
    codes = joint_partition_codes(union, data, deletes.entries)
    return match_deletes(
        DataFiles(data.path, data.sequence_number, codes[: len(data)], file_stats(data, columns).columns),
        DeleteFiles(
            path=deletes.entries.path,
            kind=deletes.kinds,
            sequence=deletes.entries.sequence_number,
            partition=codes[len(data) :],
            target=deletes.entries.delete_targets(),
            equality_ids=deletes.equality_ids,
            stats=file_stats(deletes.entries, columns).columns,
        ),
    )


def joint_partition_codes(
    union: UnionPartitionType, first: EntriesTable, second: EntriesTable
) -> npt.NDArray[np.int64]:
    """One number per distinct (spec id, partition tuple) over the files of two tables, one table after the other."""
    left, right = first.partition_columns(), second.partition_columns()
    both = {i: _one_column(left[i], right[i]) for i in left.keys() & right.keys()}
    return partition_codes(union, np.concatenate([first.spec_id, second.spec_id]), both)


def _one_column(left: pa.Array, right: pa.Array) -> pa.Array:
    """Both after each other; a type that only manifests can tell is unknown on a side that read none of them."""
    type_ = right.type if pa.types.is_null(left.type) else left.type
    return pa.concat_arrays([left.cast(type_), right.cast(type_)])


def _kinds(entries: EntriesTable, union: UnionPartitionType) -> npt.NDArray[np.int8]:
    global_specs = [spec_id for spec_id, spec in union.specs.items() if spec.unpartitioned]
    equality = np.where(
        np.isin(entries.spec_id, global_specs), DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION
    )
    targeted = to_mask(entries.delete_targets().is_valid())
    position = np.where(targeted, DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
    is_vector = to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
    position = np.where(is_vector, DeleteKind.VECTOR, position)
    return np.where(entries.content == Content.EQUALITY_DELETES, equality, position).astype(np.int8)


def _equality_ids(entries: EntriesTable) -> tuple[tuple[int, ...], ...]:
    """The keys of each delete; which rows an equality delete without keys removes, nobody knows."""
    found = tuple(tuple(keys or ()) for keys in entries.array("equality_ids").to_pylist())
    for row in np.flatnonzero(entries.content == Content.EQUALITY_DELETES).tolist():
        if not found[row]:
            path = entries.path[row].as_py()
            raise CorruptMetadataError(f"equality delete file {path} has no equality columns", context={"file": path})
    return found
