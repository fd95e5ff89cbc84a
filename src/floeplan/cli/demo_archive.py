"""The table of the demo: telemetry of eight missions, written with three partition specs.

    January    unpartitioned            every mission appends for itself, two weeks at a time
    February   day                      twelve ground stations append all missions
    March      mission and month        every day one file a mission, and some of February arrives late

Then readings of a faulty sensor are deleted and others corrected by an upsert. Values are always the same. No JVM is
needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform

from floeplan.dml.append import append
from floeplan.dml.delete_update import delete
from floeplan.dml.merge.builder import merge
from floeplan.errors import InvalidOptionError
from floeplan.maintenance.doctor import doctor
from floeplan.partition.evolution import AddField, Term, drop_all
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.transaction.evolve_spec import evolve_spec

NAMESPACE = "floeplan_demo"
NAME, SOURCE, TWIN = (f"{NAMESPACE}.{name}" for name in ("telemetry", "source", "twin"))
TIME = "sample_timestamp_ns"
WEEK = f"mission_id = 'apollo-7' AND {TIME} >= TIMESTAMP_NTZ '2024-02-26' AND {TIME} < TIMESTAMP_NTZ '2024-03-04'"
FAULTY = (
    f"mission_id = 'apollo-3' AND sensor_kind = 'thermal' "
    f"AND {TIME} >= TIMESTAMP_NTZ '2024-02-20' AND {TIME} < TIMESTAMP_NTZ '2024-03-10'"
)
SIZES = {"small": 48, "medium": 480, "large": 2880}
"""Readings of a mission in a day."""

SCHEMA = pa.schema(
    [
        ("mission_id", pa.string()),
        (TIME, pa.timestamp("us")),
        ("payload_id", pa.int64()),
        ("sensor_kind", pa.string()),
        ("panel_voltage", pa.float64()),
    ]
)
MISSIONS = [f"apollo-{number}" for number in range(1, 9)]
STATIONS = 12
_START = np.datetime64("2024-01-01", "us")
_FEBRUARY, _MARCH = 31, 60
_CORRECTED = 400
_BYTES_A_ROW, _BYTES_A_FILE = 11, 2_000


@dataclass(frozen=True, slots=True)
class Archive:
    """The table and how many readings a mission has in a day."""

    catalog: Catalog
    readings: int

    @classmethod
    def of(cls, catalog: Catalog, size: str) -> Archive:
        """The archive of a named size."""
        if size not in SIZES:
            raise InvalidOptionError(
                f"--size is {size!r} but must be one of {', '.join(SIZES)}", context={"option": "--size"}
            )
        return cls(catalog, SIZES[size])

    def build(self, tick: Callable[[str], None]) -> Table:
        """Create the table; ``tick`` is called with each step."""
        remove_archive(self.catalog)
        self.catalog.create_namespace_if_not_exists(NAMESPACE)
        target = _BYTES_A_FILE + 2 * self.readings * _BYTES_A_ROW
        properties = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
        properties |= {"format-version": "2", "write.target-file-size-bytes": str(target)}
        self.catalog.create_table(NAME, SCHEMA, properties=properties)
        tick("January: no partitions")
        for first, days in ((0, 15), (15, 16)):
            for mission in MISSIONS:
                self._append([mission], first, days)
        tick("February: partitioned by day")
        partition_by(self._load(), Term((TIME,), DayTransform()))
        for station in range(STATIONS):
            self._append(MISSIONS, _FEBRUARY, 29, share=STATIONS, part=station)
        tick("March: partitioned by mission and month")
        partition_by(self._load(), Term(("mission_id",), IdentityTransform()), Term((TIME,), MonthTransform()))
        for day in range(_MARCH, _MARCH + 28):
            self._append(MISSIONS, day, 1)
        tick("late readings, a delete and an upsert")
        self._append(MISSIONS[4:], _MARCH - 7, 6, share=STATIONS)
        delete(self._load(), FAULTY)
        # The upsert has readings of the week with other voltages, and a few new ones.
        plan = plan_scan(self._load(), f"{WEEK} AND sensor_kind = 'panel'", options=ScanOptions(report=False))
        known = plan.to_arrow().sort_by([(TIME, "ascending"), ("payload_id", "ascending")]).slice(0, _CORRECTED)
        known = known.set_column(4, "panel_voltage", pc.add(known["panel_voltage"], 0.25)).cast(SCHEMA)
        corrections = pa.concat_tables([known, _readings(["apollo-7"], _MARCH + 1, 1, 8, 1, 0)])
        upsert = merge(self._load(), corrections, on=["mission_id", TIME, "payload_id"])
        upsert.when_matched_update().when_not_matched_insert().execute()
        return self._load()

    def _append(self, missions: list[str], first_day: int, days: int, share: int = 1, part: int = 0) -> None:
        """Append every ``share``-th reading of some days."""
        append(self._load(), _readings(missions, first_day, days, self.readings, share, part))

    def _load(self) -> Table:
        return self.catalog.load_table(NAME)


def remove_archive(catalog: Catalog) -> None:
    """Drop the tables of the demo with all their files."""
    if catalog.namespace_exists(NAMESPACE):
        for name in (NAME, SOURCE, TWIN):
            drop_with_files(catalog, name)
        if not catalog.list_tables(NAMESPACE):
            catalog.drop_namespace(NAMESPACE)


def drop_with_files(catalog: Catalog, name: str) -> None:
    """Drop a table, if it exists, and delete its folder."""
    if catalog.table_exists(name):
        location = urlparse(catalog.load_table(name).location())
        catalog.drop_table(name)
        if location.scheme in ("", "file"):
            shutil.rmtree(Path(url2pathname(location.path)), ignore_errors=True)


def partition_by(table: Table, *terms: Term) -> None:
    """Replace the partition spec by these terms."""
    evolve_spec(table, (*drop_all(table.metadata), *(AddField(term) for term in terms)))


def _readings(missions: list[str], first_day: int, days: int, readings: int, share: int, part: int) -> pa.Table:
    """Readings at regular times, every ``share``-th of them, with reproducible values."""
    random = np.random.default_rng([first_day, days, part, len(missions), int(missions[0].split("-")[1])])
    at = np.arange(part, days * readings, share)
    times = _START + np.timedelta64(first_day, "D") + at * np.timedelta64(86_400_000_000 // readings, "us")
    count = len(at) * len(missions)
    return pa.table(
        {
            "mission_id": pa.array(missions).take(pa.array(np.repeat(np.arange(len(missions)), len(at)))),
            TIME: pa.array(np.tile(times, len(missions))),
            "payload_id": random.integers(0, 1000, count),
            "sensor_kind": pa.array(["gyro", "magnetometer", "panel", "thermal"]).take(
                pa.array(random.integers(0, 4, count))
            ),
            "panel_voltage": random.normal(27.0, 1.0, count).round(2),
        },
        schema=SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """The appended rows, the rows that a query returns, and the doctor's findings."""

    rows: int
    found: int
    findings: tuple[str, ...]


def lose_rows(catalog: Catalog) -> Loss:
    """Append a file of an older spec with PyIceberg, and query it, on separate tables.

    PyIceberg 0.12 records every appended data file in a manifest of the default spec, not of the file's spec: here a
    day is stored as a month, and a query for its month misses its rows.
    """
    rows = pa.table({"reading": list(range(1000)), "day": pa.array([date(2024, 3, 5)] * 1000)})
    try:
        for name in (SOURCE, TWIN):
            partition_by(catalog.create_table(name, rows.schema), Term(("day",), DayTransform()))
        append(catalog.load_table(SOURCE), rows)
        (task,) = catalog.load_table(SOURCE).scan().plan_files()
        partition_by(catalog.load_table(TWIN), Term(("day",), MonthTransform()))
        with catalog.load_table(TWIN).transaction() as change, change.update_snapshot().fast_append() as appending:
            appending.append_data_file(task.file)
        twin = catalog.load_table(TWIN)
        march = "day >= DATE '2024-03-01' AND day < DATE '2024-04-01'"
        found = plan_scan(twin, march, options=ScanOptions(report=False)).count()
        return Loss(rows.num_rows, found, tuple(finding.kind for finding in doctor(twin).findings))
    finally:
        for name in (SOURCE, TWIN):
            drop_with_files(catalog, name)
