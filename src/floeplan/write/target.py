"""``WriteTarget``: everything a task needs to write files of a table, with the table's write properties.

A target is a picklable value without connections; it never loads the table again. Its spec may be any spec of the
table, so that rows can be written in an older one.

Names and defaults of properties are Iceberg's. Metrics modes follow Iceberg's MetricsConfig: ``none``, ``counts``,
``truncate(n)`` or ``full`` per column. A column property wins. Without a configured default, ``truncate(16)`` applies
to the first columns of a wide table only. Columns of the sort order with an order-preserving transform always have
bounds.

Fail-safe: a property with an invalid value is an error that names it, before a file is written.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast
from urllib.parse import quote_plus

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionKey as PyIcebergPartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    UnknownType,
    UUIDType,
)

from floeplan.errors import InvalidOptionError
from floeplan.format4 import location_properties
from floeplan.formats.stored import PARQUET, READABLE
from floeplan.metadata.files import TableFiles, TableLocations
from floeplan.opaque_types import logical_types
from floeplan.partition.key import PartitionKey
from floeplan.partition.union import SpecProjection, UnionPartitionType
from floeplan.scan.projection import arrow_schema
from floeplan.text import parse_count

T = TypeVar("T")

_MIB = 1024 * 1024
_CODECS = {
    "uncompressed": "NONE",
    "none": "NONE",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "brotli": "BROTLI",
    "lz4": "LZ4",
    "lz4_raw": "LZ4",
    "zstd": "ZSTD",
}
_WITH_LEVEL = ("GZIP", "BROTLI", "ZSTD")
_ORC_CODECS = {name: name for name in ("zlib", "snappy", "lz4", "zstd")} | {"none": "uncompressed"}
_AVRO_CODECS = {"uncompressed": "null", "snappy": "snappy", "gzip": "deflate", "zstd": "zstandard"}
_AVRO_LEVELS = {"deflate": (1, 9), "zstandard": (-131072, 22)}
_FORMATS = {name.lower(): name for name in READABLE}
_BLOOM = "write.parquet.bloom-filter"
_METRICS_DEFAULT = "write.metadata.metrics.default"
_METRICS_COLUMN = "write.metadata.metrics.column."
_MOST_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"


def other_format(properties: Mapping[str, str], schema: Schema) -> str | None:
    """What to report when ``write.format.default`` asks for a format that cannot hold the columns of a table."""
    wanted, opaque = WriteOptions.from_properties(properties).format, logical_types(schema)
    if wanted == PARQUET or not opaque:
        return None
    field_id, type_ = next(iter(opaque.items()))
    return (
        f"write.format.default is {wanted.lower()}: not supported with column {schema.find_column_name(field_id)} "
        f"of type {type_}, new files are Parquet"
    )


@dataclass(frozen=True)
class WriteTarget:
    """The schema, spec, properties, location and FileIO that files are written with.

    Attributes:
        schema: The schema rows are written in.
        spec_id: The spec data files are partitioned by.
        sort_order: The table's sort order.
        union: The partition fields of all specs.
        properties: The table's properties.
        location: The table's location.
        format_version: 1 to 4.
        io: The table's FileIO.
        operation_id: Part of every file name, which identifies the files of one operation.
    """

    schema: Schema
    spec_id: int
    sort_order: SortOrder
    union: UnionPartitionType
    properties: Mapping[str, str]
    location: str
    format_version: int
    io: FileIO
    operation_id: str

    @classmethod
    def of(
        cls, table: Table, *, spec_id: int | None = None, schema: Schema | None = None, operation_id: str | None = None
    ) -> WriteTarget:
        """The target for a table, with its current schema and default spec unless others are given."""
        metadata = table.metadata
        target = cls(
            schema=schema or metadata.schema(),
            spec_id=metadata.default_spec_id if spec_id is None else spec_id,
            sort_order=metadata.sort_order(),
            union=UnionPartitionType.of_table(metadata),
            properties=location_properties(metadata),
            location=metadata.location,
            format_version=metadata.format_version,
            io=table.io,
            operation_id=operation_id or str(uuid.uuid4()),
        )
        # Unknown specs and invalid properties raise here, before a task starts.
        _ = target.spec, target.options, target.metrics_modes
        return target

    @property
    def spec(self) -> SpecProjection:
        """The spec data files are partitioned by."""
        return self.union.spec(self.spec_id)

    @cached_property
    def options(self) -> WriteOptions:
        """The write options from the table's properties."""
        options = WriteOptions.from_properties(self.properties)
        opaque = logical_types(self.schema)
        return replace(options, logical_types=opaque, format=PARQUET if opaque else options.format)

    @cached_property
    def delete_options(self) -> WriteOptions:
        """The write options of delete files; they default to those of data files."""
        own = {
            re.sub(r"^write\.delete\.(?=(parquet|orc|avro|format)\.)", "write.", name): value
            for name, value in self.properties.items()
            if name.startswith("write.delete.")
        }
        return replace(WriteOptions.from_properties({**self.properties, **own}), bloom={})

    @cached_property
    def metrics_modes(self) -> MetricsModes:
        """The metrics modes from the table's properties."""
        return MetricsModes.from_properties(self.properties, self.schema, self.sort_order)

    @cached_property
    def stored_schema(self) -> Schema:
        """The schema without columns of unknown type, which files do not store; the schema itself if it has none."""
        stored = _stored_fields(self.schema.fields)
        return self.schema if stored == self.schema.fields else Schema(*stored, schema_id=self.schema.schema_id)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of data files, with field ids in the metadata."""
        return arrow_schema(self.stored_schema)

    def new_location(self, name: str, partition: PartitionKey | None = None) -> str:
        """The location of a new file by the table's location provider; the partition may be of any spec."""
        if partition is None or not partition.partition:
            return self._provider.new_data_location(name)
        path = _PartitionPath(self.union.spec(partition.spec_id), partition)
        return self._provider.new_data_location(name, cast(PyIcebergPartitionKey, path))

    @cached_property
    def _provider(self) -> LocationProvider:
        """Names the locations of new files; made once, since a small file costs little more."""
        return load_location_provider(self.location, dict(self.properties))

    def file_name(self, token: str) -> str:
        """The prefix of the file names of one attempt; every call returns a new one."""
        return f"{token}-{uuid.uuid4().hex[:12]}-{self.operation_id}"

    @cached_property
    def files(self) -> TableFiles:
        """The table's files, used to remove those of failed attempts."""
        return TableFiles(TableLocations.named(self.location, self.properties), self.io)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the fields; cached properties are derived again."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _PartitionPath:
    """The part of PyIceberg's PartitionKey that a location provider uses.

    The path is ``name=value/…`` in the human-readable form of each transform, URL-encoded as by Iceberg Java.
    """

    def __init__(self, spec: SpecProjection, partition: PartitionKey) -> None:
        self._pairs = list(zip(spec.fields, partition.partition or (), strict=True))

    def to_path(self) -> str:
        parts = []
        for bound, value in self._pairs:
            if value is None:
                text = "null"
            elif isinstance(bound.column.type, UUIDType) and isinstance(value, bytes):
                text = str(uuid.UUID(bytes=value))
            else:
                try:
                    text = bound.transform.to_human_string(bound.column.type, value)
                except (OverflowError, ValueError):  # a date outside of Python's calendar stays a number
                    text = str(value)
            escaped = (quote_plus(part, safe="*").replace("~", "%7E") for part in (bound.column.path[0], text))
            parts.append("=".join(escaped))
        return "/".join(parts)


def _stored_fields(schema_fields: tuple[NestedField, ...]) -> tuple[NestedField, ...]:
    kept = []
    for one in schema_fields:
        if isinstance(one.field_type, StructType):
            one = one.model_copy(update={"field_type": StructType(*_stored_fields(one.field_type.fields))})
        if not isinstance(one.field_type, UnknownType):
            kept.append(one)
    return tuple(kept)


def _property(properties: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    """Parse one property; ``parse`` raises a ``ValueError`` that says what it must be."""
    text = properties.get(name)
    if text is None:
        return default
    try:
        return parse(text.strip())
    except ValueError as error:
        raise InvalidOptionError(
            f"table property {name} is set to {text!r}, but {error}", context={"property": name, "value": text}
        ) from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("must be a whole number above 0")
    return int(text)


def _whole(text: str) -> int:
    count = parse_count(text)
    if count is None:
        raise ValueError("must be a whole number")
    return count


def _level(codec: str, text: str) -> int | None:
    """A level the codec has; codecs without levels take none."""
    if text.lower() == "null" or codec not in _WITH_LEVEL:
        return None
    lowest, highest = (getattr(pa.Codec, f"{end}_compression_level")(codec.lower()) for end in ("minimum", "maximum"))
    if not re.fullmatch(r"-?\d+", text) or not lowest <= int(text) <= highest:
        raise ValueError(f"must be a whole number from {lowest} to {highest} for {codec.lower()}")
    return int(text)


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ValueError("must lie between 0 and 1")
    return value


def _one_of(choices: Mapping[str, str], text: str) -> str:
    if text.lower() not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    return choices[text.lower()]


def _avro_level(codec: str, text: str) -> int | None:
    """A level the codec has; codecs without levels take none."""
    if text.lower() == "null" or codec not in _AVRO_LEVELS:
        return None
    lowest, highest = _AVRO_LEVELS[codec]
    if not re.fullmatch(r"-?\d+", text) or not lowest <= int(text) <= highest:
        raise ValueError(f"must be a whole number from {lowest} to {highest} for {codec}")
    return int(text)


def _choice(chosen: str, other: str, text: str) -> bool:
    """Whether the text is the first of two values."""
    if text.lower() not in (chosen, other):
        raise ValueError(f"must be {chosen} or {other}")
    return text.lower() == chosen


def _option(default: Any, name: str, parse: Callable[[str], Any]) -> Any:
    """A field that is parsed from a table property."""
    return field(default=default, metadata={"property": name, "parse": parse})


@dataclass(frozen=True, slots=True)
class BloomOptions:
    """The Bloom filter of one column: false-positive probability, and number of distinct values if configured."""

    fpp: float = 0.01
    ndv: int | None = None

    def distinct_values(self, rows: int, max_bytes: int) -> int:
        """The number of distinct values to size the filter for: that of the rows, limited by the largest filter."""
        holds = int(-max_bytes * math.log(1 - self.fpp ** (1 / 8)))
        return max(1, min(self.ndv or rows, holds))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How data and delete files are written.

    Attributes:
        target_file_size: Encoded size at which a data file ends. Defaults to 512 MiB.
        delete_target_file_size: The same for position delete files. Defaults to 64 MiB.
        row_group_size: In-memory size of the rows of a row group. Defaults to 128 MiB.
        page_size: Encoded size of a page. Defaults to 1 MiB.
        page_rows: Maximum rows of a page. Defaults to 20,000.
        dictionary_size: Size of a dictionary page at which a column falls back to plain values. Defaults to 2 MiB.
        codec: Compression as pyarrow names it. Defaults to Zstandard.
        level: Compression level; ``None`` leaves it to the codec.
        bloom: Columns with a Bloom filter, by name.
        bloom_max_bytes: Largest Bloom filter. Defaults to 1 MiB.
        delete_per_file: Whether a position delete file applies to one data file (granularity ``file``, the default).
        logical_types: The types of variant, geometry and geography columns, by field id.
        format: The format of new files, as manifest entries name it. Defaults to Parquet.
        orc_codec: Compression of ORC files as pyarrow names it. Defaults to zlib.
        stripe_size: Size of the stripes of ORC files. Defaults to 64 MiB.
        avro_codec: Compression of Avro files as their headers name it. Defaults to deflate.
        avro_level: Its level; ``None`` leaves it to the codec.
    """

    target_file_size: int = _option(512 * _MIB, "write.target-file-size-bytes", _positive)
    delete_target_file_size: int = _option(64 * _MIB, "write.delete.target-file-size-bytes", _positive)
    row_group_size: int = _option(128 * _MIB, "write.parquet.row-group-size-bytes", _positive)
    page_size: int = _option(_MIB, "write.parquet.page-size-bytes", _positive)
    page_rows: int = _option(20_000, "write.parquet.page-row-limit", _positive)
    dictionary_size: int = _option(2 * _MIB, "write.parquet.dict-size-bytes", _positive)
    codec: str = _option("ZSTD", "write.parquet.compression-codec", partial(_one_of, _CODECS))
    level: int | None = None
    bloom: Mapping[str, BloomOptions] = field(default_factory=dict)
    bloom_max_bytes: int = _option(_MIB, f"{_BLOOM}-max-bytes", _positive)
    delete_per_file: bool = _option(True, "write.delete.granularity", partial(_choice, "file", "partition"))
    logical_types: Mapping[int, str] = field(default_factory=dict)
    format: str = _option(PARQUET, "write.format.default", partial(_one_of, _FORMATS))
    orc_codec: str = _option("zlib", "write.orc.compression-codec", partial(_one_of, _ORC_CODECS))
    stripe_size: int = _option(64 * _MIB, "write.orc.stripe-size-bytes", _positive)
    avro_codec: str = _option("deflate", "write.avro.compression-codec", partial(_one_of, _AVRO_CODECS))
    avro_level: int | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> WriteOptions:
        """Parse the table's properties."""
        found: dict[str, Any] = {
            option.name: _property(properties, option.metadata["property"], option.metadata["parse"], option.default)
            for option in fields(cls)
            if option.metadata
        }
        parse_level = partial(_level, found["codec"])
        found["level"] = _property(properties, "write.parquet.compression-level", parse_level, None)
        parse_level = partial(_avro_level, found["avro_codec"])
        found["avro_level"] = _property(properties, "write.avro.compression-level", parse_level, None)
        bloom = {}
        for name in properties:
            column = name.removeprefix(f"{_BLOOM}-enabled.column.")
            if column != name and _property(properties, name, partial(_choice, "true", "false"), False):
                bloom[column] = BloomOptions(
                    _property(properties, f"{_BLOOM}-fpp.column.{column}", _probability, BloomOptions().fpp),
                    _property(properties, f"{_BLOOM}-ndv.column.{column}", _positive, None),
                )
        return cls(bloom=bloom, **found)


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """The metrics of one column; ``width`` truncates bounds of strings and binaries, ``None`` does not."""

    counts: bool
    bounds: bool
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> MetricsMode:
        """Parse the value of a property."""
        known = {"none": NONE, "counts": COUNTS, "full": FULL}
        cut = re.fullmatch(r"truncate\((\d+)\)", text.lower())
        if cut is not None and int(cut[1]) > 0:
            return cls(counts=True, bounds=True, width=int(cut[1]))
        if text.lower() not in known:
            raise ValueError("must be none, counts, truncate(n) with n > 0, or full")
        return known[text.lower()]


NONE = MetricsMode(counts=False, bounds=False)
COUNTS = MetricsMode(counts=True, bounds=False)
FULL = MetricsMode(counts=True, bounds=True)
TRUNCATE_16 = MetricsMode(counts=True, bounds=True, width=16)


@dataclass(frozen=True, slots=True)
class MetricsModes:
    """The mode of every column by field id."""

    by_id: Mapping[int, MetricsMode]
    default: MetricsMode = NONE

    def of(self, field_id: int) -> MetricsMode:
        """The mode of one column."""
        return self.by_id.get(field_id, self.default)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], schema: Schema, sort_order: SortOrder | None = None
    ) -> MetricsModes:
        """Parse the table's properties."""
        # Sort columns come after the defaults and before column properties, which win.
        leaves = list(_leaves(schema.as_struct()))
        default = _property(properties, _METRICS_DEFAULT, MetricsMode.parse, NONE)
        if _METRICS_DEFAULT in properties:
            modes = dict.fromkeys(leaves, default)
        else:
            modes = dict.fromkeys(leaves[: _property(properties, _MOST_INFERRED, _whole, 100)], TRUNCATE_16)
        for sorted_by in sort_order.fields if sort_order is not None else ():
            if sorted_by.transform.preserves_order and not modes.get(sorted_by.source_id, NONE).bounds:
                modes[sorted_by.source_id] = TRUNCATE_16
        for name in properties:
            if name.startswith(_METRICS_COLUMN):
                mode = _property(properties, name, MetricsMode.parse, NONE)
                with suppress(ValueError):  # a column that was dropped or renamed
                    modes[schema.find_field(name.removeprefix(_METRICS_COLUMN)).field_id] = mode
        return cls(modes, default)


def _leaves(type_: IcebergType) -> Iterator[int]:
    """Field ids of primitive columns, breadth first within each struct: its own before those of nested fields."""
    match type_:
        case StructType(fields=fields):
            nested = fields
        case ListType(element_field=element):
            nested = (element,)
        case MapType(key_field=key, value_field=value):
            nested = (key, value)
        case _:
            return
    for nested_field in nested:
        if isinstance(nested_field.field_type, PrimitiveType):
            yield nested_field.field_id
    for nested_field in nested:
        yield from _leaves(nested_field.field_type)
