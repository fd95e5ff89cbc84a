"""Processes that commit and are killed at a step of it: ``python -m tests.support.crashing_commit``.

Each line ``FOLDER KIND STEP`` of the input is a process to start; the answer is the number of the signal that ended it.
They are forked from one that has imported everything and used nothing.

The change is planned by this process, so its files are among what a crash leaves. ``metadata-written`` lies within the
catalog: the new metadata file is there, and the catalog does not point to it yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from floeplan.transaction.change import IsolationLevel
from tests.support.commits import (
    Write,
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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit_and_die(folder: Path, write: Write, step: str) -> None:
    catalog = open_catalog(folder)
    if step == "metadata-written":
        usual = SqlCatalog._write_metadata

        def written(*arguments: Any, **named: Any) -> None:
            usual(*arguments, **named)
            die()

        SqlCatalog._write_metadata = staticmethod(written)  # type: ignore[method-assign]
    planned = write.plan(catalog.load_table("db.t"), IsolationLevel.SERIALIZABLE)
    planned.commit(patient(on_step=lambda at: die() if at == step else None))


def serve() -> None:
    for line in sys.stdin:
        folder, kind, step = line.split()
        child = os.fork()
        if child == 0:
            commit_and_die(Path(folder), WRITES[kind], step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
