"""Concurrent operations of every kind: no row is lost or doubled, and Spark agrees. ``make soak`` runs it for minutes.

Writers, rewriters, spec evolution and expiry run concurrently; a checker reads all the time and compares with a model.

Rule: every change reported as committed names its snapshot. Ordered by sequence number, these changes are a serial
history; replayed on plain Python rows, it must give the rows the checker read from every snapshot, and the final rows
of the table. A failed change must have no effect, so it is not in the history.

Some requests and responses of the catalog are lost on purpose, before and after the commit is applied.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import floeplan as fp
from floeplan.datasource.io import BATCH_ID, QUERY_ID, SourceOptions, StreamAppends
from floeplan.errors import CommitError, CorruptMetadataError, FloeplanError
from floeplan.partition.evolution import AddField, DropField, Term
from floeplan.scan.model import ScanOptions
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy
from floeplan.transaction.evolve_spec import evolve_spec
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.spark.lake import NAME, Lake
from tests.support.tables.commits import reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

SECONDS = float(os.environ.get("FLOEPLAN_SOAK_SECONDS", "0"))
STEPS = 1_000_000 if SECONDS else 3
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "version", LongType())
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)
PARTS = ("a", "b", "c")
MOST_TRIES = 5000
"""A failed operation is repeated on the newer table, at most this often."""
QUIET = ScanOptions(report=False, cache=False)
SMALL_FILES = {"target-file-size-bytes": "1000000", "min-input-files": "2"}

State = dict[int, tuple[str, int]]
"""Rows by id: part and version."""

Effect = Callable[[State], State]


@dataclass
class Log:
    """Committed changes by sequence number, and the rows the checker read from each snapshot."""

    changes: dict[int, tuple[str, Effect]] = field(default_factory=dict)
    seen: dict[int, State] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    restarting: threading.Lock = field(default_factory=threading.Lock)
    """Held by a restarting stream: it finds its written batches by its last snapshot, which expiry could remove."""

    def committed(self, name: str, table: Table, snapshot_id: int, effect: Effect) -> None:
        snapshot = table.refresh().snapshot_by_id(snapshot_id)
        assert snapshot is not None, f"{name} committed snapshot {snapshot_id}, which the table lacks"
        assert snapshot.sequence_number is not None
        with self.lock:
            assert snapshot.sequence_number not in self.changes, f"{name} has a duplicate sequence number"
            self.changes[snapshot.sequence_number] = (name, effect)

    def history(self, start: State) -> Iterator[tuple[int, str, State]]:
        """The serial history: sequence number, name and resulting rows of each change."""
        state = start
        for number in sorted(self.changes):
            name, effect = self.changes[number]
            state = effect(state)
            yield number, name, state


class LossyCatalog(SqlCatalog):
    """Loses one response in ten; in half of these cases the commit is applied."""

    chance: random.Random

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        lost = self.chance.random()
        if lost < 0.05:
            raise ConnectionError("the request was lost")
        response = super().commit_table(table, requirements, updates)
        if lost > 0.95:
            raise ConnectionError("the answer was lost")
        return response


def create(catalog: SqlCatalog, name: str, version: int, mode: str) -> Table:
    """The shared table, with one row per id."""
    modes = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
    properties = {"format-version": str(version), "commit.retry.num-retries": "20"} | modes
    with writable_metadata(catalog._load_file_io()):
        table = catalog.create_table(name, SCHEMA, partition_spec=SPEC, properties=properties)
    fp.append(table, arrow(START))
    return table.refresh()


START: State = {number: (PARTS[number % 3], 0) for number in range(60)}


def arrow(rows: State) -> pa.Table:
    columns = [list(rows), [part for part, _ in rows.values()], [version for _, version in rows.values()]]
    return pa.table(dict(zip(("id", "part", "version"), columns, strict=True)))


def read(table: Table) -> State:
    rows = fp.plan_scan(table, options=QUIET).to_arrow().to_pylist()
    found = {row["id"]: (row["part"], row["version"]) for row in rows}
    assert len(found) == len(rows), "an id was read twice"
    return found


@dataclass
class Actor:
    """Changes the table repeatedly, with its own catalog and random generator."""

    log: Log
    catalog: SqlCatalog
    name: str
    seed: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        lossy = LossyCatalog(self.catalog.name, **self.catalog.properties)
        lossy.chance = random.Random(self.seed + 1)
        self.table = lossy.load_table(self.name)
        waits = RetryPolicy(retries=20, min_wait_ms=5, max_wait_ms=200)
        self.options = CommitOptions(retry=waits, status_check=waits)
        self.next_id = 1_000_000 * (self.seed + 1)
        self.batch = 0

    def changed(self, name: str, result: fp.DmlResult, effect: Effect) -> None:
        if result.snapshot_id is not None:
            self.log.committed(name, self.table, result.snapshot_id, effect)

    def append(self) -> None:
        rows = {self.next_id + at: (self.chance.choice(PARTS), 0) for at in range(5)}
        self.next_id += 5
        result = fp.append(self.table, arrow(rows), options=self.options)
        self.changed("append", result, lambda state: state | rows)

    def stream(self) -> None:
        """A batch of a stream; one in three is repeated, as after a crash that lost Spark's checkpoint of the batch."""
        rows = {self.next_id + at: (self.chance.choice(PARTS), 0) for at in range(3)}
        self.next_id += 3
        where = {f"catalog.{key}": value for key, value in self.catalog.properties.items()}
        options = {"table": self.name, "catalog": self.catalog.name, "query-id": f"stream {self.seed}", **where}
        with self.log.restarting:
            for _ in range(2 if self.chance.random() < 0.3 else 1):
                writer = StreamAppends(SourceOptions(options), overwrite=False)
                writer.commit([writer.write(iter(arrow(rows).to_batches()))], self.batch)
            for snapshot in self.table.refresh().metadata.snapshots:
                properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
                if (properties.get(QUERY_ID), properties.get(BATCH_ID)) == (options["query-id"], str(self.batch)):
                    self.log.committed("stream", self.table, snapshot.snapshot_id, lambda state: state | rows)
        self.batch += 1

    def upsert(self) -> None:
        ids = [*self.chance.sample(range(60), 4), self.next_id]
        self.next_id += 1
        rows = {number: (self.chance.choice(PARTS), self.chance.randrange(1000)) for number in ids}
        merge = fp.merge(self.table, arrow(rows), on=["id"], options=self.options)
        result = merge.when_matched_update().when_not_matched_insert().execute()
        self.changed("upsert", result, lambda state: state | rows)

    def delete(self) -> None:
        first = self.chance.randrange(60)
        result = fp.delete(self.table, f"id BETWEEN {first} AND {first + 2}", options=self.options)
        self.changed(
            "delete", result, lambda state: {i: row for i, row in state.items() if not first <= i <= first + 2}
        )

    def update(self) -> None:
        part, rest = self.chance.choice(PARTS), self.chance.randrange(5)
        where = f"part = '{part}' AND id % 5 = {rest}"
        result = fp.update(self.table, {"version": "version + 1"}, where, options=self.options)

        def effect(state: State) -> State:
            return {i: (p, v + 1) if p == part and i % 5 == rest else (p, v) for i, (p, v) in state.items()}

        self.changed("update", result, effect)

    def rewrite(self) -> None:
        strategy, by = self.chance.choice([("binpack", ()), ("sort", ("id",)), ("zorder", ("id", "version"))])
        spec = self.chance.choice(["keep", "current"])
        chosen = SMALL_FILES | {"partial-progress.enabled": self.chance.choice(["true", "false"])}
        fp.rewrite_data_files(
            self.table.refresh(), strategy=strategy, by=by, spec=spec, options=chosen, commit=self.options
        )

    def evolve(self) -> None:
        """Alternate between two specs, and upgrade files to the default one."""
        bucketed = any(isinstance(f.transform, BucketTransform) for f in self.table.refresh().spec().fields)
        change = DropField("ids") if bucketed else AddField(Term(("id",), BucketTransform(2)), "ids")
        evolve_spec(self.table, [change], options=self.options)
        fp.upgrade_spec(
            self.table.refresh(),
            options=fp.UpgradeOptions(metadata_only=self.chance.random() < 0.5),
            commit=self.options,
        )

    def expire(self) -> None:
        now = int(time.time() * 1000)
        with self.log.restarting:
            fp.expire_snapshots(
                self.table.refresh(), older_than_ms=now, retain_last=25, dry_run=False, commit=self.options
            )

    def planned_on_expired_snapshot(self) -> bool:
        """Whether the planned snapshot has been expired; reading it is then allowed to fail."""
        planned = self.table.metadata.current_snapshot_id
        return planned is not None and self.catalog.load_table(self.name).snapshot_by_id(planned) is None

    def check(self) -> None:
        """Read the newest snapshot; reading may fail only if it was expired concurrently."""
        table = self.catalog.load_table(self.name)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.sequence_number is not None
        try:
            rows = read(table)
        except CorruptMetadataError:
            if table.refresh().snapshot_by_id(snapshot.snapshot_id) is None:
                return
            raise
        with self.log.lock:
            self.log.seen[snapshot.sequence_number] = rows


ACTORS: tuple[Callable[[Actor], None], ...] = (
    Actor.append,
    Actor.stream,
    Actor.upsert,
    Actor.upsert,
    Actor.delete,
    Actor.update,
    Actor.rewrite,
    Actor.rewrite,
    Actor.evolve,
    Actor.expire,
)


def run(catalog: SqlCatalog, name: str, *, steps: int, seconds: float = float("inf"), seed: int = 0) -> Log:
    """Run ``steps`` steps per actor, or as many as the time allows, but at least one."""
    log = Log()
    end = time.monotonic() + seconds

    def work(number: int, act: Callable[[Actor], None]) -> None:
        with _collected(log):
            actor = Actor(log, catalog, name, seed + number)
            done = tries = 0
            while done < steps and not log.failures and (not done or time.monotonic() < end):
                tries += 1
                assert tries <= MOST_TRIES, f"{act.__name__} never succeeds"
                try:
                    act(actor)
                except CommitError as refusal:
                    if not refusal.retryable or refusal.committed:
                        raise
                    log.refused.append(f"{act.__name__}: {refusal.message}")
                except CorruptMetadataError as missing:
                    if not actor.planned_on_expired_snapshot():
                        raise
                    log.refused.append(f"{act.__name__}: {missing.message}")
                else:
                    done, tries = done + 1, 0

    def watch() -> None:
        with _collected(log):
            checker = Actor(log, catalog, name, seed + len(ACTORS))
            while any(thread.is_alive() for thread in threads) and not log.failures:
                checker.check()

    threads = [threading.Thread(target=work, args=(number, act)) for number, act in enumerate(ACTORS)]
    for thread in threads:
        thread.start()
    watch()
    for thread in threads:
        thread.join()
    return log


@contextmanager
def _collected(log: Log) -> Iterator[None]:
    try:
        yield
    except (FloeplanError, AssertionError, OSError) as error:
        log.failures.append(error)


def verify(log: Log, table: Table) -> State:
    """Compare everything the checker read with the serial history; returns the expected final rows."""
    if log.failures:
        raise log.failures[0]
    states = {0: START} | {number: state for number, _, state in log.history(START)}
    numbers = sorted(states)
    for number, rows in sorted(log.seen.items()):
        last = max(n for n in numbers if n <= number)
        assert rows == states[last], f"snapshot {number}, after {log.changes.get(last, ('the start',))[0]} ({last})"
    return states[numbers[-1]]


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        pytest.param(2, "merge-on-read", marks=pytest.mark.matrix),
        pytest.param(2, "copy-on-write", marks=pytest.mark.matrix),
        pytest.param(3, "merge-on-read", marks=pytest.mark.matrix),
    ],
)
def test_history_is_serial(lake: Lake, spark: SparkSession, version: int, mode: str) -> None:
    catalog = lake.open_catalog()
    catalog.create_namespace_if_not_exists("soak")
    name = f"soak.v{version}_{mode.replace('-', '_')}"
    table = create(catalog, name, version, mode)
    log = run(catalog, name, steps=STEPS, seconds=SECONDS or float("inf"), seed=100 * version)
    expected = verify(log, table)
    assert read(table.refresh()) == expected
    assert {change for change, _ in log.changes.values()} >= {"append", "stream", "upsert", "delete", "update"}
    rows = spark.table(f"{NAME}.{name}").collect()
    assert sorted(map(tuple, rows)) == sorted((i, *row) for i, row in expected.items())
    assert [finding for finding in fp.doctor(table.refresh()).findings if finding.severity == "error"] == []
    assert all(table.io.new_input(path).exists() for path in reachable(table))
