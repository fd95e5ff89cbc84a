"""Pruning loses no row and proves no wrong one; the reader returns exactly the rows of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.request import PruneRequest
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read, read_row_groups, read_selected
from floeplan.parquet.source import BytesSource
from floeplan.predicate.stats import TriState
from tests.support.oracles import rows as oracle
from tests.support.oracles.datasets import Dataset, datasets, predicates, to_table
from tests.support.parquet.files import WriterOptions, shown, writer_options

pytestmark = pytest.mark.property

ROW_NUMBER = "row number"


def numbered(rows: Dataset, with_ids: bool) -> pa.Table:
    """The rows with a row number column; a file has ids for all fields or for none."""
    field = pa.field(ROW_NUMBER, pa.int64(), metadata={"PARQUET:field_id": "1000"} if with_ids else None)
    return to_table(rows, with_ids=with_ids).append_column(field, pa.array(range(rows.size), pa.int64()))


def bloomable_paths(field: pa.Field, prefix: str = "") -> Iterator[str]:
    """Leaves that can have a bloom filter: no booleans, and no names with dots."""
    if "." in field.name:
        return
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from bloomable_paths(child, f"{prefix}{field.name}.")
    elif not pa.types.is_boolean(field.type):
        yield prefix + field.name


@st.composite
def files(draw: st.DrawFn, max_size: int = 40) -> tuple[Dataset, pa.Table, WriterOptions]:
    rows = draw(datasets(max_size=max_size))
    table = numbered(rows, with_ids=draw(st.booleans()))
    bloomable = tuple(path for field in table.schema for path in bloomable_paths(field))
    return rows, table, draw(writer_options(tuple(table.schema.names), bloomable))


def sensible(options: PruneOptions, result: PruneResult, matching: set[int], rows: int) -> None:
    """Assert that a result matches the rows."""
    selected, proven = set(result.file_selection.to_rows().tolist()), set(result.proven.to_rows().tolist())
    assert matching <= selected, "a matching row was dropped"
    assert proven <= matching, "a row that does not match was proven"
    assert proven <= selected
    groups = [set(range(first, first + count)) for first, count in row_groups(result, rows)]
    assert result.row_groups == tuple(number for number, group in enumerate(groups) if group & selected)
    laid_out = [row for number in result.row_groups for row in sorted(groups[number])]
    assert [laid_out[place] for place in result.row_selection.to_rows()] == sorted(selected)
    for state, group in zip(result.row_group_states, groups, strict=True):
        assert state != TriState.FALSE or not group & selected
        assert state != TriState.TRUE or group <= matching
    if options.emit_roaring:
        assert result.roaring_bitmap is not None
        assert set(result.roaring_bitmap) == selected


def row_groups(result: PruneResult, rows: int) -> list[tuple[int, int]]:
    segments = result.segments
    assert segments.row_count.sum() == rows
    starts = np.searchsorted(segments.row_group, np.arange(result.row_groups_total))
    counts = np.bincount(segments.row_group, segments.row_count, minlength=result.row_groups_total)
    return list(zip(segments.first_row[starts].tolist(), counts.astype(int).tolist(), strict=True))


@given(st.data(), files())
def test_no_matching_row_is_dropped_and_no_other_is_proven(
    data: st.DataObject, file: tuple[Dataset, pa.Table, WriterOptions]
) -> None:
    rows, table, options = file
    expr = data.draw(predicates(rows, opaque=True))
    chosen = PruneOptions(*data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans())))
    request = PruneRequest(options.write(table)).with_schema(rows.schema).with_predicate(expr).with_options(chosen)
    answers = oracle.evaluate_rows(expr, rows.rows)
    sensible(chosen, request.prune(), {row for row, answer in enumerate(answers) if answer is True}, rows.size)


@given(st.data(), files())
def test_the_rows_read_are_exactly_those_that_match(
    data: st.DataObject, file: tuple[Dataset, pa.Table, WriterOptions]
) -> None:
    rows, table, options = file
    expr = data.draw(predicates(rows))
    written = options.write(table)
    names = data.draw(st.lists(st.sampled_from(table.schema.names), unique=True))
    result = read(written, expr, [*names, ROW_NUMBER], schema=rows.schema)
    expected = [row for row, answer in enumerate(oracle.evaluate_rows(expr, rows.rows)) if answer is True]
    assert result.table[ROW_NUMBER].to_pylist() == expected
    whole = pq.read_table(pa.BufferReader(written)).select(result.table.schema.names)
    assert shown(result.table) == shown(whole.take(pa.array(expected, pa.int64())))


@given(st.data(), files())
def test_a_limit_gives_the_first_rows_that_match(
    data: st.DataObject, file: tuple[Dataset, pa.Table, WriterOptions]
) -> None:
    rows, table, options = file
    expr, limit = data.draw(predicates(rows)), data.draw(st.integers(0, 5))
    result = read(options.write(table), expr, [ROW_NUMBER], schema=rows.schema, limit=limit)
    expected = [row for row, answer in enumerate(oracle.evaluate_rows(expr, rows.rows)) if answer is True]
    assert result.table[ROW_NUMBER].to_pylist() == expected[:limit]


@given(st.data(), files())
def test_rows_of_whole_row_groups_equal_a_whole_read(
    data: st.DataObject, file: tuple[Dataset, pa.Table, WriterOptions]
) -> None:
    """By both decoders: flat columns have one of their own."""
    rows, table, options = file
    written = options.write(table)
    source = BytesSource(written)
    flags = st.lists(st.booleans(), min_size=rows.size, max_size=rows.size)
    selection = RowSelection.from_mask(np.array(data.draw(flags), dtype=np.bool_))
    kept = np.array(data.draw(flags), dtype=np.bool_)[: selection.row_count]
    names = [name for name in table.schema.names if len(read_footer(source).leaves_of_column(name))]
    found = read_row_groups(source, read_footer(source), names, selection, kept=kept) if selection else None
    if found is None:
        return
    found.validate(full=True)
    whole = pq.ParquetFile(pa.BufferReader(written), binary_type=pa.large_binary()).read()
    expected = whole.select(found.column_names).take(pa.array(selection.to_rows()[kept]))
    assert shown(found) == shown(expected.cast(found.schema))


LEAF_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-5, 5),
    pa.string(): st.text("ab", max_size=3),
    pa.bool_(): st.booleans(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
}


def nested_types() -> st.SearchStrategy[pa.DataType]:
    def deeper(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        fields = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            inner.map(pa.list_),
            inner.map(pa.large_list),
            inner.map(lambda value: pa.map_(pa.string(), value)),
            fields.map(lambda types: pa.struct([(f"f{number}", type_) for number, type_ in enumerate(types)])),
        )

    return st.recursive(st.sampled_from(list(LEAF_VALUES)), deeper, max_leaves=4)


def nested_values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.none() | st.fixed_dictionaries({field.name: nested_values(field.type) for field in type_})
    if pa.types.is_map(type_):
        pair = st.tuples(st.text("ab", max_size=2), nested_values(type_.item_type))
        return st.none() | st.lists(pair, max_size=3)
    if pa.types.is_nested(type_):
        return st.none() | st.lists(nested_values(type_.value_type), max_size=3)
    return st.none() | LEAF_VALUES[type_]


@given(st.data(), writer_options())
def test_any_rows_of_nested_columns_equal_a_whole_read(data: st.DataObject, options: WriterOptions) -> None:
    type_ = data.draw(nested_types())
    rows = data.draw(st.lists(nested_values(type_), max_size=20))
    written = options.write(pa.table({"x": pa.array(rows, type_), "n": pa.array(range(len(rows)), pa.int64())}))
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=np.bool_)
    source = BytesSource(written)
    got = read_selected(source, read_footer(source), None, RowSelection.from_mask(wanted))
    got.validate(full=True)
    assert shown(got) == shown(pq.read_table(pa.BufferReader(written)).filter(pa.array(wanted)))
