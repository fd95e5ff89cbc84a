"""Removing files in the name of a table.

Rule: only files in the table's locations are removed, whoever names them. Fail-safe: a file that lies elsewhere or
cannot be removed is left; an orphan costs storage only.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from floeplan.metadata.locations import TableLocations

_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table: where they lie, and the way to them."""

    locations: TableLocations
    io: FileIO

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        """The files of a table as it is now."""
        return cls(TableLocations.of(table.metadata), table.io)

    def remove(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Remove files as far as possible, several at a time; returns those that are gone."""
        wanted = sorted(path for path in set(paths) if self.locations.hold(path))
        if not wanted:
            return ()
        with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted)), "floeplan-cleanup") as pool:
            gone = list(pool.map(self._remove, wanted))
        return tuple(path for path, done in zip(wanted, gone, strict=True) if done)

    def _remove(self, path: str) -> bool:
        try:
            self.io.delete(path)
        except Exception:
            return False
        return True
