"""Delete files of a snapshot: classified, and matched with data files.

A position delete file applies to a single data file when ``referenced_data_file`` names it, or when both bounds of its
``file_path`` column are equal (Iceberg specification, "Scan Planning"). An equality delete of an unpartitioned spec
applies to the whole table, any other to its partition.
"""

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
from floeplan.vectors import Ints

DELETE_COLUMNS = EntryColumns(
    frozenset({"equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes", "key_metadata"}),
    stats=frozenset({POSITION_DELETE_PATH}),
)
"""What is read of a delete entry."""


@dataclass(frozen=True, slots=True)
class ScanDeletes:
    """Live delete files with the kind and the equality field ids of each."""

    entries: EntriesTable
    kinds: npt.NDArray[np.int8]
    equality_ids: tuple[tuple[int, ...], ...]

    @classmethod
    def none(cls, union: UnionPartitionType) -> ScanDeletes:
        """No delete files."""
        return cls(no_entries(union, EntryColumns(DELETE_COLUMNS.names)), np.zeros(0, dtype=np.int8), ())

    @classmethod
    def of(cls, entries: EntriesTable, union: UnionPartitionType) -> ScanDeletes:
        """Classify delete entries; DELETED ones are left out.

        Raises:
            CorruptMetadataError: An equality delete has no equality fields, so it is unknown which rows it deletes.
        """
        live = entries.live()
        equality_ids = tuple(tuple(keys or ()) for keys in live.array("equality_ids").to_pylist())
        for row in np.flatnonzero(live.content == Content.EQUALITY_DELETES).tolist():
            if not equality_ids[row]:
                path = live.path[row].as_py()
                raise CorruptMetadataError(
                    f"equality delete file {path} has no equality columns", context={"file": path}
                )
        return cls(live, _kinds(live, union), equality_ids)

    @property
    def key_columns(self) -> frozenset[int]:
        """Field ids of all equality keys: their bounds decide which data files an equality delete may apply to."""
        return frozenset(field_id for keys in set(self.equality_ids) for field_id in keys)


def _kinds(entries: EntriesTable, union: UnionPartitionType) -> npt.NDArray[np.int8]:
    unpartitioned = [spec_id for spec_id, spec in union.specs.items() if spec.unpartitioned]
    is_global = np.isin(entries.spec_id, unpartitioned)
    equality = np.where(is_global, DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)
    has_target = to_mask(entries.delete_targets().is_valid())
    position = np.where(has_target, DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
    is_vector = to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
    position = np.where(is_vector, DeleteKind.VECTOR, position)
    return np.where(entries.content == Content.EQUALITY_DELETES, equality, position).astype(np.int8)


def match(data: EntriesTable, deletes: ScanDeletes, union: UnionPartitionType, sources: SourceTypes) -> DeleteMatches:
    """Match delete files with the data files they apply to; equality keys may be columns that were dropped since."""
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


def joint_partition_codes(union: UnionPartitionType, first: EntriesTable, second: EntriesTable) -> Ints:
    """One number per distinct (spec id, partition tuple) over the files of two tables, one table after the other."""

    def concat(left: pa.Array, right: pa.Array) -> pa.Array:
        # A field whose source column was dropped has a null column on a side that read no manifest with it.
        type_ = right.type if pa.types.is_null(left.type) else left.type
        return pa.concat_arrays([left.cast(type_), right.cast(type_)])

    left, right = first.partition_columns(), second.partition_columns()
    both = {i: concat(left[i], right[i]) for i in left.keys() & right.keys()}
    return partition_codes(union, np.concatenate([first.spec_id, second.spec_id]), both)
