"""Writes one Parquet file, row group by row group, and collects the metrics that its footer lacks.

Parquet statistics do not count NaN, and pyarrow miscounts nulls inside of structs and leaves out bounds of long values.
All three are collected per row group for the manifest entry of the file.

pyarrow has no way to annotate a column as a variant, a geometry or a geography, without which a file does not hold one.
So the footer is held back when a file with such columns is closed, and written with their annotations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.io import OutputStream

from floeplan.errors import UnsupportedError
from floeplan.formats.stored import PARQUET
from floeplan.metadata.files import TableFiles, writing
from floeplan.parquet.footer.footer import ParquetFooter, decode_footer
from floeplan.parquet.footer.thrift import (
    BINARY,
    I8,
    I32,
    LIST,
    SCALAR,
    STRUCT,
    encode_struct,
    encode_value,
    read_struct,
    splice,
)
from floeplan.scan.projection import field_id
from floeplan.write.target import WriteOptions
from floeplan.write.variant_bounds import PathBounds, variant_bounds

_LONGEST_STATISTIC = 4096
"""pyarrow writes no statistics for values longer than this."""
_SAMPLE, _FEW, _MOSTLY = 1 << 15, 1 << 10, 0.9
"""Rows to sample for repetition, rows too few to decide, and the fraction of distinct values without a dictionary."""
_DICTIONARY_ROWS, _DICTIONARY_BYTES = 100, 64 * 1024
"""Up to this many rows and bytes, a dictionary saves less than its page costs: a header, and a call of the codec."""


@dataclass(frozen=True, slots=True)
class RowGroupMetrics:
    """Metrics of one row group by field id: nulls, NaN, and bounds of columns with long values and of variants."""

    null_counts: dict[int, int]
    nan_counts: dict[int, int]
    long_bounds: dict[int, tuple[Any, Any]]
    variants: dict[int, PathBounds] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Iterable[RowGroupMetrics]) -> RowGroupMetrics:
        """Merge the metrics of disjoint columns of one row group."""
        merged = cls({}, {}, {})
        for part in parts:
            merged.null_counts.update(part.null_counts)
            merged.nan_counts.update(part.nan_counts)
            merged.long_bounds.update(part.long_bounds)
            merged.variants.update(part.variants)
        return merged


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed file."""

    path: str
    size: int
    footer: ParquetFooter
    groups: tuple[RowGroupMetrics, ...]


class ParquetFile:
    """A file that takes tables of one schema, each as a row group."""

    format = PARQUET

    def __init__(
        self, files: TableFiles, path: str, options: WriteOptions, first: pa.Table, plain: frozenset[str] = frozenset()
    ) -> None:
        """Open a file.

        Args:
            files: The table's files.
            path: Where to write.
            options: The write options.
            first: The rows of the first row group, not written yet; their number sizes Bloom filters.
            plain: Columns to write without a dictionary.
        """
        self.path = path
        self._files = files
        self._groups: list[RowGroupMetrics] = []
        self._metadata: list[Any] = []
        self._logical_types = options.logical_types
        settings = _settings(options, first, plain)
        with writing(path):
            self._sink = files.io.new_output(path).create()
            self._tail = _HeldBack(self._sink) if options.logical_types else None
            sink = self._tail or self._sink
            try:
                self._writer = pq.ParquetWriter(sink, first.schema, metadata_collector=self._metadata, **settings)
            except BaseException:
                self._remove()
                raise

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write the rows as one row group."""
        self._groups.append(row_group_metrics(rows))
        with writing(self.path):
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> WrittenFile:
        """Finish the file."""
        with writing(self.path):
            if self._tail is not None:
                self._tail.hold()
            self._writer.close()
            if self._tail is not None:
                self._sink.write(annotated_file(self._tail.held, self._logical_types))
            size = self.size
            self._sink.close()
        encoded = pa.BufferOutputStream()
        self._metadata[0].write_metadata_file(encoded)
        file = annotated_file(encoded.getvalue().to_pybytes(), self._logical_types)
        footer = decode_footer(file[4:-8], self.path, size)
        return WrittenFile(self.path, size, footer, tuple(self._groups))

    def discard(self) -> None:
        """Abort and remove the file."""
        with suppress(Exception):  # what failed before may fail again on close
            self._writer.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(Exception):
            self._sink.close()
        self._files.remove([self.path])


def encoded_file(rows: pa.Table, options: WriteOptions, plain: frozenset[str] = frozenset()) -> memoryview:
    """Encode the rows as a file in memory with one row group, or none if there are no rows."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, **_settings(options, rows, plain)) as writer:
        if rows.num_rows:
            writer.write_table(rows, row_group_size=rows.num_rows)
    file = memoryview(sink.getvalue())
    return memoryview(annotated_file(bytes(file), options.logical_types)) if options.logical_types else file


class _HeldBack:
    """A sink for pyarrow that keeps what is written after ``hold`` instead of passing it on."""

    closed = False

    def __init__(self, sink: OutputStream) -> None:
        self._write: Callable[[bytes], object] = sink.write
        self.held = bytearray()

    def hold(self) -> None:
        """Keep what is written from now on."""
        self._write = self.held.extend

    def write(self, data: bytes) -> int:
        """Write, or keep, some bytes."""
        self._write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered."""


def annotated_file(file: bytes | bytearray, logical_types: Mapping[int, str]) -> bytes:
    """A file or the end of one, with the logical types of fields in its footer, by field id."""
    if not logical_types:
        return bytes(file)
    end = len(file) - 8
    start = end - int.from_bytes(file[end : end + 4], "little")
    footer = bytes(file[start:end])
    starts = read_struct(footer, 0, {2: ...}, "footer", "the file")[0][2]
    elements = [_annotated(footer[low:high], logical_types) for low, high in pairwise(starts)]
    changed = splice(footer, {2: encode_value(LIST, (STRUCT, elements))}, "footer", "the file")
    return b"".join([file[:start], changed, len(changed).to_bytes(4, "little"), file[end + 4 :]])


def _annotated(element: bytes, logical_types: Mapping[int, str]) -> bytes:
    """A SchemaElement with its logical type, which follows the field id."""
    fields, _ = read_struct(element, 0, dict.fromkeys((9, 10), SCALAR), "schema", "the file")
    text = logical_types.get(fields.get(9, -1))
    if text is None or 10 in fields:
        return element
    kind, *arguments = (part.strip(" '\"") for part in re.split(r"[(),]", text.rstrip(")")))
    details: list[tuple[int, int, object]] = []
    if kind.lower() == "variant":
        details = [(1, I8, 1)]  # the version of the encoding
    elif arguments:
        details = [(1, BINARY, arguments[0].encode())]  # the coordinate reference system
    if len(arguments) > 1:
        if arguments[1].lower() not in _EDGES:
            raise UnsupportedError(f"the edge algorithm of {text} is unknown; Parquet has {', '.join(_EDGES)}")
        details.append((2, I32, _EDGES.index(arguments[1].lower())))
    logical = encode_struct([(_LOGICAL_TYPES[kind.lower()], STRUCT, encode_struct(details))])
    return element[:-1] + bytes([(10 - 9) << 4 | STRUCT]) + logical + element[-1:]


_LOGICAL_TYPES = {"variant": 16, "geometry": 17, "geography": 18}
"""Members of Parquet's LogicalType."""
_EDGES = ("spherical", "vincenty", "thomas", "andoyer", "karney")
"""Parquet's EdgeInterpolationAlgorithm, in the order of its values."""


def high_cardinality_columns(rows: pa.Table) -> frozenset[str]:
    """Primitive columns whose values are nearly all distinct, so that a dictionary would only add bytes."""
    # Sample over the whole table: in sorted rows, neighbouring values repeat.
    sample = rows.take(pa.array(np.arange(0, rows.num_rows, max(1, rows.num_rows // _SAMPLE))))
    found = set()
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        type_, values = column.type, len(column) - column.null_count
        plain = not (pt.is_nested(type_) or pt.is_boolean(type_) or isinstance(type_, pa.BaseExtensionType))
        if plain and values >= _FEW and pc.count_distinct(column).as_py() > _MOSTLY * values:
            found.add(name)
    return frozenset(found)


def _settings(options: WriteOptions, first: pa.Table, plain: frozenset[str]) -> dict[str, Any]:
    paths = {name: path for field in first.schema for name, path in _paths(field, "", "")}
    statistics: bool | list[str] = True
    few = first.num_rows <= _DICTIONARY_ROWS and first.nbytes <= _DICTIONARY_BYTES
    bloom = {
        paths[name]: {"fpp": wanted.fpp, "ndv": wanted.distinct_values(first.num_rows, options.bloom_max_bytes)}
        for name, wanted in options.bloom.items()
        if name in paths
    }
    if options.logical_types:
        opaque = {path for field in first.schema for path in _opaque_paths(field, "", options.logical_types)}
        statistics = [path for path in paths.values() if path not in opaque]
    return {
        "write_statistics": statistics,
        "compression": options.codec,
        "compression_level": options.level,
        "data_page_size": options.page_size,
        "max_rows_per_page": options.page_rows,
        "use_dictionary": [] if few else [path for name, path in paths.items() if name not in plain],
        "dictionary_pagesize_limit": options.dictionary_size,
        "write_page_index": True,
        "store_decimal_as_integer": True,
        "store_schema": False,
        "bloom_filter_options": bloom or None,
    }


def _paths(field: pa.Field, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Names of leaves in the table, and their paths in the file."""
    name, path = name + field.name, path + field.name
    inner = _children(field.type, path)
    if not inner:
        yield name, path
    for child, below in inner:
        yield from _paths(child, f"{name}.", f"{below}.")


def _opaque_paths(field: pa.Field, path: str, logical_types: Mapping[int, str]) -> Iterator[str]:
    """Paths of leaves whose values have no order: those of variants, geometries and geographies."""
    if field_id(field) in logical_types:
        yield from (leaf for _, leaf in _paths(field, "", path))
        return
    for child, below in _children(field.type, path + field.name):
        yield from _opaque_paths(child, f"{below}.", logical_types)


def _children(type_: pa.DataType, path: str) -> list[tuple[pa.Field, str]]:
    """The fields below a nested type, and the path of their group in the file."""
    if pt.is_struct(type_):
        return [(child, path) for child in type_]
    if pt.is_large_list(type_):
        return [(type_.value_field, f"{path}.list")]
    if pt.is_map(type_):
        return [(child, f"{path}.key_value") for child in (type_.key_field, type_.item_field)]
    return []


def row_group_metrics(rows: pa.Table) -> RowGroupMetrics:
    """Compute the metrics of the rows of one row group."""
    metrics = RowGroupMetrics({}, {}, {})
    for stored, column in zip(rows.schema, rows.columns, strict=True):
        top = field_id(stored)
        if top is not None and pt.is_struct(stored.type) and stored.type.get_field_index("typed_value") >= 0:
            metrics.variants[top] = variant_bounds(column)
        for key, values in leaves(stored, column):
            metrics.null_counts[key] = values.null_count
            if pt.is_floating(values.type):
                metrics.nan_counts[key] = pc.sum(pc.is_nan(values)).as_py() or 0
            elif pt.is_large_string(values.type) or pt.is_large_binary(values.type):
                longest = pc.max(pc.binary_length(values)).as_py() if values.nbytes > _LONGEST_STATISTIC else 0
                if (longest or 0) > _LONGEST_STATISTIC:
                    found = pc.min_max(values).as_py()
                    metrics.long_bounds[key] = found["min"], found["max"]
    return metrics


def leaves(field: pa.Field, values: pa.ChunkedArray) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """Leaves with a field id outside of lists and maps; the fields of a null struct are null."""
    key = field_id(field)
    if pt.is_struct(field.type):
        for at in range(field.type.num_fields):
            yield from leaves(field.type.field(at), pc.struct_field(values, [at]))
    elif key is not None and not pt.is_nested(field.type):
        yield key, values
