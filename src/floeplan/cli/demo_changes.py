"""The last chapter of the demo: a table that changes its partitioning and is changed all the same.

The table is made anew each time, in the catalog that was asked for. Nothing here needs a JVM.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.catalog import open_catalog
from floeplan.cli.changes import draw_result
from floeplan.sql_text.run import StatementOptions, StatementResult, run_text
from floeplan.sql_text.session import SparkOnDemand

NAMESPACE = "floeplan_demo"
TABLE = f"{NAMESPACE}.floes"
SCHEMA = pa.schema([("id", pa.int64()), ("sea", pa.string()), ("km2", pa.float64())])
_SAME_EVERY_TIME = (
    "operation",
    "rows_deleted",
    "rows_inserted",
    "rows_updated",
    "data_files_added",
    "data_files_removed",
    "attempts",
)
STATEMENTS = (
    (
        f"INSERT INTO {TABLE} VALUES (1, 'kara', 12.5), (2, 'weddell', 80.0), (3, 'kara', 3.25), (4, 'ross', 41.0)",
        "Four rows in one file: the table has no partitions.",
    ),
    (
        f"ALTER TABLE {TABLE} ADD PARTITION FIELD sea",
        "From now on new rows lie by sea. The file that is there stays as it is.",
    ),
    (
        f"INSERT INTO {TABLE} VALUES (5, 'kara', 7.0), (6, 'ross', 19.5), (7, 'weddell', 2.0)",
        "One file a sea, under the new spec.",
    ),
    (
        f"DELETE FROM {TABLE} WHERE sea = 'kara'",
        "Three rows of two specs: the partition of the new spec went by metadata alone, the old file was written again "
        "without its rows, under the new spec.",
    ),
    (f"UPDATE {TABLE} SET km2 = km2 / 2 WHERE sea = 'ross'", "A sea has melted by half."),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A statement, what it did, and what to look at."""

    command: str
    look: str
    result: StatementResult

    def to_dict(self) -> dict[str, Any]:
        """What is the same every time."""
        document = self.result.to_dict()
        specs = sorted({manifest["spec_id"] for manifest in document["manifests_written"]})
        return {"command": self.command} | {key: document[key] for key in _SAME_EVERY_TIME} | {"specs": specs}


def make_changes(catalog_name: str | None, program: str) -> tuple[Change, ...]:
    """Make the table and change it."""
    catalog = open_catalog(catalog_name)
    _make_table(catalog)
    named = "" if catalog_name is None else f" --catalog {shlex.quote(catalog_name)}"
    return tuple(
        Change(
            f'{program} sql "{statement}"{named}',
            look,
            run_text(statement, SparkOnDemand(), StatementOptions(catalog=catalog)),
        )
        for statement, look in STATEMENTS
    )


def draw_changes(changes: tuple[Change, ...]) -> RenderableType:
    """Each statement with its result."""
    parts: list[RenderableType] = []
    for change in changes:
        parts += [Text(f"  {change.command}"), Text(), draw_result(change.result), Text()]
        parts += [Text(f"  {change.look}"), Text()]
    return Group(*parts)


def _make_table(catalog: Catalog) -> None:
    catalog.create_namespace_if_not_exists(NAMESPACE)
    if catalog.table_exists(TABLE):
        catalog.drop_table(TABLE)
    catalog.create_table(TABLE, SCHEMA)
