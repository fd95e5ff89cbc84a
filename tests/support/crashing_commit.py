"""Processes that commit and are killed at a step of it: ``python -m tests.support.crashing_commit``.

Each line ``FOLDER KIND STEP`` of the input is a process to start; the answer is the number of the signal that ended it.
They are forked from one that has imported everything and used nothing. A folder with a file ``rest`` has its tables in
the REST catalog that this names, another one in a database of its own.

The change is planned by this process, so its files are among what a crash leaves. ``metadata-written`` lies within the
catalog: the new metadata file is there, and the catalog does not point to it yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from floeplan.rewrite.run.execute import rewrite_data_files
from floeplan.transaction.change import IsolationLevel
from tests.support.commits import (
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
REWRITE = "rewrite"
"""Of all files, each partition committed by itself."""


def catalog_in(folder: Path) -> Catalog:
    there = folder / "rest"
    return RestCatalog("rest", uri=there.read_text()) if there.exists() else open_catalog(folder)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit_and_die(folder: Path, kind: str, step: str) -> None:
    catalog = catalog_in(folder)
    if step == "metadata-written":
        usual = SqlCatalog._write_metadata

        def written(*arguments: Any, **named: Any) -> None:
            usual(*arguments, **named)
            die()

        SqlCatalog._write_metadata = staticmethod(written)  # type: ignore[method-assign]
    options = patient(on_step=lambda at: die() if at == step else None)
    table = catalog.load_table("db.t")
    if kind == REWRITE:
        asked = {"rewrite-all": "true", "partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
        rewrite_data_files(table, options=asked, commit=options)
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


if __name__ == "__main__":
    serve()
