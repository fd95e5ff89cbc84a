"""Long lists of whole numbers: blanked out before the tokenizer, and yet the same predicate as when it reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, DecimalType, DoubleType, IntegerType, LongType, NestedField, StringType

from floeplan.errors import FloeplanError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import InList
from floeplan.predicate.rows.evaluate import evaluate_rows
from floeplan.predicate.sql import fast_path as long_lists
from floeplan.predicate.sql.fast_path import LONG, without_numbers

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "d", DoubleType()),
    NestedField(5, "n", DecimalType(9, 2)),
    NestedField(6, "day", DateType()),
)
NUMBERS = [*range(-LONG, LONG), 2**40, -(2**40), 7, 7]
LISTED = ", ".join(map(str, NUMBERS))


def outcome(text: str) -> str:
    """The predicate and what was said of it, or the error, each with its place."""
    try:
        compiled = compile_predicate(text, SCHEMA, case_sensitive=True)
    except FloeplanError as error:
        return f"{type(error).__name__} {error.message} {error.context}"
    return f"{compiled.predicate} {compiled.errors}"


@pytest.mark.parametrize(
    "text",
    [
        "l IN ({})",
        "i IN ({})",
        "l NOT IN ({})",
        "l in(\n{}\t)",
        "d IN ({}) AND n IN ({})",
        "NOT (l IN ({}) OR i = 3)",
        "CAST(i AS BIGINT) IN ({})",
        "l + 1 IN ({})",
        "5 IN ({})",
        "-9 NOT IN ({})",
        "s IN ({})",
        "day IN ({})",
        "nobody IN ({})",
        "CASE WHEN l IN ({}) THEN i > 1 ELSE i < 1 END",
        "(l IN ({})) = (i = 1)",
        "coalesce(l IN ({}), FALSE)",
        "l IN ({}) IS NULL",
        "l = i IN ({})",
        "array_contains(array({}), l)",
        "l IN ({}) AND i >",
        "l IN ({}) AND s = 'open",
        "l IN ({}) /* open",
        "l IN ({})) AND i = 1",
    ],
)
def test_a_list_means_the_same_whoever_reads_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text.replace("{}", LISTED)
    taken_out = outcome(text)
    monkeypatch.setattr(long_lists, "LONG", len(text))
    assert taken_out == outcome(text)


@pytest.mark.parametrize("text", [f"s = 'l IN ({LISTED})'", f"i = 1 -- l IN ({LISTED})", f"i = 1 /* IN ({LISTED}) */"])
def test_a_list_that_is_no_list_is_left_as_it_is(text: str) -> None:
    assert without_numbers(text)[1]
    assert outcome(text) == outcome(text.replace(LISTED, "1")).replace("IN (1)", f"IN ({LISTED})")


def test_a_name_that_holds_a_list_is_left_as_it_is() -> None:
    name = f"IN ({LISTED})"
    schema = Schema(NestedField(1, name, LongType()))
    compiled = compile_predicate(f"`{name}` IN ({LISTED})", schema, case_sensitive=True)
    assert isinstance(compiled.predicate, InList)
    assert compiled.predicate.column.path == (name,)


def test_numbers_are_those_that_were_written() -> None:
    found = compile_predicate(f"l IN ({LISTED})", SCHEMA, case_sensitive=True).predicate
    assert isinstance(found, InList)
    assert found.values == tuple(dict.fromkeys(NUMBERS))
    narrow = compile_predicate(f"i IN ({LISTED})", SCHEMA, case_sensitive=True).predicate
    assert isinstance(narrow, InList)
    assert set(narrow.values) == set(range(-LONG, LONG))


def test_nothing_but_the_numbers_moves() -> None:
    text = f"i = 1 AND l IN ({LISTED}\n) AND s = 'x'"
    blank, ((start, end),) = without_numbers(text)
    assert len(blank) == len(text)
    assert blank.count("\n") == 1
    assert text[start:end] == LISTED + "\n"
    assert blank[start:end].split() == ["0"]
    assert blank[:start] == text[:start]
    assert blank[end:] == text[end:]


@pytest.mark.parametrize(
    "listed", ["1, 2.5", "1, 2L", "1, NULL", "1, '2'", "1, 1 + 1", "1, " + "9" * 19, "1,, 2", "1 2"]
)
def test_lists_of_anything_else_are_not_blanked(listed: str) -> None:
    text = f"l IN ({', '.join(['3'] * LONG)}, {listed})"
    assert without_numbers(text) == (text, [])


def test_an_opaque_piece_keeps_its_numbers() -> None:
    rows = pa.table({"i": pa.array([6, 7], pa.int32()), "l": [LONG - 2, LONG], "s": ["a", "b"]})
    found = compile_predicate(f"l + 1 IN ({LISTED})", SCHEMA, case_sensitive=True).predicate
    assert evaluate_rows(found, rows, SCHEMA).to_pylist() == [True, False]
