"""Invalid predicates: the error names the thing, the position and the fix."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from floeplan.errors import BadInputError, PredicateSyntaxError, TypeMismatchError, UnknownColumnError
from floeplan.predicate.compile import compile_predicate
from tests.support.compiled import SCHEMA

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("regio = 1", "there is no column regio"),
        ("comments = 'x'", "did you mean comment?"),
        ("I = 1", "did you mean i?"),
        ("t.i = 1", "there is no column t.i; did you mean i?"),
        ("st.q = 1", "there is no column st.q; did you mean st.x"),
        ("`st.x` = 1", "there is no column `st.x`; did you mean st.x"),
        ("i.x = 1", "there is no column i.x: i is int and has no fields"),
        ("foo(nope) = 1", "there is no column nope"),
        ("i + nope > 1", "there is no column nope"),
    ],
)
def test_unknown_columns(sql: str, message: str) -> None:
    with pytest.raises(UnknownColumnError, match=message.replace("?", r"\?")) as caught:
        compile_predicate(sql, SCHEMA)
    assert caught.value.context["column"]


def test_a_name_that_fits_two_columns_is_ambiguous_without_case() -> None:
    schema = Schema(NestedField(1, "Id", IntegerType()), NestedField(2, "ID", IntegerType()))
    with pytest.raises(UnknownColumnError, match="ambiguous: it matches ID, Id"):
        compile_predicate("id = 1", schema, case_sensitive=False)
    assert str(compile_predicate("Id = 1", schema, case_sensitive=False).predicate) == "Id = 1"


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("i = 1 )", 6),
        ("(i = 1", 0),
        ("i = 1 AND (l = 2", 10),
        ("i = [1)", 6),
        ("AND i = 1", 0),
        ("i = 1 OR", 8),
        ("i = 1 AND OR l = 2", 10),
        ("NOT", 3),
        ("i = 1 l = 2", 6),
        ("i = 1 AND l = 2 x", 16),
        ("i =", 2),
        ("i = 1; DROP TABLE t", 5),
        ("s = 'abc", 7),
        ("i = 1\nAND l ==== 2", 14),
        ("()", 0),
        ("i = 1 = TRUE", 0),
        ("i IN (1) IS NULL", 0),
        ("b = i BETWEEN 1 AND 2", 0),
        ("s || 'x' + 1 = 'a'", 0),
    ],
)
def test_syntax_errors_have_a_place(sql: str, position: int) -> None:
    with pytest.raises(PredicateSyntaxError) as caught:
        compile_predicate(sql, SCHEMA)
    error = caught.value
    assert error.context["position"] == position + 1
    assert f"at position {position + 1}" in error.message
    assert "\n" not in error.message
    line, caret = str(error.context["snippet"]).split("\n")
    assert caret.strip() == "^"
    assert len(caret) <= len(line) + 1


@pytest.mark.parametrize("sql", ["", "   ", "-- only a comment"])
def test_an_empty_predicate_is_refused(sql: str) -> None:
    with pytest.raises(PredicateSyntaxError, match="write TRUE to match every row"):
        compile_predicate(sql, SCHEMA)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("EXISTS (SELECT 1)", "a subquery"),
        ("i IN (SELECT 1)", "a subquery"),
        ("i = (SELECT max(x) FROM t)", "a subquery"),
        ("sum(i) > 1", "an aggregate function"),
        ("row_number() OVER () = 1", "a window function"),
        ("i = ?", "a parameter"),
        ("i = :p", "a parameter"),
        ("ts > now()", "changes with every run"),
        ("ts > current_timestamp()", "changes with every run"),
        ("dt = current_date", "changes with every run"),
        ("rand() < 0.5", "changes with every run"),
        ("uuid() = s", "changes with every run"),
        ("s = input_file_name()", "changes with every run"),
    ],
)
def test_aggregates_subqueries_and_nondeterministic_functions_are_refused(sql: str, what: str) -> None:
    with pytest.raises(BadInputError, match=what):
        compile_predicate(sql, SCHEMA)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("i", "column i is int, not a condition"),
        ("i + 1", "not a condition"),
        ("'x'", "is of type string, not a condition"),
        ("1", "is of type integer, not a condition"),
        ("st = 1", "column st is a struct"),
        ("arr > 1", "column arr is a list"),
        ("m = 1", "column m is a map"),
        ("m.k = 1", "m.k is inside m"),
    ],
)
def test_expressions_that_are_no_condition(sql: str, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        compile_predicate(sql, SCHEMA)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("i = 'x'", "column i is int, and 'x' is not a whole number"),
        ("dt > 'soon'", "column dt is date, and 'soon' is not a date"),
        ("l IN (1, '2', 'x')", "column l is long, and 'x' is not a whole number"),
        ("b = 'maybe'", "column b is boolean, and 'maybe' is not a boolean"),
    ],
)
def test_text_that_is_no_value_of_the_column_names_the_column(sql: str, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message) as caught:
        compile_predicate(sql, SCHEMA)
    assert caught.value.context["column"]


@pytest.mark.parametrize("digits", ["9" * 5000, "0." + "9" * 5000, "-" + "9" * 5000])
def test_a_number_beyond_all_types_is_refused_in_a_short_line(digits: str) -> None:
    with pytest.raises(BadInputError, match="more than 38 digits") as caught:
        compile_predicate(f"i = {digits}", SCHEMA)
    assert len(caught.value.message) < 300
    assert str(compile_predicate("i = " + "0" * 5000 + "7", SCHEMA).predicate) == "i = 7"


def test_an_error_names_its_piece() -> None:
    with pytest.raises(TypeMismatchError) as caught:
        compile_predicate("i = 1 AND b = 5", SCHEMA)
    assert caught.value.context["text"] == "b = 5"
    assert caught.value.context["position"] == 11


def test_ten_thousand_values_and_a_thousand_alternatives_stay_flat() -> None:
    listed = ", ".join(map(str, range(10_000)))
    (leaf,) = [compile_predicate(f"l IN ({listed})", SCHEMA).predicate]
    assert leaf.values == tuple(range(10_000))  # type: ignore[attr-defined]
    dates = ", ".join(f"DATE '{2000 + n // 300}-{n % 12 + 1:02d}-{n % 28 + 1:02d}'" for n in range(3000))
    assert len(compile_predicate(f"dt NOT IN ({dates}, NULL)", SCHEMA).predicate.children) == 2
    alternatives = compile_predicate(" OR ".join(f"(i = {n} AND s = 'x{n}')" for n in range(1000)), SCHEMA).predicate
    assert len(alternatives.children) == 1000


def test_a_long_list_means_what_a_short_one_means() -> None:
    items = ["1", "-2", "NULL", "'7'", "3000000000"]
    short = compile_predicate(f"i IN ({', '.join(items)})", SCHEMA).predicate
    long = compile_predicate(f"i IN ({', '.join(items * 50)})", SCHEMA).predicate
    assert long == short
    casts = ["5L", "CAST('6' AS INT)", *items]
    assert (
        str(compile_predicate(f"i IN ({', '.join(casts * 50)})", SCHEMA).predicate) == "i IN (5, 6, 1, -2, 7) OR null"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "(" * 5000 + "i = 1" + ")" * 5000,
        "(" * 90 + "i" + ")" * 90 + " = 1",
        "- " * 5000 + "i = 1",
        "i = " + "- " * 500 + "1",
        "+".join(["i"] * 5000) + " = 1",
        "abs(" * 99 + "i" + ")" * 99 + " = 1",
        "CASE WHEN b THEN " * 300 + "TRUE" + " END" * 300,
    ],
)
def test_excessive_nesting_is_refused_without_a_crash(sql: str) -> None:
    with pytest.raises(BadInputError, match="nest"):
        compile_predicate(sql, SCHEMA)


def test_deep_nesting_is_supported() -> None:
    assert str(compile_predicate("(" * 90 + "i = 1" + ")" * 90, SCHEMA).predicate) == "i = 1"
    assert str(compile_predicate("NOT " * 5001 + "i = 1", SCHEMA).predicate) == "i != 1"


def test_other_objects_are_no_predicates() -> None:
    with pytest.raises(BadInputError, match="unsupported predicate type: int"):
        compile_predicate(5, SCHEMA)  # type: ignore[arg-type]
