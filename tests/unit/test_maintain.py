"""``fp.maintain``: what is done in which order, budgets, two runs at once, killed runs, records and reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, TimestampType
from rich.console import Console, RenderableType

import floeplan as fp
from floeplan.cli.commands.maintain import draw, draw_explained
from floeplan.cli.main import main
from floeplan.errors import InvalidOptionError, UnknownTableError
from floeplan.explorer.documents import fleet_document
from floeplan.fleet.lease import PREFIX, live_claims
from floeplan.fleet.policy import Policy
from floeplan.fleet.policy_file import option_bytes, parse_policy
from floeplan.fleet.ranking import Queue, ranked
from floeplan.fleet.records import read_history, record
from floeplan.fleet.report import MaintainResult, Status, WorkReport, prometheus_text
from floeplan.fleet.run import MaintainOptions, run_maintenance
from floeplan.maintenance.doctor import doctor
from floeplan.metadata.manifests.entries import Content
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.candidates import still_written
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy
from floeplan.transaction.commit import commit_change
from tests.support.scan_reports import foreign_report, leaf, write_lines
from tests.support.tables.commits import delete_change, evolved_table, live_entries, patient, read_rows
from tests.support.tables.two_specs import EVENTS, START, catalog, events

pytestmark = pytest.mark.unit

FILES = 12
QUIET = Policy(runs=None)


def small_table(lake: SqlCatalog, name: str = "db.small", files: int = FILES, **properties: str) -> Table:
    """A table of small files."""
    table = lake.create_table(name, EVENTS, properties=properties)
    for number in range(files):
        fp.append(table, events(number * 10, number * 10 + 10), fast=True)
    return table.refresh()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with one table of small files and one healthy table; tests get a copy."""
    folder = tmp_path_factory.mktemp("fleet")
    lake = catalog(folder)
    small_table(lake)
    fp.append(lake.create_table("db.good", EVENTS), events(0, 100))
    lake.close()
    return folder


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> SqlCatalog:
    return catalog_at(built, tmp_path)


def catalog_at(built: Path, folder: Path) -> SqlCatalog:
    """A copy of a catalog under the same path, where the paths in its metadata lead."""
    # The warehouse has absolute paths, so the copy takes the place of the original and the original is kept.
    kept = built.with_name(f"{built.name}-kept")
    if not kept.exists():
        shutil.copytree(built, kept)
    shutil.rmtree(built)
    shutil.copytree(kept, built)
    return catalog(built)


def rows(lake: SqlCatalog, name: str = "db.small") -> list[int]:
    return sorted(
        fp.plan_scan(lake.load_table(name), options=fp.ScanOptions(report=False)).to_arrow()["id"].to_pylist()
    )


def files(lake: SqlCatalog, name: str = "db.small") -> int:
    return len(live_entries(lake.load_table(name)))


def run(lake: SqlCatalog, policy: Policy = QUIET, **options: Any) -> MaintainResult:
    return run_maintenance(MaintainOptions(policy=policy, **options), catalog=lake)


def work(result: MaintainResult, kind: str = "compact", table: str = "db.small") -> WorkReport | None:
    reports = (one for report in result.tables if report.table == table for one in report.work)
    return next((one for one in reports if one.work.kind == kind), None)


def status(result: MaintainResult, kind: str = "compact", table: str = "db.small") -> str | None:
    found = work(result, kind, table)
    return None if found is None else found.status.value


def findings(result: MaintainResult) -> dict[str, set[str]]:
    return {table.table: {one.kind for one in table.findings} for table in result.tables}


def leases(lake: SqlCatalog, name: str = "db.small") -> list[str]:
    return [key for key in lake.load_table(name).metadata.properties if key.startswith(PREFIX)]


def drawn(shown: RenderableType) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(shown)
    return cast(StringIO, console.file).getvalue()


def test_without_a_policy_small_files_are_merged_and_the_run_is_recorded(lake: SqlCatalog) -> None:
    before = rows(lake)
    result = fp.maintain(catalog=lake)
    assert result.exit_code == 0
    assert (rows(lake), files(lake), leases(lake)) == (before, 1, [])
    document = json.loads(json.dumps(result.to_dict()))
    assert {"tables", "spent", "left"} <= document.keys()
    assert document["spent"].keys() >= {"bytes", "seconds"}
    of_table = {one["table"]: one for one in document["tables"]}
    assert of_table["db.good"]["health"] == "healthy"
    assert of_table["db.good"]["work"] == []
    small = of_table["db.small"]
    assert small["health"] == "info"
    assert {one["kind"] for one in small["findings"]} == {"small-files", "many-manifests"}
    done = small["work"][[one["kind"] for one in small["work"]].index("compact")]
    assert done.keys() >= {"kind", "reason", "predicted", "achieved", "status"}
    assert (done["status"], done["predicted"]["gain"], done["achieved"]["gain"]) == ("done", 11 * 2**22, 11 * 2**22)
    assert document["left"] == []
    records = fp.plan_scan(lake.load_table("floeplan.maintenance_runs")).to_arrow().to_pylist()
    assert {(one["table_name"], one["kind"], one["status"]) for one in records} == {
        ("db.good", "look", "done"),
        ("db.small", "look", "done"),
        ("db.small", "compact", "done"),
        ("db.small", "rewrite-manifests", "not-needed"),
    }
    for _ in range(3):  # the records of the runs make no work either
        again = fp.maintain(catalog=lake)
        assert [one for table in again.tables for one in table.work] == []


def test_a_dry_run_changes_nothing(lake: SqlCatalog) -> None:
    before = {name: lake.load_table(name).metadata_location for name in ("db.small", "db.good")}
    result = fp.maintain("db.sm*", catalog=lake, dry_run=True)
    assert [table.table for table in result.tables] == ["db.small"]
    assert status(result) == "planned"
    assert before == {name: lake.load_table(name).metadata_location for name in before}
    assert lake.list_namespaces() == [("db",)]
    with pytest.raises(UnknownTableError, match=r"no table 'db\.none'"):
        fp.maintain("db.none", catalog=lake)


def test_a_budget_is_not_exceeded_and_the_next_run_continues(lake: SqlCatalog) -> None:
    before = rows(lake)
    total = sum(live_entries(lake.load_table("db.small")).ints("file_size_in_bytes").tolist())
    budget, counts, policy = int(total * 0.45), [files(lake)], Policy(runs="floeplan.runs")
    for _ in range(6):
        result = run(lake, policy, tables=("db.small",), budget_bytes=budget)
        assert result.spent_bytes <= budget
        counts.append(files(lake))
        if status(result) is None:
            break
        assert status(result) in ("partial", "done")
        assert bool(result.left()) == (status(result) == "partial")
    assert counts == sorted(counts, reverse=True)
    assert counts[1] > counts[2]
    assert rows(lake) == before


def test_work_that_does_not_fit_the_budget_is_left(lake: SqlCatalog) -> None:
    for limits in ({"budget_bytes": 10}, {"budget_files": 1}, {"budget_minutes": 0}):
        result = run(lake, **limits)
        assert files(lake) == FILES
        assert result.left()
        assert result.exit_code == 0
    assert run(lake, budget_files=6).spent_files <= 6
    with pytest.raises(InvalidOptionError, match="must not be negative"):
        MaintainOptions(budget_files=-1)


def test_tables_that_were_not_looked_at_come_first_next_time(lake: SqlCatalog) -> None:
    # The first run records that db.good was looked at; with time for one table only, db.small comes first.
    policy = Policy(runs="floeplan.runs")
    run(lake, policy, tables=("db.good",))
    history = read_history(lake, "floeplan.runs")
    assert set(history.looked) == {"db.good"}
    assert run(lake, policy, budget_minutes=0).not_looked_at[0] == "db.small"


class Killed(BaseException):
    """A process that does nothing any more."""


class KilledAt:
    """Kills a run at a step: from then on every step of the protocol fails, so nothing more is committed."""

    def __init__(self, at: int) -> None:
        self.left, self.steps = at, list[str]()

    def __call__(self, name: str) -> None:
        if self.left == 0:
            raise Killed
        self.steps.append(name)
        self.left -= 1


def steps_of_a_run(lake: SqlCatalog) -> list[str]:
    every = KilledAt(-1)
    run(lake, commit=CommitOptions(on_step=every))
    return every.steps


SOME_STEPS = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.matrix)])


@SOME_STEPS
def test_a_run_that_is_killed_at_any_step_harms_nothing_and_the_next_one_continues(
    built: Path, lake: SqlCatalog, tmp_path: Path, every: int
) -> None:
    before = rows(lake)
    steps = steps_of_a_run(lake)
    assert {"looked", "leased", "planned", "worked", "before-commit", "list-written"} <= set(steps)
    for at in range(0, len(steps), every):
        lake = catalog_at(built, tmp_path)
        with pytest.raises(Killed):
            run(lake, commit=CommitOptions(on_step=KilledAt(at)))
        assert rows(lake) == before
        if leases(lake):  # the next run waits until the lease of the dead one has expired
            assert status(run(lake)) in ("busy", None)
        later = time.time() + 3600
        assert run(lake, clock=lambda later=later: later).exit_code == 0
        assert (rows(lake), files(lake)) == (before, 1)
        assert not live_claims(lake.load_table("db.small").metadata.properties, later)
        lake.close()


class SecondRun:
    """Starts another run at a step of the first."""

    def __init__(self, lake: SqlCatalog, at: int, results: list[MaintainResult]) -> None:
        self.lake, self.left, self.results = lake, at, results

    def __call__(self, _: str) -> None:
        if self.left == 0:
            self.left -= 1
            self.results.append(run(self.lake))
        self.left -= 1


@SOME_STEPS
def test_two_runs_never_work_on_a_table_at_once(built: Path, lake: SqlCatalog, tmp_path: Path, every: int) -> None:
    """The second run starts at each step of the first."""
    before = rows(lake)
    steps = steps_of_a_run(lake)
    for at in range(0, len(steps), every):
        lake = catalog_at(built, tmp_path)
        results = list[MaintainResult]()
        first = run(lake, commit=CommitOptions(on_step=SecondRun(lake, at, results)))
        did = [status(one) == "done" for one in (first, *results)]
        assert did.count(True) == 1, (steps[at], first.left(), [one.left() for one in results])
        assert {first.exit_code, *(one.exit_code for one in results)} == {0}
        assert (rows(lake), files(lake), leases(lake)) == (before, 1, [])
        lake.close()


def test_a_conflict_is_not_a_failure(lake: SqlCatalog) -> None:
    """Another writer deletes the rows of all files between the rewrite and its commit."""
    seen = list[str]()

    def interfere(name: str) -> None:
        seen.append(name)
        if seen[-2:] == ["planned", "refreshed"]:
            fp.delete(lake.load_table("db.small"), where="id >= 0")

    once = CommitOptions(retry=RetryPolicy(retries=0), on_step=interfere)
    result = run(lake, commit=once, tables=("db.small",))
    assert (status(result), result.exit_code) == ("conflict", 3)
    assert rows(lake) == []


def test_a_table_that_cannot_be_read_does_not_stop_the_others(lake: SqlCatalog) -> None:
    good = lake.load_table("db.good")
    os.remove(good.metadata_location.removeprefix("file://"))
    result = run(lake)
    assert {table.table: table.health for table in result.tables} == {"db.good": "unreadable", "db.small": "info"}
    assert (result.exit_code, files(lake)) == (1, 1)


def test_snapshots_expire_only_where_the_owner_or_the_policy_says_so(lake: SqlCatalog) -> None:
    later = time.time() + 30 * 86_400
    assert work(run(lake, dry_run=True), "expire") is None
    asked = lake.load_table("db.small").transaction().set_properties({"history.expire.min-snapshots-to-keep": "3"})
    asked.commit_transaction()
    policy = parse_policy('runs = "off"\n[defaults]\nexpire-older-than = "30d"')
    result = run(lake, policy, clock=lambda: later)
    assert status(result, "expire") == "done"
    assert status(result, "expire", "db.good") is None
    assert len(lake.load_table("db.small").metadata.snapshots) == 3


def test_orphans_are_removed_by_policy_and_listed_once_a_week(lake: SqlCatalog) -> None:
    table = lake.load_table("db.good")
    orphan = Path(table.metadata.location.removeprefix("file://")) / "data/orphan.parquet"
    orphan.write_bytes(b"x" * 1000)
    os.utime(orphan, (time.time() - 10 * 86_400,) * 2)
    policy = parse_policy('runs = "floeplan.runs"\n[[tables]]\nmatch = "db.good"\nremove-orphans = true')
    result = run(lake, policy, tables=("db.good",))
    done = work(result, "remove-orphans", "db.good")
    assert done is not None
    assert done.achieved is not None
    assert (done.work.gain, done.achieved["gain"], orphan.exists()) == (1000, 1000, False)
    orphan.write_bytes(b"x")
    os.utime(orphan, (time.time() - 10 * 86_400,) * 2)
    assert work(run(lake, policy, tables=("db.good",)), "remove-orphans", "db.good") is None
    week = time.time() + 7 * 86_400
    found = run(lake, policy, tables=("db.good",), clock=lambda: week, dry_run=True)
    assert status(found, "remove-orphans", "db.good") == "planned"


def test_deletes_in_the_wrong_partition_are_repaired_before_anything_else(lake: SqlCatalog) -> None:
    table = evolved_table(lake, 2)
    in_flight = delete_change(table, slice(None))
    upgrade_spec(table, options=UpgradeOptions(metadata_only=True), commit=patient())
    commit_change(table, in_flight, options=patient())
    planned = run(lake, dry_run=True)
    assert ranked(planned.tables)[0][1].work.kind == "repair"
    result = run(lake)
    assert status(result, "repair", "db.t") == "done"
    assert doctor(lake.load_table("db.t")).healthy
    assert read_rows(lake.load_table("db.t"))


def test_files_move_to_the_current_spec_by_metadata(lake: SqlCatalog) -> None:
    table = lake.create_table("db.moved", EVENTS)
    for at in range(3):
        rows_ = events(at * 9, at * 9 + 9)
        fp.append(table, rows_.filter(np.array(rows_["region"].to_pylist()) == "eu"))
    with table.update_spec() as update:
        update.add_identity("region")
    result = run(lake, tables=("db.moved",))
    assert status(result, "upgrade-spec", "db.moved") == "done"
    assert set(live_entries(lake.load_table("db.moved")).spec_id.tolist()) == {1}
    off = parse_policy('runs = "off"\n[defaults]\nupgrade-specs = "off"')
    assert work(run(lake, off, dry_run=True), "upgrade-spec", "db.moved") is None


def test_compaction_orders_rows_by_the_columns_of_the_policy(lake: SqlCatalog) -> None:
    policy = parse_policy('runs = "off"\n[defaults]\ncluster = ["region", "id"]')
    assert status(run(lake, policy)) == "done"
    table = fp.plan_scan(lake.load_table("db.small")).to_arrow()
    keys = list(zip(table["region"].to_pylist(), table["id"].to_pylist(), strict=True))
    assert keys == sorted(keys)


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_columns_that_a_table_does_not_have_fail_its_compaction_alone(lake: SqlCatalog, strategy: str) -> None:
    small_table(lake, "db.other")
    policy = parse_policy(
        f'runs = "off"\n[defaults]\ncluster-strategy = "{strategy}"\n'
        '[[tables]]\nmatch = "db.small"\ncluster = ["nope"]\n',
        "fleet.toml",
    )
    problem = "fleet.toml:4: cluster: there is no column nope"
    planned = run(lake, policy, dry_run=True)
    for result, done in ((planned, "planned"), (run(lake, policy), "done")):
        assert (status(result), status(result, table="db.other"), result.exit_code) == ("failed", done, 1)
        left = next(one for one in result.left() if one["kind"] == "compact")
        assert left["table"] == "db.small"
        assert problem in left["why"]
        assert "db.small is not compacted" in left["why"]
        assert problem in drawn(draw(result))
    explained = drawn(draw_explained(planned))
    assert f"! compact: {problem}" in explained
    assert "db.small compact" not in explained  # it is not in the order, because a run does not start it
    assert (files(lake), files(lake, "db.other")) == (FILES, 1)


def test_logged_queries_decide_what_comes_first(lake: SqlCatalog, tmp_path: Path) -> None:
    small_table(lake, "db.queried")
    lines = [foreign_report(leaf("gt-eq", "id", 0), kept=1, skipped=0, table="db.queried") for _ in range(5)]
    reports = str(write_lines(tmp_path / "reports/scan.jsonl", lines))
    result = run(lake, reports=reports, dry_run=True)
    assert next((name, one.work.kind) for name, one in ranked(result.tables)) == ("db.queried", "compact")
    queried, other = work(result, table="db.queried"), work(result)
    assert queried is not None
    assert other is not None
    assert queried.work.gain == 5 * other.work.gain


def test_advice_is_applied_where_the_policy_says_so(lake: SqlCatalog, tmp_path: Path) -> None:
    table = lake.create_table("db.advised", EVENTS, properties={"write.target-file-size-bytes": "20000"})
    random = np.random.default_rng(1)
    for _ in range(8):
        fp.append(table, events(0, 2000).take(random.permutation(2000)))
    lines = [foreign_report(leaf("eq", "id", value), kept=1, skipped=0, table="db.advised") for value in range(20)]
    reports = str(write_lines(tmp_path / "reports/scan.jsonl", lines))
    policy = parse_policy('runs = "off"\n[defaults]\ncluster = "advise"\ncompact = false\nrewrite-manifests = false')
    result = run(lake, policy, tables=("db.advised",), reports=reports)
    done = work(result, "cluster", "db.advised")
    assert done is not None
    assert done.achieved is not None
    assert done.status is Status.DONE
    assert done.achieved["gain"] >= done.work.gain / 2
    assert (
        work(run(lake, policy, tables=("db.advised",), reports=reports, dry_run=True), "cluster", "db.advised") is None
    )


def test_work_waits_for_its_window_and_for_tables_that_come_first(lake: SqlCatalog) -> None:
    small_table(lake, "db.alpha")
    noon = datetime(2030, 3, 4, 12, tzinfo=UTC).timestamp()
    policy = parse_policy(
        'runs = "off"\n[defaults]\nrewrite-manifests = false\n'
        '[[tables]]\nmatch = "db.alpha"\nafter = "db.small"\n'
        '[[tables]]\nmatch = "db.small"\nwindows = "22:00-06:00"'
    )
    result = run(lake, policy, clock=lambda: noon)
    assert (status(result), status(result, table="db.alpha")) == ("left", "done")
    assert "22:00-06:00" in str(result.left())


def test_files_move_to_the_current_spec_before_they_are_merged(lake: SqlCatalog) -> None:
    """Merged files have rows of several partitions, which no bounds prove."""
    table = lake.create_table("db.moved", EVENTS)
    for number in range(FILES):
        rows_of_one = pc.field("region") == ("eu", "us")[number % 2]
        fp.append(table.refresh(), events(number * 10, number * 10 + 10).filter(rows_of_one))
    fp.rewrite_manifests(table.refresh())  # so that little is gained by moving files
    with table.refresh().update_spec() as update:
        update.add_identity("region")
    result = run(lake, tables=("db.moved",))
    (report,) = result.tables
    kinds = [one.work.kind for one in report.work]
    assert kinds.index("upgrade-spec") < kinds.index("compact")
    assert (status(result, "upgrade-spec", "db.moved"), status(result, "compact", "db.moved")) == ("done", "done")
    files = table.refresh().inspect.files().to_pylist()
    assert sorted((one["spec_id"], one["partition"]["region"]) for one in files) == [(1, "eu"), (1, "us")]
    assert [one.kind for one in doctor(table).findings] == []


def test_the_order_shown_is_that_of_the_run(lake: SqlCatalog) -> None:
    small_table(lake, "db.alpha", files=20)  # the most valuable, but it waits
    small_table(lake, "db.beta", files=FILES + 2)  # more valuable than db.small
    policy = parse_policy(
        'runs = "off"\n[defaults]\nrewrite-manifests = false\n'
        '[[tables]]\nmatch = "db.alpha"\nafter = ["db.s*", "db.good"]'
    )
    planned = run(lake, policy, dry_run=True)
    shown = re.findall(r"^  \d+\. (.+)$", drawn(draw_explained(planned)), re.MULTILINE)
    assert shown == ["db.beta compact", "db.small compact", "db.alpha compact"]
    queue, began = Queue({report.table: report for report in planned.tables}), list[str]()
    while (chosen := queue.next()) is not None:
        name, at = chosen
        began.append(f"{name} {queue.reports[name].work[at].work.kind}")
        queue.mark(name, at, status=Status.DONE)
    assert began == shown


def test_tables_that_wait_for_each_other_are_refused_before_anything_starts(lake: SqlCatalog) -> None:
    """Of patterns that overlap only the tables show it: one table that matches both would wait for nothing."""
    policy = parse_policy('runs = "off"\n[[tables]]\nmatch = "db.?*"\nafter = "db.[gs]*"', "fleet.toml")
    cycle = r"fleet.toml:2: tables wait for each other: db.good after db.small \(line 2\), db.small after db.good "
    for options in ({}, {"dry_run": True}):
        with pytest.raises(InvalidOptionError, match=cycle):
            run(lake, policy, **options)
    assert (files(lake), leases(lake)) == (FILES, [])
    assert status(run(lake, policy, tables=("db.small",))) == "done"


def test_two_files_are_merged_where_the_policy_says_so(lake: SqlCatalog) -> None:
    small_table(lake, "db.two", files=2)
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
    days = lake.create_table("db.days", SCHEMA, partition_spec=spec)
    for number in range(20):  # ten days of two files
        one = {"id": [number], "ts": [START + timedelta(days=number // 2)]}
        fp.append(days, pa.table(one, SCHEMA.as_arrow()), fast=True)
    names = ("db.two", "db.days")
    text = 'runs = "off"\n[defaults]\npartition-age = "0s"\n'
    unchanged = run(lake, parse_policy(text), tables=names)
    assert [work(unchanged, table=name) for name in names] == [None, None]
    two = parse_policy(f"{text}compact-min-files = 2\n")
    for name, shown in (("db.two", "2 files"), ("db.days", "20 files")):
        planned = run(lake, two, tables=(name,), dry_run=True)
        text = drawn(draw_explained(planned))
        assert re.search(r"compact-min-files +10 \(partitions with at least 5 small files\)", text)
        assert re.search(r"compact-min-files +2 \(partitions with at least 2 small files\)", text)
        assert f"→ compact: {shown} (" in text
        before = rows(lake, name)
        assert status(run(lake, two, tables=(name,)), table=name) == "done"
        assert rows(lake, name) == before
    assert [files(lake, name) for name in names] == [1, 10]
    assert work(run(lake, two, tables=names), table="db.days") is None


def test_deleted_rows_are_applied_however_few_files_have_them(lake: SqlCatalog) -> None:
    for name in ("db.light", "db.heavy"):
        small_table(lake, name, files=2)
    fp.delete(lake.load_table("db.light"), "id = 0", mode="merge-on-read")
    deleted = "id IN (0, 1, 2, 10, 11, 12)"  # 3 of 10 rows of each file
    fp.delete(lake.load_table("db.heavy"), deleted, mode="merge-on-read")
    names, before = ("db.light", "db.heavy"), rows(lake, "db.heavy")
    done = run(lake, tables=names)
    assert [status(done, table=name) for name in names] == [None, "done"]
    assert findings(done) == {"db.light": set(), "db.heavy": {"many-deletes"}}
    assert rows(lake, "db.heavy") == before
    assert (live_entries(lake.load_table("db.heavy")).content == Content.DATA).all()
    counted = parse_policy('runs = "off"\n[defaults]\ndelete-file-threshold = 1\n')
    done = run(lake, counted, tables=("db.light",))
    assert (status(done, table="db.light"), findings(done)) == ("done", {"db.light": {"many-deletes"}})
    done = run(lake, counted, tables=names)
    assert (work(done, table="db.heavy"), findings(done)) == (None, {"db.light": set(), "db.heavy": set()})


def test_the_front_page_and_maintain_agree_about_deleted_rows(lake: SqlCatalog) -> None:
    small_table(lake, "db.heavy", files=2)
    fp.delete(lake.load_table("db.heavy"), "id IN (0, 1, 2)", mode="merge-on-read")
    shown = fleet_document("db.heavy", lake, read_history(lake, QUIET.runs))
    assert (shown["health"], [one["kind"] for one in shown["findings"]]) == ("info", ["many-deletes"])
    assert shown["work"][0]["kind"] == "compact"
    run(lake, tables=("db.heavy",))
    shown = fleet_document("db.heavy", lake, read_history(lake, QUIET.runs))
    assert (shown["health"], shown["work"]) == ("healthy", [])


def test_files_that_are_split_do_not_keep_others_from_being_merged(lake: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
    table = lake.create_table("db.days", SCHEMA, partition_spec=spec)
    for start, count in ((0, 300_000), *((300_000 + number, 1) for number in range(FILES))):
        ids = range(start, start + count)
        days = [START + timedelta(days=int(number >= 300_000)) for number in ids]
        fp.append(table, pa.table({"id": ids, "ts": days}, SCHEMA.as_arrow()), fast=True)
    policy = parse_policy('runs = "off"\n[defaults]\npartition-age = "0s"\ntarget-file-size = "20000 B"\n')
    before = rows(lake, "db.days")
    done = work(run(lake, policy, tables=("db.days",)), table="db.days")
    assert done is not None
    assert done.achieved is not None
    assert done.work.predicted()["files_split"] > FILES
    assert done.status is Status.DONE
    assert (done.work.gain, done.achieved.keys()) == (4 * 2**20 * (FILES - 1), done.work.predicted().keys())
    assert rows(lake, "db.days") == before


def test_columns_of_a_policy_that_does_not_compact_are_reported(lake: SqlCatalog) -> None:
    policy = parse_policy('runs = "off"\n[defaults]\ncompact = false\ncluster = ["ts"]\n')
    result = run(lake, policy, tables=("db.small",), dry_run=True)
    text = "cluster orders rows when files are compacted, and compact is false"
    assert result.tables[0].waits == (text,)
    assert f"\n  waits: {text}" in drawn(draw_explained(result))


def test_tables_that_come_first_are_done_first_and_their_failure_stops_the_others(lake: SqlCatalog) -> None:
    small_table(lake, "db.alpha", files=15)
    policy = parse_policy('runs = "off"\n[[tables]]\nmatch = "db.alpha"\nafter = "db.s*"')
    order = list[str]()

    def fail(name: str) -> None:
        if name == "planned":
            order.append(name)
            raise OSError("disk full")

    result = run(lake, policy, commit=CommitOptions(on_step=fail))
    assert status(result) == "failed"
    assert status(result, table="db.alpha") == "left"
    assert "db.small comes first, and failed" in str(result.left())
    assert (result.exit_code, files(lake)) == (1, FILES)
    assert run(lake, policy).exit_code == 0
    assert files(lake, "db.alpha") == 1


def test_maintenance_of_another_engine_is_yielded_to(lake: SqlCatalog) -> None:
    table = lake.load_table("db.small")
    table.transaction().set_properties({"self-optimizing.enabled": "true"}).commit_transaction()
    result = run(lake)
    assert status(result) == "yielded"
    assert (files(lake), result.exit_code) == (FILES, 0)


SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()))


def test_partitions_that_are_still_written_are_left_alone(lake: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
    table = lake.create_table("db.days", SCHEMA, partition_spec=spec)
    schema = SCHEMA.as_arrow()
    for day in (0, 1):
        for number in range(6):
            one = {"id": [number], "ts": [START + timedelta(days=day)]}
            fp.append(table, pa.table(one, schema))
    table.refresh()
    policy = parse_policy('runs = "off"\n[defaults]\ncompact-min-files = 5')
    left = run(lake, policy, dry_run=True)
    assert work(left, table="db.days") is None
    (report,) = (one for one in left.tables if one.table == "db.days")
    text = "compact leaves 12 files in partitions by time to which files were added within 1h (partition-age)"
    assert report.waits == (text,)
    assert f"\n  waits: {text}" in drawn(draw_explained(left))
    now = parse_policy('runs = "off"\n[defaults]\ncompact-min-files = 5\npartition-age = "0s"')
    planned = run(lake, now, dry_run=True)
    assert status(planned, table="db.days") == "planned"
    assert not any(one.waits for one in planned.tables)
    # Of the two days, only the one that was written after the time is left alone.
    entries, metadata = live_entries(table), table.metadata
    union, last_of_first = UnionPartitionType.of_table(metadata), metadata.snapshots[5].timestamp_ms
    mask = still_written(entries, metadata, union, last_of_first)
    days = entries.partition_columns()[1000].to_pylist()
    assert {day for day, left in zip(days, mask.tolist(), strict=True) if left} == {max(days)}
    assert int(mask.sum()) == 6


def test_the_next_run_learns_from_what_was_achieved(lake: SqlCatalog) -> None:
    result = run(lake, dry_run=True)
    planned = work(result)
    assert planned is not None
    for share in (2, 4, 4):  # achieved a half, then a quarter of the prediction
        achieved = {"gain": planned.work.gain // share, "bytes": 1}
        done = replace(planned, status=Status.DONE, achieved=achieved)
        tables = tuple(replace(one, work=(done,)) if one.table == "db.small" else one for one in result.tables)
        record(lake, "ops.runs", replace(result, tables=tables), datetime.now(UTC), [])
    policy = Policy(runs="ops.runs")
    learned = work(run(lake, policy, dry_run=True))
    assert learned is not None
    assert learned.factor == 0.25
    assert learned.score == planned.score / 4
    assert learned.to_dict()["predicted"]["factor"] == 0.25


def test_a_run_that_cannot_be_recorded_says_so(lake: SqlCatalog) -> None:
    # A table of another schema has the name of the table of runs.
    lake.create_namespace("ops")
    fp.append(lake.create_table("ops.runs", EVENTS), events(0, 3))
    result = run(lake, Policy(runs="ops.runs"))
    assert status(result) == "done"
    assert [note.split(":")[0] for note in result.notes] == [
        "earlier runs cannot be read from ops.runs",
        "the run is not recorded in ops.runs",
    ]
    assert result.exit_code == 0


def test_a_rule_that_matches_no_table_is_named(lake: SqlCatalog) -> None:
    rules = parse_policy('[[tables]]\nmatch = "db.*"\n[[tables]]\nmatch = ["bd.*", "x.y"]\n', "fleet.toml")
    result = run(lake, rules, tables=("db.good",), dry_run=True)
    assert result.notes == ("fleet.toml:3: no table matches bd.*, x.y",)
    assert result.exit_code == 0
    first = parse_policy('[[tables]]\nmatch = "db.*"\nafter = ["db.good", "bd.good"]\n', "fleet.toml")
    assert run(lake, first, dry_run=True).notes == ("fleet.toml:1: no table matches after = bd.good",)


def test_reports_that_do_not_exist_are_named(lake: SqlCatalog, tmp_path: Path) -> None:
    text = f'runs = "off"\nreports = "{tmp_path}/none"\n[[tables]]\nmatch = "db.small"\ncluster = "advise"\n'
    result = run(lake, parse_policy(text, "fleet.toml"), dry_run=True)
    (note,) = result.notes
    assert note.startswith(f"there are no reports at {tmp_path}/none; ")
    assert note.endswith("; tables count as read once")
    waiting = {one.table: one.waits for one in result.tables}
    missing = "cluster needs scan reports of the table (advise)"
    assert waiting == {"db.good": (), "db.small": (missing,)}


def test_a_budget_may_be_any_number(lake: SqlCatalog) -> None:
    assert option_bytes("0", "--budget-bytes") == 0
    assert status(run(lake, budget_bytes=0)) == "left"
    assert status(run(lake, budget_bytes=10**400, budget_files=10**400)) == "done"


def test_work_is_left_when_its_window_closes_during_the_run(lake: SqlCatalog) -> None:
    small_table(lake, "db.alpha", files=15)
    noon = datetime(2030, 3, 4, 12, tzinfo=UTC).timestamp()
    now = [noon]
    policy = parse_policy('runs = "off"\n[defaults]\nrewrite-manifests = false\nwindows = "11:00-13:00"')

    def later(name: str) -> None:
        now[0] += 7200 if name == "worked" else 0

    result = run(lake, policy, clock=lambda: now[0], commit=CommitOptions(on_step=later))
    assert sorted([str(status(result)), str(status(result, table="db.alpha"))]) == ["done", "left"]
    outside = "outside its windows (11:00-13:00)"
    assert outside in str(result.left())
    closed = run(lake, policy, clock=lambda: noon + 7200, dry_run=True)
    assert {one.waits for one in closed.tables} == {(outside,)}
    assert "the lease expired during the work" in str(result.to_dict())


def test_metrics(lake: SqlCatalog) -> None:
    result = run(lake, QUIET)
    text = prometheus_text(result, 12.5)
    sample = re.compile(r'floeplan_maintain_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+]+')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(map(sample.fullmatch, lines))
    assert 'floeplan_maintain_work{kind="compact",status="done"} 1' in lines
    assert 'floeplan_maintain_table_files{table="db.small"} 12' in lines
    assert "floeplan_maintain_last_run_timestamp_seconds 12.5" in lines


# --- the command


@pytest.fixture
def floeplan(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """The command line on an embedded catalog with a small table, or one of small files for ``test_the_command``."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from floeplan.catalog import open_catalog

    opened = open_catalog()
    opened.create_namespace("db")
    table = opened.create_table("db.small", EVENTS)
    for number in range(FILES if request.function is test_the_command else 1):
        fp.append(table, events(number * 10, number * 10 + 10), fast=True)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["maintain", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_nothing_is_created_where_there_is_no_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["maintain"]) == 2
    assert "there is no embedded catalog" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command(floeplan: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[[tables]]\nmatch = "db.*"\ncompact-min-files = 3\n')
    code, out, _ = floeplan("--policy", "policy.toml", "--explain")
    assert code == 0
    assert "db.small  info; rules at line 1" in out
    assert re.search(r"compact-min-files +3", out)
    assert "→ compact: 12 files" in out
    assert "1. db.small compact" in out
    assert floeplan("--dry-run")[1].startswith("1 table, 1 with findings; dry run, nothing was changed")
    code, out, _ = floeplan("--json", "--metrics", "m.prom", "--budget-bytes", "1GiB")
    assert code == 0
    assert json.loads(out)["tables"][0]["work"][0]["status"] in ("done", "not-needed")
    assert "floeplan_maintain_exit_code 0" in (tmp_path / "m.prom").read_text()
    code, out, _ = floeplan()
    assert (code, "db.small" in out) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget-bytes", "many"], "--budget-bytes is 'many' but must be a size"),
        (["--policy", "none.toml"], "cannot read the policy none.toml"),
        (
            ["--policy", "bad.toml"],
            "floeplan: bad.toml:2: compact must be true or false, not 1; bad.toml:3: unknown key",
        ),
        (["--policy", "cycle.toml"], "floeplan: cycle.toml:2: tables wait for each other: db.a after db.b (line 2), "),
        (["--metrics", "no/m.prom"], "--metrics no/m.prom is in a folder that does not exist"),
        (["db.none"], "no table 'db.none'"),
    ],
)
def test_bad_input_is_refused(
    floeplan: Callable[..., tuple[int, str, str]], arguments: list[str], message: str
) -> None:
    Path("bad.toml").write_text("[defaults]\ncompact = 1\ncompat = true\n")
    Path("cycle.toml").write_text(
        '\n[[tables]]\nmatch = "db.a"\nafter = "db.b"\n[[tables]]\nmatch="db.b"\nafter="db.a"'
    )
    code, out, err = floeplan(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
