"""Processes that write to a table: some are killed at a step of their commit, others append concurrently.

``python -m tests.support.faults.writer_processes`` reads lines ``FOLDER KIND STEP``, forks a process that runs this
change and kills itself at this step, and prints the number of the signal that ended it. A folder with a file ``rest``
uses the REST catalog named there, any other folder its own SQLite catalog.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import IO, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from floeplan import append
from floeplan.errors import CommitConflictError
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.transaction.change import IsolationLevel
from tests.support.tables.commits import (
    appending,
    copy_on_write_delete,
    merge_on_read_delete,
    open_catalog,
    patient,
    replacing,
    rows_of,
)

WRITES = {
    "append": appending(rows_of(100, 105)),
    "copy-on-write": copy_on_write_delete("id IN (3, 14)", lambda row: row[0] in (3, 14)),
    "merge-on-read": merge_on_read_delete("id IN (3, 14)", lambda row: row[0] in (3, 14)),
    "replace": replacing("part = 'a'"),
}
_PATIENCE_SECONDS = 600.0
REWRITE = "rewrite"
"""Rewrites all files, with one commit per partition."""
ROOT = Path(__file__).resolve().parents[3]


def catalog_in(folder: Path) -> Catalog:
    there = folder / "rest"
    return RestCatalog("rest", uri=there.read_text()) if there.exists() else open_catalog(folder)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit_and_die(folder: Path, kind: str, step: str) -> None:
    catalog = catalog_in(folder)
    if step == "metadata-written":  # written, but the catalog does not point to it yet
        usual = SqlCatalog._write_metadata

        def written(*arguments: Any, **named: Any) -> None:
            usual(*arguments, **named)
            die()

        SqlCatalog._write_metadata = staticmethod(written)  # type: ignore[method-assign]
    options = patient(on_step=lambda at: die() if at == step else None)
    table = catalog.load_table("db.t")
    if kind == REWRITE:
        rewrite_options = {
            "rewrite-all": "true",
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": "2",
        }
        rewrite_data_files(table, options=rewrite_options, commit=options)
    else:
        WRITES[kind].plan(table, IsolationLevel.SERIALIZABLE).commit(options)


def serve() -> None:
    for line in sys.stdin:
        folder, kind, step = line.split()
        child = os.fork()
        if child == 0:
            commit_and_die(Path(folder), kind, step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}\n")
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class KilledWriters:
    """The process that starts them: its stdin and stdout."""

    requests: IO[str]
    answers: IO[str]

    def kill_at(self, folder: Path, kind: str, step: str) -> None:
        """Run a change on the table of a folder in a process that is killed at this step."""
        self.requests.write(f"{folder} {kind} {step}\n")
        self.requests.flush()
        assert int(self.answers.readline()) == signal.SIGKILL


@contextmanager
def killed_writers() -> Iterator[KilledWriters]:
    """Writers, started one after another."""
    command = [sys.executable, "-m", "tests.support.faults.writer_processes"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield KilledWriters(process.stdin, process.stdout)
        process.stdin.close()


class Writers:
    """A pool of writer processes, started once and stopped when the context ends."""

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
        """Append one row per process at the same time; returns the rows reported as committed."""
        together = self._manager.Barrier(self._number)
        write = partial(_append, self._catalog, table, together)
        written = self._pool.map(write, range(self._number), chunksize=1)
        return [number for number, committed in enumerate(written) if committed]


def _append(properties: dict[str, str], name: str, together: Barrier, number: int) -> bool:
    with closing(load_catalog("many", **properties)) as catalog:
        try:
            table = catalog.load_table(name)
        except BaseException:
            together.abort()  # release the other processes
            raise
        together.wait(_PATIENCE_SECONDS)
        try:
            append(table, pa.table({"id": [number]}))
        except CommitConflictError:
            return False
        return True


if __name__ == "__main__":
    serve()
