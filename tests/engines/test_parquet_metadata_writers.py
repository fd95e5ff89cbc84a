"""Files of five writers with every type: no statistic, page index or bloom filter rules out a stored row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.parquet.footer.bloom import probe_file
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import PageIndex, page_column_stats, read_page_indexes
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.source import LocalSource
from floeplan.predicate.ir import Column
from tests.support.oracles.statistics import assert_admits
from tests.support.parquet.facts import canonical, reach
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


def assert_metadata_is_true(path: str, rows: pa.Table | None = None) -> tuple[ParquetFooter, dict[str, PageIndex]]:
    """Assert that no statistic or filter rules out a row of the file; returns the footer and the pages by column."""
    source = LocalSource(path)
    footer = read_footer(source)
    table = pq.ParquetFile(path).read() if rows is None else rows
    of_row = np.repeat(np.arange(footer.num_row_groups), footer.row_group_rows).tolist()
    indexes = read_page_indexes(source, footer, footer.leaves, range(footer.num_row_groups))
    for leaf in footer.leaves:
        if leaf.type is None or leaf.max_rep:
            continue
        column = Column(leaf.field_id, leaf.type, leaf.path)
        values = canonical(reach(table, leaf), leaf.type)
        stats = row_group_stats(footer, [column]).columns[leaf.field_id]
        assert_admits(stats, of_row, values, leaf.type)
        assert_pages_admit(indexes[leaf.index], column, values)
        assert_filters_admit(source, footer, column, of_row, values)
    return footer, {str(leaf): indexes[leaf.index] for leaf in footer.leaves}


def assert_pages_admit(index: PageIndex, column: Column, values: list[Any]) -> None:
    stats = page_column_stats(index, column)
    assert stats is not None
    assert index.row_count.sum() == len(values)
    of_row = np.repeat(np.arange(len(index.row_count)), index.row_count).tolist()
    assert_admits(stats, of_row, values, column.type)


def assert_filters_admit(
    source: LocalSource, footer: ParquetFooter, column: Column, of_row: list[int], values: list[Any]
) -> None:
    there = sorted({(group, value) for group, value in zip(of_row, values, strict=True) if value is not None}, key=repr)
    sample = there[:: max(1, len(there) // 200)]
    questions = [(column, (value,)) for _, value in sample]
    answers = probe_file(source, footer, questions, range(footer.num_row_groups))
    for group, value in sample:
        might = answers.might_contain(column, (value,))
        assert might is None or might[group], f"{value!r} of {column} is in row group {group}, but ruled out"


def hidden_table() -> pa.Table:
    """Null structs with non-null children, one of them dictionary-encoded."""
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
def test_statistics_of_a_file_are_used(writer: str, tmp_path: Path) -> None:
    """Bounds of all columns that have them are used, and pages of all columns that are indexed."""
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
    """Rows are read by DuckDB itself: pyarrow cannot read its delta encoding of all-null columns."""
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
