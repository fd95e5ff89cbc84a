"""What becomes of a table when a tool forgets that files have specs: done by PyIceberg itself, on a table of its own.

PyIceberg 0.12 files every data file it is given under the default spec. A day is stored as a month, and queries that
ask for the month it was do not find its rows. The table is removed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import DayTransform, MonthTransform

from floeplan.cli.demo_archive import SOURCE, TWIN, drop_with_files, partition_by
from floeplan.dml.append import append
from floeplan.maintain.doctor import doctor
from floeplan.partition.evolution import Term
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan

_MARCH = "day >= DATE '2024-03-01' AND day < DATE '2024-04-01'"


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows that were appended, those that a query finds, and what the doctor says of it."""

    rows: int
    found: int
    findings: tuple[str, ...]


def lose_rows(catalog: Catalog) -> Loss:
    """Let PyIceberg append a file of an older spec."""
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
        found = plan_scan(twin, _MARCH, options=ScanOptions(report=False)).count()
        return Loss(rows.num_rows, found, tuple(finding.kind for finding in doctor(twin).findings))
    finally:
        for name in (SOURCE, TWIN):
            drop_with_files(catalog, name)
