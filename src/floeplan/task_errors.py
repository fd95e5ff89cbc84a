"""Errors on their way from a Spark task to the driver.

Rule: where a job's tasks cannot return an error as a value, they let it end the job, with the error itself in a note of
it; the driver, which sees the text of Spark's own exception, finds the note and raises what was raised there.
Fail-safe: without such a note Spark's exception stays what it is. Texts of exceptions may hold values of a table, so a
note counts only with the seal of this process, which nobody can guess.
"""

from __future__ import annotations

import pickle
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps

import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.python_workers import ArrowTask

_seal = secrets.token_hex(16)


def telling(task: ArrowTask) -> ArrowTask:
    """A task whose errors ``raised_in_tasks`` finds, in the process that calls this."""
    seal = _seal

    @wraps(task)
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from task(batches)
        except FloeplanError as error:
            error.add_note(f"floeplan-error:{seal}:{b64encode(pickle.dumps(error)).decode()};")
            raise

    return run


@contextmanager
def raised_in_tasks() -> Iterator[None]:
    """Errors of Floeplan's that end a job in here are raised as what they were in the task."""
    try:
        yield
    except Exception as error:
        found = re.search(rf"floeplan-error:{_seal}:([A-Za-z0-9+/=]+);", str(error))
        if found is None:
            raise
        raise pickle.loads(b64decode(found[1])) from error
