"""Row-level changes on Spark: ``fp.delete``, ``fp.update``, ``fp.merge`` and ``fp.append`` against Iceberg's commands.

Evolved tables of formats 2 and 3, merge-on-read, one session, all checks enabled. Each run works on its own fork of the
table, so that all contenders change the same rows. Contenders alternate, in changing order, and the best run of each
counts. CPU seconds of all processes, and wall seconds. The bar is 0.2 for DELETE and MERGE and 1.0 for appends; for CPU
time alone, it is 0.4 for UPDATE, whose floor is decompressing its columns, and 0.7 for appends by tasks, whose floor is
sending the rows to the tasks, which encode them into memory, neither sorted nor divided.

MERGE and UPDATE are then measured once each on a larger table, MERGE with keys for a tenth of its rows. The bar of
MERGE is 0.5 for CPU time, and its floor is decompressing its columns. The table of format 3 is the one of format 2,
upgraded. After each case Spark reads both forks and verifies that they have the same rows. The last cases commit to a
table with thousands of manifests.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.dml_contenders import (
    IN_TASKS,
    Case,
    appends,
    decompression,
    deletes,
    many_manifests,
    merge,
    send_to_tasks,
    update,
)
from bench.dml_tables import evolved, listed, new_rows, source
from bench.spark_session import start_session
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = {"small": 600_000, "default": 6_000_000, "large": 24_000_000}
MANIFESTS = {"small": 1_000, "default": 10_000, "large": 10_000}
SIZED_ROWS = {"small": 1_200_000, "default": 50_000_000, "large": 50_000_000}
KEYS = (50_000, 1_000_000)
TURNS = 3
METRICS = ("CPU s", "wall s")


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("dml")
        os.environ["FLOEPLAN_CACHE"] = f"{folder}/cache"
        spark = start_session(lake)
        try:
            bench = _Bench(spark, catalog)
            found = bench.row_changes(Path(folder), ROWS[size]) + bench.at_size(Path(folder), SIZED_ROWS[size])
            return found + bench.commits(MANIFESTS[size])
        finally:
            spark.stop()


class _Bench:
    def __init__(self, spark: SparkSession, catalog: SqlCatalog) -> None:
        self.spark, self.catalog = spark, catalog
        self.forks = count()

    def row_changes(self, folder: Path, rows: int) -> list[dict[str, Any]]:
        new = rows // 4
        cases = [
            *deletes(self.spark, rows),
            update(self.spark),
            *(merge(self.spark, source(folder, min(keys, rows // 2), rows), keys) for keys in KEYS),
            *appends(self.spark, new_rows(self.spark, folder, 2 * rows, new), new),
        ]
        tables = {version: evolved(self.spark, self.catalog, version, rows) for version in (2, 3)}
        return self._on_tables(cases, tables)

    def at_size(self, folder: Path, rows: int) -> list[dict[str, Any]]:
        """A table of which neither side holds the rows or keys in one task."""
        keys = rows // 10
        cases = [merge(self.spark, source(folder, keys, rows), keys, at_size=True), update(self.spark)]
        written = evolved(self.spark, self.catalog, 2, rows)
        upgraded = self._fork(written.metadata_location)
        fp.upgrade_format(upgraded, to=3)
        return self._on_tables(cases, {2: written, 3: upgraded.refresh()}, f" of {rows:,} rows", turns=1)

    def _on_tables(
        self, cases: Sequence[Case], tables: Mapping[int, Table], of_rows: str = "", turns: int = TURNS
    ) -> list[dict[str, Any]]:
        found = []
        for version, table in tables.items():
            for case in cases:
                name = f"v{version}{of_rows}: {case.name}"
                shown = self._compared(case, table.metadata_location, name, same_rows=True, turns=turns)
                peer = shown[0]["peer"]
                if case.columns_read:
                    floor = decompression(table, case.columns_read)
                    shown.append(_row(f"{name}, decompressing its columns (floor)", METRICS[0], floor, peer))
                if case.name.endswith(IN_TASKS):
                    for what, encode in (("without writing", False), ("encoded into memory (floor)", True)):
                        taken = min(self._sending(table, encode) for _ in range(turns))
                        shown.append(_row(f"{name}, {what}", METRICS[0], taken, peer))
                found += shown
        return found

    def _sending(self, table: Table, encode: bool) -> float:
        clock = CpuClock()
        send_to_tasks(self.spark, table, encode=encode)
        return clock.seconds()

    def commits(self, manifests: int) -> list[dict[str, Any]]:
        """Also counts manifest reads and writes of planning and committing, with an empty and a filled cache."""
        location = listed(manifests).as_uri()
        found = []
        for case in many_manifests(self.spark):
            name = f"{manifests:,} manifests: {case.name}"
            found += self._compared(case, location, name, same_rows=False)
            with tempfile.TemporaryDirectory() as cache:
                os.environ["FLOEPLAN_CACHE"] = cache
                found += [row for state in ("empty", "filled") for row in self._counted(case, location, name, state)]
        return found

    def _counted(self, case: Case, location: str, name: str, state: str) -> list[dict[str, Any]]:
        table = self._fork(location)
        with _Opened(Path(table.location().removeprefix("file://"))) as opened:
            case.ours(table)
        counts = {"read": opened.read, "written": opened.written}
        return [
            {"suite": "dml", "case": f"{name}, {state} cache", "metric": f"Avro files {what}", "ours": number}
            for what, number in counts.items()
        ]

    def _compared(
        self, case: Case, location: str, name: str, *, same_rows: bool, turns: int = TURNS
    ) -> list[dict[str, Any]]:
        best = {metric: [float("inf")] * 2 for metric in METRICS}
        contenders: list[Callable[[Table], object]] = [case.ours, lambda table: self._sql(case.statement, table)]
        for turn in range(turns):
            forks = [self._fork(location) for _ in contenders]
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                clock, wall = CpuClock(), time.perf_counter()
                contenders[which](forks[which])
                taken = clock.seconds(), time.perf_counter() - wall
                for metric, value in zip(METRICS, taken, strict=True):
                    best[metric][which] = min(best[metric][which], value)
        if same_rows:
            left = [self._fingerprint(fork) for fork in forks]
            assert left[0] == left[1], (name, left)
        bars = {metric: None if case.cpu_only and metric != METRICS[0] else case.bar for metric in METRICS}
        return [_row(name, metric, ours, theirs, bars[metric]) for metric, (ours, theirs) in best.items()]

    def _fork(self, location: str) -> Table:
        return self.catalog.register_table(f"dml.fork_{next(self.forks)}", location)

    def _sql(self, statement: str, table: Table) -> None:
        self.spark.sql(statement.format(table=_name(table)))

    def _fingerprint(self, table: Table) -> object:
        """The row count and a checksum of all values, as Iceberg reads them."""
        columns = ", ".join(field.name for field in table.schema().fields)
        hashed = f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))"
        return self.spark.sql(f"SELECT count(*), {hashed} FROM {_name(table)}").collect()


class _Opened:
    """Counts the distinct Avro files under a folder that this process reads and writes."""

    _listening: _Opened | None = None
    _hooked = False

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._seen: dict[str, set[str]] = {"r": set(), "x": set()}

    @property
    def read(self) -> int:
        return len(self._seen["r"])

    @property
    def written(self) -> int:
        return len(self._seen["x"])

    def __enter__(self) -> _Opened:
        if not _Opened._hooked:
            sys.addaudithook(_Opened._heard)
            _Opened._hooked = True
        _Opened._listening = self
        return self

    def __exit__(self, *_: object) -> None:
        _Opened._listening = None

    @staticmethod
    def _heard(event: str, arguments: tuple[Any, ...]) -> None:
        listening = _Opened._listening
        if listening is None or event != "open" or not isinstance(arguments[0], str):
            return
        path, mode = arguments[0], str(arguments[1])[:1]
        if path.startswith(listening._folder) and path.endswith(".avro") and mode in listening._seen:
            listening._seen[mode].add(path)


def _name(table: Table) -> str:
    return ".".join((NAME, *table.name()))


def _row(case: str, metric: str, ours: float, theirs: float, bar: float | None = None) -> dict[str, Any]:
    ratio = ours / theirs
    shown = {"suite": "dml", "case": case, "metric": metric, "ours": ours, "peer": theirs, "ratio": ratio}
    return shown | {"bar": None if bar is None else f"≤ {bar} {'met' if ratio <= bar else 'MISSED'}"}
