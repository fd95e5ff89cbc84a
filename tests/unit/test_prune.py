"""Pruning one file: what is dropped, kept and proven, and the result document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import floeplan.prune
from floeplan.errors import InvalidOptionError, UnknownColumnError, UnknownFileError
from floeplan.parquet.footer.bloom import SplitBlockFilter
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.prune.request import PruneRequest
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.source import BytesSource
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.stats import TriState

pytestmark = pytest.mark.unit

ROWS, GROUP, PAGE = 1000, 250, 50


def written(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    defaults = {"row_group_size": GROUP, "max_rows_per_page": PAGE, "write_batch_size": PAGE, "write_page_index": True}
    pq.write_table(table, sink, **(defaults | options))
    return sink.getvalue().to_pybytes()


def numbers() -> pa.Table:
    """``id`` ascending; ``key`` the same numbers shuffled; ``v`` null in the last quarter; ``f`` with NaN."""
    ids = np.arange(ROWS)
    f = np.where(ids == 333, np.nan, ids / 10)
    return pa.table(
        {
            "id": ids,
            "key": ids * 377 % 1009,
            "v": pa.array([None if i >= 750 else i for i in ids], pa.int32()),
            "f": f,
            "s": [f"name-{i:04d}" for i in ids],
        }
    )


FILE = written(numbers(), bloom_filter_options={"key": {"ndv": GROUP, "fpp": 0.001}})


def prune(where: str, file: bytes = FILE, **options: bool) -> PruneResult:
    return PruneRequest(file).with_predicate(where).with_options(PruneOptions(**options)).prune()


def test_row_groups_are_dropped_by_statistics_and_pages_by_the_page_index() -> None:
    result = prune("id = 610")
    assert result.row_groups == (2,)
    assert result.file_selection.to_pairs() == [[600, 50]]
    assert result.row_selection.to_pairs() == [[100, 50]]
    assert (result.pages_total, result.pages_kept) == (5, 1)
    assert (result.rows_total, result.rows_selected, result.row_groups_total) == (ROWS, 50, 4)


def test_without_the_page_index_whole_row_groups_stay() -> None:
    result = prune("id = 610", page_index=False)
    assert result.file_selection.to_pairs() == [[500, 250]]
    assert (result.pages_total, result.pages_kept) == (0, 0)


def test_selected_rows_are_numbered_over_the_kept_row_groups() -> None:
    result = prune("id < 10 OR id >= 990")
    assert result.row_groups == (0, 3)
    assert result.file_selection.to_pairs() == [[0, 50], [950, 50]]
    assert result.row_selection.to_pairs() == [[0, 50], [450, 50]]


def test_what_every_row_satisfies_is_proven_down_to_the_page() -> None:
    result = prune("id >= 260")
    assert result.row_group_states.tolist() == [TriState.FALSE, TriState.UNKNOWN, TriState.TRUE, TriState.TRUE]
    assert result.file_selection.to_pairs() == [[250, 750]]
    assert result.proven.to_pairs() == [[300, 700]]


def test_a_null_is_no_match_and_no_proof() -> None:
    assert prune("v >= 0").row_groups == (0, 1, 2)
    assert prune("v IS NULL").file_selection.to_pairs() == [[750, 250]]
    assert prune("v IS NULL").proven.to_pairs() == [[750, 250]]
    assert prune("NOT (v < 0)").proven.to_pairs() == [[0, 750]]


def test_pages_that_do_not_line_up_are_cut_where_any_begins() -> None:
    table = pa.table({"a": np.arange(100), "b": [f"{i:02d}" * 40 for i in range(100)]})
    layout = {"row_group_size": 100, "max_rows_per_page": 30, "data_page_size": 800, "write_batch_size": 1}
    file = written(table, use_dictionary=False, **layout)
    result = PruneRequest(file).with_predicate(f"a >= 40 AND b <= '{'45' * 40}'").prune()
    assert result.file_selection.contains(range(40, 46)).all()
    assert result.file_selection.starts[0] == 30, "where a page of a begins"
    assert 46 <= result.file_selection.ends[0] < 60, "where a page of b ends, and none of a"


@pytest.mark.parametrize(
    ("where", "first", "last"),
    [
        ("id < 120 AND s >= 'name-0080'", 50, 149),
        ("(id < 20 OR id > 130) AND s < 'name-0160'", 0, 199),
        ("NOT (id > 60 AND s > 'name-0060')", 0, 99),
    ],
)
def test_and_or_and_not_prune_pages(where: str, first: int, last: int) -> None:
    selection = prune(where).file_selection
    assert selection.starts[0] >= first
    assert selection.ends[-1] <= last + 1


def test_or_with_an_opaque_branch_keeps_everything_and_and_prunes_by_the_rest() -> None:
    assert prune("id = 5 OR length(s) = 3").rows_selected == ROWS
    both = prune("id = 5 AND length(s) = 9")
    assert both.file_selection.to_pairs() == [[0, 50]]
    assert both.proven.row_count == 0
    assert [error.text for error in both.compile_result.errors] == ["length(s) = 9"]


def test_a_bloom_filter_finds_the_row_group_of_an_unsorted_key() -> None:
    key = int(numbers()["key"][777].as_py())
    assert prune(f"key = {key}", bloom_filter=False).row_groups == (0, 1, 2, 3)
    assert prune(f"key = {key}").row_groups == (3,)
    assert prune(f"key IN ({key}, 5000)").row_groups == (3,)


def test_a_bloom_filter_never_answers_a_negation() -> None:
    key = int(numbers()["key"][777].as_py())
    assert prune(f"NOT (key = {key})").rows_selected == ROWS


class Filters:
    """A provider with empty filters for one row group."""

    def __init__(self) -> None:
        self.requested: list[tuple[int, int]] = []

    def bloom_filters_batch(self, requests: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], SplitBlockFilter]:
        self.requested += requests
        empty = SplitBlockFilter(np.zeros((1, 8), dtype=np.uint32))
        return {key: empty for key in requests if key[0] == 1}


class AwaitedFilters(Filters):
    async def bloom_filters_batch(  # type: ignore[override]
        self, requests: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], SplitBlockFilter]:
        await asyncio.sleep(0)
        return Filters.bloom_filters_batch(self, requests)


def test_a_provider_is_called_once_for_undecided_row_groups() -> None:
    provider = Filters()
    request = PruneRequest(FILE).with_predicate("s = 'name-0300' AND key = 300").enable_bloom_filter(provider=provider)
    assert request.prune().row_groups == ()
    assert {group for group, _ in provider.requested} == {1}


def test_an_asynchronous_provider_is_awaited() -> None:
    request = PruneRequest(FILE).with_predicate("id = 300").enable_bloom_filter(True, provider=AwaitedFilters())
    assert asyncio.run(request.prune_async()).row_groups == ()
    with pytest.raises(InvalidOptionError, match="prune_async"):
        request.prune()


def test_asynchronous_pruning_gives_the_same_answer() -> None:
    for where in ("key = 4", "id > 700 AND v > 3", "f > 50"):
        request = PruneRequest(FILE).with_predicate(where).emit_roaring()
        assert asyncio.run(request.prune_async()).to_dict() == request.prune().to_dict()


def test_a_request_is_refined_without_changing_the_one_before() -> None:
    base = PruneRequest(FILE)
    narrow = base.with_predicate("id = 1").enable_page_index(False).enable_bloom_filter(False).emit_roaring()
    assert base.prune().rows_selected == ROWS
    assert (narrow.prune().rows_selected, narrow.prune().roaring_bitmap) == (250, narrow.prune().roaring_bitmap)
    assert narrow.enable_page_index().prune().rows_selected == 50
    assert base.options == PruneOptions()


def test_every_form_of_a_predicate_prunes_alike() -> None:
    footer = read_footer(BytesSource(FILE))
    compiled = compile_predicate("id = 610", footer.schema)
    forms = ["id = 610", EqualTo("id", 610), [("id", "=", 610)], compiled.predicate, compiled]
    assert [PruneRequest(FILE).with_predicate(form).prune().rows_selected for form in forms] == [50] * len(forms)


def test_a_footer_alone_is_enough_for_row_groups() -> None:
    result = PruneRequest(read_footer(BytesSource(FILE))).with_predicate("id = 610").prune()
    assert (result.row_groups, result.rows_selected, result.bytes_read) == ((2,), 250, 0)


def test_the_result_lists_what_could_not_be_used() -> None:
    bare = written(numbers(), write_page_index=False, write_statistics=["id"])
    notes = prune("id = 610 AND s = 'name-0610'", bare).notes
    assert "column s: no statistics" in notes
    assert "column id: no page index" in notes
    assert "column id: no bloom filter" in notes
    assert prune("id = 610 AND s = 'name-0610'", bloom_filter=False).notes == ()


def test_the_document_has_the_promised_keys() -> None:
    document = prune("id >= 260 AND upper(s) = 'X'").to_dict()
    assert document["row_selection"] == [[250, 750]]
    assert document["row_groups_kept"] == [1, 2, 3]
    assert document["compile"]["prunable"] == "id >= 260"
    assert document["compile"]["errors"][0]["text"] == "upper(s) = 'X'"
    assert document["bytes_read"] == len(FILE)
    assert {"rows_total", "rows_selected", "row_groups_total", "pages_total", "pages_kept"} <= document.keys()


def test_a_bitmap_numbers_the_rows_of_the_file() -> None:
    result = prune("id = 610", emit_roaring=True)
    assert result.roaring_bitmap is not None
    assert list(result.roaring_bitmap) == list(range(600, 650))
    assert prune("id = 610").roaring_bitmap is None
    assert prune("id = 610").roaring_skipped is None
    assert prune("id = 610").to_dict()["roaring_skipped"] is None


def test_a_file_with_more_rows_than_32_bits_has_no_bitmap_and_says_so() -> None:
    huge = np.array([2**32], dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    footer = read_footer(BytesSource(FILE))
    giant = ParquetFooter(**{**vars(footer), "num_rows": 2**32, "row_group_rows": huge, "first_rows": zero})
    result = PruneRequest(giant).emit_roaring().prune()
    assert result.roaring_bitmap is None
    assert "4294967296 rows" in str(result.roaring_skipped)
    assert result.to_dict()["roaring_skipped"] == result.roaring_skipped
    assert result.file_selection.to_pairs() == [[0, 2**32]]


def test_a_pruner_compiles_once_for_all_files_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    original = floeplan.parquet.prune.pruner.compile_predicate

    def counting(*arguments: object, **options: object) -> object:
        compiled.append(arguments)
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(floeplan.parquet.prune.pruner, "compile_predicate", counting)
    pruner = Pruner("id = 610")
    other = written(numbers().slice(600, 20))
    assert [pruner.prune(file).rows_selected for file in (FILE, other, FILE)] == [50, 20, 50]
    assert len(compiled) == 1
    assert pruner.prune(written(numbers().select(["s", "id"]))).rows_selected == 50
    assert len(compiled) == 2


def test_a_table_schema_finds_columns_by_id_through_a_rename_and_a_promotion() -> None:
    ids = pa.schema(
        [
            pa.field("old name", pa.int32(), metadata={"PARQUET:field_id": "7"}),
            pa.field("id", pa.string(), metadata={"PARQUET:field_id": "8"}),
        ]
    )
    file = written(pa.table({"old name": pa.array(range(1000), pa.int32()), "id": ["x"] * 1000}).cast(ids))
    schema = Schema(
        NestedField(7, "id", LongType()), NestedField(8, "label", StringType()), NestedField(9, "new", LongType())
    )
    pruner = Pruner("id = 610", schema)
    assert pruner.prune(file).file_selection.to_pairs() == [[600, 50]]
    assert Pruner("new = 1", schema).prune(file).rows_selected == 0
    assert Pruner("new IS NULL", schema).prune(file).proven.row_count == 1000


def test_a_column_that_is_missing_but_has_a_default_is_not_taken_for_null() -> None:
    schema = Schema(NestedField(2, "id", LongType()), NestedField(9, "new", IntegerType(), initial_default=5))
    assert Pruner("new = 5", schema).prune(FILE).rows_selected == ROWS
    assert Pruner("new IS NULL", schema).prune(FILE).rows_selected == ROWS


def test_a_column_of_another_type_is_not_taken_for_null() -> None:
    file = written(pa.table({"id": [[i] for i in range(10)], "s": [{"x": i} for i in range(10)]}))
    schema = Schema(NestedField(70, "id", LongType()), NestedField(71, "s", LongType()))
    assert Pruner("id = 3 AND s = 3", schema).prune(file).rows_selected == 10


def test_a_file_without_ids_is_matched_by_name() -> None:
    schema = Schema(NestedField(70, "id", LongType()), NestedField(71, "other", LongType()))
    assert Pruner("id = 610 AND other IS NULL", schema).prune(FILE).rows_selected == 50


def test_case_sensitivity_is_an_option() -> None:
    with pytest.raises(UnknownColumnError, match="did you mean id"):
        prune("ID = 610")
    assert prune("ID = 610", case_sensitive=False).rows_selected == 50


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UnknownFileError, match=r"nowhere\.parquet"):
        PruneRequest("nowhere.parquet").with_predicate("a = 1").prune()


def test_an_empty_file_has_nothing_to_keep() -> None:
    result = prune("id = 1", written(numbers().slice(0, 0)))
    assert (result.rows_total, result.row_groups, result.rows_selected) == (0, (), 0)


def test_small_page_indexes_are_fetched_with_the_bloom_filters() -> None:
    """A key that is sorted and has a bloom filter: the tail, then filters and page indexes together."""
    table = pa.table({"id": np.arange(60_000), "pad": [f"{i:040d}" for i in range(60_000)]})
    layout = {"row_group_size": 20_000, "max_rows_per_page": 10, "write_batch_size": 10, "compression": "none"}
    file = written(table, **layout, bloom_filter_options={"id": {"ndv": 20_000, "fpp": 0.01}})
    result = PruneRequest(BytesSource(file)).with_predicate("id = 30123").prune()
    assert result.file_selection.to_pairs() == [[30120, 10]]
    assert result.round_trips == 2
