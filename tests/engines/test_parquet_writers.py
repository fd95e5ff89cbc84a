"""Files of five writers: pruning loses no row, and the reader returns exactly the rows of the oracle."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.read.reader import ReadResult, read
from floeplan.parquet.source import LocalSource
from floeplan.predicate.compile import compile_predicate
from tests.support.oracles import rows as oracle
from tests.support.parquet.facts import canonical, reach
from tests.support.parquet.files import SPARK_OPTIONS, WRITERS, sample_table, shown, unsigned_table, write_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

SAMPLE_PREDICATES = [
    "sorted = 1234",
    "sorted BETWEEN 950 AND 1050",
    "sorted > 2500 AND NOT (sorted >= 2510)",
    "sorted IN (3, 999, 1000, 2999, 4000)",
    "boolean AND sorted < 40",
    "NOT boolean AND sorted < 40",
    "int8 = -128 AND sorted < 500",
    "int16 >= 32767",
    "int32 < -2147483000",
    "int64 = -9223372036854775808",
    "int64 > 9223372036854775806",
    "float = 0.0",
    "float > 1e30",
    "float < 0.0",
    "double > 2995",
    "double <= 5",
    "double = DOUBLE('NaN')",
    "double != DOUBLE('NaN') AND sorted < 20",
    "NOT (double <= 2000)",
    "isnan(double) OR double < -1e29",
    "nan > 5",
    "nan <= 5",
    "nan IS NULL",
    "decimal_9 >= 9999999.99",
    "decimal_18 < 0 AND sorted < 60",
    "decimal_38 = 9999999999999999999999999999.9999999999",
    "date < DATE '1700-01-01'",
    "date IS NULL AND sorted > 2800",
    "text LIKE '\uffff%'",
    "text >= '\uffff'",
    "text = ''",
    "text IN ('a', 'z3', 'zz')",
    "NOT (text < 'z') AND sorted > 1500",
    "bytes >= X'80'",
    "bytes = X'00'",
    "struct.x = 77",
    "struct.x IS NULL AND sorted < 30",
    "struct.t LIKE '29%'",
    "sorted = 5 OR double > 2999",
    "int8 <=> 5",
]
UNSIGNED_PREDICATES = [
    "uint8 > 250",
    "uint16 >= 59980",
    "uint32 > 4294967290",
    "uint32 < 4294964300",
    "uint64 = 18446744073709551615",
    "uint64 >= 9223372036854775808",
    "uint8 = 7 AND uint16 < 6000",
]


@cache
def sample() -> pa.Table:
    return sample_table()


def canonical_rows(footer: ParquetFooter, table: pa.Table) -> list[dict[int, Any]]:
    """The rows by field id, as pyarrow reads them."""
    columns: dict[int, list[Any]] = {}
    for leaf in footer.leaves:
        if leaf.type is not None and leaf.max_rep == 0:
            columns[leaf.field_id] = canonical(reach(table, leaf), leaf.type)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def assert_reads_exactly(path: Path, predicates: list[str]) -> dict[str, ReadResult]:
    """Every predicate returns the rows of the oracle with all columns; no matching row is pruned."""
    footer = read_footer(LocalSource(path))
    table = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
    rows = canonical_rows(footer, table)
    results = {}
    for where in predicates:
        result = results[where] = read(str(path), where)
        expr = compile_predicate(where, footer.schema).predicate
        expected = [number for number, row in enumerate(rows) if oracle.evaluate_row(expr, row) is True]
        assert result.prune.file_selection.contains(expected).all(), where
        assert set(result.prune.proven.to_rows().tolist()) <= set(expected), where
        assert shown(result.table) == shown(table.take(pa.array(expected, pa.int64()))), where
    return results


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_is_read_exactly(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    WRITERS[writer](sample(), path)
    results = assert_reads_exactly(path, [*SAMPLE_PREDICATES, "sorted < 0"])
    assert results["sorted < 0"].prune.rows_selected == 0


@pytest.mark.parametrize("writer", WRITERS)
def test_types_outside_iceberg_are_read_exactly(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    WRITERS[writer](unsigned_table(), path)
    assert_reads_exactly(path, UNSIGNED_PREDICATES)


@pytest.mark.parametrize("settings", SPARK_OPTIONS)
def test_spark_is_read_exactly(settings: str, spark: SparkSession, tmp_path: Path) -> None:
    path = write_spark(sample(), tmp_path / "out", spark, settings)
    results = assert_reads_exactly(path, SAMPLE_PREDICATES)
    lookup = results["sorted = 1234"]
    assert (lookup.prune.row_groups, lookup.prune.rows_selected) == ((1,), 100)


def test_nan_that_statistics_leave_out_is_found(tmp_path: Path) -> None:
    """A scan that trusts them misses rows of `f > x` and all rows of `f = NaN`."""
    path = tmp_path / "nan.parquet"
    random = np.random.default_rng(0)
    f = random.normal(100, 50, 20_000)
    f[random.integers(0, len(f), 1_200)] = np.nan
    layout = {"row_group_size": 1_000, "max_rows_per_page": 100, "write_batch_size": 100, "write_page_index": True}
    pq.write_table(pa.table({"f": f}), path, **layout)
    nan = int(np.isnan(f).sum())
    assert read(str(path), "f > 195").table.num_rows == nan + int((f > 195).sum())
    assert read(str(path), "f = DOUBLE('NaN')").table.num_rows == nan


def test_a_maximum_of_nan_prunes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes max = NaN with a finite min; with naive comparisons no value is at most NaN."""
    table = pa.table({"sorted": range(3000), "f": [float("nan") if i % 100 == 7 else float(i) for i in range(3000)]})
    path = write_spark(table, tmp_path / "out", spark)
    assert read(str(path), "f = 1234.0").table["sorted"].to_pylist() == [1234]
    assert read(str(path), "f >= 2998").table.num_rows == 32
    assert read(str(path), "f < 3", ["sorted"]).table["sorted"].to_pylist() == [0, 1, 2]
