"""What a task of ours leaves behind in the Python process that ran it, for the next task there.

PySpark asks Python to look anew for modules before every task. For each package that was imported from an archive
that means reading the directory of the archive again, PySpark's own and Spark's largest jar among them: a tenth of a
second, more than many tasks take. A task that is ``reusable`` makes Python forget archives when it is done. Nothing
is lost by it: whoever imports something later has them read again, as they are then.
"""

from __future__ import annotations

import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TypeAlias

import pyarrow as pa

ArrowTask: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""What ``mapInArrow`` runs in a task."""


def reusable(task: ArrowTask) -> ArrowTask:
    """A task after which its process is soon ready for the next one."""

    @wraps(task)
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batches)
        _forget_archives()

    return run


def numbered(answer: Callable[[int], Iterable[pa.RecordBatch]]) -> ArrowTask:
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
