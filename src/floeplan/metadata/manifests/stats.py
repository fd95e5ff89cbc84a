"""Manifest summaries, column bounds and partition tuples as the ``StatsTable`` that predicates are evaluated on.

- ``manifest_stats``: one container per manifest, columns are the fields of the union partition tuple.
- ``partition_stats``: one container per entry, the same columns, exact values.
- ``file_stats``: one container per entry, columns are the table's, with bounds and counts.
- ``grouped_stats``: one container per manifest again, from the statistics of its files.

Rule for partition columns: the value is unknown in a container whose spec does not have the field; a field that no
container has is left out. Fail-safe: what was not written, or cannot be decoded with the column's type, is unknown,
and unknown keeps the container.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, UnknownType

from floeplan import arrow_compute as pc
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.values import decode_bounds
from floeplan.opaque_types import is_opaque
from floeplan.partition.union import UnionField
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, take
from floeplan.vectors import Ints, Mask, integers, valid_mask

_ABSENT = -1


def manifest_stats(manifests: ManifestListTable, fields: Iterable[UnionField]) -> StatsTable:
    """The partition summaries of each manifest, by union field id."""
    columns = {}
    summaries = manifests.summaries
    for field in fields:
        type_ = field.bound.column.type
        if isinstance(type_, UnknownType):
            continue
        # The index of the field's summary for each manifest; none where its spec does not have the field.
        at = np.full(len(manifests), _ABSENT, dtype=np.int64)
        for spec_id, position in field.positions.items():
            index = summaries.offsets[:-1] + position
            np.copyto(at, index, where=(manifests.spec_id == spec_id) & (index < summaries.offsets[1:]))
        elsewhere = at == _ABSENT
        if elsewhere.all():
            continue
        contains_null, contains_nan = summaries.contains_null[at], np.zeros_like(elsewhere)
        # A manifest with a null but no lower bound has only nulls; for floats NaN must be known absent too.
        only_null = contains_null & ~valid_mask(summaries.lower)[at] & ~elsewhere
        if isinstance(type_, FloatType | DoubleType):
            contains_nan = summaries.contains_nan[at] != 0
            only_null &= ~contains_nan
        lower, upper = decode_bounds(type_, summaries.lower, summaries.upper, at)
        may_null, may_nan = contains_null | elsewhere, contains_nan | elsewhere
        columns[field.id] = ColumnStats(may_null, may_nan, ~only_null, lower, upper)
    return StatsTable(len(manifests), columns)


def partition_stats(entries: EntriesTable, fields: Iterable[UnionField]) -> StatsTable:
    """The exact partition value of each entry, by union field id."""
    specs = (np.flatnonzero(np.bincount(entries.spec_id + 1)) - 1).tolist()
    columns = {}
    for field in fields:
        name = partition_column(field.id)
        if field.positions.keys().isdisjoint(specs) or name not in entries:
            continue
        if not pa.types.is_null(entries.array(name).type):
            columns[field.id] = _of_slice(entries, name, partial(_partition_column, field=field))
    return StatsTable(len(entries), columns, entries.record_count != 0)


def _partition_column(entries: EntriesTable, field: UnionField) -> ColumnStats:
    spec_id, column = entries.spec_id, entries.array(partition_column(field.id))
    member = np.logical_or.reduce([spec_id == which for which in field.positions])
    valid, values = valid_mask(column), column
    is_nan = np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = np.frombuffer(column.buffers()[1], dtype=column.type.to_pandas_dtype())
        values = values[column.offset : column.offset + len(column)]
        is_nan = valid & np.isnan(values) if values.dtype.kind == "f" else is_nan
    bound = Bound(values, valid & ~is_nan & member)
    may_value = (valid & ~is_nan) | ~member
    return ColumnStats(~valid | ~member, is_nan | ~member, may_value, bound, bound)


def _of_slice(entries: EntriesTable, key: Hashable, decode: Callable[[EntriesTable], ColumnStats]) -> ColumnStats:
    """The statistics of a column; those of a table in memory are decoded once for all its slices."""
    part = entries.slice_of
    if part is None:
        return decode(entries)
    known = part.decoded.get(key)
    if known is None:
        known = part.decoded[key] = decode(part.whole)
    return known.slice(part.start, part.start + len(entries))


def file_stats(entries: EntriesTable, columns: Iterable[Column]) -> StatsTable:
    """The bounds and counts of each file, by field id; columns whose statistics were not read are unknown."""
    types = {column.field_id: column.type for column in columns}
    stats = {
        field_id: _of_slice(entries, (field_id, str(type_)), partial(_file_column, field_id=field_id, type_=type_))
        for field_id, type_ in types.items()
        if f"lower.{field_id}" in entries
    }
    return StatsTable(len(entries), stats, entries.record_count != 0)


def _file_column(entries: EntriesTable, field_id: int, type_: PrimitiveType) -> ColumnStats:
    rows = entries.record_count
    # Counts are used only when the value count equals the record count, or is not written.
    values = entries.ints(f"value_count.{field_id}")
    counted = (values < 0) | (values == rows)
    nulls = np.where(counted, entries.ints(f"null_count.{field_id}"), -1)
    nans = np.zeros_like(rows)
    if isinstance(type_, FloatType | DoubleType):
        nans = np.where(counted, entries.ints(f"nan_count.{field_id}"), -1)
    raw = entries.array(f"lower.{field_id}"), entries.array(f"upper.{field_id}")
    known = ColumnStats.from_counts(rows, nulls, nans, *decode_bounds(type_, *raw))
    return replace(known, stored=raw) if is_opaque(type_) else known


def grouped_stats(files: StatsTable, counts: Ints) -> StatsTable:
    """The statistics of groups of consecutive files; ``counts`` has the number of files of each group.

    A group has a bound where every file of it that may have an ordinary value has one.
    """
    starts, present = (np.cumsum(counts) - counts)[counts > 0], counts > 0

    def any_of(mask: Mask) -> Mask:
        found = np.zeros(len(counts), dtype=np.bool_)
        if len(starts):
            found[present] = np.logical_or.reduceat(mask, starts)
        return found

    def extreme(bound: Bound | None, may_value: Mask, *, least: bool) -> Bound | None:
        if bound is None or not len(starts):
            return None
        # By rank, which every type of bound has; files without a value are last.
        values = bound.values
        order = np.argsort(values) if isinstance(values, np.ndarray) else integers(pc.sort_indices(values))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        used = may_value & bound.valid
        last = len(order) - 1 if least else 0
        reduce = np.minimum if least else np.maximum
        rows = np.zeros(len(counts), dtype=np.int64)
        rows[present] = order[reduce.reduceat(np.where(used, rank, last), starts)]
        return Bound(take(values, rows), any_of(used) & ~any_of(may_value & ~bound.valid))

    columns = {}
    for field_id, stats in files.columns.items():
        null, nan, value = (may & files.nonempty for may in (stats.may_null, stats.may_nan, stats.may_value))
        lower, upper = extreme(stats.lower, value, least=True), extreme(stats.upper, value, least=False)
        columns[field_id] = ColumnStats(any_of(null), any_of(nan), any_of(value), lower, upper)
    return StatsTable(len(counts), columns, any_of(files.nonempty))


def concat_stats(parts: Sequence[StatsTable], at: Ints) -> StatsTable:
    """The statistics of consecutive tables of containers, at these rows of them; nothing is known of row -1."""
    unknown = at < 0

    def joined(masks: Iterable[Mask]) -> Mask:
        return np.concatenate([*masks, [True]])[at]

    def bound(found: Sequence[Bound | None]) -> Bound | None:
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        arrays = [one.values for one in known]
        values = np.concatenate(arrays) if isinstance(arrays[0], np.ndarray) else pa.concat_arrays(arrays)
        return Bound(take(values, np.maximum(at, 0)), joined(one.valid for one in known) & ~unknown)

    columns = {}
    for field_id in set.intersection(*(set(part.columns) for part in parts)):
        found = [part.columns[field_id] for part in parts]
        columns[field_id] = ColumnStats(
            joined(one.may_null for one in found),
            joined(one.may_nan for one in found),
            joined(one.may_value for one in found),
            bound([one.lower for one in found]),
            bound([one.upper for one in found]),
        )
    return StatsTable(len(at), columns)
