"""Writes one Parquet file, row group by row group, and collects the metrics that its footer lacks.

Parquet statistics do not count NaN, and pyarrow miscounts nulls inside of structs and leaves out bounds of long values.
All three are collected per row group for the manifest entry of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from floeplan.metadata.files import TableFiles, writing
from floeplan.parquet.footer.footer import ParquetFooter, decode_footer
from floeplan.scan.projection import field_id
from floeplan.write.target import WriteOptions

_LONGEST_STATISTIC = 4096
"""pyarrow writes no statistics for values longer than this."""
_SAMPLE, _FEW, _MOSTLY = 1 << 15, 1 << 10, 0.9
"""Rows to sample for repetition, rows too few to decide, and the fraction of distinct values without a dictionary."""


@dataclass(frozen=True, slots=True)
class RowGroupMetrics:
    """Metrics of one row group by field id: nulls, NaN, and the bounds of columns with long values."""

    null_counts: dict[int, int]
    nan_counts: dict[int, int]
    long_bounds: dict[int, tuple[Any, Any]]

    @classmethod
    def merged(cls, parts: Iterable[RowGroupMetrics]) -> RowGroupMetrics:
        """Merge the metrics of disjoint columns of one row group."""
        merged = cls({}, {}, {})
        for part in parts:
            merged.null_counts.update(part.null_counts)
            merged.nan_counts.update(part.nan_counts)
            merged.long_bounds.update(part.long_bounds)
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
        settings = _settings(options, first, plain)
        with writing(path):
            self._sink = files.io.new_output(path).create()
            try:
                self._writer = pq.ParquetWriter(self._sink, first.schema, metadata_collector=self._metadata, **settings)
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
            self._writer.close()
            size = self.size
            self._sink.close()
        encoded = pa.BufferOutputStream()
        self._metadata[0].write_metadata_file(encoded)
        footer = decode_footer(encoded.getvalue().to_pybytes()[4:-8], self.path, size)
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
    return memoryview(sink.getvalue())


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
    bloom = {
        paths[name]: {"fpp": wanted.fpp, "ndv": wanted.distinct_values(first.num_rows, options.bloom_max_bytes)}
        for name, wanted in options.bloom.items()
        if name in paths
    }
    return {
        "compression": options.codec,
        "compression_level": options.level,
        "data_page_size": options.page_size,
        "max_rows_per_page": options.page_rows,
        "use_dictionary": [path for name, path in paths.items() if name not in plain],
        "dictionary_pagesize_limit": options.dictionary_size,
        "write_page_index": True,
        "store_decimal_as_integer": True,
        "store_schema": False,
        "bloom_filter_options": bloom or None,
    }


def _paths(field: pa.Field, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Names of leaves in the table, and their paths in the file."""
    name, path, type_ = name + field.name, path + field.name, field.type
    if pt.is_struct(type_):
        inner = [(child, path) for child in type_]
    elif pt.is_large_list(type_):
        inner = [(type_.value_field, f"{path}.list")]
    elif pt.is_map(type_):
        inner = [(child, f"{path}.key_value") for child in (type_.key_field, type_.item_field)]
    else:
        yield name, path
        return
    for child, below in inner:
        yield from _paths(child, f"{name}.", f"{below}.")


def row_group_metrics(rows: pa.Table) -> RowGroupMetrics:
    """Compute the metrics of the rows of one row group."""
    metrics = RowGroupMetrics({}, {}, {})
    for field, column in zip(rows.schema, rows.columns, strict=True):
        for key, values in _leaves(field, column):
            metrics.null_counts[key] = values.null_count
            if pt.is_floating(values.type):
                metrics.nan_counts[key] = pc.sum(pc.is_nan(values)).as_py() or 0
            elif pt.is_large_string(values.type) or pt.is_large_binary(values.type):
                longest = pc.max(pc.binary_length(values)).as_py() if values.nbytes > _LONGEST_STATISTIC else 0
                if (longest or 0) > _LONGEST_STATISTIC:
                    found = pc.min_max(values).as_py()
                    metrics.long_bounds[key] = found["min"], found["max"]
    return metrics


def _leaves(field: pa.Field, values: pa.ChunkedArray) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """Leaves with a field id outside of lists and maps; the fields of a null struct are null."""
    key = field_id(field)
    if pt.is_struct(field.type):
        for at in range(field.type.num_fields):
            yield from _leaves(field.type.field(at), pc.struct_field(values, [at]))
    elif key is not None and not pt.is_nested(field.type):
        yield key, values
