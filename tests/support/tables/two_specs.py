"""Small real tables written by PyIceberg, for planner tests without Spark.

Without its native extra, PyIceberg writes only identity partitions, which is enough for two specs; tables that Spark
builds (``tests.support.spark.matrix``) cover the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

REGIONS = ("eu", "us", "ap")
START = datetime(2024, 3, 1)
EVENTS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("ts", pa.timestamp("us")), ("v", pa.float64())])


def catalog(folder: Path) -> SqlCatalog:
    """A catalog with its warehouse in a folder."""
    opened = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    opened.create_namespace_if_not_exists("db")
    return opened


def events(first: int, last: int) -> pa.Table:
    """One row per hour, alternating regions, ``v`` null in every tenth row."""
    ids = list(range(first, last))
    return pa.table(
        {
            "id": ids,
            "region": [REGIONS[i % 3] for i in ids],
            "ts": [START + timedelta(hours=i) for i in ids],
            "v": [None if i % 10 == 0 else i / 2 for i in ids],
        },
        schema=EVENTS,
    )


def two_spec_table(folder: Path, name: str = "db.events", properties: Mapping[str, str] | None = None) -> Table:
    """Two unpartitioned files (ids 0–99, 100–199), then one per region (ids 200–299)."""
    table = catalog(folder).create_table(name, EVENTS, properties=dict(properties or {}))
    table.append(events(0, 100))
    table.append(events(100, 200))
    with table.update_spec() as update:
        update.add_identity("region")
    table.append(events(200, 300))
    return table
