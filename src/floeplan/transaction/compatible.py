"""Whether a table is still the one a change was made for.

Rule: files that were written stay right under any later metadata that still has their partition specs, every column
they were written with under a type it can be read as, and no column that rows must have and these lack. Delete files
must be of the kind the format demands. Rows that are only written again were good before and are good now.

Fail-safe: anything else is an error before manifests are written; the table is not touched.
"""

from __future__ import annotations

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from floeplan.errors import CommitConflictError
from floeplan.metadata.entries import Content, EntriesTable
from floeplan.transaction.change import Operation, SnapshotChange

_FIRST_WITH_VECTORS = 3


def check_compatible(change: SnapshotChange, planned: TableMetadata, now: TableMetadata) -> None:
    """Refuse a change that was made for a table which has become another.

    Raises:
        CommitConflictError: Schema, specs or format changed meanwhile; running the operation again works.
    """
    for files in (change.added_data, change.added_deletes):
        if files is not None:
            _check_specs(files, planned, now)
    brings_rows = change.operation is not Operation.REPLACE
    if brings_rows and change.added_data is not None and len(change.added_data):
        _check_schema(planned.schema(), now.schema())
    if change.added_deletes is not None:
        _check_format(change.added_deletes, planned, now)


def _check_specs(files: EntriesTable, planned: TableMetadata, now: TableMetadata) -> None:
    dropped = sorted(set(files.spec_id.tolist()) & (planned.specs().keys() - now.specs().keys()))
    if dropped:
        raise CommitConflictError(
            f"partition spec {dropped[0]} was removed from the table while files were written under it; "
            "run the operation again",
            context={"spec_id": dropped[0]},
        )


def _check_schema(planned: Schema, now: Schema) -> None:
    if planned == now:
        return
    before, after = planned._lazy_id_to_field, now._lazy_id_to_field
    for field_id, field in before.items():
        name = planned.find_column_name(field_id)
        if field_id not in after:
            raise _changed(f"column {name} was dropped", name)
        if not _readable(field.field_type, after[field_id].field_type):
            raise _changed(f"column {name} became {after[field_id].field_type}", name)
        if after[field_id].required and not field.required:
            raise _changed(f"column {name} became required", name)
    for field_id in after.keys() - before.keys():
        if _must_have(after[field_id]):
            name = now.find_column_name(field_id)
            raise _changed(f"required column {name} was added", name)


def _readable(written: IcebergType, wanted: IcebergType) -> bool:
    """Nested types are judged by their parts."""
    if not isinstance(written, PrimitiveType) or not isinstance(wanted, PrimitiveType):
        return type(written) is type(wanted)
    try:
        return written == wanted or promote(written, wanted) == wanted
    except ResolveError:
        return False


def _must_have(field: NestedField) -> bool:
    return field.required and field.initial_default is None


def _changed(what: str, column: str | None) -> CommitConflictError:
    return CommitConflictError(
        f"{what} while rows were written with the schema before; run the operation again", context={"column": column}
    )


def _check_format(deletes: EntriesTable, planned: TableMetadata, now: TableMetadata) -> None:
    """An upgrade between formats that want deletes in different forms."""
    if planned.format_version < _FIRST_WITH_VECTORS <= now.format_version:
        of_positions = deletes.content == Content.POSITION_DELETES
        if of_positions.any():
            raise CommitConflictError(
                f"the table was upgraded to format {now.format_version} while position deletes were written for format "
                f"{planned.format_version}; run the operation again",
                context={"format_version": now.format_version},
            )
