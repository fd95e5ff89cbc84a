"""Metadata columns: ``_file``, ``_pos``, ``_spec_id``, ``_partition``, ``_deleted`` and the row lineage of format 3.

They are named in the columns of a scan like those of the table, and have the ids, types and values that Iceberg gives
them in Spark. Predicates may use them too; they are evaluated on rows. A column of the table with the same name takes
precedence.

- ``_partition`` is the tuple over the fields of all specs whose source column exists, null where the spec of the file
  does not have a field; null if there is no such field.
- ``_row_id`` and ``_last_updated_sequence_number`` are stored in a file, or inherited from its manifest entry; null in
  snapshots from before the table had format 3.
- ``_deleted``, as a column or in a predicate, also returns the deleted rows that the plan's files still hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import BooleanType, IntegerType, LongType, NestedField, StringType, StructType

from floeplan import arrow_compute as pc
from floeplan.errors import UnknownColumnError
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.union import partition_type
from floeplan.predicate.build import column_of, field_ids, map_leaves, without_opaque
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.ir import IrExpr, Opaque
from floeplan.scan.model import FileScan
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import ScanTarget, select
from floeplan.vectors import Mask, arrow

FILE = NestedField(2147483646, "_file", StringType(), required=False)
POSITION = NestedField(2147483645, "_pos", LongType(), required=False)
DELETED = NestedField(2147483644, "_deleted", BooleanType(), required=False)
SPEC_ID = NestedField(2147483643, "_spec_id", IntegerType(), required=False)
PARTITION_ID = 2147483642
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
METADATA_IDS = frozenset(
    {*(field.field_id for field in (FILE, POSITION, DELETED, SPEC_ID, ROW_ID, LAST_UPDATED)), PARTITION_ID}
)
_NAMES = (FILE.name, POSITION.name, DELETED.name, SPEC_ID.name, "_partition", ROW_ID.name, LAST_UPDATED.name)
_FIRST_WITH_LINEAGE = 3
_NESTED_IDS = 2_100_000_000
"""The fields of ``_partition`` get ids from here on, beyond those of columns."""


def is_metadata(field_id: int) -> bool:
    """Whether an id is that of a metadata column, or of a field of ``_partition``."""
    return field_id >= _NESTED_IDS


def metadata_fields(metadata: TableMetadata) -> dict[str, NestedField]:
    """The metadata columns of a table by name."""
    fields = [FILE, POSITION, DELETED, SPEC_ID, _partition_field(metadata)]
    if metadata.format_version >= _FIRST_WITH_LINEAGE:
        fields += [ROW_ID, LAST_UPDATED]
    return {field.name: field for field in fields}


def _partition_field(metadata: TableMetadata) -> NestedField:
    nested = [
        NestedField(_NESTED_IDS + field.field_id, field.name, field.field_type, required=False)
        for field in partition_type(metadata).fields
    ]
    return NestedField(PARTITION_ID, "_partition", StructType(*nested), required=False)


def select_columns(target: ScanTarget, columns: Sequence[str], case_sensitive: bool = True) -> Schema:
    """Project the schema of a scan onto named columns, metadata columns among them, in this order."""
    own = {field.name for field in target.schema.fields}
    if not any(name.startswith("_") and name not in own for name in columns):
        return select(target.schema, columns, case_sensitive)
    known = {name: field for name, field in metadata_fields(target.metadata).items() if name not in own}
    if any(name in (ROW_ID.name, LAST_UPDATED.name) and name not in known and name not in own for name in columns):
        raise UnknownColumnError(
            f"row lineage needs format 3, and the table has format {target.metadata.format_version}; "
            "see floeplan upgrade-format"
        )
    return select(
        Schema(*target.schema.fields, *known.values(), schema_id=target.schema.schema_id), columns, case_sensitive
    )


def names_metadata(source: PredicateSource, case_sensitive: bool) -> bool:
    """Whether the text of a predicate may name a metadata column."""
    text = str(source) if case_sensitive else str(source).lower()
    return any(name in text for name in _NAMES)


def metadata_columns_of(predicate: IrExpr, metadata: TableMetadata) -> tuple[NestedField, ...]:
    """The metadata columns that a predicate uses."""
    used = {field_id for field_id in field_ids(predicate) if is_metadata(field_id)}
    known = metadata_fields(metadata).values() if used else ()
    return tuple(field for field in known if not used.isdisjoint(fields_by_id(Schema(field))))


def compile_where(source: PredicateSource, target: ScanTarget, case_sensitive: bool = True) -> CompileResult:
    """Compile a predicate that may name metadata columns; conditions on them are left to the rows."""
    own = {field.name for field in target.schema.fields}
    extra = [field for name, field in metadata_fields(target.metadata).items() if name not in own]
    schema = Schema(*target.schema.fields, *extra, schema_id=target.schema.schema_id)
    compiled = compile_predicate(source, schema, case_sensitive=case_sensitive)

    def on_rows(leaf: IrExpr) -> IrExpr:
        column = column_of(leaf)
        if column is None or not is_metadata(column.field_id):
            return leaf
        return Opaque(str(leaf), (column.field_id,), leaf)

    predicate = map_leaves(compiled.predicate, on_rows)
    return CompileResult(predicate, without_opaque(predicate), predicate, compiled.errors)


def fill_metadata(rows: pa.Table, schema: Schema, file: FileScan, selection: RowSelection, live: Mask) -> pa.Table:
    """Fill in the metadata columns of rows that were read from a file at these positions.

    ``live`` tells which of them are not deleted.
    """
    for at, field in enumerate(schema.fields):
        if field.field_id in METADATA_IDS:
            rows = rows.set_column(
                at,
                rows.schema.field(at),
                _values(field, rows.schema.field(at).type, rows.column(at), file, selection, live),
            )
    return rows


def _values(
    field: NestedField, type_: pa.DataType, stored: pa.ChunkedArray, file: FileScan, selection: RowSelection, live: Mask
) -> pa.Array:
    match field.field_id:
        case FILE.field_id:
            return _repeated(file.path, type_, len(live))
        case SPEC_ID.field_id:
            return _repeated(file.spec_id, type_, len(live))
        case POSITION.field_id:
            return arrow(selection.to_rows())
        case DELETED.field_id:
            return arrow(~live)
    if field.field_id == PARTITION_ID:
        return _repeated(dict(file.partition_values), type_, len(live))
    if file.first_row_id is None:
        return stored
    inherited = file.sequence_number
    if field.field_id == ROW_ID.field_id:
        inherited = arrow(selection.to_rows() + np.int64(file.first_row_id))
    return pc.coalesce(stored.combine_chunks(), inherited)


def _repeated(value: object, type_: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_struct(type_) and not type_.num_fields:  # null in Iceberg, too: few engines know empty structs
        return pa.nulls(count, type_)
    return pa.repeat(pa.scalar(value, type_), count)
