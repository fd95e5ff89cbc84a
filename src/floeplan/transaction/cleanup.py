"""Removing files that nobody refers to.

Rule: only files that this process wrote under names of its own are removed. Fail-safe: a file that cannot be removed is
left; an orphan costs storage, and the outcome of the commit is certain by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO

from floeplan.transaction.change import SnapshotChange

_AT_A_TIME = 16


def remove_files(paths: Iterable[str], io: FileIO) -> tuple[str, ...]:
    """Remove files as far as possible, several at a time; returns those that are gone."""
    wanted = sorted(set(paths))
    if not wanted:
        return ()
    with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted)), "floeplan-cleanup") as pool:
        gone = list(pool.map(lambda path: _remove(path, io), wanted))
    return tuple(path for path, done in zip(wanted, gone, strict=True) if done)


def _remove(path: str, io: FileIO) -> bool:
    try:
        io.delete(path)
    except Exception:
        return False
    return True


def own_files(change: SnapshotChange) -> set[str]:
    """The data and delete files a change adds."""
    added = [files for files in (change.added_data, change.added_deletes) if files is not None]
    return {path for files in added for path in files.path.to_pylist()}
