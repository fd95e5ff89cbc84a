"""Changes on a full filesystem; run as ``python -m tests.support.faults.full_filesystem``.

A small tmpfs is mounted over a folder in a private mount namespace (``unshare``). It holds data, metadata and the
catalog's database. Before each attempt, a file fills all but N pages of it; N grows, so that space runs out at a
different point each time. The results are printed to stdout.

Where mounting is not permitted, a file size limit is used instead.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import FloeplanError
from tests.support.tables.commits import (
    Rows,
    arrow,
    create_table,
    files_under,
    fork,
    open_catalog,
    patient,
    reachable,
    read_rows,
    rows_of,
)

SIZE, PAGE = 8 * 1024 * 1024, 4096
FREE_PAGES = range(0, 20, 2)
MOUNTED, LIMITED = "mounted", "limited"
NEW = rows_of(100, 105)
CHANGES: dict[str, tuple[Callable[[Table], object], Callable[[Rows], Rows]]] = {
    "append": (lambda t: fp.append(t, arrow(NEW), options=patient()), lambda rows: rows + NEW),
    "delete": (
        lambda t: fp.delete(t, "id IN (3, 14)", mode="merge-on-read", options=patient()),
        lambda rows: [row for row in rows if row[0] not in (3, 14)],
    ),
    "rewrite": (
        lambda t: fp.rewrite_data_files(t, options={"rewrite-all": "true"}, commit=patient()),
        lambda rows: rows,
    ),
}


@dataclass(frozen=True)
class Try:
    """The result of one change with N free pages; ``rows`` is the state of the table."""

    change: str
    free_pages: int
    error: str | None
    kind: str | None
    rows: str
    missing: int
    left_over: list[str]


@contextmanager
def filled(folder: Path, free: int) -> Iterator[None]:
    """Fill the filesystem up to ``free`` bytes."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
        file.truncate(max(0, ballast.stat().st_size - free))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Limit the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FULL = {MOUNTED: filled, LIMITED: lambda _, free: full_after(free)}


def attempt(base: Table, folder: Path, change: str, free_pages: int, how: str) -> Try:
    run, of_rows = CHANGES[change]
    table = fork(base, f"db.{change}_{free_pages}")
    rows, files = read_rows(table), files_under(table)
    error: Exception | None = None
    with FULL[how](folder, free_pages * PAGE):
        try:
            run(table)
        except Exception as raised:
            error = raised
    states = {"as before": rows, "changed": sorted(of_rows(rows))}
    found = next((name for name, state in states.items() if read_rows(table) == state), "neither")
    snapshots = len(table.catalog.load_table(table.name()).metadata.snapshots) - len(base.metadata.snapshots)
    there = files_under(table)
    return Try(
        change=change,
        free_pages=free_pages,
        error=None if error is None else f"{type(error).__name__}: {error}",
        kind=error.kind if isinstance(error, FloeplanError) else None,
        rows="changed" if found == "as before" and snapshots else found,
        missing=len(reachable(table) - there),
        left_over=sorted(Path(path).name for path in there - files - reachable(table)),
    )


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    if how == MOUNTED:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], check=True)
    os.environ["FLOEPLAN_REPORTS"] = "off"
    catalog = open_catalog(folder)
    base = create_table(catalog, 3)
    tries = [attempt(base, folder, change, pages, how) for change in CHANGES for pages in FREE_PAGES]
    catalog.close()
    json.dump([asdict(one) for one in tries], sys.stdout)


if __name__ == "__main__":
    main()
