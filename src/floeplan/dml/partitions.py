"""Which files and rows lie in given partitions of one spec, whatever spec the files were written under.

A file of another spec lies in a partition when the values of the spec's fields are known for the whole file: stored
with it, because its own spec has the same field, or proven by its column bounds. A file for which they are not known is
asked row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.dml.fates import Clause, Fates
from floeplan.metadata.assemble import number_array, partition_arrow_type
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import partition_column
from floeplan.metadata.stats import file_stats
from floeplan.partition.fields import BoundField, SourceTypes
from floeplan.partition.key import partition_codes
from floeplan.partition.recover import recover
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.ir import Column
from floeplan.predicate.tristate import Mask
from floeplan.scan.file_rows import PlannedRows
from floeplan.scan.model import FileScan
from floeplan.write.partitioning import partition_values


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Partitions of one spec, as columns of their tuples by union field id."""

    union: UnionPartitionType
    spec_id: int
    columns: Mapping[int, pa.Array]
    count: int

    @classmethod
    def of(cls, union: UnionPartitionType, entries: EntriesTable, spec_id: int) -> PartitionSet:
        """The partitions of files of one spec."""
        keys = [field.column.field_id for field in _fields(union, spec_id)]
        columns = {key: entries.array(partition_column(key)) for key in keys}
        return cls(union, spec_id, columns, len(entries))

    @property
    def fields(self) -> tuple[BoundField, ...]:
        """The fields that make a tuple."""
        return _fields(self.union, self.spec_id)

    def holds(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        """For each tuple of the same fields whether it is one of these partitions."""
        both = {key: pa.concat_arrays([column, columns[key].cast(column.type)]) for key, column in self.columns.items()}
        codes = partition_codes(self.union, np.full(self.count + rows, self.spec_id, dtype=np.int64), both)
        return np.isin(codes[self.count :], codes[: self.count])


@dataclass(frozen=True, slots=True)
class Placed:
    """For each file: every row lies in the partitions, or some rows may."""

    whole: Mask
    perhaps: Mask


def place_files(partitions: PartitionSet, entries: EntriesTable, sources: SourceTypes) -> Placed:
    """Where files of any specs lie."""
    columns, known = {}, np.ones(len(entries), dtype=np.bool_)
    for field in partitions.fields:
        columns[field.column.field_id], proven = _values(partitions.union, field, entries, sources)
        known &= proven
    inside = partitions.holds(columns, len(entries))
    return Placed(known & inside, ~known)


def _values(
    union: UnionPartitionType, field: BoundField, entries: EntriesTable, sources: SourceTypes
) -> tuple[pa.Array, Mask]:
    """The value of one partition field for each file, and where it is known."""
    key = field.column.field_id
    having = [spec_id for spec_id, spec in union.specs.items() if any(_is(f, key) for f in spec.fields)]
    stored = np.isin(entries.spec_id, having)
    source = Column(field.source_id, sources[field.source_id][0], (str(field.source_id),))
    found = recover(field, file_stats(entries, [source]).columns.get(field.source_id), len(entries))
    type_ = partition_arrow_type(field.column.type)
    usable = found.recovered & ~found.is_null
    values = _array(found.values, usable).cast(type_)
    chosen = pc.if_else(pa.array(stored), entries.array(partition_column(key)).cast(type_), values)
    return chosen, stored | found.recovered


def _array(values: npt.NDArray[np.generic] | pa.Array, valid: Mask) -> pa.Array:
    if isinstance(values, np.ndarray):
        return number_array(values, valid)
    return pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))


def _is(field: BoundField, key: int) -> bool:
    return not field.is_void and field.column.field_id == key


def _fields(union: UnionPartitionType, spec_id: int) -> tuple[BoundField, ...]:
    return tuple(field for field in union.spec(spec_id).fields if not field.is_void)


@dataclass(frozen=True, slots=True)
class InPartitions:
    """The decision to delete the rows that lie in given partitions."""

    schema: Schema
    partitions: PartitionSet

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Deleting."""
        return (Clause(),)

    def fields(self, file: FileScan) -> frozenset[int]:
        """The sources of the partition fields."""
        return frozenset(field.source_id for field in self.partitions.fields)

    def decide(self, file: FileScan, planned: PlannedRows) -> Fates:
        """Transform the rows and look their tuples up."""
        rows, fields = planned.undeleted(), self.partitions.fields
        columns = {field.column.field_id: partition_values(rows, self.schema, field) for field in fields}
        inside = self.partitions.holds(columns, planned.live_count)
        return Fates.one_clause(planned.undeleted_positions(np.flatnonzero(inside)))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)
