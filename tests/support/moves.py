"""Small tables whose files can, or cannot, be moved to another spec: files of ten rows under no spec, then by part."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floeplan.metadata.manifests.entries import WHOLE, Content, EntriesTable, EntryColumns, Status
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.new_entries import new_entries
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.position_deletes import write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.commits import SCHEMA, Rows, append, patient, rows_of

ROWS: tuple[Rows, ...] = (
    rows_of(0, 10, "a"),
    rows_of(10, 20, "b"),
    rows_of(20, 30, "a"),
    rows_of(30, 35, "a") + rows_of(35, 40, "b"),
)
"""Three files of one part each, and one of two parts, whose partition cannot be proven."""


def unpartitioned_table(
    catalog: SqlCatalog, version: int = 2, files: tuple[Rows, ...] = ROWS, name: str = "db.t"
) -> Table:
    with writable_metadata(catalog._load_file_io()):
        table = catalog.create_table(name, SCHEMA, properties={"format-version": str(version)})
    for rows in files:
        table = commit_change(table, append(table, rows)).table
    return table


def partition_by_part(table: Table) -> Table:
    """The same table, its new files partitioned by part."""
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_identity("part")
    return table.refresh()


def evolved_table(catalog: SqlCatalog, version: int = 2, files: tuple[Rows, ...] = ROWS, name: str = "db.t") -> Table:
    return partition_by_part(unpartitioned_table(catalog, version, files, name))


def live_entries(table: Table) -> EntriesTable:
    """All live entries of the current snapshot, whole."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = read_manifest_list(snapshot.manifest_list, table.io)
    return read_entries(manifests, UnionPartitionType.of_table(table.metadata), EntryColumns(WHOLE), live=True)


def told(table: Table, *names: str) -> dict[str, Any]:
    """By file path what the live entries say."""
    entries = live_entries(table).table
    columns = zip(*(entries.column(name).to_pylist() for name in names), strict=True)
    return dict(zip(entries.column("file_path").to_pylist(), columns, strict=True))


def data_specs(table: Table) -> list[int]:
    """The specs of the data files."""
    entries = live_entries(table)
    return sorted(entries.spec_id[entries.content == Content.DATA].tolist())


def delete_change(table: Table, files: slice, *, per_file: bool = True, spec_id: int | None = None) -> SnapshotChange:
    """Deletes of the first row of some of the data files, in the order of their paths; vectors in format 3."""
    entries = live_entries(table)
    data = entries.filter(entries.content == Content.DATA)
    order = np.argsort(np.array(data.path.to_pylist()))[files]
    chosen, positions = data.take(order), [np.array([0])] * len(order)
    target = WriteTarget.of(table, spec_id=spec_id)
    if table.metadata.format_version > 2:
        deletes = write_deletion_vectors(target, chosen, positions, file_name_token="test")
    else:
        deletes = write_position_deletes(target, chosen, positions, file_name_token="test", per_file=per_file)
    return SnapshotChange(Operation.DELETE, added_deletes=deletes)


def delete_first_rows(table: Table, files: slice, *, per_file: bool = True) -> Table:
    return commit_change(table, delete_change(table, files, per_file=per_file), options=patient()).table


def equality_delete(table: Table, ids: list[int], spec_id: int, part: str | None = None) -> SnapshotChange:
    """A delete file of ids, filed under a partition of a spec."""
    path = f"{table.location()}/data/equality-{uuid.uuid4()}.parquet"
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    rows = pa.table({"id": ids}, schema=pa.schema([field]))
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(exist_ok=True)
    pq.write_table(rows, local)
    columns: dict[str, Any] = {
        "spec_id": [spec_id],
        "status": [Status.ADDED],
        "content": [Content.EQUALITY_DELETES],
        "file_path": [path],
        "file_format": ["PARQUET"],
        "record_count": [len(ids)],
        "file_size_in_bytes": [local.stat().st_size],
        "equality_ids": [[1]],
    }
    union = UnionPartitionType.of_table(table.metadata)
    columns |= {f"partition.{field.id}": [part] for field in union.fields if field.name == "part"}
    entries = new_entries({name: pa.array(values) for name, values in columns.items()}, union)
    return SnapshotChange(Operation.DELETE, added_deletes=entries)
