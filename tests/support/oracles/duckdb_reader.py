"""DuckDB as an oracle for written tables, in a separate process: its Iceberg extension crashes on some tables.

Rule: whether DuckDB is used is decided on the original table that Spark wrote, never on Floeplan's output. If it reads
the original correctly, it must read the changed table correctly; an error or a crash is then a failure. If it fails on
the original (equality deletes with nulls in their keys, DuckDB 1.5) or reads it wrong, the comparison is skipped.

Three cases are always skipped (``left_out``). Deletion vectors: DuckDB 1.5 reads some of them wrong, including those
that Spark wrote, and not deterministically. Position deletes in partitions whose source columns are all dropped: Spark
cannot write them, and DuckDB, which derives partition types from the current columns, cannot read them. Format 1 where
an hour, month or year became void: the field is a number under one spec and a timestamp under another; DuckDB takes its
type from one manifest for all and crashes depending on their order.

The extensions for Iceberg and Avro are installed as packages, so tests download nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import index_by_id

if __name__ != "__main__":
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.transforms import HourTransform, MonthTransform, VoidTransform, YearTransform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.table import Table

Keys = list[tuple[int, int | None]]

_QUERY = "SELECT pk, n FROM iceberg_scan($1)"
_ENDED = "the process of DuckDB ended"


class DuckDbError(Exception):
    """DuckDB could not read a table."""


class DuckDb:
    """Reads tables one after another; starts its process on first use and after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def keys(self, table: Table) -> Keys:
        """The columns ``pk`` and ``n`` of all rows, sorted.

        Raises:
            DuckDbError: The table cannot be read.
        """
        answer = self._ask(table.metadata_location.removeprefix("file://").removeprefix("file:"))
        if "error" in answer:
            raise DuckDbError(answer["error"])
        return in_order((pk, n) for pk, n in answer["rows"])

    def reads(self, original: Table, expected: Keys) -> bool:
        """Whether DuckDB reads a table that Spark wrote, and so can verify changes to it."""
        try:
            return not left_out(original) and self.keys(original) == expected
        except DuckDbError:
            return False

    def _ask(self, location: str) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(location, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        found: dict[str, Any] = json.loads(answer) if answer else {"error": _ENDED}
        if "error" in found:
            self.close()
        return found


def key_columns(rows: Iterable[Mapping[str, Any]]) -> Keys:
    """The result expected from DuckDB for these rows."""
    return in_order((row["pk"], row["n"]) for row in rows)


def in_order(rows: Iterable[tuple[int, int | None]]) -> Keys:
    """Sorted rows, nulls last."""
    return sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or 0))


def left_out(table: Table) -> bool:
    """Whether a table is one of the cases that DuckDB does not read reliably."""
    if _retyped(table):
        return True
    snapshot = table.current_snapshot()
    assert snapshot is not None
    specs = {m.partition_spec_id for m in snapshot.manifests(table.io) if m.content == ManifestContent.DELETES}
    if not specs or table.metadata.format_version > 2:
        return bool(specs)
    sources = [field.source_id for spec_id in specs for field in table.specs()[spec_id].fields]
    return bool(sources) and index_by_id(table.schema()).keys().isdisjoint(sources)


def _retyped(table: Table) -> bool:
    """Whether a field is a number of hours, months or years under one spec and void under another."""
    fields = [field for spec in table.specs().values() for field in spec.fields]
    void = {field.field_id for field in fields if isinstance(field.transform, VoidTransform)}
    counted = (HourTransform, MonthTransform, YearTransform)
    return any(field.field_id in void and isinstance(field.transform, counted) for field in fields)


def _serve() -> None:
    """Print one line of JSON per location; stop after an error, since a failed database cannot be used again."""
    import duckdb

    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "1"}
    connection = duckdb.connect(config=settings)
    for name in ("avro", "iceberg"):
        folder = files(f"duckdb_extension_{name}").joinpath("extensions", f"v{duckdb.__version__}")
        connection.load_extension(str(folder.joinpath(f"{name}.duckdb_extension")))
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"rows": connection.execute(_QUERY, [line.rstrip("\n")]).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
        if "error" in answer:
            return


if __name__ == "__main__":
    _serve()
