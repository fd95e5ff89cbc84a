"""DuckDB as a judge of written tables, in a process of its own: its Iceberg extension ends the process on some tables.

Rule: DuckDB judges where it can read, and that is found out on the table as Spark wrote it, never on what is judged: if
it reads the original right, it must read what became of it right; an error or the end of its process is then a wrong
answer like any other. Of an original that it fails on (equality deletes with nulls in their keys, DuckDB 1.5) or reads
wrong, it has no say.

Three things are left out altogether (``left_out``). Deletion vectors: DuckDB 1.5 reads some of them wrong, those that
Spark wrote as well, and not the same way each time, so that neither a right answer nor a wrong one says anything. And
position deletes of partitions by nothing but dropped columns, of which there is no original: Spark fails to write them,
and DuckDB, which types a partition by the columns that are left, to read them. And format 1 where an hour, month or
year became void: the field is a number under one spec and a timestamp under another, and DuckDB, which takes the type
of a field from one manifest for all, ends or not by the order in which they are listed.

Its extensions for Iceberg and Avro come as packages, so nothing is fetched when tests run.
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
    """Reads tables one after the other; its process is started when it is needed, and again when it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def keys(self, table: Table) -> Keys:
        """The columns ``pk`` and ``n`` of all rows, in order.

        Raises:
            DuckDbError: The table cannot be read.
        """
        answer = self._ask(table.metadata_location.removeprefix("file://").removeprefix("file:"))
        if "error" in answer:
            raise DuckDbError(answer["error"])
        return in_order((pk, n) for pk, n in answer["rows"])

    def reads(self, original: Table, expected: Keys) -> bool:
        """Whether DuckDB reads a table that Spark wrote, and so can judge what becomes of it."""
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
    """What DuckDB is to find for these rows."""
    return in_order((row["pk"], row["n"]) for row in rows)


def in_order(rows: Iterable[tuple[int, int | None]]) -> Keys:
    """Rows to compare; null comes last."""
    return sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or 0))


def left_out(table: Table) -> bool:
    """Whether a table has deletes on which DuckDB's word counts for nothing."""
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
    """Answer every location on a line of JSON; an error is the last answer, for a database that failed is of no use."""
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
