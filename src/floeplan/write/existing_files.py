"""Registers existing Parquet files as data files of a table, without reading or rewriting their rows.

The partition of a file must be proven: each field of the spec has one value for all rows, by the file's statistics or,
if the caller trusts them, by ``name=value`` folders of its path (``proven_partitions``). Columns are resolved by the
file's field ids, or by the table's name mapping if the file has none.

Fail-safe: a file whose partition is not proven, whose columns may not be those of the table, or which the table already
has is refused by name, and with it the whole operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    UUIDType,
)

from floeplan.errors import BadInputError, TypeMismatchError, UnsupportedError
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.source import open_source
from floeplan.partition.key import PartitionKey
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import SnapshotReader
from floeplan.write.metrics import FileEntry, added_entries, file_metrics
from floeplan.write.partitioning import FilePartition
from floeplan.write.proven_partitions import SourceFile, with_proven_partitions
from floeplan.write.target import WriteTarget

_THREADS = 16


def existing_file_entries(
    table: Table, paths: Iterable[str | os.PathLike[str]], *, spec_id: int | None = None, hive_partitions: bool = False
) -> EntriesTable:
    """Manifest entries for existing Parquet files, in the given order.

    Args:
        table: The table.
        paths: Their locations.
        spec_id: The spec they are partitioned by; the table's default spec by default.
        hive_partitions: Take partition values from ``name=value`` folders if statistics do not prove them, and the
            values of identity fields for columns that the files do not have.
    """
    target = WriteTarget.of(table, spec_id=spec_id)
    locations = [_absolute(path) for path in paths]
    _refuse_duplicates(table, locations)
    mapping = table.name_mapping()
    names = _names(table)
    with ThreadPoolExecutor(_THREADS, "floeplan-import") as pool:
        sources = list(pool.map(lambda path: _open(path, target, mapping, names, hive_partitions), locations))
    entries = added_entries([_entry(source, target) for source in sources], target.union)
    return with_proven_partitions(entries, sources, target, hive_partitions)


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return os.path.abspath(text) if "://" not in text and not text.startswith("file:") else text


def _refuse_duplicates(table: Table, locations: Sequence[str]) -> None:
    spellings: dict[str, str] = {}
    for location in locations:
        if location in spellings:
            raise BadInputError(f"{location} is listed twice", context={"file": location})
        spellings |= dict.fromkeys(_spellings(location), location)
    snapshot = table.current_snapshot()
    if snapshot is None or not locations:
        return
    reader = SnapshotReader.open(table, snapshot)
    columns = EntryColumns(frozenset({"file_path"}), partition=False)
    live = reader.entries(None, columns)
    known = live.path.filter(pc.is_in(live.path, pa.array(list(spellings), live.path.type)))
    if len(known):
        found = spellings[known[0].as_py()]
        raise BadInputError(f"{found} is already a file of the table", context={"file": found})


def _spellings(location: str) -> tuple[str, ...]:
    local = local_path(location)
    return (location,) if local is None else (local, f"file:{local}", f"file://{local}")


def _names(table: Table) -> dict[int, set[str]]:
    """All names that a field has had, by field id."""
    found: dict[int, set[str]] = {}
    for schema in table.metadata.schemas:
        for field_id in fields_by_id(schema):
            found.setdefault(field_id, set()).add(schema.find_column_name(field_id) or "")
    return found


def _open(
    path: str, target: WriteTarget, mapping: NameMapping | None, names: Mapping[int, set[str]], hive: bool
) -> SourceFile:
    footer = read_footer(open_source(path, target.io))
    leaves = _own_leaves(path, footer, names) if footer.has_field_ids else _mapped_leaves(path, footer, mapping)
    _check_required(path, leaves, target, hive)
    _check_types(path, leaves, target)
    return SourceFile(path, footer, leaves)


def _own_leaves(path: str, footer: ParquetFooter, names: Mapping[int, set[str]]) -> dict[int, LeafColumn]:
    """The leaves by the file's field ids, whose names must be names of the same field ids in the table."""
    for field_id in fields_by_id(footer.schema):
        name, known = footer.schema.find_column_name(field_id), names.get(field_id, set())
        if name not in known:
            raise UnsupportedError(
                f"column {name} of {path} has field id {field_id}, which in the table is "
                f"{' or '.join(sorted(known)) or 'no column'}; the file was written for another table",
                context={"file": path, "column": name, "field-id": field_id},
            )
    return dict(footer.leaf_by_id)


def _mapped_leaves(path: str, footer: ParquetFooter, mapping: NameMapping | None) -> dict[int, LeafColumn]:
    if mapping is None:
        raise UnsupportedError(
            f"the columns of {path} carry no field ids and the table has no name mapping; "
            "set the table property schema.name-mapping.default",
            context={"file": path},
        )
    by_name = mapping._field_by_name
    found = {}
    for leaf in footer.leaves:
        mapped = by_name.get(footer.schema.find_column_name(leaf.field_id) or "")
        if mapped is not None and mapped.field_id is not None:
            found[mapped.field_id] = leaf
    return found


def _check_required(path: str, leaves: Mapping[int, LeafColumn], target: WriteTarget, hive: bool) -> None:
    """Required columns must be in the file, or be the source of an identity partition field."""
    constant = {f.source_id for f in target.spec.fields if hive and isinstance(f.transform, IdentityTransform)}
    for field in target.stored_schema.fields:
        must = field.required and field.initial_default is None and isinstance(field.field_type, PrimitiveType)
        if must and field.field_id not in leaves and field.field_id not in constant:
            raise BadInputError(
                f"column {field.name} is required, and {path} does not have it",
                context={"file": path, "column": field.name},
            )


def _check_types(path: str, leaves: Mapping[int, LeafColumn], target: WriteTarget) -> None:
    """The types of columns must be the table's, or promote to them by the schema evolution rules."""
    for field_id, leaf in leaves.items():
        wanted = fields_by_id(target.schema).get(field_id)
        if wanted is not None and not _reads_as(leaf.type, wanted.field_type):
            raise TypeMismatchError(
                f"column {leaf} of {path} is {leaf.type}, which cannot be read as {wanted.field_type}",
                context={"file": path, "column": str(leaf), "type": str(wanted.field_type), "found": str(leaf.type)},
            )


def _reads_as(stored: PrimitiveType | None, wanted: IcebergType) -> bool:
    match stored, wanted:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return stored.scale == wanted.scale and stored.precision <= wanted.precision
        case FixedType(), UUIDType():
            return len(stored) == 16
    return stored == wanted


def _entry(source: SourceFile, target: WriteTarget) -> FileEntry:
    footer = source.footer
    return FileEntry(
        path=source.path,
        partition=FilePartition(PartitionKey(target.spec_id, None), {}),
        record_count=footer.num_rows,
        size=footer.file_size,
        metrics=file_metrics(footer, target.schema, target.metrics_modes, leaves=source.leaves),
        split_offsets=footer.chunks(0).start.tolist() if footer.leaves else None,
    )
