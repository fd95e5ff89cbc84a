"""The exception tree: one base, JSON and exit codes, and safe defaults."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from decimal import Decimal
from pathlib import Path

import pytest

from floeplan import errors
from floeplan.errors import (
    BadInputError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    CorruptFileError,
    FloeplanError,
    OperationInterruptedError,
    StrictModeError,
    UnknownColumnError,
)

pytestmark = pytest.mark.unit

ALL_ERRORS = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_every_error_derives_from_the_base_and_is_drawn_in_the_docstring(cls: type[FloeplanError]) -> None:
    assert issubclass(cls, FloeplanError)
    line = next(line for line in (errors.__doc__ or "").splitlines() if re.search(rf"\b{cls.__name__}\b", line))
    assert cls.default_kind in line
    exit_codes = [int(code) for code in re.findall(r"exit (\d+)", line)]
    assert exit_codes in ([], [cls.exit_code])


def test_kinds_are_distinct_and_kebab_case() -> None:
    kinds = [cls.default_kind for cls in ALL_ERRORS]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)


def test_exit_codes_are_those_of_the_contract() -> None:
    assert FloeplanError.exit_code == CorruptFileError.exit_code == CommitStateUnknownError.exit_code == 1
    assert {cls.exit_code for cls in ALL_ERRORS if issubclass(cls, BadInputError)} == {2}
    assert CommitConflictError.exit_code == 3
    assert StrictModeError.exit_code == 4


def test_only_conflicts_and_interrupts_are_retryable_and_an_unknown_failure_cleans_nothing() -> None:
    assert {cls for cls in ALL_ERRORS if cls("x").retryable} == {CommitConflictError, OperationInterruptedError}
    assert not FloeplanError("x").safe_to_clean
    assert CommitError("x").safe_to_clean
    assert not CommitStateUnknownError("x").safe_to_clean
    assert CommitStateUnknownError("x").committed


def test_an_instance_may_refine_what_its_class_says() -> None:
    error = FloeplanError("x", kind="odd", retryable=True, safe_to_clean=True, committed=True)
    assert (error.kind, error.retryable, error.safe_to_clean, error.committed) == ("odd", True, True, True)


def test_to_dict_is_the_error_document_and_is_json() -> None:
    error = UnknownColumnError("no column 'q'", context={"column": "q", "path": Path("a/b"), "value": Decimal("1.5")})
    assert json.loads(json.dumps(error.to_dict())) == {
        "error": {
            "kind": "unknown-column",
            "message": "no column 'q'",
            "context": {"column": "q", "path": "a/b", "value": "1.5"},
            "retryable": False,
            "committed": False,
        }
    }


def test_nested_context_and_non_finite_numbers_stay_strict_json() -> None:
    context = {"ids": (1, 2), "names": {"b", "a"}, "by_spec": {0: [float("nan")]}, "none": None}
    document = json.dumps(FloeplanError("x", context=context).to_dict(), allow_nan=False)
    assert json.loads(document)["error"]["context"] == {
        "ids": [1, 2],
        "names": ["a", "b"],
        "by_spec": {"0": ["nan"]},
        "none": None,
    }


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_errors_survive_the_way_back_from_a_worker_process(cls: type[FloeplanError]) -> None:
    error = cls("x", kind="odd", context={"file": "a"}, retryable=True, safe_to_clean=True)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == "x"
    assert vars(copy) == vars(error)
