"""Splits rows by partition and sorts them, column-wise.

The partition of a row is the tuple of the spec's transforms of its source columns. As in Java, NaN equals itself and
-0.0 differs from 0.0. Sorting follows the table's sort order: each key ascending or descending with nulls first or
last, floating point in Java's total order (-0.0 before 0.0, NaN last).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.types import DecimalType, IntegerType, PrimitiveType

from floeplan.errors import UnknownColumnError, UnsupportedError
from floeplan.metadata.manifests.assemble import number_array, partition_arrow_type
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.typed_values import to_physical
from floeplan.partition.fields import BoundField
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.transforms import Transform, apply_vector, integer_limits, result_type
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.evaluate import physical
from floeplan.predicate.rows.arrow_columns import columns_of, decoded
from floeplan.predicate.stats import Vector
from floeplan.schemas import fields_by_id
from floeplan.vectors import valid_mask
from floeplan.write.row_order import RowNumbers, SortKey, sorted_row_numbers


@dataclass(frozen=True, slots=True)
class FilePartition:
    """The partition of a file: its key, and the values of its manifest entry by field id of the union type."""

    key: PartitionKey
    values: Mapping[int, Any]

    @classmethod
    def of(cls, union: UnionPartitionType, key: PartitionKey) -> FilePartition:
        """From a key alone."""
        fields = union.spec(key.spec_id).fields
        pairs = zip(fields, key.partition or (None,) * len(fields), strict=True)
        values = {
            field.column.field_id: None if value is None else physical(field.column.type, value)
            for field, value in pairs
            if not field.is_void
        }
        return cls(key, values)


def partitions_of(files: EntriesTable, union: UnionPartitionType) -> list[FilePartition]:
    """The partition of every file, from its manifest entry."""
    columns = files.partition_columns()
    codes, keys = group_codes(union, files.spec_id, columns)
    values = {field_id: column.to_pylist() for field_id, column in columns.items()}
    found = []
    for row, code in enumerate(codes.tolist()):
        own = [f.column.field_id for f in union.spec(keys[code].spec_id).fields if not f.is_void]
        found.append(FilePartition(keys[code], {field_id: values[field_id][row] for field_id in own}))
    return found


def split(
    rows: pa.Table, schema: Schema, union: UnionPartitionType, spec_id: int
) -> Iterator[tuple[PartitionKey, pa.Table]]:
    """Split rows by partition, keeping their order; each part owns its memory."""
    spec = union.spec(spec_id)
    if spec.unpartitioned:
        yield PartitionKey.from_tuple(spec, [None] * len(spec.fields)), rows
        return
    columns = {f.column.field_id: partition_values(rows, schema, f) for f in spec.fields if not f.is_void}
    codes, keys = group_codes(union, np.full(rows.num_rows, spec_id, dtype=np.int64), columns)
    if len(keys) == 1:
        yield keys[0], rows
        return
    narrow = codes.astype(np.min_scalar_type(len(keys)))  # NumPy sorts 16-bit integers by radix sort
    order = np.argsort(narrow, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(1, len(keys)))
    for key, part in zip(keys, np.split(order, cuts), strict=True):
        yield key, rows.take(pa.array(part))


def partition_values(rows: pa.Table, schema: Schema, field: BoundField) -> pa.Array:
    """The values of one partition field for every row, in the vector domain of its type."""
    if field.source_id not in fields_by_id(schema):
        raise UnknownColumnError(
            f"the source of partition field {field.column.path[0]} is field id {field.source_id}, which the schema no "
            "longer has; write to a spec without it",
            context={"field": field.column.path[0], "source-id": field.source_id},
        )
    if isinstance(field.transform, UnknownTransform):
        raise UnsupportedError(
            f"partition field {field.column.path[0]} has an unknown transform: {field.transform}",
            context={"field": field.column.path[0]},
        )
    return transformed(rows, schema, field.source_id, field.transform)


def transformed(rows: pa.Table, schema: Schema, source_id: int, transform: Transform) -> pa.Array:
    """A transform of one column for every row; null stays null."""
    source = schema.find_type(source_id)
    assert isinstance(source, PrimitiveType)
    result = partition_arrow_type(result_type(transform, source))
    if isinstance(transform, VoidTransform):
        return pa.nulls(rows.num_rows, result)
    values = _physical_column(rows, schema, source_id, source)
    found = _within_type(apply_vector(transform, source, _vector(values.drop_null())), transform, source)
    if values.null_count:
        valid = valid_mask(values)
        found = found.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    return found if found.type == result else found.cast(result)


def _within_type(labels: Vector, transform: Transform, source: PrimitiveType) -> pa.Array:
    """Fit results into their type: truncated integers wrap around as in Java, decimals out of range are an error."""
    limits = integer_limits(source)
    if isinstance(source, IntegerType) and isinstance(labels, np.ndarray):
        labels = labels.astype(np.int32).astype(np.int64)
    elif isinstance(source, DecimalType) and isinstance(transform, TruncateTransform) and limits is not None:
        lost = labels.null_count if isinstance(labels, pa.Array) else int((labels < limits[0]).sum())
        if lost:
            raise UnsupportedError(
                f"{lost} rows have a {source} whose partition value under {transform} is beyond that type",
                context={"type": str(source), "transform": str(transform)},
            )
    return number_array(labels, None) if isinstance(labels, np.ndarray) else labels


def _physical_column(rows: pa.Table, schema: Schema, source_id: int, type_: PrimitiveType) -> pa.Array:
    column = decoded(columns_of(rows, schema)(source_id)).combine_chunks()
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return to_physical(type_, whole)


def _vector(values: pa.Array) -> Vector:
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return np.asarray(values)
    return values


def sort_rows(rows: pa.Table, schema: Schema, order: SortOrder) -> pa.Table:
    """Sort rows by a sort order; the sort is stable."""
    if not order.fields or rows.num_rows < 2:
        return rows
    return take_rows(rows, pa.array(sort_row_numbers(rows, schema, order)))


def sort_row_numbers(rows: pa.Table, schema: Schema, order: SortOrder) -> RowNumbers:
    """The row numbers in sort order; the sort is stable."""
    return sorted_row_numbers(
        [
            SortKey(
                _sortable(rows, schema, field),
                descending=field.direction is SortDirection.DESC,
                nulls_first=field.null_order is NullOrder.NULLS_FIRST,
            )
            for field in order.fields
        ]
    )


def take_rows(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """Take rows by number."""
    # Column by column from one contiguous chunk, which is faster than taking from many chunks.
    columns = [rows.select([at]).combine_chunks().take(numbers).column(0) for at in range(rows.num_columns)]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _sortable(rows: pa.Table, schema: Schema, field: SortField) -> pa.Array:
    if field.source_id not in fields_by_id(schema):
        raise UnknownColumnError(
            f"the sort order uses field id {field.source_id}, which the schema does not have",
            context={"source-id": field.source_id},
        )
    values = transformed(rows, schema, field.source_id, field.transform)
    return _total_order(values) if pa.types.is_floating(values.type) else values


def _total_order(values: pa.Array) -> pa.Array:
    """Floating-point values as integers of the same order."""
    numbers = np.asarray(values.fill_null(0.0)).astype(np.float64)
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    ordered = np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits)
    return number_array(ordered, valid_mask(values) if values.null_count else None)
