"""Small real tables and four kinds of changes, planned on the current table and committed later.

A table has rows ``(id, part)`` in files of ten rows, one file per part. Each operation also has its effect on rows in
plain Python (``Write.of_rows``), so that any serial order of operations has an expected result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import WHOLE, Content, EntriesTable, EntryColumns, Status, new_entries
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import compile_predicate
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.scan.model import FileScan, ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.read import PlanReader
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy, Timing
from floeplan.transaction.change import (
    Command,
    ConflictValidation,
    IsolationLevel,
    Mode,
    Operation,
    SnapshotChange,
    required_checks,
)
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.upgrade_format import upgrade_format
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)
NO_SCAN_EXTRAS = ScanOptions(report=False, cache=False)
Rows = list[tuple[int, str]]

NO_WAITING = Timing(clock=lambda: 0.0, sleep=lambda _: None, chance=lambda: 0.5)


def patient(**options: Any) -> CommitOptions:
    """Options without a wait between retries."""
    return CommitOptions(**{"timing": NO_WAITING, "owns_files": True} | options)


def no_retry(**options: Any) -> CommitOptions:
    """Options without retries."""
    return patient(retry=RetryPolicy(retries=0), **options)


def rows_of(first: int, last: int, part: str = "a") -> Rows:
    return [(number, part) for number in range(first, last)]


def arrow(rows: Rows) -> pa.Table:
    columns = {"id": [row[0] for row in rows], "part": [row[1] for row in rows]}
    return pa.table(columns, schema=pa.schema([("id", pa.int64()), ("part", pa.string())]))


def open_catalog(folder: Path) -> SqlCatalog:
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace_if_not_exists("db")
    return catalog


def empty_table(
    catalog: SqlCatalog, version: int, name: str, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> Table:
    """PyIceberg creates no tables of format 4: they are upgraded."""
    properties = {"format-version": str(min(version, 3))}
    with writable_metadata(catalog._load_file_io()):
        table = catalog.create_table(name, SCHEMA, partition_spec=spec, properties=properties)
    if version > 3:
        upgrade_format(table, version)
    return table


def create_table(catalog: SqlCatalog, version: int = 2, rows: Rows | None = None, name: str = "db.t") -> Table:
    """A table partitioned by ``part`` with files of ten rows; ids 0–29 by default."""
    table = empty_table(catalog, version, name, SPEC)
    start = rows_of(0, 10, "a") + rows_of(10, 20, "b") + rows_of(20, 30, "a") if rows is None else rows
    for at in range(0, len(start), 10):
        table = commit_change(table, append(table, start[at : at + 10])).table
    return table


def read_rows(table: Table, ref: str | None = None) -> Rows:
    """The rows of the current version of the table in the catalog."""
    newest = table.catalog.load_table(table.name())
    found = plan_scan(newest, ref=ref, options=NO_SCAN_EXTRAS).to_arrow().to_pylist()
    return sorted((row["id"], row["part"]) for row in found)


def write_rows(table: Table, rows: Rows) -> EntriesTable:
    return write_data_files(WriteTarget.of(table), [arrow(rows)], file_name_token="test")


def append(table: Table, rows: Rows) -> SnapshotChange:
    return SnapshotChange(Operation.APPEND, added_data=write_rows(table, rows))


@dataclass(frozen=True)
class Planned:
    """A change with its validation, planned on a table."""

    table: Table
    change: SnapshotChange
    validation: ConflictValidation

    def commit(self, options: CommitOptions | None = None, **arguments: Any) -> CommitResult:
        return commit_change(
            self.table, self.change, validation=self.validation, options=options or patient(), **arguments
        )


@dataclass(frozen=True)
class Write:
    """A kind of operation: how it is planned, and its effect on rows."""

    name: str
    plan: Callable[[Table, IsolationLevel], Planned]
    of_rows: Callable[[Rows], Rows]

    def __str__(self) -> str:
        return self.name


def appending(rows: Rows) -> Write:
    def plan(table: Table, isolation: IsolationLevel) -> Planned:
        return Planned(table, append(table, rows), _validation(table, "append", "copy-on-write", isolation, "true"))

    return Write("append", plan, lambda before: sorted(before + rows))


Matches = Callable[[tuple[int, str]], bool]


def copy_on_write_delete(where: str, matches: Matches) -> Write:
    """Files with matching rows are replaced by files without them."""
    return _copy_on_write("delete", where, lambda row: [] if matches(row) else [row])


def copy_on_write_update(where: str, matches: Matches, part: str) -> Write:
    """Files with matching rows are replaced by files in which these rows have another part."""
    return _copy_on_write("update", where, lambda row: [(row[0], part)] if matches(row) else [row])


def merge_on_read_delete(where: str, matches: Matches) -> Write:
    """Deletion vectors in format 3, position delete files in format 2."""
    return _merge_on_read("delete", where, matches, lambda row: [])


def merge_on_read_update(where: str, matches: Matches, part: str) -> Write:
    """Matching rows are deleted in the same way and written again with another part."""
    return _merge_on_read("update", where, matches, lambda row: [(row[0], part)])


def _copy_on_write(command: Command, where: str, becomes: Callable[[tuple[int, str]], Rows]) -> Write:
    def of_rows(before: Rows) -> Rows:
        return [new for row in before for new in becomes(row)]

    def plan(table: Table, isolation: IsolationLevel) -> Planned:
        scan = plan_scan(table, where, options=NO_SCAN_EXTRAS)
        paths = frozenset(scan.files.entries.path.to_pylist())
        rows = of_rows(_rows_of_files(table, paths))
        operation = Operation.OVERWRITE if rows else Operation.DELETE
        change = SnapshotChange(operation, added_data=write_rows(table, rows) if rows else None, removed_data=paths)
        return Planned(table, change, _validation(table, command, "copy-on-write", isolation, where))

    return Write(f"copy-on-write {command}", plan, of_rows)


def _merge_on_read(command: Command, where: str, matches: Matches, becomes: Callable[[tuple[int, str]], Rows]) -> Write:
    def plan(table: Table, isolation: IsolationLevel) -> Planned:
        files = plan_scan(table, where, options=NO_SCAN_EXTRAS).files
        paths = files.entries.path.to_pylist()
        new = [row for old in _rows_of_files(table, frozenset(paths)) if matches(old) for row in becomes(old)]
        positions = [_positions(table, path, matches) for path in paths]
        target = WriteTarget.of(table)
        replaced: frozenset[DeleteFileId] = frozenset()
        if table.metadata.format_version > 2:
            positions = [np.union1d(p, _deleted(table, file)) for p, file in zip(positions, files, strict=True)]
            replaced = frozenset(DeleteFileId(d.path, d.content_offset) for file in files for d in file.deletes)
            deletes = write_deletion_vectors(target, files.entries, positions, file_name_token="test")
        else:
            deletes = write_position_deletes(target, files.entries, positions, file_name_token="test", per_file=True)
        change = SnapshotChange(
            Operation.OVERWRITE if new else Operation.DELETE,
            added_data=write_rows(table, new) if new else None,
            added_deletes=deletes,
            removed_deletes=replaced,
        )
        return Planned(table, change, _validation(table, command, "merge-on-read", isolation, where))

    def of_rows(before: Rows) -> Rows:
        return [new for row in before for new in (becomes(row) if matches(row) else [row])]

    return Write(f"merge-on-read {command}", plan, of_rows)


def replacing(where: str) -> Write:
    """All files that may match are replaced by one file per partition, with deletes applied."""

    def plan(table: Table, isolation: IsolationLevel) -> Planned:
        files = plan_scan(table, where, options=NO_SCAN_EXTRAS).files
        paths = frozenset(files.entries.path.to_pylist())
        gone = frozenset(DeleteFileId(d.path, d.content_offset) for file in files for d in file.deletes)
        change = SnapshotChange(
            Operation.REPLACE,
            added_data=write_rows(table, _rows_of_files(table, paths)),
            removed_data=paths,
            removed_deletes=gone,
        )
        return Planned(table, change, _validation(table, "rewrite", "copy-on-write", isolation, where))

    return Write("replace", plan, lambda before: before)


def _validation(
    table: Table, command: Command, mode: Mode, isolation: IsolationLevel, where: str
) -> ConflictValidation:
    return ConflictValidation(
        table.metadata.current_snapshot_id,
        required_checks(command, mode, isolation),
        compile_predicate(where, table.schema()).predicate,
    )


def _rows_of_files(table: Table, paths: frozenset[str]) -> Rows:
    """The live rows of the data files."""
    found: Rows = []
    for path, rows in _files(table):
        found += rows if path in paths else []
    return sorted(found)


def _files(table: Table) -> Iterator[tuple[str, Rows]]:
    plan = plan_scan(table, options=NO_SCAN_EXTRAS)
    reader = PlanReader.of(plan, table.schema())
    for file in plan.files:
        yield file.path, [(row["id"], row["part"]) for row in reader.read(file).to_pylist()]


def _positions(table: Table, path: str, matches: Callable[[tuple[int, str]], bool]) -> Any:
    """Positions of matching rows of a data file, deleted or not."""
    with table.io.new_input(path).open() as stream:
        rows = pq.read_table(stream).to_pylist()
    return np.array([at for at, row in enumerate(rows) if matches((row["id"], row["part"]))], dtype=np.int64)


def _deleted(table: Table, file: FileScan) -> Any:
    """Positions of a data file that are already deleted."""
    rows = FileRows(TableRows.of(table, table.schema()))
    parts = [merge_positions(rows.positions(delete, file.path)) for delete in file.deletes]
    return np.array(sorted(merge_positions(*parts)), dtype=np.int64)


def fork(table: Table, name: str) -> Table:
    """A new table with the same metadata and files, which can be changed independently."""
    return table.catalog.register_table(name, table.metadata_location)


def files_under(table: Table) -> set[str]:
    """All files at the location of the table, as paths in its metadata."""
    home = table.location()
    folder = Path(home.removeprefix("file://"))
    return {f"{home}/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}


def reachable(table: Table) -> set[str]:
    """All files that the current metadata and any of its snapshots refer to."""
    newest = table.catalog.load_table(table.name())
    metadata = newest.metadata
    found = {newest.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    manifests = {m.manifest_path: m for snapshot in metadata.snapshots for m in snapshot.manifests(newest.io)}
    found |= {*manifests, *(snapshot.manifest_list for snapshot in metadata.snapshots)}
    for manifest in manifests.values():
        found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(newest.io)}
    return found


def leftovers(table: Table) -> set[str]:
    """Unreferenced files at the location of the table."""
    return files_under(table) - reachable(table)


class Unreliable(SqlCatalog):
    """A catalog with faults: the n-th commit gets the n-th of ``faults``.

    An exception is raised before the commit is applied, an exception in a tuple after it; ``None`` is no fault.
    ``unreachable`` is the number of table loads that fail after a commit.
    """

    faults: list[Exception | tuple[Exception] | None]
    unreachable = 0
    down = 0

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        try:
            if isinstance(fault, Exception):
                raise fault
            response = super().commit_table(table, requirements, updates)
            if fault is not None:
                raise fault[0]
            return response
        finally:
            self.down = self.unreachable if fault is not None else 0

    def load_table(self, identifier: Any) -> Table:
        if self.down > 0:
            self.down -= 1
            raise ConnectionError("no route to the catalog")
        return super().load_table(identifier)


def unreliable(table: Table, *faults: Exception | tuple[Exception] | None, unreachable: int = 0) -> Table:
    """The same table, opened with a catalog with faults."""
    reliable = table.catalog
    catalog = Unreliable(reliable.name, **reliable.properties)
    catalog.faults, catalog.unreachable = list(faults), unreachable
    return catalog.load_table(table.name())


# Small tables whose files can or cannot be moved to another spec: unpartitioned files of ten rows, then by part.


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
    table = empty_table(catalog, version, name)
    for rows in files:
        table = commit_change(table, append(table, rows)).table
    return table


def partition_by_part(table: Table) -> Table:
    """Partition new files of the table by part."""
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_identity("part")
    return table.refresh()


def evolved_table(catalog: SqlCatalog, version: int = 2, files: tuple[Rows, ...] = ROWS, name: str = "db.t") -> Table:
    return partition_by_part(unpartitioned_table(catalog, version, files, name))


def live_entries(table: Table) -> EntriesTable:
    """All live entries of the current snapshot, with all columns."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = read_manifest_list(snapshot.manifest_list, table.io)
    return read_entries(manifests, UnionPartitionType.of_table(table.metadata), EntryColumns(WHOLE), live=True)


def entry_values(table: Table, *names: str) -> dict[str, Any]:
    """The values of these columns of the live entries, by file path."""
    entries = live_entries(table).table
    columns = zip(*(entries.column(name).to_pylist() for name in names), strict=True)
    return dict(zip(entries.column("file_path").to_pylist(), columns, strict=True))


def data_specs(table: Table) -> list[int]:
    """The specs of the data files."""
    entries = live_entries(table)
    return sorted(entries.spec_id[entries.content == Content.DATA].tolist())


def delete_change(table: Table, files: slice, *, per_file: bool = True, spec_id: int | None = None) -> SnapshotChange:
    """Delete the first row of some data files, sorted by path; deletion vectors in format 3."""
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


def equality_delete(
    table: Table, ids: list[int], spec_id: int, part: str | None = None, *, bounds: bool = False
) -> SnapshotChange:
    """An equality delete file of ids in a partition of a spec, optionally with the bounds of the ids."""
    path = f"{table.location()}/data/equality-{uuid.uuid4()}.parquet"
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    rows = pa.table({"id": ids}, schema=pa.schema([field]))
    encoded = BytesIO()
    pq.write_table(rows, encoded)
    with table.io.new_output(path).create() as file:
        file.write(encoded.getvalue())
    columns: dict[str, Any] = {
        "spec_id": [spec_id],
        "status": [Status.ADDED],
        "content": [Content.EQUALITY_DELETES],
        "file_path": [path],
        "file_format": ["PARQUET"],
        "record_count": [len(ids)],
        "file_size_in_bytes": [len(encoded.getvalue())],
        "equality_ids": [[1]],
    }
    if bounds:
        named = (("lower_bounds", min(ids)), ("upper_bounds", max(ids)))
        columns |= {name: [[{"key": 1, "value": to_bytes(LongType(), value)}]] for name, value in named}
        columns |= {"value_counts": [[{"key": 1, "value": len(ids)}]], "null_value_counts": [[{"key": 1, "value": 0}]]}
    union = UnionPartitionType.of_table(table.metadata)
    columns |= {f"partition.{field.id}": [part] for field in union.fields if field.name == "part"}
    entries = new_entries({name: pa.array(values) for name, values in columns.items()}, union)
    return SnapshotChange(Operation.DELETE, added_deletes=entries)
