"""Predicates as pyarrow-style tuples."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.predicate.compile import compile_predicate
from tests.support.compiled import SCHEMA

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (("i", "=", 1), "i = 1"),
        (("i", "==", np.int32(1)), "i = 1"),
        (("i", "<>", 1), "i != 1"),
        (("i", ">", 3.5), "i > 3"),
        (("i", "<=>", None), "i IS NULL"),
        (("i", "=", None), "null"),
        ([("i", ">", 1), ("s", "=", "x")], "i > 1 AND s = 'x'"),
        ([[("i", ">", 1), ("s", "=", "x")], [("b", "=", True)]], "(i > 1 AND s = 'x') OR b = TRUE"),
        ([], "true"),
        (("i", "in", [1, 2]), "i IN (1, 2)"),
        (("i", "not in", {1}), "i != 1"),
        (("i", "IN", (1, None)), "i = 1 OR null"),
        (("i", "in", []), "i IN ()"),
        (("s", "like", "a%"), "s LIKE 'a%'"),
        (("s", "not like", "abc"), "s != 'abc'"),
        (("s", "like", "%"), "s NOT IN ()"),
        (("s", "is null"), "s IS NULL"),
        (("s", "Is  Not  Null"), "s IS NOT NULL"),
        (("st.x", "=", 4), "st.x = 4"),
        (("a.b", "=", 4), "`a.b` = 4"),
        (("d", "<", Decimal("1.005")), "d <= 1.00"),
        (("dt", ">=", datetime(2024, 3, 1, 12)), "dt > DATE '2024-03-01'"),
        (("ts", ">=", date(2024, 3, 1)), "ts >= TIMESTAMP '2024-03-01 00:00:00Z'"),
        (("ts", ">=", "2024-03-01"), "ts >= TIMESTAMP '2024-03-01 00:00:00Z'"),
        (("bin", "=", b"\x01"), "bin = X'01'"),
    ],
)
def test_tuples(source: Any, expected: str) -> None:
    result = compile_predicate(source, SCHEMA)
    assert str(result.predicate) == expected
    assert result.errors == ()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (("nope", "=", 1), UnknownColumnError),
        (("st", "=", 1), TypeMismatchError),
        (("i", "=", "x"), BadInputError),
        (("b", "=", 1), TypeMismatchError),
        (("s", "=", 5), TypeMismatchError),
        (("i", "in", 5), BadInputError),
        (("s", "in", "abc"), BadInputError),
        (("s", "like", "a%b"), BadInputError),
        (("i", "like", "1%"), TypeMismatchError),
        (("i", "~", 1), BadInputError),
        (("i", "="), BadInputError),
        (("i", "=", 1, 2), BadInputError),
        ([1], BadInputError),
        ([["i", "=", 1]], BadInputError),
        ([(1, "=", 1)], BadInputError),
    ],
)
def test_tuples_that_are_refused(source: Any, error: type[BadInputError]) -> None:
    with pytest.raises(error):
        compile_predicate(source, SCHEMA)
