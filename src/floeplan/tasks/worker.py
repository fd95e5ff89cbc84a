"""What a task of ours leaves behind in the Python process that ran it, for the next task there.

PySpark asks Python to look anew for modules before every task. For each package that was imported from an archive
that means reading the directory of the archive again, PySpark's own and Spark's largest jar among them: a tenth of a
second, more than many tasks take. A task that is ``reusable`` makes Python forget archives when it is done. Nothing
is lost by it: whoever imports something later has them read again, as they are then.
"""

from __future__ import annotations

import pickle
import re
import secrets
import sys
import zipimport
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TypeAlias

import pyarrow as pa

from floeplan.errors import FloeplanError

ArrowTask: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""What ``mapInArrow`` runs in a task."""


def reusable(task: ArrowTask) -> ArrowTask:
    """A task after which its process is soon ready for the next one."""

    @wraps(task)
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batches)
        _forget_archives()

    return run


def for_each_number(answer: Callable[[int], Iterable[pa.RecordBatch]]) -> ArrowTask:
    """A reusable task that is given numbers and answers each with batches."""

    @reusable
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from answer(number)

    return run


def _forget_archives() -> None:
    """Finders first, what they read of an archive last; where Python keeps that elsewhere, nothing is forgotten."""
    directories = getattr(zipimport, "_zip_directory_cache", None)
    if directories is None:
        return
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
            directories.pop(finder.archive, None)


# Errors on their way from a Spark task to the driver.
#
# Rule: where a job's tasks cannot return an error as a value, they let it end the job, with the error itself in a
# note of
# it; the driver, which sees the text of Spark's own exception, finds the note and raises what was raised there.
# Fail-safe: without such a note Spark's exception stays what it is. Texts of exceptions may hold values of a table,
# so a
# note counts only with the seal of this process, which nobody can guess.


_seal = secrets.token_hex(16)


def report_errors(task: ArrowTask) -> ArrowTask:
    """A task whose errors ``reraise_task_errors`` finds, in the process that calls this."""
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
def reraise_task_errors() -> Iterator[None]:
    """Errors of Floeplan's that end a job in here are raised as what they were in the task."""
    try:
        yield
    except Exception as error:
        found = re.search(rf"floeplan-error:{_seal}:([A-Za-z0-9+/=]+);", str(error))
        if found is None:
            raise
        raise pickle.loads(b64decode(found[1])) from error
