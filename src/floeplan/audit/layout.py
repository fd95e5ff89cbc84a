"""Simulate a layout on sample points: split them into files of the target size, and evaluate predicates on the files.

The simulated files have bounds and partition values, and the evaluator of scan planning decides which are read.

Points represent the rows of a table; every file contributes points in proportion to its bytes. With a sample, rows of
some files are read, and a file that is not gets the rows of the nearest one, moved to its own bounds: values keep their
distribution and depend on each other as they do in rows. Without a sample, values are spread evenly between bounds and
independent of each other. A column is stored as its sorted distinct values and, per point, the index of its value, so
that sorting, splitting and computing bounds are integer operations for every type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.errors import UnsupportedError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import to_physical
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import apply_vector
from floeplan.partition.union import partition_answer
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, Vector, kleene, take, to_mask
from floeplan.rewrite.strategies.curves import bits_per_column, curve_words, interleave
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.read import PlanReader
from floeplan.text import counted
from floeplan.vectors import Floats, Ints, Mask

NULL = -1
_SEED = 2024
_SAMPLED_FILES = 64
_LEAST_ROWS = 50
_LEAST_POINTS = 20
_LARGE_FILE = 32 * 2**20


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """A column of points: sorted distinct values, and the index of each point's value, or ``NULL``."""

    column: Column
    values: Vector
    codes: Ints


@dataclass(frozen=True, slots=True)
class Points:
    """Sample points, each with its file and the bytes it represents."""

    columns: Mapping[int, CodedColumn]
    file: Ints
    bytes: Floats
    basis: str

    def __len__(self) -> int:
        """Number of points."""
        return len(self.file)

    def of_files(self, chosen: Mask) -> Points:
        """The points of some files."""
        keep = chosen[self.file]
        columns = {i: replace(column, codes=column.codes[keep]) for i, column in self.columns.items()}
        return Points(columns, self.file[keep], self.bytes[keep], self.basis)


def points_from_bounds(entries: EntriesTable, columns: Sequence[Column], number: int) -> Points:
    """About ``number`` points between the bounds of the files; at least one per file."""
    file, weights = _points_per_file(entries, number)
    known = file_stats(entries, columns).columns
    random = np.random.default_rng(_SEED)
    coded = {
        column.field_id: _between_bounds(column, known[column.field_id], file, random)
        for column in columns
        if column.field_id in known
    }
    return Points(_with_values(coded), file, weights, "bounds")


def _between_bounds(column: Column, stats: ColumnStats, file: Ints, random: np.random.Generator) -> CodedColumn | None:
    """Numbers are spread evenly between bounds; of other types only values that are bounds of a file are known."""
    if stats.lower is None or stats.upper is None:
        return None
    lower, upper = stats.lower.values, stats.upper.values
    valid = (stats.lower.valid & stats.upper.valid)[file]
    where = random.random(len(file))
    if isinstance(lower, np.ndarray) and isinstance(upper, np.ndarray):
        low, high = lower[file], upper[file]
        if lower.dtype.kind == "f":
            return coded(column, low + where * (high - low), valid)
        steps = np.floor(where * (high.astype(np.float64) - low + 1)).astype(np.int64)
        return coded(column, np.minimum(low + steps, high), valid)
    pool = pc.unique(pa.chunked_array([lower, upper])).drop_null()
    pool = pool.take(pc.sort_indices(pool))
    first, last = (_indexes(pool, bound)[file] for bound in (lower, upper))
    codes = first + np.floor(where * (last - first + 1)).astype(np.int64)
    return CodedColumn(column, pool, np.where(valid, codes, NULL))


def _indexes(pool: pa.Array, values: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(pc.index_in(values, value_set=pool), 0).to_numpy(zero_copy_only=False), np.int64)


def coded(column: Column, values: Vector, valid: Mask) -> CodedColumn:
    """Encode values; NaN, which bounds exclude, counts as null."""
    if isinstance(values, np.ndarray):
        valid = valid & ~np.isnan(values) if values.dtype.kind == "f" else valid
        distinct, codes = np.unique(values, return_inverse=True)
        return CodedColumn(column, distinct, np.where(valid, codes, NULL))
    distinct = pc.unique(values).drop_null()
    distinct = distinct.take(pc.sort_indices(distinct))
    return CodedColumn(column, distinct, np.where(valid, _indexes(distinct, values), NULL))


def points_from_rows(
    table: Table, entries: EntriesTable, columns: Sequence[Column], sample: int, number: int
) -> Points:
    """About ``number`` points made of about ``sample`` rows, of files spread evenly over the table."""
    options = ScanOptions(footers=False, report=False)
    plan = plan_scan(table, columns=[str(column) for column in columns], options=options)
    chosen = np.unique(np.linspace(0, len(plan.files) - 1, min(_SAMPLED_FILES, len(plan.files))).astype(np.int64))
    reader = PlanReader.of(plan, plan.schema)
    random = np.random.default_rng(_SEED)
    parts, most = [], max(_LEAST_ROWS, -(-sample // len(chosen)))
    for at in chosen.tolist():
        file = plan.files[at]
        # Of a large file the first row group is enough: its values are moved to the bounds of the file.
        part = reader.read(file if file.file_size <= _LARGE_FILE else replace(file, row_groups=(0,)))
        if part.num_rows > most:
            part = part.take(pa.array(np.sort(random.choice(part.num_rows, most, replace=False))))
        parts.append(part)
    counts = np.array([part.num_rows for part in parts])
    if not counts.any():
        raise UnsupportedError("the sampled files have no rows")
    index = pc.index_in(pa.array([plan.files[at].path for at in chosen.tolist()]), value_set=entries.path)
    sampled = index.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = pa.concat_tables(parts)
    # The points of each file, and the row that each is taken from: one of the nearest sampled file.
    file, weights = _points_per_file(entries, number)
    order = np.argsort(sampled)[counts[np.argsort(sampled)] > 0]
    middles = (sampled[order][1:] + sampled[order][:-1]) / 2
    nearest = order[np.searchsorted(middles, file)]
    row = (np.cumsum(counts) - counts)[nearest] + np.floor(random.random(len(file)) * counts[nearest]).astype(np.int64)
    known = file_stats(entries, columns).columns
    made = {}
    for column in columns:
        array = rows.column(column.path[0])
        for name in column.path[1:]:
            array = pc.struct_field(array, name)
        values = to_physical(column.type, array.combine_chunks()).take(pa.array(row))
        made[column.field_id] = _at_bounds(column, values, file, sampled[nearest], known.get(column.field_id))
    basis = f"{len(rows):,} rows of {counted(int((counts > 0).sum()), 'file')}"
    return Points(_with_values(made), file, weights, basis)


def _points_per_file(entries: EntriesTable, number: int) -> tuple[Ints, Floats]:
    """The file of each of about ``number`` points, and the bytes it represents; at least one point per file."""
    sizes = entries.ints("file_size_in_bytes").astype(np.float64)
    each = np.maximum(1, np.rint(number * sizes / max(sizes.sum(), 1.0)).astype(np.int64))
    file = np.repeat(np.arange(len(entries)), each)
    return file, (sizes / each)[file]


def _at_bounds(column: Column, values: pa.Array, file: Ints, source: Ints, stats: ColumnStats | None) -> CodedColumn:
    """Sampled values of ``source`` files as values of ``file``: numbers are moved from the bounds of one to the other.

    Of other types, a file whose bounds are one value has that value, as in an identity partition.
    """
    valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
    moved = source != file
    lower, upper = (None, None) if stats is None else (stats.lower, stats.upper)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)):
        if lower is not None and upper is not None and isinstance(lower.values, pa.Array):
            same = to_mask(pc.equal(lower.values, upper.values)) & lower.valid & upper.valid
            pinned = pa.array((moved & same[file]).tolist())
            values = pc.if_else(pinned, lower.values.take(pa.array(file)).cast(values.type), values)
            valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        return coded(column, values, valid)
    is_float = pa.types.is_floating(values.type)
    filled = values.fill_null(False if pa.types.is_boolean(values.type) else 0).to_numpy(zero_copy_only=False)
    numbers = filled.astype(np.float64 if is_float else np.int64)
    if lower is not None and upper is not None and isinstance(lower.values, np.ndarray):
        low, high = (np.where(bound.valid, bound.values, 0).astype(np.float64) for bound in (lower, upper))
        width = (high - low)[source]
        known = (lower.valid & upper.valid)[file] & (lower.valid & upper.valid)[source] & (width > 0) & moved
        share = np.clip((numbers - low[source]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
        there = low[file] + share * (high - low)[file]
        numbers = np.where(known, there if is_float else np.rint(there), numbers).astype(numbers.dtype)
    return coded(column, numbers, valid)


def _with_values(columns: Mapping[int, CodedColumn | None]) -> dict[int, CodedColumn]:
    """Columns with known values; layouts ignore the others."""
    return {i: column for i, column in columns.items() if column is not None and len(column.values)}


@dataclass(frozen=True, slots=True)
class Layout:
    """Simulated files: their bounds, partition values, bytes, and how many files each stands for.

    ``partition_bytes`` are the bytes of each partition.
    """

    bounds: StatsTable
    partitions: StatsTable
    fields: tuple[BoundField, ...]
    bytes: Floats
    files: Floats
    partition_bytes: Floats

    def read(self, predicate: IrExpr) -> tuple[float, float]:
        """The bytes and the number of files that may contain a matching row."""

        def evaluate(leaf: IrExpr) -> Tri:
            return answer_leaf(leaf, self.bounds).refine(partition_answer(leaf, list(self.fields), self.partitions))

        keep = kleene(predicate, self.bounds.nonempty, evaluate).keep
        return float(self.bytes[keep].sum()), float(self.files[keep].sum())


def lay_out(
    points: Points, fields: Sequence[BoundField], keys: Sequence[npt.NDArray[Any]], file_bytes: float, read_at: Ints
) -> Layout:
    """Split points into files of about ``file_bytes``, each of one partition, sorted by the keys within a partition.

    Points with the same keys keep the order in which a rewrite reads their files, ``read_at``: without keys it decides
    how far the bounds of the new files overlap. A simulated file has at least ``_LEAST_POINTS`` points, whose
    bounds are meaningful, and then stands for several files.
    """
    values = [_partition_values(points.columns[field.source_id], field) for field in fields]
    groups = np.zeros(len(points), dtype=np.int64)
    for _, codes in values:
        _, groups = np.unique(groups * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)
    order = np.lexsort([read_at[points.file], *reversed(keys), groups])
    simulated = max(file_bytes, _LEAST_POINTS * float(points.bytes.mean()))
    starts = _file_starts(groups[order], points.bytes[order], simulated)
    bounds = {i: _bounds(column, order, starts) for i, column in points.columns.items()}
    exact = {
        field.column.field_id: ColumnStats.exact(
            take(distinct, np.maximum(codes[order][starts], 0)), codes[order][starts] == NULL
        )
        for field, (distinct, codes) in zip(fields, values, strict=True)
    }
    number = len(starts)
    sizes = np.add.reduceat(points.bytes[order], starts)
    # Rounded up: a rewrite writes what is left of a partition to a file of its own.
    files = np.maximum(1.0, np.ceil(sizes / file_bytes))
    in_partitions = np.bincount(groups, weights=points.bytes).astype(np.float64)
    return Layout(StatsTable(number, bounds), StatsTable(number, exact), tuple(fields), sizes, files, in_partitions)


def _partition_values(column: CodedColumn, field: BoundField) -> tuple[Vector, Ints]:
    """The distinct partition values, and the index of each point's value; ``NULL`` where it is null."""
    transformed = apply_vector(field.transform, field.source_type, column.values)
    if isinstance(transformed, np.ndarray):
        distinct, indexes = np.unique(transformed, return_inverse=True)
    else:
        encoded = transformed.dictionary_encode()
        distinct, indexes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return distinct, np.where(column.codes == NULL, NULL, indexes[column.codes])


def _file_starts(groups: Ints, sizes: Floats, file_bytes: float) -> npt.NDArray[np.intp]:
    """The first point of each file: at every new partition, and within one whenever its bytes fill a file."""
    new = np.flatnonzero(np.diff(groups, prepend=-1))
    total = np.add.reduceat(sizes, new)
    before = np.repeat(np.cumsum(total) - total, np.diff(np.append(new, len(groups))))
    parts = np.maximum(1, np.ceil(total / file_bytes))
    each = np.repeat(total / parts, np.diff(np.append(new, len(groups))))
    middle = np.cumsum(sizes) - sizes / 2
    number = np.floor((middle - before) / each)
    return np.flatnonzero((np.diff(groups, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))


def _bounds(column: CodedColumn, order: npt.NDArray[np.intp], starts: npt.NDArray[np.intp]) -> ColumnStats:
    codes = column.codes[order]
    lowest = np.minimum.reduceat(np.where(codes == NULL, len(column.values), codes), starts)
    highest = np.maximum.reduceat(codes, starts)
    has_values = highest != NULL
    nulls = np.maximum.reduceat(codes == NULL, starts)
    lower, upper = (Bound(take(column.values, np.where(has_values, at, 0)), has_values) for at in (lowest, highest))
    return ColumnStats(nulls, np.zeros_like(nulls), has_values, lower, upper)


def curve_keys(columns: Sequence[CodedColumn]) -> list[npt.NDArray[np.uint64]]:
    """The position of every point on a Z-order curve through some columns."""
    bits = bits_per_column(len(columns))
    scaled = [
        (np.maximum(column.codes, 0).astype(np.uint64) * np.uint64(1 << bits)) // np.uint64(max(len(column.values), 1))
        for column in columns
    ]
    return curve_words(scaled, bits, interleave)
