"""The tables of the local benchmarks: one set of data files under three partition specs, with and without deletes.

52 files: 16 under an unpartitioned spec and 16 under ``day(ts)``, one day each; then 20 under ``day(ts), region``, four
for each of 5 days. Each day has its own range of ids, in random order. The second table has the same files, and 5 % of
the rows deleted by position.

In a bucket, the files are written to the folder that the store serves, and named by their place in the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

import floeplan as fp
from bench.local_contenders import s3_options
from bench.object_store import BUCKET
from bench.read_tables import SCHEMA

PLAIN_DAYS, DAYS, REGION_DAYS = 16, 16, 5
REGIONS = np.array(["ap", "af", "eu", "us"])
FIRST_DAY = np.datetime64("2024-03-01", "us")
DAY = np.timedelta64(1, "D")


@dataclass(frozen=True, slots=True)
class LocalTables:
    """Metadata files of both tables, and literals of the queries."""

    clean: str
    deleted: str
    rows: int
    one_id: int
    one_day: tuple[str, str]


class BucketIO(PyArrowFileIO):
    """Files of the bucket, opened in the folder that the store serves."""

    def new_input(self, location: str) -> InputFile:
        return super().new_input(self._path(location))

    def new_output(self, location: str) -> OutputFile:
        return super().new_output(self._path(location))

    def _path(self, location: str) -> str:
        return location.replace(f"s3://{BUCKET}", self.properties["bench.folder"])


def make_tables(folder: Path, rows_per_file: int, endpoint: str | None = None) -> LocalTables:
    """Write both tables to a folder; with an endpoint, as tables of its bucket."""
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
    if endpoint is not None:
        io = {"py-io-impl": f"{BucketIO.__module__}.{BucketIO.__name__}", "bench.folder": folder.as_uri()}
        properties |= {"warehouse": f"s3://{BUCKET}"} | io | s3_options(endpoint)
    catalog = SqlCatalog("local", **properties)
    catalog.create_namespace("local")
    table = catalog.create_table("local.clean", SCHEMA, properties={"format-version": "2"})
    for day in range(PLAIN_DAYS):
        fp.append(table, _day(day, rows_per_file, 1), fast=True)
    with table.update_spec() as update:
        update.add_field("ts", "day", "ts_day")
    for day in range(PLAIN_DAYS, PLAIN_DAYS + DAYS):
        fp.append(table.refresh(), _day(day, rows_per_file, 1), fast=True)
    with table.update_spec() as update:
        update.add_identity("region")
    for day in range(PLAIN_DAYS + DAYS, PLAIN_DAYS + DAYS + REGION_DAYS):
        fp.append(table.refresh(), _day(day, rows_per_file, len(REGIONS)), fast=True)
    table.refresh()
    deleted = catalog.register_table("local.deleted", table.metadata_location)
    fp.delete(deleted, "id % 20 = 7", mode="merge-on-read")
    total = rows_per_file * (PLAIN_DAYS + DAYS + REGION_DAYS * len(REGIONS))
    day = (FIRST_DAY + 20 * DAY).astype("datetime64[D]")
    span = f"{day}T00:00:00+00:00", f"{day + 1}T00:00:00+00:00"
    one_id = 20 * rows_per_file + rows_per_file // 2
    return LocalTables(table.metadata_location, deleted.refresh().metadata_location, total, one_id, span)


def _day(day: int, rows_per_file: int, files: int) -> pa.Table:
    """The rows of a day; the last days have more, one file for each region."""
    rows = rows_per_file * files
    before = min(day, PLAIN_DAYS + DAYS) * rows_per_file + max(day - PLAIN_DAYS - DAYS, 0) * rows
    random = np.random.default_rng(day)
    micros = np.sort(random.integers(0, DAY // np.timedelta64(1, "us"), rows))
    return pa.table(
        [
            pa.array(random.permutation(np.arange(before, before + rows))),
            pa.array((FIRST_DAY + day * DAY) + micros.astype("timedelta64[us]")).cast(SCHEMA.field("ts").type),
            pa.array(REGIONS[random.permutation(np.arange(rows) % len(REGIONS))]),
            pa.array(random.integers(0, 10**9, rows)).cast(pa.decimal128(19, 0)).cast(SCHEMA.field("amount").type),
            pa.array(random.integers(0, 1000, rows), pa.int32()),
            pa.array(np.char.add("note ", random.integers(0, 10**9, rows).astype(str))),
        ],
        schema=SCHEMA,
    )
