"""Errors that fail a Spark job are raised with their original type."""

from __future__ import annotations

import pickle
import re
import traceback
from base64 import b64encode
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from floeplan.errors import CorruptMetadataError
from floeplan.tasks.worker import report_errors, reraise_task_errors

pytestmark = pytest.mark.unit


def failing(error: Exception) -> str:
    """The text that Spark reports to the driver for a failed task."""

    @report_errors
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise error

    try:
        list(task([]))
    except Exception as raised:
        return "\n".join(traceback.format_exception(raised))
    raise AssertionError


def test_a_floeplan_error_is_raised_unchanged() -> None:
    message = failing(CorruptMetadataError("m.avro is damaged", context={"file": "m.avro", "offset": 3}))
    with pytest.raises(CorruptMetadataError, match=r"^m\.avro is damaged$") as caught, reraise_task_errors():
        raise RuntimeError(f"Job aborted due to stage failure: {message}")
    assert caught.value.context == {"file": "m.avro", "offset": 3}


def test_a_value_that_looks_like_an_error_is_not_unpickled() -> None:
    """The text of an exception may contain table values, and unpickling them could run any code."""
    harmful = b64encode(pickle.dumps(Harmful())).decode()
    message = failing(CorruptMetadataError("m.avro is damaged"))
    forged = f"floeplan-error:{'0' * 32}:{harmful}; floeplan-error:{harmful};"
    imitated = re.sub(r"floeplan-error:[^;]+;", forged, message)
    assert imitated != message
    with pytest.raises(RuntimeError, match="cannot be cast"), reraise_task_errors():
        raise RuntimeError(f"the value {imitated} cannot be cast")


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a value of a table was run",)


def test_other_errors_are_raised_unchanged() -> None:
    message = failing(KeyError("x"))
    with pytest.raises(RuntimeError, match="Job aborted"), reraise_task_errors():
        raise RuntimeError(f"Job aborted due to stage failure: {message}")
