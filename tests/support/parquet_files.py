"""Parquet files in memory, written by pyarrow with every liberty a writer has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")


@dataclass(frozen=True)
class WriterOptions:
    """How a file is laid out; few rows per page and per row group, so that small data has many of both."""

    row_group_size: int
    max_rows_per_page: int
    use_dictionary: bool
    data_page_version: str
    compression: str
    write_page_index: bool
    write_statistics: bool | tuple[str, ...]
    bloom: tuple[str, ...]
    store_schema: bool

    def write(self, table: pa.Table) -> bytes:
        """The file."""
        sink = pa.BufferOutputStream()
        statistics = self.write_statistics if isinstance(self.write_statistics, bool) else list(self.write_statistics)
        pq.write_table(
            table,
            sink,
            row_group_size=self.row_group_size,
            max_rows_per_page=self.max_rows_per_page,
            write_batch_size=1,
            use_dictionary=self.use_dictionary,
            data_page_version=self.data_page_version,
            compression=self.compression,
            write_page_index=self.write_page_index,
            write_statistics=statistics,
            bloom_filter_options={path: {"ndv": 16, "fpp": 0.1} for path in self.bloom} or None,
            store_schema=self.store_schema,
        )
        return sink.getvalue().to_pybytes()


@st.composite
def writer_options(draw: st.DrawFn, columns: tuple[str, ...] = (), bloomable: tuple[str, ...] = ()) -> WriterOptions:
    """Any layout; ``columns`` may lose their statistics, ``bloomable`` ones may get a bloom filter."""
    some: st.SearchStrategy[Any] = (
        st.lists(st.sampled_from(columns), unique=True).map(tuple) if columns else st.just(())
    )
    filters: st.SearchStrategy[Any] = (
        st.lists(st.sampled_from(bloomable), unique=True).map(tuple) if bloomable else st.just(())
    )
    return WriterOptions(
        row_group_size=draw(st.integers(1, 12)),
        max_rows_per_page=draw(st.integers(1, 5)),
        use_dictionary=draw(st.booleans()),
        data_page_version=draw(st.sampled_from(("1.0", "2.0"))),
        compression=draw(st.sampled_from(CODECS)),
        write_page_index=draw(st.sampled_from((True, True, True, False))),
        write_statistics=draw(st.just(True) | st.just(True) | st.just(False) | some),
        bloom=draw(filters),
        store_schema=draw(st.booleans()),
    )


def shown(table: pa.Table) -> list[tuple[str, pa.DataType, str]]:
    """Names, types and values; as text, because NaN is not equal to itself and Python has no year 10000."""
    columns = [column.combine_chunks() for column in table.columns]
    texts = [column.to_string(window=1000, container_window=1000) for column in columns]
    return list(zip(table.schema.names, table.schema.types, texts, strict=True))
