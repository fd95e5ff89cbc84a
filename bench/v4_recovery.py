"""Partition values that follow from the bounds of columns, by transform: what a tree without tuples would know.

Two archives, with the bounds they have, and files made for each transform: 50 rows of one partition, with whole bounds
and with bounds of strings truncated to 16 characters (the default of ``write.metadata.metrics``), and 50 rows of one
hour in the order of arrival, as files of an older spec have them. Strings of an identity partition have 8 to 24
characters, others 24 to 30.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import LongType, NestedField, PrimitiveType, StringType, TimestamptzType

from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import decode_bounds
from floeplan.partition.fields import BoundField, bind_field, source_types
from floeplan.partition.recover import recover, recover_tuples
from floeplan.partition.transforms import apply_vector
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats
from floeplan.snapshot.reader import SnapshotReader
from floeplan.vectors import Ints
from tests.support.tables.archive import write_artemis_archive

FILES, ROWS, CUT = 2_000, 50, 16
HOUR = 3_600_000_000
FIRST_HOUR = 24 * 365 * 51
"""An hour of 2020."""

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "ts", TimestamptzType())
)
FIELDS: list[tuple[int, Transform]] = [
    (2, IdentityTransform()),
    (2, TruncateTransform(4)),
    (2, TruncateTransform(20)),
    (2, BucketTransform(16)),
    (1, IdentityTransform()),
    (1, TruncateTransform(1000)),
    (1, BucketTransform(16)),
    (3, YearTransform()),
    (3, MonthTransform()),
    (3, DayTransform()),
    (3, HourTransform()),
]
Shares = Iterator[tuple[str, float]]
"""Cases, each with the share of files whose partition value is recovered."""

Values = list[list[str]] | Ints


def shares(evolved: Table, folder: Path) -> Shares:
    """Every case."""
    yield from of_archive("events", evolved)
    metadata = write_artemis_archive(folder / "telemetry", missions=10, days=100)
    yield from of_archive("telemetry", StaticTable.from_metadata(str(metadata)))
    yield from of_transforms()


def of_archive(name: str, table: Table) -> Shares:
    """For each partition field, the files of specs that have it and those of other specs."""
    reader = SnapshotReader.open(table, table.current_snapshot())
    fields = reader.union.fields
    entries = reader.entries(None, EntryColumns(frozenset(), stats=frozenset(f.bound.source_id for f in fields)))
    types = {field.bound.source_id: field.bound.source_type for field in fields}
    columns = [Column(key, type_, (str(key),)) for key, type_ in types.items()]
    for field in fields:
        own = np.isin(entries.spec_id, list(field.positions))
        for kind, mask in (("its own spec", own), ("other specs", ~own)):
            if mask.any():
                found = recover_tuples([field.bound], file_stats(entries.filter(mask), columns))[field.id].recovered
                yield f"{name}: {field.bound.transform} {field.name}, files of {kind}", float(found.mean())


def of_transforms() -> Shares:
    """For each transform, files of one partition with whole and truncated bounds, and files of another spec."""
    numbers = np.random.default_rng(22)
    types = source_types(SCHEMA)
    for number, (source, transform) in enumerate(FIELDS):
        field = bind_field(PartitionField(source, 1000 + number, transform, f"f{number}"), types)
        name = f"{transform} of a {types[source][0]}"
        values = _of_one_partition(field, numbers)
        yield f"{name}, whole bounds", _share(field, values, None)
        if isinstance(types[source][0], StringType):
            yield f"{name}, bounds truncated to {CUT}", _share(field, values, CUT)
        yield f"{name}, files of another spec", _share(field, _as_they_arrive(field, numbers), CUT)
    nothing = float(recover(field, None, FILES).recovered.mean())
    yield "any transform, no statistics of the column", nothing


def _of_one_partition(field: BoundField, numbers: np.random.Generator) -> Values:
    """The values of each file, all of one partition."""
    match field.source_type, field.transform:
        case StringType(), IdentityTransform():
            lengths = numbers.integers(8, 25, FILES).tolist()
            return [[name[:length]] for name, length in zip(_names(numbers, FILES), lengths, strict=True)]
        case StringType(), BucketTransform():
            return [_names(numbers, ROWS) for _ in range(FILES)]  # a bucket has names from everywhere
        case StringType(), TruncateTransform(width=width):
            starts = [name[:width] for name in _names(numbers, FILES)]
            return [[start + name[width:] for name in _names(numbers, ROWS)] for start in starts]
        case LongType(), TruncateTransform(width=width):
            return numbers.integers(0, 10**9, (FILES, 1)) * width + numbers.integers(0, width, (FILES, ROWS))
        case LongType(), BucketTransform():
            ids = numbers.integers(0, 10**9, FILES * ROWS)
            buckets = apply_vector(field.transform, field.source_type, ids)
            return np.asarray(ids[np.argsort(buckets, kind="stable")].reshape(FILES, ROWS))
        case LongType(), _:
            return np.asarray(np.repeat(numbers.integers(0, 10**9, (FILES, 1)), ROWS, axis=1))
    # Times: instants of a period, found by moving into the period of the first one.
    first = (FIRST_HOUR + numbers.integers(0, 24 * 365 * 4, (FILES, 1))) * HOUR
    spread = {"year": 24 * 365, "month": 24 * 28, "day": 24, "hour": 1}[str(field.transform)]
    instants = first + numbers.integers(-spread * HOUR, spread * HOUR, (FILES, ROWS))
    periods = _apply(field, instants)
    return np.where(periods == periods[:, :1], instants, instants[:, :1])


def _apply(field: BoundField, values: Ints) -> Ints:
    return np.asarray(apply_vector(field.transform, field.source_type, values.reshape(-1))).reshape(values.shape)


def _as_they_arrive(field: BoundField, numbers: np.random.Generator) -> Values:
    """The values of files that hold an hour of rows each, whatever their partition."""
    match field.source_type:
        case StringType():
            return [_names(numbers, ROWS) for _ in range(FILES)]
        case LongType():
            return numbers.integers(0, 10**9, (FILES, ROWS))
    starts = FIRST_HOUR * HOUR + np.arange(FILES)[:, None] * HOUR + HOUR // 3
    return np.asarray(starts + numbers.integers(0, HOUR, (FILES, ROWS)))


def _names(numbers: np.random.Generator, count: int) -> list[str]:
    """Names of 24 to 30 characters, with few different beginnings."""
    return [f"{'abcd'[n % 4]}cme-{n:019d}{'x' * (n % 7)}" for n in numbers.integers(0, 10**18, count).tolist()]


def _share(field: BoundField, values: Values, cut: int | None) -> float:
    ends = [_bound(values, of, cut, field.source_type) for of in (min, max)]
    rows, nothing = np.full(FILES, ROWS), np.zeros(FILES, dtype=np.int64)
    stats = ColumnStats.from_counts(rows, nothing, nothing, *decode_bounds(field.source_type, *ends))
    return float(recover(field, stats, FILES).recovered.mean())


def _bound(values: Values, of: Callable[..., str | int], cut: int | None, type_: PrimitiveType) -> pa.Array:
    """A bound of every file as single-value bytes."""
    found = [of(one) for one in (values if isinstance(values, list) else values.tolist())]
    if isinstance(type_, StringType):
        texts = [str(text) if cut is None else _cut(str(text), cut, up=of is max) for text in found]
        return pa.array([text.encode() for text in texts], pa.large_binary())
    return pa.array([struct.pack("<q", number) for number in found], pa.large_binary())


def _cut(text: str, length: int, *, up: bool) -> str:
    """A bound of at most this many characters; an upper one is rounded up."""
    if len(text) <= length:
        return text
    return text[: length - 1] + chr(ord(text[length - 1]) + up)
