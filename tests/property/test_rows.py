"""Row evaluation equals the row-by-row oracle, for any layout of the data."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.predicate.rows.evaluate import evaluate_rows, filter_rows, matching_mask
from tests.support.oracles import rows as oracle
from tests.support.oracles.datasets import (
    datasets,
    every_leaf,
    layouts,
    literals,
    one_column,
    predicates,
    to_arrow,
    to_table,
)

pytestmark = pytest.mark.property


def rechunked(table: pa.Table, cuts: list[int]) -> pa.Table:
    """The same rows in other chunks, sliced rather than copied."""
    edges = sorted({0, table.num_rows, *(cut % (table.num_rows + 1) for cut in cuts)})
    return pa.concat_tables([table.slice(a, b - a) for a, b in pairwise(edges)] or [table])


@given(st.data())
def test_rows_equal_the_oracle(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    expr = data.draw(predicates(rows))
    table = to_table(rows, with_ids=data.draw(st.booleans()))
    expected = oracle.evaluate_rows(expr, rows.rows)
    assert evaluate_rows(expr, table, rows.schema).to_pylist() == expected
    assert matching_mask(expr, table, rows.schema).tolist() == [answer is True for answer in expected]
    numbered = table.append_column("row number", pa.array(range(rows.size), pa.int64()))
    kept = filter_rows(expr, numbered, rows.schema)["row number"].to_pylist()
    assert kept == [row for row, answer in enumerate(expected) if answer is True]


@given(st.data())
def test_every_leaf_equals_the_oracle_in_every_layout(data: st.DataObject) -> None:
    rows = data.draw(datasets(one_column(), max_size=8))
    column = rows.columns[0]
    table = to_table(rows, {column.field_id: data.draw(layouts(column.type))})
    for leaf in every_leaf(column, literals(column, rows)):
        assert evaluate_rows(leaf, table, rows.schema).to_pylist() == oracle.evaluate_rows(leaf, rows.rows), leaf


@given(st.data())
def test_rows_do_not_depend_on_how_the_data_is_laid_out(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    expr = data.draw(predicates(rows))
    chosen = {column.field_id: data.draw(layouts(column.type)) for column in rows.columns}
    table = rechunked(to_table(rows, chosen), data.draw(st.lists(st.integers(0, 20), max_size=2)))
    assert evaluate_rows(expr, table, rows.schema).to_pylist() == oracle.evaluate_rows(expr, rows.rows)


@given(st.data())
def test_a_column_the_data_does_not_have_is_null(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    expr = data.draw(predicates(rows))
    gone = data.draw(st.sampled_from([field.field_id for field in rows.schema.fields]))
    table = to_table(rows, with_ids=data.draw(st.booleans()), left_out=gone)
    answer = evaluate_rows(expr, table, rows.schema).to_pylist()
    assert answer == oracle.evaluate_rows(expr, rows.without(gone).rows)


@given(st.data())
def test_a_resolver_serves_as_well_as_a_schema(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    expr = data.draw(predicates(rows))
    table = to_table(rows)
    shown = {column.field_id: [row[column.field_id] for row in rows.rows] for column in rows.columns}
    arrays = {column.field_id: to_arrow(column.type, shown[column.field_id]) for column in rows.columns}
    assert evaluate_rows(expr, table, arrays.__getitem__).to_pylist() == oracle.evaluate_rows(expr, rows.rows)
