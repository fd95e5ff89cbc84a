"""The table properties for written files and for metrics, parsed and checked once.

Names and defaults are Iceberg's. Fail-safe: a property with an invalid value is an error that names it, before a file
is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from floeplan.errors import InvalidOptionError
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
_BLOOM = "write.parquet.bloom-filter"
_FPP = 0.01


@dataclass(frozen=True, slots=True)
class BloomOptions:
    """The Bloom filter of one column: false-positive probability, and number of distinct values if configured."""

    fpp: float = _FPP
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
    """

    target_file_size: int = 512 * _MIB
    delete_target_file_size: int = 64 * _MIB
    row_group_size: int = 128 * _MIB
    page_size: int = _MIB
    page_rows: int = 20_000
    dictionary_size: int = 2 * _MIB
    codec: str = "ZSTD"
    level: int | None = None
    bloom: Mapping[str, BloomOptions] = field(default_factory=dict)
    bloom_max_bytes: int = _MIB
    delete_per_file: bool = True

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> WriteOptions:
        """Parse the table's properties."""
        read = _Reader(properties)
        codec = read("write.parquet.compression-codec", _codec, "ZSTD")
        return cls(
            target_file_size=read("write.target-file-size-bytes", _positive, 512 * _MIB),
            delete_target_file_size=read("write.delete.target-file-size-bytes", _positive, 64 * _MIB),
            row_group_size=read("write.parquet.row-group-size-bytes", _positive, 128 * _MIB),
            page_size=read("write.parquet.page-size-bytes", _positive, _MIB),
            page_rows=read("write.parquet.page-row-limit", _positive, 20_000),
            dictionary_size=read("write.parquet.dict-size-bytes", _positive, 2 * _MIB),
            codec=codec,
            level=read("write.parquet.compression-level", partial(_level, codec), None),
            bloom=_bloom(properties, read),
            bloom_max_bytes=read(f"{_BLOOM}-max-bytes", _positive, _MIB),
            delete_per_file=read("write.delete.granularity", _granularity, True),
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    properties: Mapping[str, str]

    def __call__(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self.properties.get(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise InvalidOptionError(
                f"table property {name} is set to {text!r}, but {error}", context={"property": name, "value": text}
            ) from None


def _bloom(properties: Mapping[str, str], read: _Reader) -> dict[str, BloomOptions]:
    enabled = f"{_BLOOM}-enabled.column."
    names = [name.removeprefix(enabled) for name in properties if name.startswith(enabled)]
    return {
        name: BloomOptions(
            fpp=read(f"{_BLOOM}-fpp.column.{name}", _probability, _FPP),
            ndv=read(f"{_BLOOM}-ndv.column.{name}", _positive, None),
        )
        for name in names
        if read(f"{enabled}{name}", _flag, False)
    }


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("must be a whole number above 0")
    return int(text)


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


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _codec(text: str) -> str:
    if text.lower() not in _CODECS:
        raise ValueError(f"must be one of {', '.join(_CODECS)}")
    return _CODECS[text.lower()]


def _granularity(text: str) -> bool:
    if text.lower() not in ("file", "partition"):
        raise ValueError("must be file or partition")
    return text.lower() == "file"


# Metrics modes: ``none``, ``counts``, ``truncate(n)`` or ``full`` per column, by the same rules as Iceberg's
# MetricsConfig. A column property wins. Without a configured default, ``truncate(16)`` applies to the first columns of
# a wide table only. Columns of the sort order with an order-preserving transform always have bounds.

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_MOST_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """The metrics of one column; ``width`` truncates bounds of strings and binaries, ``None`` does not."""

    counts: bool
    bounds: bool
    width: int | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> MetricsMode:
        """Parse the value of a property."""
        known = {"none": NONE, "counts": COUNTS, "full": FULL}
        wanted = text.strip().lower()
        cut = re.fullmatch(r"truncate\((\d+)\)", wanted)
        if cut is not None and int(cut[1]) > 0:
            return cls(counts=True, bounds=True, width=int(cut[1]))
        if wanted not in known:
            raise InvalidOptionError(
                f"table property {name} is set to {text!r}, but must be none, counts, truncate(n) with n > 0, or full",
                context={"property": name, "value": text},
            )
        return known[wanted]


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
        configured = properties.get(_DEFAULT)
        if configured is not None:
            default = MetricsMode.parse(configured, _DEFAULT)
            modes = dict.fromkeys(leaves, default)
        else:
            default = NONE
            modes = dict.fromkeys(leaves[: _most_inferred(properties)], TRUNCATE_16)
        for field_id in _order_preserving(sort_order):
            if not modes.get(field_id, NONE).bounds:
                modes[field_id] = TRUNCATE_16
        for name, text in properties.items():
            if name.startswith(_COLUMN):
                mode = MetricsMode.parse(text, name)
                with suppress(ValueError):  # a column that was dropped or renamed
                    modes[schema.find_field(name.removeprefix(_COLUMN)).field_id] = mode
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


def _most_inferred(properties: Mapping[str, str]) -> int:
    text = properties.get(_MOST_INFERRED, "100").strip()
    most = parse_count(text)
    if most is None:
        raise InvalidOptionError(
            f"table property {_MOST_INFERRED} is set to {text!r}, but must be a whole number",
            context={"property": _MOST_INFERRED, "value": text},
        )
    return most


def _order_preserving(sort_order: SortOrder | None) -> list[int]:
    fields = sort_order.fields if sort_order is not None else ()
    return [field.source_id for field in fields if field.transform.preserves_order]
