"""Many processes that each write one row to the same table at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from threading import Barrier

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from floeplan import append
from floeplan.errors import CommitConflictError

_PATIENCE_SECONDS = 600.0


class Writers:
    """Processes that wait for something to write; they are started once, and leave with the context."""

    def __init__(self, catalog: Mapping[str, str], number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            [__name__, "pyiceberg.catalog.sql", "pyiceberg.catalog.rest", "pyiceberg.io.pyarrow"]
        )
        self._catalog, self._number = dict(catalog), number
        self._manager = context.Manager()
        self._pool = context.Pool(number)

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._pool.join()
        self._manager.shutdown()

    def append_at_once(self, table: str) -> list[int]:
        """A row by each; they begin when the last one has opened the table. The rows that were committed, they say."""
        together = self._manager.Barrier(self._number)
        write = partial(_append, self._catalog, table, together)
        written = self._pool.map(write, range(self._number), chunksize=1)
        return [number for number, through in enumerate(written) if through]


def _append(properties: dict[str, str], name: str, together: Barrier, number: int) -> bool:
    with closing(load_catalog("many", **properties)) as catalog:
        try:
            table = catalog.load_table(name)
        except BaseException:
            together.abort()  # the others need not wait for this one
            raise
        together.wait(_PATIENCE_SECONDS)
        try:
            append(table, pa.table({"id": [number]}))
        except CommitConflictError:
            return False
        return True
