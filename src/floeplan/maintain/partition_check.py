"""Partition values that are disproven by the summary of their manifest, by column bounds, or by rows.

==================  ==================================================================================================
``denied_by_list``  the summary in the manifest list excludes the partition of an entry: pass 1 of a plan loses the file
``denied_by_file``  column bounds prove another partition than the entry has: a plan loses the file, or its rows
``denied_by_rows``  rows of the file belong to other partitions, or it is not there; a sample is read for it
==================  ==================================================================================================

Fail-safe: only what is proven is reported. Time units before 1970 may be off by one, as some writers store them; UUIDs
are not compared with summaries, whose order differs between writers; rows are read of files only that can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import TimeTransform
from pyiceberg.types import PrimitiveType, UUIDType

from floeplan.errors import CorruptError, UnknownFileError, UnsupportedError
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.metadata.manifests.stats import file_stats, manifest_stats, partition_stats
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.fields import BoundField
from floeplan.partition.recover import recover
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Bound, ColumnStats, Vector, take, to_mask
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.scan.model import FileScan, ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import SnapshotReader, branch_head
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints, Mask
from floeplan.write.partitioning import partition_values

_SAMPLED_ROWS = 20_000
_NOTHING_MORE = EntryColumns(frozenset())


def denied_by_list(head: SnapshotReader, entries: EntriesTable) -> Mask:
    """Entries whose partition the summary of their manifest excludes."""
    fields = head.union.fields
    listed, told = manifest_stats(head.manifests, fields).columns, partition_stats(entries, fields).columns
    at = entries.ints("manifest")
    denied = np.zeros(len(entries), dtype=np.bool_)
    for field in fields:
        if field.id in listed and field.id in told and not isinstance(field.bound.column.type, UUIDType):
            member = np.isin(entries.spec_id, list(field.positions))
            denied |= member & _excluded(listed[field.id], told[field.id], at)
    return denied


def _excluded(listed: ColumnStats, told: ColumnStats, at: Ints) -> Mask:
    """Whether a null, a NaN or an ordinary value is there that the summary does not admit."""
    denied = (told.may_null & ~listed.may_null[at]) | (told.may_nan & ~listed.may_nan[at])
    assert told.lower is not None
    ordinary = told.lower.valid
    denied |= ordinary & ~listed.may_value[at]
    for bound, below in ((listed.lower, True), (listed.upper, False)):
        if bound is not None:
            limit = take(bound.values, at)
            low, high = (told.lower.values, limit) if below else (limit, told.lower.values)
            denied |= ordinary & bound.valid[at] & _less(low, high)
    return denied


def repair_summaries(table: Table, *, branch: str, options: CommitOptions | None = None) -> int:
    """Rewrite manifests with wrong partition summaries, entries unchanged; return how many there were."""
    found = [0]

    def decide(head: SnapshotReader) -> EntryMove | None:
        wrong = np.concatenate([_wrong_manifests(head, content) for content in (DATA, DELETES)])
        found.append(len(wrong))
        if not len(wrong):
            return None
        entries = head.entries(wrong, EntryColumns(WHOLE))
        of = entries.ints("manifest")
        return EntryMove(wrong, entries, [entries.filter(of == manifest) for manifest in wrong.tolist()])

    move_entries(table, decide, branch=branch, summary={"floeplan.operation": "repair-summaries"}, options=options)
    return found[-1]


def _wrong_manifests(head: SnapshotReader, content: int) -> Ints:
    entries = head.entries(head.manifest_rows(content), _NOTHING_MORE)
    return np.unique(entries.ints("manifest")[denied_by_list(head, entries)])


def denied_by_file(head: SnapshotReader, rows: Ints) -> tuple[EntriesTable, Mask]:
    """The entries of data manifests, and those among them whose bounds prove another partition."""
    columns = _sources(head.union, head.metadata.schema())
    entries = head.entries(rows, EntryColumns(frozenset(), stats=frozenset(columns)))
    stats = file_stats(entries, columns.values()).columns
    told = partition_stats(entries, head.union.fields).columns
    denied = np.zeros(len(entries), dtype=np.bool_)
    for field in head.union.fields:
        if field.id not in told or field.bound.source_id not in stats or field.bound.is_void:
            continue
        proven = recover(field.bound, stats[field.bound.source_id], len(entries))
        member = np.isin(entries.spec_id, list(field.positions)) & proven.recovered & (entries.record_count > 0)
        if member.any():  # values of an unknown transform have no type to compare
            denied |= member & _differs(field, told[field.id], Bound(proven.values, ~proven.is_null))
    return entries, denied


def _sources(union: UnionPartitionType, schema: Schema) -> dict[int, Column]:
    """The columns that partitions are made of, as far as the table still has them."""
    found = {}
    for field in union.fields:
        source = fields_by_id(schema).get(field.bound.source_id)
        if source is not None and isinstance(source.field_type, PrimitiveType):
            found[source.field_id] = Column(source.field_id, source.field_type, (source.name,))
    return found


def _differs(field: UnionField, told: ColumnStats, proven: Bound) -> Mask:
    assert told.lower is not None
    both = told.lower.valid & proven.valid
    other = both & ~_equal(told.lower.values, proven.values)
    if isinstance(field.bound.transform, TimeTransform) and isinstance(told.lower.values, np.ndarray):
        other &= told.lower.values >= 0
    return other | (told.may_null & proven.valid) | (told.lower.valid & ~proven.valid)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Paths of sampled files of which some row belongs to another partition, and of those that are not there."""

    denied: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def denied_by_rows(table: Table, branch: str, files: int) -> Sampled:
    """Sample files evenly and compare their rows with their recorded partition."""
    if not files or branch_head(table.metadata, branch) is None:
        return Sampled()
    try:
        plan = plan_scan(table, ref=branch, options=ScanOptions(footers=False, report=False))
    except CorruptError:
        return Sampled()  # what is wrong there has findings of its own
    sample = _Sample(table)
    entries = plan.files.entries
    rows = np.unique(np.linspace(0, len(entries) - 1, min(files, len(entries))).astype(np.int64)).tolist()
    columns = entries.partition_columns()
    found = {}
    for row in rows:
        file = plan.files[row]
        found[file.path] = sample.judge(file, {field_id: column[row] for field_id, column in columns.items()})
    return Sampled(
        tuple(path for path, verdict in found.items() if verdict is _Verdict.DENIED),
        tuple(path for path, verdict in found.items() if verdict is _Verdict.MISSING),
    )


class _Verdict(Enum):
    FINE = 0
    DENIED = 1
    MISSING = 2


class _Sample:
    """Opens files of one table and checks their rows."""

    def __init__(self, table: Table) -> None:
        self._union, self._schema = UnionPartitionType.of_table(table.metadata), table.metadata.schema()
        self._files = FileRows(TableRows.of(table, self._schema))

    def judge(self, file: FileScan, told: dict[int, pa.Scalar]) -> _Verdict:
        """Whether the first rows of a file belong to its recorded partition."""
        fields = [field for field in self._union.spec(file.spec_id).fields if _can_be_read(field, self._schema)]
        names = [self._schema.find_column_name(field.source_id) for field in fields]
        wanted = self._schema.select(*(name for name in names if name is not None))
        try:
            opened = self._files.open(file)
            first = RowSelection.all_rows(min(opened.footer.num_rows, _SAMPLED_ROWS))
            rows = opened.read(wanted, first)[0] if fields else None
        except UnknownFileError:
            return _Verdict.MISSING
        except (CorruptError, UnsupportedError, OSError):
            return _Verdict.FINE
        strange = rows is not None and any(
            _strange(partition_values(rows, wanted, field), told[field.column.field_id], field) for field in fields
        )
        return _Verdict.DENIED if strange else _Verdict.FINE


def _can_be_read(field: BoundField, schema: Schema) -> bool:
    return not field.is_void and not field.obstacle and field.source_id in fields_by_id(schema)


def _strange(values: pa.Array, told: pa.Scalar, field: BoundField) -> bool:
    if not told.is_valid:
        return bool(values.null_count < len(values))
    if isinstance(field.transform, TimeTransform) and told.as_py() < 0:
        return False
    if pa.types.is_floating(values.type) and np.isnan(told.as_py()):
        return not pc.all(pc.is_nan(values.fill_null(0))).as_py()
    return bool(values.null_count or pc.any(pc.not_equal(values, told.cast(values.type))).as_py())


def _less(left: Vector, right: Vector) -> Mask:
    return np.asarray(left < right) if isinstance(left, np.ndarray) else to_mask(pc.less(left, right))


def _equal(left: Vector, right: Vector) -> Mask:
    return np.asarray(left == right) if isinstance(left, np.ndarray) else to_mask(pc.equal(left, right))
