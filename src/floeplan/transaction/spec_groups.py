"""Files by the partition spec they were written under: a manifest holds the files of one spec, and no other.

Rule: any spec in the table's metadata is good, not just the default one; groups are sorted by spec id, so the same
change always gives the same manifests. Format 1 did not write spec ids: a file without one is of spec 0.

Fail-safe: a spec id that the metadata does not know is an error naming the id and the file, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType

from floeplan.errors import UnknownSpecError
from floeplan.metadata.decoder import Ints
from floeplan.metadata.entries import EntriesTable
from floeplan.partition.transforms import can_apply

_SPEC_OF_FILES_WITHOUT_ONE = 0


def validate_added_data_files(files: EntriesTable, specs: Iterable[int]) -> None:
    """Refuse files of a spec that is not among these ids of the table."""
    known = sorted(specs)
    spec_id = _spec_ids(files)
    strange = ~np.isin(spec_id, known)
    if strange.any():
        row = int(np.argmax(strange))
        path, wrong = files.path[row].as_py(), int(spec_id[row])
        raise UnknownSpecError(
            f"{path} is of partition spec {wrong}, which the table does not have; it has {', '.join(map(str, known))}",
            context={"spec_id": wrong, "file": path},
        )


def group_files_by_spec(files: EntriesTable) -> dict[int, EntriesTable]:
    """New files by spec id, in rising order; a file without a spec id is of spec 0."""
    return group_entries_by_spec(with_spec_ids(files))


def with_spec_ids(files: EntriesTable) -> EntriesTable:
    """The same files, those without a spec id as of spec 0."""
    if not files.array("spec_id").null_count:
        return files
    at = files.table.schema.get_field_index("spec_id")
    filled = pa.array(_spec_ids(files), pa.int32())
    return EntriesTable(files.table.set_column(at, "spec_id", filled), files.partition_types)


def group_entries_by_spec(entries: EntriesTable) -> dict[int, EntriesTable]:
    """Entries by spec id, in rising order; within a spec their order is kept."""
    spec_id = entries.spec_id
    specs = np.unique(spec_id).tolist()
    if len(specs) == 1:
        return {specs[0]: entries}
    return {spec: entries.filter(spec_id == spec) for spec in specs}


def find_compatible_schema(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """The current schema if the sources of the spec are in it, else the newest historical one that has them.

    Raises:
        UnknownSpecError: No schema of the table has all source columns of the spec.
    """
    older = (schema for schema in metadata.schemas if schema.schema_id != metadata.current_schema_id)
    for schema in (metadata.schema(), *sorted(older, key=lambda schema: -schema.schema_id)):
        if all(_binds(field, schema) for field in spec.fields):
            return schema
    raise UnknownSpecError(
        f"no schema of the table has all source columns of partition spec {spec.spec_id}: write under another spec",
        context={"spec_id": spec.spec_id},
    )


def _binds(field: PartitionField, schema: Schema) -> bool:
    """A void field is null whatever its source is, and binds without one."""
    if isinstance(field.transform, VoidTransform):
        return True
    source = schema._lazy_id_to_field.get(field.source_id)
    type_ = None if source is None else source.field_type
    return isinstance(type_, PrimitiveType) and can_apply(field.transform, type_)


def _spec_ids(files: EntriesTable) -> Ints:
    return files.ints("spec_id", missing=_SPEC_OF_FILES_WITHOUT_ONE)
