"""Code around a task in Spark's Python worker: its memory, what it leaves behind, and how its errors reach the driver.

Memory: Arrow's default allocator requests huge pages and returns memory early. Where the kernel clears every page that
it hands out, tasks that move rows then spend a third of their time there. Tasks allocate from the C library instead.

Reusing a worker: a ``reusable`` task leaves its process so that the next task starts at once.

- Before every task PySpark calls ``importlib.invalidate_caches``, which makes each ``zipimporter`` read the directory
  of its archive again, PySpark's own and Spark's largest jar among them. That takes 0.1 s, more than many tasks. So the
  zip importers are dropped; an import that needs one creates it again.
- After every task PySpark collects garbage and searches all imported modules for it, which takes 0.05 s. So objects are
  frozen when there are as many new ones as imports make.

Errors: a task that cannot return an error as a value lets it fail the job, with the pickled error in a note. The driver
finds the note in the text of Spark's exception and raises the original error. Texts of exceptions may contain values
of a table, so a note counts only with this process's random token. Without a note Spark's exception is raised.
"""

from __future__ import annotations

import gc
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
"""A function for ``mapInArrow``."""

_MANY_OBJECTS = 20_000
"""Objects since the last freeze that are worth another. Fewer are not: frozen ones are never found to be garbage."""
_token = secrets.token_hex(16)


def reusable(task: ArrowTask) -> ArrowTask:
    """A task with the system's allocator, after which its worker process starts the next task quickly."""

    @wraps(task)
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = pa.default_memory_pool()
        pa.set_memory_pool(pa.system_memory_pool())
        try:
            yield from task(batches)
        finally:
            pa.set_memory_pool(before)
        if len(gc.get_objects()) > _MANY_OBJECTS:
            gc.collect()
            gc.freeze()
        # ``zipimport._zip_directory_cache`` is private to CPython; where it does not exist, nothing is dropped.
        directories = getattr(zipimport, "_zip_directory_cache", None)
        if directories is None:
            return
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimport.zipimporter):
                sys.path_importer_cache.pop(path, None)
                directories.pop(finder.archive, None)

    return run


def for_each_number(function: Callable[[int], Iterable[pa.RecordBatch]]) -> ArrowTask:
    """A reusable task over a column of numbers that yields the batches of each."""

    @reusable
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from function(number)

    return run


def report_errors(task: ArrowTask) -> ArrowTask:
    """A task whose errors ``reraise_task_errors`` finds, in the process that calls this."""
    token = _token

    @wraps(task)
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from task(batches)
        except FloeplanError as error:
            error.add_note(f"floeplan-error:{token}:{b64encode(pickle.dumps(error)).decode()};")
            raise

    return run


@contextmanager
def reraise_task_errors() -> Iterator[None]:
    """Raise a Floeplan error that failed a Spark job as the error that the task raised."""
    try:
        yield
    except Exception as error:
        found = re.search(rf"floeplan-error:{_token}:([A-Za-z0-9+/=]+);", str(error))
        if found is None:
            raise
        raise pickle.loads(b64decode(found[1])) from error
