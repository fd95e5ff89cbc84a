"""Whether a change is valid on any head, and still fits the table's schema, specs and format.

Rule: each file is added once, with a spec of the table and the right content, and a data file gets one deletion vector.
Format 1 has no deletes, format 2 no deletion vectors, and format 3 no new position delete files. An append removes
nothing, and a replace adds no rows. Written files remain valid under newer metadata that still has their specs, all
their columns under readable types, and no new required column that they lack. Rows that a replace only rewrites were
valid before and remain so.

Fail-safe: new data under a spec whose source columns are in no schema is refused, because its partition values would
have no meaning. Old files of such a spec can still be carried over, deleted from and removed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from floeplan.errors import BadInputError, CommitConflictError, UnsupportedError
from floeplan.metadata.manifests.entries import Content, EntriesTable
from floeplan.predicate.stats import to_mask
from floeplan.schemas import fields_by_id
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.filter_manifests import entry_keys
from floeplan.transaction.manifests import TableShape, find_compatible_schema, validate_added_data_files
from floeplan.vectors import Mask


def validate_change(change: SnapshotChange, added: EntriesTable, shape: TableShape) -> None:
    """Refuse a change that is invalid on any head."""
    validate_added_data_files(added, shape.specs)
    _refuse(added, _repeated(entry_keys(added)), "it is added twice")
    _refuse(added, _repeated(_vector_targets(added)), "its data file gets two deletion vectors")
    _refuse_kind(change.added_data, Content.DATA, expected=True, what="no data file")
    _refuse_kind(change.added_deletes, Content.DATA, expected=False, what="no delete file")
    removes = change.removed_data or change.removed_deletes
    if change.operation is Operation.APPEND and (removes or change.added_deletes is not None):
        raise BadInputError("an append can only add data files: use another operation")
    _validate_deletes(added, shape.metadata.format_version)
    for spec_id in np.unique(added.spec_id[added.content == Content.DATA]).tolist():
        find_compatible_schema(shape.metadata, shape.specs[spec_id])


def validate_replacement(change: SnapshotChange, added: EntriesTable, removed: EntriesTable) -> None:
    """Refuse a replace that adds rows: it has the same rows in other files, or fewer where deletes were applied."""
    rows = [int(files.record_count[files.content == Content.DATA].sum()) for files in (added, removed)]
    if change.operation is Operation.REPLACE and rows[0] > rows[1]:
        raise BadInputError(
            f"a replacement of {rows[1]} rows cannot add {rows[0]}", context={"added": rows[0], "removed": rows[1]}
        )


def _validate_deletes(added: EntriesTable, version: int) -> None:
    is_position = added.content == Content.POSITION_DELETES
    is_vector = is_position & to_mask(pc.equal(added.array("file_format"), "PUFFIN"))
    if version == 1:
        _refuse(added, added.content != Content.DATA, "format 1 has no delete files: upgrade the table to format 2")
    elif version == 2:
        _refuse(added, is_vector, "format 2 has no deletion vectors: write position delete files")
    else:
        _refuse(added, is_position & ~is_vector, "format 3 takes deletion vectors, not position delete files")


def _refuse_kind(files: EntriesTable | None, kind: Content, *, expected: bool, what: str) -> None:
    if files is not None:
        _refuse(files, (files.content == kind) != expected, f"it is {what}")


def _repeated(values: pa.Array) -> Mask:
    """Values that occurred before; nulls never repeat."""
    codes = values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    first = np.zeros(len(codes), dtype=np.bool_)
    first[np.unique(codes, return_index=True)[1]] = True
    return np.asarray(~first & (codes >= 0))


def _vector_targets(added: EntriesTable) -> pa.Array:
    is_vector = pc.equal(added.array("file_format"), "PUFFIN")
    return pc.if_else(is_vector, added.array("referenced_data_file"), pa.scalar(None, pa.large_string()))


def _refuse(files: EntriesTable, wrong: Mask, why: str) -> None:
    if wrong.any():
        path = files.path[int(np.argmax(wrong))].as_py()
        raise UnsupportedError(f"cannot add {path}: {why}", context={"file": path})


_FIRST_WITH_VECTORS = 3


def check_compatible(change: SnapshotChange, planned: TableMetadata, now: TableMetadata) -> None:
    """Refuse a change whose files do not fit the newer metadata.

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
    before, after = fields_by_id(planned), fields_by_id(now)
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
    """Whether values can be read as another type; nested types are checked by their fields."""
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
    """Refuse position delete files after an upgrade to a format with deletion vectors."""
    if planned.format_version < _FIRST_WITH_VECTORS <= now.format_version:
        of_positions = deletes.content == Content.POSITION_DELETES
        if of_positions.any():
            raise CommitConflictError(
                f"the table was upgraded to format {now.format_version} while position deletes were written for format "
                f"{planned.format_version}; run the operation again",
                context={"format_version": now.format_version},
            )
