"""Parquet files in memory, written by pyarrow with any layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionContext
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# --- files of pyarrow, DuckDB, Polars, DataFusion and Spark, with every type these writers have

ROWS = 3000
GROUP_ROWS = 1000
LONG_TEXTS = ["", "a", "z" * 200, "é" * 80, "\uffff" * 70, "\U0010ffff" * 40, "a" * 63 + "é" * 10, "\ud7ff" * 30]
LONG_BYTES = [b"", b"\x00", b"\xff" * 100, b"\x7f\xff" * 60, b"\x80", b"a" * 200]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1e30, 3e-40]


def sample_table() -> pa.Table:
    """All types that the writers share, rows for three row groups, nulls in each column; ``nan`` has only NaN."""
    rng = np.random.default_rng(7)

    def column(type_: pa.DataType, pick: Callable[[int], Any]) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else pick(i) for i in range(ROWS)], type=type_)

    def number(low: int, high: int) -> Callable[[int], int]:
        return lambda _: int(rng.choice([low, high, int(rng.integers(low, high, endpoint=True))]))

    def decimal(precision: int, scale: int) -> Callable[[int], Decimal]:
        most = 10**precision - 1
        return lambda i: Decimal((i % 2, tuple(map(int, str(most // (1 + i % 97)))), -scale))

    start = datetime(1900, 1, 1)
    timestamps = [start + timedelta(days=37 * i, microseconds=i) for i in range(ROWS)]
    columns = {
        "sorted": pa.array(range(ROWS), type=pa.int64()),
        "boolean": column(pa.bool_(), lambda i: i % 3 == 0),
        "int8": column(pa.int8(), number(-128, 127)),
        "int16": column(pa.int16(), number(-(2**15), 2**15 - 1)),
        "int32": column(pa.int32(), number(-(2**31), 2**31 - 1)),
        "int64": column(pa.int64(), number(-(2**63), 2**63 - 1)),
        "float": column(pa.float32(), lambda i: FLOATS[i % 8]),
        "double": column(pa.float64(), lambda i: FLOATS[i % 8] if i < 1000 else float(i)),
        "nan": pa.array([math.nan] * ROWS, type=pa.float64()),
        "nothing": pa.nulls(ROWS, pa.int32()),
        "decimal_9": column(pa.decimal128(9, 2), decimal(9, 2)),
        "decimal_18": column(pa.decimal128(18, 5), decimal(18, 5)),
        "decimal_38": column(pa.decimal128(38, 10), decimal(38, 10)),
        "date": column(pa.date32(), lambda i: date(1600, 1, 1) + timedelta(days=100 * i)),
        "timestamp": column(pa.timestamp("us"), lambda i: timestamps[i]),
        "text": column(pa.string(), lambda i: LONG_TEXTS[i % 8] if i < 1500 else LONG_TEXTS[i % 4] + str(i)),
        "bytes": column(pa.binary(), lambda i: LONG_BYTES[i % 6]),
    }
    inner = pa.array([None if i % 5 == 0 else {"x": None if i % 7 == 0 else i, "t": str(i)} for i in range(ROWS)])
    return pa.table(columns | {"struct": inner})


def unsigned_table() -> pa.Table:
    """Types that Iceberg does not have, for writers that support them."""
    wide = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    return pa.table(
        {
            "uint8": pa.array([i % 256 for i in range(ROWS)], type=pa.uint8()),
            "uint16": pa.array([i * 20 for i in range(ROWS)], type=pa.uint16()),
            "uint32": pa.array([2**32 - 1 - i for i in range(ROWS)], type=pa.uint32()),
            "uint64": pa.array([wide[i % 5] for i in range(ROWS)], type=pa.uint64()),
            "time": pa.array([time(i % 24, i % 60, 3, i) for i in range(ROWS)], type=pa.time64("us")),
            "nanos": pa.array([1_709_251_200_000_000_001 - i**4 for i in range(ROWS)], type=pa.timestamp("ns")),
            "millis": pa.array([-(i**3) for i in range(ROWS)], type=pa.timestamp("ms")),
        }
    )


def write_duckdb(table: pa.Table, path: Path, version: str = "V1") -> None:
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.execute(
            f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048, PARQUET_VERSION {version})"
        )


def write_polars(table: pa.Table, path: Path) -> None:
    pl.from_arrow(table).write_parquet(path, row_group_size=GROUP_ROWS, data_page_size=2000)


def write_datafusion(table: pa.Table, path: Path, *, bloom: bool = True) -> None:
    context = SessionContext()
    context.sql("SET datafusion.execution.parquet.max_row_group_size = 1000").collect()
    context.sql("SET datafusion.execution.parquet.data_page_row_count_limit = 100").collect()
    context.sql(f"SET datafusion.execution.parquet.bloom_filter_on_write = {str(bloom).lower()}").collect()
    context.from_arrow(table, name="rows")
    context.sql(f"COPY (SELECT * FROM rows) TO '{path}' STORED AS PARQUET").collect()


def write_pyarrow(table: pa.Table, path: Path, **options: Any) -> None:
    names = [f.name for f in table.schema if not (pa.types.is_struct(f.type) or pa.types.is_boolean(f.type))]
    blooms = {name: {"ndv": GROUP_ROWS, "fpp": 0.01} for name in names}
    pq.write_table(
        table, path, row_group_size=GROUP_ROWS, write_page_index=True, max_rows_per_page=100, write_batch_size=50,
        bloom_filter_options=blooms, **options,
    )  # fmt: skip


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "duckdb": write_duckdb,
    "polars": write_polars,
    "datafusion": write_datafusion,
    "pyarrow": write_pyarrow,
    "pyarrow, decimals as integers": lambda table, path: write_pyarrow(table, path, store_decimal_as_integer=True),
    "pyarrow, pages v2": lambda table, path: write_pyarrow(table, path, data_page_version="2.0", use_dictionary=False),
}

SPARK_OPTIONS = {
    "defaults": {},
    "old decimals and INT96": {"spark.sql.parquet.writeLegacyFormat": "true"},
    "milliseconds": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "microseconds": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
}


def write_spark(table: pa.Table, folder: Path, spark: SparkSession, settings: str = "defaults") -> Path:
    """One sorted file with bloom filters, row groups of 1000 rows and pages of 100; Spark has no null type."""
    frame = spark.createDataFrame(table.drop_columns([f.name for f in table.schema if f.name == "nothing"])).coalesce(1)
    before = {name: spark.conf.get(name) for name in SPARK_OPTIONS[settings]}
    try:
        for name, value in SPARK_OPTIONS[settings].items():
            spark.conf.set(name, value)
        frame.sortWithinPartitions("sorted").write.options(
            **{
                "parquet.bloom.filter.enabled": "true",
                "parquet.bloom.filter.expected.ndv": "1000",
                "parquet.block.row.count.limit": "1000",
                "parquet.page.row.count.limit": "100",
            }
        ).parquet(str(folder))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    (path,) = folder.glob("*.parquet")
    return path
