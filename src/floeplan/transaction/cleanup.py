"""Removing files that nobody refers to.

Rule: only files that this process wrote under names of its own are removed. Fail-safe: a file that cannot be removed is
left; an orphan costs storage, and the outcome of the commit is certain by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from pyiceberg.io import FileIO

from floeplan.transaction.change import SnapshotChange


def remove_files(paths: Iterable[str], io: FileIO) -> tuple[str, ...]:
    """Remove files as far as possible; returns those that are gone."""
    gone = []
    for path in sorted(set(paths)):
        with suppress(Exception):
            io.delete(path)
            gone.append(path)
    return tuple(gone)


def own_files(change: SnapshotChange) -> set[str]:
    """The data and delete files a change adds."""
    added = [files for files in (change.added_data, change.added_deletes) if files is not None]
    return {path for files in added for path in files.path.to_pylist()}
