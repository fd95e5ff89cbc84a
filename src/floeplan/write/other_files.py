"""Writes ORC and Avro files, and collects the metrics of their rows for the manifest entries.

ORC is written by pyarrow, which stores the metadata of Arrow fields as attributes of ORC types: field ids and what else
Iceberg keeps there. Avro is written by ``formats.avro_rows``. Neither has a footer with statistics that could be taken
over, so counts and bounds are those of the rows.

Fail-safe: rows with a time that an ORC file would not return unchanged (``fits_orc``) go to Parquet files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import deflate
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from floeplan.formats.avro_rows import AvroRows
from floeplan.formats.stored import PARQUET
from floeplan.metadata.avro.encoder import CODECS
from floeplan.metadata.files import TableFiles, writing
from floeplan.parquet.footer.statistics import Side
from floeplan.partition.transforms import from_physical
from floeplan.schemas import FIELD_ID, fields_by_id
from floeplan.write.metrics import FileMetrics, single_value
from floeplan.write.parquet_file import leaves
from floeplan.write.target import MetricsModes, WriteOptions

_ENCODED_SHARE = 0.3
"""About the bytes of an ORC stripe for a byte of rows; a stripe is written when it is full."""
_NANOSECONDS = {"us": 1_000, "ns": 1}


@dataclass(slots=True)
class RowMetrics:
    """Counts and extremes of the rows of one file, by field id; columns inside of lists and maps have none."""

    rows: int = 0
    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    extremes: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Count some rows."""
        self.rows += table.num_rows
        for column, values in zip(table.schema, table.columns, strict=True):
            for key, leaf in leaves(column, values):
                self.nulls[key] = self.nulls.get(key, 0) + leaf.null_count
                self._add_extremes(key, _physical(leaf))

    def _add_extremes(self, key: int, values: pa.ChunkedArray) -> None:
        if pt.is_floating(values.type):
            nan = pc.is_nan(values)
            self.nans[key] = self.nans.get(key, 0) + (pc.sum(nan).as_py() or 0)
            values = values.filter(pc.invert(nan))
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            low, high = self.extremes.get(key, (found["min"], found["max"]))
            self.extremes[key] = min(low, found["min"]), max(high, found["max"])

    def file_metrics(self, schema: Schema, modes: MetricsModes) -> FileMetrics:
        """The metrics of the table's columns by their modes; sizes of columns are not known."""
        metrics = FileMetrics()
        for key, nulls in self.nulls.items():
            column, mode = fields_by_id(schema).get(key), modes.of(key)
            if column is None or not isinstance(column.field_type, PrimitiveType) or not mode.counts:
                continue
            metrics.value_counts[key], metrics.null_value_counts[key] = self.rows, nulls
            if key in self.nans:
                metrics.nan_value_counts[key] = self.nans[key]
            if not mode.bounds or key not in self.extremes:
                continue
            ends = ((Side.LOWER, metrics.lower_bounds), (Side.UPPER, metrics.upper_bounds))
            for value, (side, bounds) in zip(self.extremes[key], ends, strict=True):
                bound = single_value(column.field_type, from_physical(column.field_type, value), side, mode.width)
                if bound is not None:
                    bounds[key] = bound
        return metrics


def _physical(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values in a type whose minimum is what bounds are made of: numbers for dates and times, bytes for UUIDs."""
    type_ = values.type
    if isinstance(type_, pa.BaseExtensionType):
        return values.cast(type_.storage_type).cast(pa.binary())
    if pt.is_date32(type_):
        return values.cast(pa.int32())
    if pt.is_temporal(type_):
        return values.cast(pa.int64())
    return values.cast(pa.binary()) if pt.is_fixed_size_binary(type_) else values


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """A closed file."""

    path: str
    size: int
    format: str
    metrics: RowMetrics


class RowFile(ABC):
    """A file that takes tables of one schema."""

    format: str

    def __init__(self, files: TableFiles, path: str) -> None:
        self.path = path
        self._files = files
        self._metrics = RowMetrics()
        with writing(path):
            self._sink = files.io.new_output(path).create()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write some rows."""
        self._metrics.add(rows)
        with writing(self.path):
            self._write(rows)

    def close(self) -> WrittenRows:
        """Finish the file."""
        with writing(self.path):
            self._finish()
            size = int(self._sink.tell())
            self._sink.close()
        return WrittenRows(self.path, size, self.format, self._metrics)

    def discard(self) -> None:
        """Abort and remove the file."""
        for close in (self._finish, self._sink.close):
            with suppress(Exception):  # what failed before may fail again on close
                close()
        self._files.remove([self.path])

    @abstractmethod
    def _write(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


class AvroFile(RowFile):
    """A container file."""

    format = "AVRO"

    def __init__(self, files: TableFiles, path: str, options: WriteOptions, schema: pa.Schema) -> None:
        codec, compress = _avro_codec(options)
        self._rows = AvroRows(schema, codec, compress)
        super().__init__(files, path)
        with writing(path):
            self._sink.write(self._rows.header)

    def _write(self, rows: pa.Table) -> None:
        for block in self._rows.blocks(rows):
            self._sink.write(block)

    def _finish(self) -> None:
        pass


def _avro_codec(options: WriteOptions) -> tuple[str, Callable[[bytes], bytes]]:
    """The name of a codec in the header of a file, and the codec at the configured level."""
    name, level = options.avro_codec, options.avro_level
    if level is not None and name == "deflate":
        return name, lambda data: bytes(deflate.deflate_compress(data, level))
    if level is not None and name == "zstandard":
        return name, partial(pa.Codec("zstd", level).compress, asbytes=True)
    return name, CODECS[name]


class OrcFile(RowFile):
    """An ORC file; pyarrow ends a stripe when it is full."""

    format = "ORC"

    def __init__(self, files: TableFiles, path: str, options: WriteOptions, schema: pa.Schema) -> None:
        from pyarrow.orc import ORCWriter

        super().__init__(files, path)
        self._schema = orc_schema(schema)
        self._stored = self._waiting = 0
        with writing(path):
            self._writer = ORCWriter(
                pa.PythonFile(self._sink, mode="w"), compression=options.orc_codec, stripe_size=options.stripe_size
            )

    @property
    def size(self) -> int:
        """Bytes written so far, and about those of the stripe that is not full yet."""
        return int(self._sink.tell()) + int(_ENCODED_SHARE * self._waiting)

    def _write(self, rows: pa.Table) -> None:
        self._writer.write(orc_table(rows, self._schema))
        self._waiting += rows.nbytes
        if self._sink.tell() > self._stored:
            self._stored, self._waiting = int(self._sink.tell()), 0

    def _finish(self) -> None:
        self._writer.close()
        self._waiting = 0


def orc_schema(schema: pa.Schema) -> pa.Schema:
    """The types that ORC has, with the attributes by which Iceberg restores the others."""
    return pa.schema([_orc_field(column) for column in schema])


def orc_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the types of ``orc_schema``."""
    every = pa.array(np.arange(rows.num_rows))
    columns = []
    for column, wanted in zip(rows.columns, schema, strict=True):
        if pt.is_nested(column.type):
            column = column.take(every)  # pyarrow takes the nulls of a sliced struct for those of the whole one
        columns.append(column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _orc_field(column: pa.Field) -> pa.Field:
    type_, notes = column.type, {"iceberg.id": column.metadata[FIELD_ID].decode()}
    notes["iceberg.required"] = str(not column.nullable).lower()
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
        notes["iceberg.binary-type"] = "UUID"
    elif pt.is_fixed_size_binary(type_):
        notes |= {"iceberg.binary-type": "FIXED", "iceberg.length": str(type_.byte_width)}
    elif pt.is_time64(type_):
        type_ = pa.int64()
        notes["iceberg.long-type"] = "TIME"
    elif pt.is_timestamp(type_):
        notes["iceberg.timestamp-unit"] = {"us": "MICROS", "ns": "NANOS"}[type_.unit]
    elif pt.is_struct(type_):
        type_ = pa.struct([_orc_field(child) for child in type_])
    elif pt.is_large_list(type_):
        type_ = pa.large_list(_orc_field(type_.value_field))
    elif pt.is_map(type_):
        type_ = pa.map_(_orc_field(type_.key_field), _orc_field(type_.item_field))
    return pa.field(column.name, type_, column.nullable, notes)


def fits_orc(rows: pa.Table) -> bool:
    """Whether an ORC file returns all times as they are.

    ORC stores seconds and their fraction apart, and its writers and readers in C++ and Java do not agree on fractions
    before 1970 (ORC-763): Spark returned some of them one second too early. pyarrow reads no time outside of what fits
    into nanoseconds since 1970, before 1677 or after 2262.
    """
    return all(_times_fit(array) for column in rows.columns for array in column.chunks)


def _times_fit(array: pa.Array) -> bool:
    type_ = array.type
    if pt.is_timestamp(type_):
        ticks = np.asarray(array.cast(pa.int64()).drop_null())
        second = 1_000_000_000 // _NANOSECONDS[type_.unit]
        furthest = (2**63 - 1) // _NANOSECONDS[type_.unit]
        outside = ((ticks < 0) & (ticks % second != 0)) | (ticks > furthest) | (ticks < -furthest)
        return not outside.any()
    return all(_times_fit(child) for child in _children(array))


def _children(array: pa.Array) -> Iterator[pa.Array]:
    if pt.is_struct(array.type):
        yield from array.flatten()
    elif pt.is_map(array.type):
        yield from (array.keys, array.items)
    elif pt.is_large_list(array.type):
        yield array.flatten()


FILES: dict[str, type[AvroFile] | type[OrcFile]] = {"AVRO": AvroFile, "ORC": OrcFile}


def fitting_format(format_: str, rows: pa.Table) -> str:
    """The format to write rows in: this one, or Parquet if it cannot hold them."""
    return PARQUET if format_ == OrcFile.format and not fits_orc(rows) else format_
