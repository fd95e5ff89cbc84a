"""DuckDB as another reader of tables.

Its extensions for Iceberg and Avro come as packages, so nothing is fetched when tests run.
"""

from __future__ import annotations

from importlib.resources import files

import duckdb
from pyiceberg.table import Table

Keys = list[tuple[int, int | None]]


def keys(table: Table) -> Keys:
    """The columns ``pk`` and ``n`` of all rows, sorted."""
    location = table.metadata_location.removeprefix("file://").removeprefix("file:")
    with _connect() as connection:
        return in_order(connection.execute("SELECT pk, n FROM iceberg_scan($1)", [location]).fetchall())


def can_read(table: Table) -> bool:
    """Whether DuckDB 1.5 reads such a table right: not with equality deletes, whose nulls it fails on, and not with
    deletion vectors, of which it reads some wrong, those of Spark as well.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    has_vectors = table.metadata.format_version > 2 and snapshot.summary["total-delete-files"] != "0"
    return not has_vectors and snapshot.summary["total-equality-deletes"] in ("0", None)


def in_order(rows: Keys) -> Keys:
    """Rows to compare; null comes last."""
    return sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or 0))


def _connect() -> duckdb.DuckDBPyConnection:
    """A database of its own: one that has met a table it fails on answers no more."""
    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "1"}
    connection = duckdb.connect(config=settings)
    for name in ("avro", "iceberg"):
        folder = files(f"duckdb_extension_{name}").joinpath("extensions", f"v{duckdb.__version__}")
        connection.load_extension(str(folder.joinpath(f"{name}.duckdb_extension")))
    return connection
