"""Files of five writers, every type each of them has: no statistic, page index or bloom filter rules out a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.predicate.ir import Column
from tests.support.parquet.facts import assert_metadata_is_true
from tests.support.parquet.files import (
    ROWS,
    SPARK_OPTIONS,
    WRITERS,
    sample_table,
    unsigned_table,
    write_duckdb,
    write_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines


def hidden_table() -> pa.Table:
    """Structs that are null over children that are not, one of them dictionary-encoded."""
    texts = pa.array([f"text {i % 7}" for i in range(ROWS)])
    children = {"x": pa.array(range(ROWS)), "text": texts, "dictionary": texts.dictionary_encode()}
    mask = pa.array([i % 10 == 0 for i in range(ROWS)])
    inner = pa.StructArray.from_arrays(list(children.values()), names=list(children), mask=mask)
    outer = pa.StructArray.from_arrays([inner], names=["inner"], mask=pa.array([i % 4 == 0 for i in range(ROWS)]))
    return pa.table({"inner": inner, "outer": outer})


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("rows", [sample_table, unsigned_table])
def test_metadata_is_true(writer: str, rows: Callable[[], pa.Table], tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    WRITERS[writer](rows(), path)
    assert_metadata_is_true(str(path))


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_file_tells_is_put_to_use(writer: str, tmp_path: Path) -> None:
    """Caution must not grow into ignorance: bounds of all columns that have any, pages wherever they are indexed."""
    path = tmp_path / "file.parquet"
    WRITERS[writer](sample_table(), path)
    footer, pages = assert_metadata_is_true(str(path))
    columns = [Column(leaf.field_id, leaf.type, leaf.path) for leaf in footer.leaves if leaf.type is not None]
    stats = row_group_stats(footer, columns).columns
    bounded = {str(column) for column in columns if stats[column.field_id].lower.valid.any()}
    described = {name for name, index in pages.items() if index.has_offset_index.all() and index.has_column_index.all()}
    hashed = {str(leaf) for leaf in footer.leaves if (footer.chunks(leaf).bloom_length > 0).all()}
    without_bounds = {"nan", "nothing"} | ({"float", "double"} if writer == "duckdb" else set())
    assert bounded == set(pages) - without_bounds
    assert described == (set() if writer == "duckdb" else set(pages) - {"nan"})
    assert bool(hashed) == (writer != "polars")


@pytest.mark.parametrize("writer", WRITERS)
def test_nulls_of_structs_are_nulls_of_what_is_inside(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    WRITERS[writer](hidden_table(), path)
    assert_metadata_is_true(str(path), hidden_table())


@pytest.mark.parametrize("rows", [sample_table, unsigned_table])
def test_metadata_of_duckdb_version_2_is_true(rows: Callable[[], pa.Table], tmp_path: Path) -> None:
    """The rows come from DuckDB itself: pyarrow cannot read its delta encoding of columns without values."""
    path = tmp_path / "file.parquet"
    write_duckdb(rows(), path, "V2")
    with duckdb.connect() as connection:
        assert_metadata_is_true(str(path), connection.sql(f"FROM '{path}'").to_arrow_table())


@pytest.mark.parametrize("settings", SPARK_OPTIONS)
def test_metadata_of_spark_is_true(settings: str, spark: SparkSession, tmp_path: Path) -> None:
    table = sample_table()
    instants = table.column("timestamp").cast(pa.timestamp("us", "UTC"))
    path = write_spark(table.append_column("instant", instants), tmp_path / "out", spark, settings)
    footer, pages = assert_metadata_is_true(str(path))
    assert footer.num_row_groups == 3
    assert len(pages["sorted"].row_count) == 30
    assert pages["sorted"].has_column_index.all()
