"""Partition values that are disproven by the summary of their manifest, by column bounds, or by rows.

==================  ==================================================================================================
``denied_by_list``  the summary in the manifest list excludes the partition of an entry: pass 1 of a plan loses the file
``denied_by_file``  column bounds prove another partition than the entry has: a plan loses the file, or its rows
``denied_by_rows``  rows of the file belong to other partitions, or it is not there; a sample is read for it
==================  ==================================================================================================

Fail-safe: only what is proven is reported. Time units before 1970 may be off by one, as some writers store them; UUIDs
are not compared with summaries, whose order differs between writers; unreadable files are not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.transforms import TimeTransform
from pyiceberg.types import PrimitiveType, UUIDType

from floeplan.errors import CorruptError, MissingFileError, UnsupportedError
from floeplan.metadata.delete_index import DeleteMatches
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.metadata.manifests.stats import file_stats, manifest_stats, partition_stats
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.fields import BoundField
from floeplan.partition.recover import recover
from floeplan.partition.union import UnionField
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Vector, take, to_mask
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.scan.model import PlannedFiles
from floeplan.schemas import fields_by_id
from floeplan.snapshot.passes import ScanDeletes
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints, Mask
from floeplan.write.partitioning import partition_values

_SAMPLED_ROWS = 20_000


def denied_by_list(head: SnapshotReader, entries: EntriesTable) -> Mask:
    """Entries whose partition the summary of their manifest excludes: a null, a NaN or a value it does not admit."""
    fields = head.union.fields
    listed, recorded = manifest_stats(head.manifests, fields).columns, partition_stats(entries, fields).columns
    at = entries.ints("manifest")
    denied = np.zeros(len(entries), dtype=np.bool_)
    for field in fields:
        if field.id not in listed or field.id not in recorded or isinstance(field.bound.column.type, UUIDType):
            continue
        summary, own = listed[field.id], recorded[field.id]
        assert own.lower is not None
        values, ordinary = own.lower.values, own.lower.valid
        excluded = (own.may_null & ~summary.may_null[at]) | (own.may_nan & ~summary.may_nan[at])
        excluded |= ordinary & ~summary.may_value[at]
        if summary.lower is not None:
            excluded |= ordinary & summary.lower.valid[at] & _less(values, take(summary.lower.values, at))
        if summary.upper is not None:
            excluded |= ordinary & summary.upper.valid[at] & _less(take(summary.upper.values, at), values)
        denied |= excluded & np.isin(entries.spec_id, list(field.positions))
    return denied


def repair_summaries(table: Table, *, branch: str, options: CommitOptions | None = None) -> int:
    """Rewrite manifests with wrong partition summaries, entries unchanged; return how many there were."""
    found = [0]

    def decide(head: SnapshotReader) -> EntryMove | None:
        wrong = []
        for content in (DATA, DELETES):
            entries = head.entries(head.manifest_rows(content), EntryColumns(frozenset()))
            wrong += np.unique(entries.ints("manifest")[denied_by_list(head, entries)]).tolist()
        found.append(len(wrong))
        if not wrong:
            return None
        rows = np.array(wrong, dtype=np.int64)
        entries = head.entries(rows, EntryColumns(WHOLE))
        return EntryMove(rows, entries, [entries.filter(entries.ints("manifest") == row) for row in wrong])

    move_entries(table, decide, branch=branch, summary={"floeplan.operation": "repair-summaries"}, options=options)
    return found[-1]


def denied_by_file(head: SnapshotReader, rows: Ints) -> Mask:
    """The entries of data manifests whose bounds prove another partition."""
    # The source columns of the partition fields, unless they were dropped.
    by_id = fields_by_id(head.metadata.schema())
    sources = [by_id[field.bound.source_id] for field in head.union.fields if field.bound.source_id in by_id]
    columns = {
        source.field_id: Column(source.field_id, source.field_type, (source.name,))
        for source in sources
        if isinstance(source.field_type, PrimitiveType)
    }
    parts = head.entries_by_parts(rows, EntryColumns(frozenset(), stats=frozenset(columns)))
    return np.concatenate([_denied_by_bounds(entries, columns, head.union.fields) for entries in parts])


def _denied_by_bounds(entries: EntriesTable, columns: Mapping[int, Column], fields: Sequence[UnionField]) -> Mask:
    stats = file_stats(entries, columns.values()).columns
    recorded = partition_stats(entries, fields).columns
    denied = np.zeros(len(entries), dtype=np.bool_)
    for field in fields:
        if field.id not in recorded or field.bound.source_id not in stats or field.bound.is_void:
            continue
        proven = recover(field.bound, stats[field.bound.source_id], len(entries))
        member = np.isin(entries.spec_id, list(field.positions)) & proven.recovered & (entries.record_count > 0)
        if not member.any():
            continue  # values of an unknown transform have no type to compare
        own = recorded[field.id]
        assert own.lower is not None
        values = own.lower.values
        other = own.lower.valid & ~proven.is_null & ~_equal(values, proven.values)
        if isinstance(field.bound.transform, TimeTransform) and isinstance(values, np.ndarray):
            other &= values >= 0  # some writers round times before 1970 towards zero
        other |= (own.may_null & ~proven.is_null) | (own.lower.valid & proven.is_null)
        denied |= member & other
    return denied


def denied_by_rows(table: Table, head: SnapshotReader, data: EntriesTable, files: int) -> tuple[list[str], list[str]]:
    """Sample files evenly and compare their rows with their recorded partition.

    Returns:
        The paths of files of which some row belongs to another partition, and of files that do not exist.
    """
    denied: list[str] = []
    missing: list[str] = []
    at = np.unique(np.linspace(0, len(data) - 1, min(files, len(data))).astype(np.int64))
    entries, union = data.take(at), head.union
    columns, schema = entries.partition_columns(), table.metadata.schema()
    sampled = PlannedFiles.whole(entries, ScanDeletes.none(union), DeleteMatches.none(len(at)), union)
    files_of_table = FileRows(TableRows.of(table, schema))
    for row, file in enumerate(sampled):
        fields = [
            field
            for field in union.spec(file.spec_id).fields
            if not field.is_void and not field.obstacle and field.source_id in fields_by_id(schema)
        ]
        names = [schema.find_column_name(field.source_id) for field in fields]
        wanted = schema.select(*(name for name in names if name is not None))
        try:
            opened = files_of_table.open(file)
            first = RowSelection.all_rows(min(opened.stored.num_rows, _SAMPLED_ROWS))
            rows = opened.read(wanted, first)[0] if fields else None
        except MissingFileError:
            missing.append(file.path)
            continue
        except (CorruptError, UnsupportedError, OSError):
            continue
        if rows is not None and any(
            _differ(partition_values(rows, wanted, field), columns[field.column.field_id][row], field)
            for field in fields
        ):
            denied.append(file.path)
    return denied, missing


def _differ(values: pa.Array, recorded: pa.Scalar, field: BoundField) -> bool:
    """Whether some row has another partition value than its file."""
    if not recorded.is_valid:
        return bool(values.null_count < len(values))
    if isinstance(field.transform, TimeTransform) and recorded.as_py() < 0:
        return False  # some writers round times before 1970 towards zero
    if pa.types.is_floating(values.type) and np.isnan(recorded.as_py()):
        return not pc.all(pc.is_nan(values.fill_null(0))).as_py()
    return bool(values.null_count or pc.any(pc.not_equal(values, recorded.cast(values.type))).as_py())


def _less(left: Vector, right: Vector) -> Mask:
    return np.asarray(left < right) if isinstance(left, np.ndarray) else to_mask(pc.less(left, right))


def _equal(left: Vector, right: Vector) -> Mask:
    return np.asarray(left == right) if isinstance(left, np.ndarray) else to_mask(pc.equal(left, right))
