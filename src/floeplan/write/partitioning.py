"""Splits rows by partition and sorts them, column-wise.

The partition of a row is the tuple of the spec's transforms of its source columns. As in Java, NaN equals itself and
-0.0 differs from 0.0. Sorting follows the table's sort order: each key ascending or descending with nulls first or
last, floating point in Java's total order (-0.0 before 0.0, NaN last).

Rows are sorted by sorting one 64-bit integer per row. The integer holds a prefix of the keys, as many bits as fit,
followed by the row number: sorting these integers, which NumPy vectorizes, sorts the rows and is stable. Rows with
equal prefixes whose keys may differ are then sorted by all keys. A prefix never contradicts the keys: of two rows the
one with the smaller prefix has the smaller keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.types import DecimalType, IntegerType, PrimitiveType

from floeplan.errors import UnknownColumnError, UnsupportedError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.values import number_array, partition_arrow_type, to_physical
from floeplan.partition.fields import BoundField
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.transforms import Transform, apply_vector, integer_limits, result_type
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.evaluate import physical
from floeplan.predicate.rows.arrow_columns import columns_of, decoded
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, valid_mask

RowNumbers: TypeAlias = npt.NDArray[np.uint32]
"""32 bits are enough for the rows of one task, and halve the memory of their order."""
Words: TypeAlias = npt.NDArray[np.uint64]

_WORD_BITS = 64
_PREFIX_BYTES = 8
_BLOCK = 1 << 16
_SAMPLE, _FEW = 4096, 256
"""Strings to sample for repetition, and the number of distinct ones up to which they are dictionary-encoded."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One sort key of the rows: integers, or any type that Arrow sorts."""

    values: pa.Array
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """Integers in the order of a key, below ``1 << bits``; ``exact`` when equal numbers mean equal keys."""

    words: Words
    bits: int
    exact: bool


def sorted_row_numbers(keys: Sequence[SortKey]) -> RowNumbers:
    """The row numbers in the order of their keys; the sort is stable."""
    numbers, exact, same = sort_by_prefixes(map(key_prefix, keys), len(keys[0].values))
    if exact or not same.any():
        return numbers
    # Sort the rows whose prefixes are equal by all their keys; ``run`` keeps each run of equal prefixes in its place.
    positions = np.flatnonzero(np.append(False, same) | np.append(same, False))
    rows = pa.array(numbers[positions])
    columns: dict[str, pa.Array] = {"run": pa.array(np.cumsum(~np.append(False, same)[positions]))}
    wanted = [("run", "ascending")]
    for number, key in enumerate(keys):
        values = key.values.take(rows)
        if values.null_count:
            columns[f"null{number}"] = values.is_null().cast(pa.int8())
            wanted.append((f"null{number}", "descending" if key.nulls_first else "ascending"))
        columns[f"key{number}"] = values
        wanted.append((f"key{number}", "descending" if key.descending else "ascending"))
    numbers[positions] = numbers[positions][np.asarray(pc.sort_indices(pa.table(columns), sort_keys=wanted))]
    return numbers


def sort_by_prefixes(beginnings: Iterable[KeyPrefix], rows: int) -> tuple[RowNumbers, bool, npt.NDArray[np.bool_]]:
    """Sort rows by key prefixes; prefixes after one that is not exact are ignored.

    The words are modified in place, since memory traffic takes longer than the arithmetic.

    Returns:
        The row numbers, whether the order is exact, and for each position but the first whether its prefix equals the
        previous one.
    """
    low = max(1, rows - 1).bit_length()
    packed, left, exact = np.zeros(0, dtype=np.uint64), _WORD_BITS - low, True
    for one in beginnings:
        bits, words = min(left, one.bits), one.words
        if bits:
            words >>= np.uint64(one.bits - bits)
            packed <<= np.uint64(bits)
        if not len(packed):
            packed = words
        elif bits:
            packed |= words
        left, exact = left - bits, one.exact and bits == one.bits
        if not exact:
            break
    for start in range(0, rows, _BLOCK):
        block = packed[start : start + _BLOCK]
        block <<= np.uint64(low)
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    packed.sort()
    numbers = np.empty(rows, dtype=np.uint32)
    np.bitwise_and(packed, np.uint64((1 << low) - 1), out=numbers, casting="unsafe")
    packed >>= np.uint64(low)
    return numbers, exact, packed[1:] == packed[:-1]


def key_prefix(key: SortKey) -> KeyPrefix:
    """The prefix of a key that fits into a word, with nulls first or last."""
    values = key.values
    found = _ascending(values.drop_null() if values.null_count else values)
    words, most = found.words, (1 << found.bits) - 1
    if key.descending:
        words = np.uint64(most) - words
    if not values.null_count:
        return KeyPrefix(words, found.bits, found.exact)
    if found.bits == _WORD_BITS:  # drop a bit to make room for the null
        words, most, found = words >> np.uint64(1), most >> 1, KeyPrefix(words, _WORD_BITS - 1, False)
    valid = valid_mask(values)
    placed = np.full(len(values), 0 if key.nulls_first else most + 1, dtype=np.uint64)
    placed[valid] = words + np.uint64(key.nulls_first)
    return KeyPrefix(placed, found.bits + 1, found.exact)


def _ascending(values: pa.Array) -> KeyPrefix:
    """The prefix of values without nulls, ascending."""
    type_ = values.type
    if not len(values):
        return KeyPrefix(np.zeros(0, dtype=np.uint64), 0, True)
    if pt.is_boolean(type_):
        return _of_integers(np.asarray(values.cast(pa.int64())))
    if pt.is_integer(type_):
        numbers = np.asarray(values)
        if numbers.dtype == np.uint64:  # the same order as int64
            numbers = (numbers ^ np.uint64(1 << 63)).view(np.int64)
        return _of_integers(numbers.astype(np.int64, copy=False))
    if pt.is_decimal128(type_):
        # Unscaled values if all fit into 64 bits, else their upper halves.
        halves = np.frombuffer(values.buffers()[1], dtype=np.int64)[2 * values.offset :][: 2 * len(values)]
        lower, upper = halves[::2], halves[1::2]
        fits = np.array_equal(lower >> 63, upper)
        return _of_integers(np.ascontiguousarray(lower if fits else upper), exact=fits)
    if pt.is_fixed_size_binary(type_):
        return _of_texts(values.cast(pa.binary()).cast(pa.large_binary()))
    if pt.is_large_string(type_) or pt.is_string(type_) or pt.is_large_binary(type_) or pt.is_binary(type_):
        return _of_texts(values.cast(pa.large_binary()))
    return KeyPrefix(np.zeros(len(values), dtype=np.uint64), 0, False)


def _of_integers(numbers: npt.NDArray[np.int64], exact: bool = True) -> KeyPrefix:
    """The distance of each to the smallest."""
    smallest = numbers.min()
    span = int(numbers.max()) - int(smallest)
    words = numbers.view(np.uint64) - smallest.view(np.uint64)
    return KeyPrefix(np.asarray(words), span.bit_length(), exact)


def _of_texts(values: pa.Array) -> KeyPrefix:
    """The rank of strings that repeat, else the bytes after their common prefix."""
    sample = values.take(pa.array(np.arange(0, len(values), -(-len(values) // _SAMPLE))))
    if len(values) > _SAMPLE and pc.count_distinct(sample).as_py() <= _FEW:
        encoded = values.dictionary_encode()
        ranks = np.asarray(pc.rank(encoded.dictionary, tiebreaker="dense")).astype(np.int64)
        return _of_integers(ranks[np.asarray(encoded.indices)])
    # The common prefix of the smallest and the largest string is that of all strings between them.
    first, last = pc.min_max(values).as_py().values()
    differing = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    skipped = next(differing, min(len(first), len(last)))
    # Eight bytes of every string after it, padded with zeros, as big-endian integers.
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset :][: len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"\x00", dtype=np.uint8)
    words = np.zeros(len(values), dtype=np.uint64)
    starts, stops = offsets[:-1] + skipped, offsets[1:]
    for at in range(_PREFIX_BYTES):
        byte = data[np.minimum(starts + at, len(data) - 1)].astype(np.uint64)
        words = words << np.uint64(8) | np.where(starts + at < stops, byte, np.uint64(0))
    return _of_integers((words ^ np.uint64(1 << 63)).view(np.int64), exact=False)


@dataclass(frozen=True, slots=True)
class FilePartition:
    """The partition of a file: its key, and the values of its manifest entry by field id of the union type."""

    key: PartitionKey
    values: Mapping[int, Any]

    @classmethod
    def of(cls, union: UnionPartitionType, key: PartitionKey) -> FilePartition:
        """From a key alone."""
        fields = union.spec(key.spec_id).fields
        pairs = zip(fields, key.partition or (None,) * len(fields), strict=True)
        values = {
            field.column.field_id: None if value is None else physical(field.column.type, value)
            for field, value in pairs
            if not field.is_void
        }
        return cls(key, values)


def partitions_of(files: EntriesTable, union: UnionPartitionType) -> list[FilePartition]:
    """The partition of every file, from its manifest entry."""
    columns = files.partition_columns()
    codes, keys = group_codes(union, files.spec_id, columns)
    values = {field_id: column.to_pylist() for field_id, column in columns.items()}
    found = []
    for row, code in enumerate(codes.tolist()):
        own = [f.column.field_id for f in union.spec(keys[code].spec_id).fields if not f.is_void]
        found.append(FilePartition(keys[code], {field_id: values[field_id][row] for field_id in own}))
    return found


def split(
    rows: pa.Table, schema: Schema, union: UnionPartitionType, spec_id: int
) -> Iterator[tuple[PartitionKey, pa.Table]]:
    """Split rows by partition, keeping their order; each part owns its memory."""
    spec = union.spec(spec_id)
    if spec.unpartitioned:
        yield PartitionKey.from_tuple(spec, [None] * len(spec.fields)), rows
        return
    columns = {f.column.field_id: partition_values(rows, schema, f) for f in spec.fields if not f.is_void}
    codes, keys = group_codes(union, np.full(rows.num_rows, spec_id, dtype=np.int64), columns)
    if len(keys) == 1:
        yield keys[0], rows
        return
    order = order_of_small(codes)
    cuts = np.searchsorted(codes[order], np.arange(1, len(keys)))
    for key, part in zip(keys, np.split(order, cuts), strict=True):
        yield key, rows.take(pa.array(part))


def divide(rows: pa.Table, numbers: Ints) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each number, in the order they have; the parts share memory."""
    order = order_of_small(numbers)
    divided, found = rows.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(found, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        yield int(found[start]), divided.slice(start, end - start)


def order_of_small(numbers: Ints) -> npt.NDArray[np.intp]:
    """The stable order of numbers from 0 on; NumPy sorts those of 16 bits by counting."""
    return np.argsort(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))), kind="stable")


def partition_values(rows: pa.Table, schema: Schema, field: BoundField) -> pa.Array:
    """The values of one partition field for every row, in the vector domain of its type."""
    if field.source_id not in fields_by_id(schema):
        raise UnknownColumnError(
            f"the source of partition field {field.column.path[0]} is field id {field.source_id}, which the schema no "
            "longer has; write to a spec without it",
            context={"field": field.column.path[0], "source-id": field.source_id},
        )
    if isinstance(field.transform, UnknownTransform):
        raise UnsupportedError(
            f"partition field {field.column.path[0]} has an unknown transform: {field.transform}",
            context={"field": field.column.path[0]},
        )
    return transformed(rows, schema, field.source_id, field.transform)


def transformed(rows: pa.Table, schema: Schema, source_id: int, transform: Transform) -> pa.Array:
    """A transform of one column for every row; null stays null."""
    source = schema.find_type(source_id)
    assert isinstance(source, PrimitiveType)
    result = partition_arrow_type(result_type(transform, source))
    if isinstance(transform, VoidTransform):
        return pa.nulls(rows.num_rows, result)
    column = decoded(columns_of(rows, schema)(source_id)).combine_chunks()
    values = to_physical(source, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    known = values.drop_null()
    numeric = pt.is_integer(known.type) or pt.is_floating(known.type)
    labels = apply_vector(transform, source, np.asarray(known) if numeric else known)
    # Fit results into their type: truncated integers wrap around as in Java, decimals out of range are an error.
    limits = integer_limits(source)
    if isinstance(source, IntegerType) and isinstance(labels, np.ndarray):
        labels = labels.astype(np.int32).astype(np.int64)
    elif isinstance(source, DecimalType) and isinstance(transform, TruncateTransform) and limits is not None:
        lost = labels.null_count if isinstance(labels, pa.Array) else int((labels < limits[0]).sum())
        if lost:
            raise UnsupportedError(
                f"{lost} rows have a {source} whose partition value under {transform} is beyond that type",
                context={"type": str(source), "transform": str(transform)},
            )
    found = number_array(labels, None) if isinstance(labels, np.ndarray) else labels
    if values.null_count:
        valid = valid_mask(values)
        found = found.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    return found if found.type == result else found.cast(result)


def sort_rows(rows: pa.Table, schema: Schema, order: SortOrder) -> pa.Table:
    """Sort rows by a sort order; the sort is stable."""
    if not order.fields or rows.num_rows < 2:
        return rows
    return take_rows(rows, pa.array(sort_row_numbers(rows, schema, order)))


def sort_row_numbers(rows: pa.Table, schema: Schema, order: SortOrder) -> RowNumbers:
    """The row numbers in sort order; the sort is stable."""
    return sorted_row_numbers([_sort_key(rows, schema, field) for field in order.fields])


def leading_words(rows: pa.Table, schema: Schema, order: SortOrder) -> Words:
    """An integer for each row: of two rows that differ in it, the one with the smaller integer is first."""
    return key_prefix(_sort_key(rows, schema, order.fields[0])).words


def _sort_key(rows: pa.Table, schema: Schema, field: SortField) -> SortKey:
    if field.source_id not in fields_by_id(schema):
        raise UnknownColumnError(
            f"the sort order uses field id {field.source_id}, which the schema does not have",
            context={"source-id": field.source_id},
        )
    values = transformed(rows, schema, field.source_id, field.transform)
    if pt.is_floating(values.type):
        # Java's total order: integers of the same order, with one bit pattern for NaN.
        numbers = np.asarray(values.fill_null(0.0)).astype(np.float64)
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
        ordered = np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits)
        values = number_array(ordered, valid_mask(values) if values.null_count else None)
    descending = field.direction is SortDirection.DESC
    return SortKey(values, descending, nulls_first=field.null_order is NullOrder.NULLS_FIRST)


def take_rows(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """Take rows by number."""
    # Column by column from one contiguous chunk, which is faster than taking from many chunks.
    columns = [rows.select([at]).combine_chunks().take(numbers).column(0) for at in range(rows.num_columns)]
    return pa.Table.from_arrays(columns, schema=rows.schema)
