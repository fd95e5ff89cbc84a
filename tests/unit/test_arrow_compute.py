"""``arrow_compute``: the functions that call kernels by themselves return what those of ``pyarrow.compute`` return."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floeplan import arrow_compute

pytestmark = pytest.mark.unit

NUMBERS = pa.array([3, None, 1, 2])
OTHERS = pa.array([3, 1, None, 4])


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("other", [OTHERS, pa.scalar(2)])
def test_comparisons(name: str, other: pa.Array | pa.Scalar) -> None:
    found = getattr(arrow_compute, name)(NUMBERS, other, memory_pool=pa.system_memory_pool())
    assert found.equals(getattr(pc, name)(NUMBERS, other))


def test_selections() -> None:
    rows, kept, table = pa.array([2, None, 0]), pa.array([True, None, False, True]), pa.table({"a": NUMBERS})
    assert arrow_compute.take(NUMBERS, rows).equals(pc.take(NUMBERS, rows))
    assert arrow_compute.take(table, rows).equals(table.take(rows))
    assert arrow_compute.filter(table, kept).equals(table.filter(kept))
    with pytest.raises(pa.ArrowIndexError):
        arrow_compute.take(NUMBERS, pa.array([4]))


def test_nulls() -> None:
    assert arrow_compute.is_valid(NUMBERS).equals(pc.is_valid(NUMBERS))
    assert arrow_compute.fill_null(NUMBERS, 7).equals(pc.fill_null(NUMBERS, 7))
    texts = pa.array([b"a", None], pa.large_binary())
    assert arrow_compute.fill_null(texts, b"").equals(pc.fill_null(texts, b""))
    assert arrow_compute.index_in(NUMBERS, value_set=OTHERS).equals(pc.index_in(NUMBERS, value_set=OTHERS))


def test_casts_refuse_values_that_do_not_fit() -> None:
    assert arrow_compute.cast(NUMBERS, pa.int8()).equals(NUMBERS.cast(pa.int8()))
    with pytest.raises(pa.ArrowInvalid):
        arrow_compute.cast(pa.array([300]), pa.int8())
    with pytest.raises(pa.ArrowInvalid):
        arrow_compute.cast(pa.array([b"\xff"]), pa.string())


def test_other_names_are_those_of_pyarrow() -> None:
    assert arrow_compute.utf8_upper is pc.utf8_upper
    with pytest.raises(AttributeError, match="no_such_function"):
        _ = arrow_compute.no_such_function
