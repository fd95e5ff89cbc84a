"""Files of pyarrow: row group and page statistics admit every row, and no bloom filter rules out a stored value."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.parquet.footer.bloom import probe_file
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import page_column_stats, read_page_indexes
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.source import BytesSource
from floeplan.predicate.ir import Column
from tests.support.oracles.datasets import Dataset, datasets, layouts, to_table
from tests.support.oracles.statistics import assert_admits

pytestmark = pytest.mark.property


@st.composite
def writer_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "row_group_size": draw(st.integers(1, 8)),
        "max_rows_per_page": draw(st.integers(1, 3)),
        "write_batch_size": 1,
        "write_page_index": draw(st.booleans()),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_statistics": draw(st.sampled_from([True, True, True, False])),
        "store_decimal_as_integer": draw(st.booleans()),
        "compression": "none",
    }


@st.composite
def files(draw: st.DrawFn) -> tuple[Dataset, bytes]:
    """Rows in a file, in any other types that hold them and that pyarrow can write."""
    data = draw(datasets())
    changed = {column.field_id: draw(layouts(column.type)) for column in data.columns}
    options, bloom = draw(writer_options()), draw(st.booleans())
    try:
        return data, written(to_table(data, changed, with_ids=True), options, bloom=bloom)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return data, written(to_table(data, with_ids=True), options, bloom=bloom)


def written(table: pa.Table, options: dict[str, Any], *, bloom: bool) -> bytes:
    if bloom:
        names = [field.name for field in table.schema if _hashable(field.type)]
        options = options | {"bloom_filter_options": {name: {"ndv": 8, "fpp": 0.01} for name in names}}
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def _hashable(type_: pa.DataType) -> bool:
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    return not (pa.types.is_struct(plain) or pa.types.is_boolean(plain) or pa.types.is_null(plain))


@given(files())
def test_row_group_statistics_admit_every_row(case: tuple[Dataset, bytes]) -> None:
    data, encoded = case
    footer = read_footer(BytesSource(encoded))
    stats = row_group_stats(footer, data.columns)
    of_row = np.repeat(np.arange(footer.num_row_groups), footer.row_group_rows).tolist()
    for column in data.columns:
        if column.field_id in stats.columns:
            found = [row[column.field_id] for row in data.rows]
            assert_admits(stats.columns[column.field_id], of_row, found, column.type)


@given(files())
def test_page_statistics_admit_every_row(case: tuple[Dataset, bytes]) -> None:
    data, encoded = case
    source = BytesSource(encoded)
    footer = read_footer(source)
    indexes = read_page_indexes(source, footer, footer.leaves, range(footer.num_row_groups))
    for column in data.columns:
        index = indexes[footer.leaf_by_id[column.field_id].index]
        assert index.row_count.sum() == data.size
        stats = page_column_stats(index, column)
        if stats is not None:
            of_row = np.repeat(np.arange(len(index.row_count)), index.row_count).tolist()
            assert_admits(stats, of_row, [row[column.field_id] for row in data.rows], column.type)


@given(files())
def test_no_bloom_filter_rules_out_a_stored_value(case: tuple[Dataset, bytes]) -> None:
    data, encoded = case
    source = BytesSource(encoded)
    footer = read_footer(source)
    for column in data.columns:
        questions = [(column, (value,)) for value in dict.fromkeys(data.values_of(column))]
        answers = probe_file(source, footer, questions, range(footer.num_row_groups))
        assert_found(data, footer, column, answers.might_contain)


def assert_found(data: Dataset, footer: ParquetFooter, column: Column, might_contain: Any) -> None:
    of_row = np.repeat(np.arange(footer.num_row_groups), footer.row_group_rows).tolist()
    for group, row in zip(of_row, data.rows, strict=True):
        value = row[column.field_id]
        might = None if value is None else might_contain(column, (value,))
        assert might is None or might[group], f"{value!r} of {column} is in row group {group}, but ruled out"
