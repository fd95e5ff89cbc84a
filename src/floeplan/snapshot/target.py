"""Resolves which snapshot of a table is read, and with which schema.

As in Iceberg: a snapshot id, a timestamp or a tag is read with the schema of that snapshot; a branch, and the table
itself, with the current schema. At most one of them may be given.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from floeplan.errors import BadInputError, UnknownColumnError, UnknownSnapshotError
from floeplan.schemas import fields_by_id


@dataclass(frozen=True, slots=True)
class ScanTarget:
    """A table, the snapshot to read (``None`` for a table without data) and the schema to read it with."""

    table: Table
    snapshot: Snapshot | None
    schema: Schema

    @property
    def name(self) -> str:
        """The name of the table in its catalog, or the location of its metadata file."""
        return self.table.metadata_location if isinstance(self.table, StaticTable) else ".".join(self.table.name())

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata."""
        return self.table.metadata


def resolve_target(
    table: Table, *, snapshot_id: int | None = None, ref: str | None = None, timestamp_ms: int | None = None
) -> ScanTarget:
    """Find the snapshot by id, by branch or tag, by time, or the current one."""
    if sum(choice is not None for choice in (snapshot_id, ref, timestamp_ms)) > 1:
        raise BadInputError("snapshot id, ref and timestamp exclude each other: give one of them")
    if snapshot_id is not None:
        return _with_own_schema(table, _by_id(table, snapshot_id))
    if timestamp_ms is not None:
        past = [entry for entry in table.metadata.snapshot_log if entry.timestamp_ms <= timestamp_ms]
        if not past:
            raise UnknownSnapshotError(
                f"table has no snapshot as old as {timestamp_ms} ms", context={"timestamp_ms": timestamp_ms}
            )
        return _with_own_schema(table, _by_id(table, past[-1].snapshot_id))
    if ref is None or ref == MAIN_BRANCH:
        return ScanTarget(table, table.current_snapshot(), table.schema())
    named = table.metadata.refs.get(ref)
    if named is None:
        known = ", ".join(sorted(table.metadata.refs)) or "none"
        raise UnknownSnapshotError(f"table has no branch or tag {ref}; it has: {known}", context={"ref": ref})
    snapshot = _by_id(table, named.snapshot_id)
    if named.snapshot_ref_type is SnapshotRefType.TAG:
        return _with_own_schema(table, snapshot)
    return ScanTarget(table, snapshot, table.schema())


def _by_id(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        known = ", ".join(str(s.snapshot_id) for s in table.metadata.snapshots[-5:]) or "none"
        raise UnknownSnapshotError(
            f"table has no snapshot {snapshot_id}; its latest are: {known}", context={"snapshot_id": snapshot_id}
        )
    return snapshot


def _with_own_schema(table: Table, snapshot: Snapshot) -> ScanTarget:
    """A snapshot with the schema it was written with; the current one where format 1 did not record it."""
    schemas = {schema.schema_id: schema for schema in table.metadata.schemas}
    schema = table.schema() if snapshot.schema_id is None else schemas.get(snapshot.schema_id, table.schema())
    return ScanTarget(table, snapshot, schema)


def branch_head(metadata: TableMetadata, branch: str) -> int | None:
    """The id of the newest snapshot of a branch; ``None`` when there is no such branch yet.

    Raises:
        BadInputError: The name is a tag's.
    """
    ref = metadata.refs.get(branch)
    if ref is None:
        return metadata.current_snapshot_id if branch == MAIN_BRANCH else None
    if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise BadInputError(
            f"{branch} is a tag, and tags do not move: write to a branch, or create one from it",
            context={"ref": branch},
        )
    return ref.snapshot_id


def select(schema: Schema, columns: Sequence[str], case_sensitive: bool = True) -> Schema:
    """Project a schema onto the named columns, nested ones by their path, in this order."""
    for name in columns:
        try:
            schema.find_field(name, case_sensitive)
        except ValueError as error:
            known = [field.name for field in schema.fields]
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the table has {', '.join(known)}"
            raise UnknownColumnError(f"no column {name!r}; {hint}", context={"column": name}) from error
    chosen = schema.select(*columns, case_sensitive=case_sensitive)
    ids = [schema.find_field(name, case_sensitive).field_id for name in columns]

    def first_named(field: NestedField) -> int:
        """The position of the first name that is this top-level field or one nested in it."""
        inside = fields_by_id(Schema(field))
        return next(position for position, field_id in enumerate(ids) if field_id in inside)

    # PyIceberg's select keeps the order of the schema, not of the names.
    return Schema(*sorted(chosen.fields, key=first_named), schema_id=schema.schema_id)
