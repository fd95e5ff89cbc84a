"""A small table with everything a page shows: three specs, real files of several row groups, deletes, and names that
contain HTML.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

import floeplan as fp
from floeplan.explorer.server import ExplorerServer, ExplorerService
from floeplan.partition.evolution import AddField, drop_all
from floeplan.sql_text.parse import parse_term
from floeplan.transaction.evolve_spec import evolve_spec

NAME = "db.telemetry"
EVIL = "<img src=x onerror=window.hacked=1>"
"""A mission name that must be escaped."""

MISSIONS = ("apollo", "gemini", "mercury", EVIL)
START = datetime(2024, 1, 1)
HOURS_A_DAY = 24
SCHEMA = Schema(
    NestedField(1, "mission", StringType()),
    NestedField(2, "ts", TimestampType()),
    NestedField(3, "payload", LongType()),
    NestedField(4, "voltage", DoubleType()),
    schema_id=0,
)


def telemetry(first_day: int, days: int, per_hour: int = 4) -> pa.Table:
    """``per_hour`` rows per mission, sorted by time."""
    hours = np.repeat(np.arange(first_day * HOURS_A_DAY, (first_day + days) * HOURS_A_DAY), per_hour * len(MISSIONS))
    numbers = np.arange(len(hours))
    return pa.table(
        {
            "mission": pa.array([MISSIONS[at % len(MISSIONS)] for at in numbers.tolist()]),
            "ts": pa.array([START + timedelta(hours=hour) for hour in hours.tolist()], pa.timestamp("us")),
            "payload": pa.array(numbers + first_day * 10_000),
            "voltage": pa.array(24.0 + (numbers * 7 % 60) / 10),
        }
    )


def explored_table(catalog: Catalog, name: str = NAME) -> Table:
    """Ten days by mission, ten by mission and day, ten by day, with deletes among the newest."""
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    by_mission = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "mission"), spec_id=0)
    properties = {
        "format-version": "2",
        "write.parquet.row-group-size-bytes": "4096",
        "write.delete.mode": "merge-on-read",
    }
    table = catalog.create_table(name, SCHEMA, partition_spec=by_mission, properties=properties)
    for day in range(0, 10, 2):
        fp.append(table, telemetry(day, 2))
    evolve_spec(table, [AddField(parse_term("day(ts)"))])
    for day in range(10, 20, 5):
        fp.append(table, telemetry(day, 5))
    table.refresh()
    evolve_spec(table, [*drop_all(table.metadata), AddField(parse_term("day(ts)"))])
    fp.append(table, telemetry(20, 10))
    fp.delete(table, where="ts >= TIMESTAMP '2024-01-25' AND payload % 10 = 3", mode="merge-on-read")
    return table.refresh()


# --- the server of the tests

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
TOKEN = "token-of-the-test"


@contextmanager
def serving(service: ExplorerService, host: str = "127.0.0.1") -> Iterator[ExplorerServer]:
    """Run a server in a thread until the block ends."""
    with ExplorerServer(service, 0, host) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
