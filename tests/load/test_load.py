"""Large numbers of writers, predicates, columns, snapshots, manifests and files.

Small numbers by default, those of ``LARGE`` with ``FLOEPLAN_LOAD=large`` (``make load``). Limits are CPU time with a
margin for slow machines; they detect superlinear growth.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from bench import planning_tables
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError
from tests.support.tables.commits import leftovers
from tests.support.tables.two_specs import catalog, two_spec_table

pytestmark = [pytest.mark.load, pytest.mark.matrix]

LARGE = os.environ.get("FLOEPLAN_LOAD") == "large"
WRITERS, COLUMNS, SNAPSHOTS = (64, 1000, 2000) if LARGE else (12, 200, 200)
MANIFESTS = 1000 if LARGE else 20
"""Each is listed 10 times and has 100 files: 10,000 manifests, 1 million files."""

PLAIN = fp.ScanOptions(report=False, cache=False)


@contextmanager
def cpu_seconds_below(limit: float) -> Iterator[None]:
    started = time.process_time()
    yield
    used = time.process_time() - started
    assert used < limit, f"{used:.1f} s of CPU"


def write_at_once(folder: Path, properties: dict[str, str]) -> tuple[Table, list[int]]:
    """Append one row per writer concurrently; returns the rows reported as committed."""
    table = catalog(folder).create_table("db.t", pa.schema([("id", pa.int64())]), properties=properties)

    def write(number: int) -> int | None:
        try:
            fp.append(catalog(folder).load_table("db.t"), pa.table({"id": [number]}))
        except CommitConflictError:
            return None
        return number

    with ThreadPoolExecutor(WRITERS) as pool:
        written = list(pool.map(write, range(WRITERS)))
    return table.refresh(), [number for number in written if number is not None]


def files_left(table: Table) -> list[str]:
    """Without metadata files of failed attempts, which PyIceberg's catalog leaves."""
    return [path for path in leftovers(table) if not path.endswith(".metadata.json")]


def ids(table: Table, where: str | None = None) -> list[int]:
    return sorted(fp.plan_scan(table, where, options=PLAIN).to_arrow()["id"].to_pylist())


def test_writers_with_many_retries_all_commit(tmp_path: Path) -> None:
    patience = {"commit.retry.num-retries": "1000", "commit.retry.min-wait-ms": "10"}
    table, written = write_at_once(tmp_path, patience)
    assert written == ids(table) == list(range(WRITERS))
    assert not files_left(table)


def test_writers_that_give_up_leave_nothing_behind(tmp_path: Path) -> None:
    table, written = write_at_once(tmp_path, {"commit.retry.num-retries": "0"})
    assert ids(table) == written
    assert not files_left(table)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (f"id IN ({', '.join(map(str, range(0, 20_000, 2)))})", range(0, 300, 2)),
        (f"id NOT IN ({', '.join(map(str, range(0, 20_000, 2)))})", range(1, 300, 2)),
        (" OR ".join(f"(id = {i} AND region = 'eu')" for i in range(1000)), range(0, 300, 3)),
        (" AND ".join(f"id != {i}" for i in range(1, 1001)), [0]),
    ],
    ids=["in", "not in", "or", "and"],
)
def test_long_predicates_are_evaluated(tmp_path: Path, where: str, wanted: range | list[int]) -> None:
    table = two_spec_table(tmp_path)
    with cpu_seconds_below(15):
        assert ids(table, where) == list(wanted)


def test_wide_tables(tmp_path: Path) -> None:
    rows = pa.table({f"c{i}": pa.array(range(i, i + 10)) for i in range(COLUMNS)})
    table = catalog(tmp_path).create_table("db.wide", rows.schema)
    with cpu_seconds_below(30):
        for _ in range(2):
            fp.append(table, rows)
            table.refresh()
        plan = fp.plan_scan(table, f"c{COLUMNS - 1} = {COLUMNS}", options=PLAIN)
        assert plan.to_arrow().to_pylist() == rows.slice(1, 1).to_pylist() * 2
        assert fp.doctor(table).healthy
        fp.update(table, set={"c1": "c0 + 1000"}, where="c2 = 2")
    assert sorted(fp.plan_scan(table.refresh(), options=PLAIN).to_arrow()["c1"].to_pylist())[-2:] == [1000, 1000]


def with_history(table: Table, steps: int) -> str:
    """The metadata file of the same table with many snapshots, each with its own manifest list."""
    home = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(home.read_text())
    last = document["snapshots"][-1]
    start = last["timestamp-ms"] - steps * 1000
    snapshots = []
    for step in range(steps):
        listed = home.with_name(f"snap-{step}.avro")
        shutil.copyfile(last["manifest-list"].removeprefix("file://"), listed)
        own = {"snapshot-id": step + 1, "timestamp-ms": start + step * 1000, "manifest-list": listed.as_uri()}
        snapshots.append(last | own | {"sequence-number": step + 1} | ({"parent-snapshot-id": step} if step else {}))
    document |= {"snapshots": snapshots, "current-snapshot-id": steps, "last-sequence-number": steps}
    document["refs"] = {"main": {"snapshot-id": steps, "type": "branch"}}
    document["snapshot-log"] = [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots]
    document["properties"] |= {"history.expire.max-snapshot-age-ms": "0"}  # so that there is something to expire
    path = home.with_name("long.metadata.json")
    path.write_text(json.dumps(document))
    return str(path)


def test_long_histories(tmp_path: Path) -> None:
    table = fp.load_table(with_history(two_spec_table(tmp_path), SNAPSHOTS))
    with cpu_seconds_below(2 + SNAPSHOTS / 100):
        assert ids(table, "id < 3") == [0, 1, 2]
        assert len(fp.plan_scan(table, snapshot_id=7, options=PLAIN).files) == 5
        assert len(fp.inspect_table(table).snapshots) > 0
        assert any(finding.kind == "many-snapshots" for finding in fp.doctor(table).findings)
        expired = fp.expire_snapshots(table, older_than_ms=2**53, dry_run=True)
        assert (len(expired.expired), expired.data_files) == (SNAPSHOTS - 1, 0)
        assert fp.remove_orphans(table).files_listed > SNAPSHOTS


@pytest.mark.parametrize(
    ("query", "micros"),
    [
        (lambda table: fp.plan_scan(table, "ts >= TIMESTAMP '2024-01-01 00:00:00 UTC'", options=PLAIN), 40),
        (lambda table: fp.plan_scan(table, options=PLAIN), 40),
        (lambda table: fp.RewriteDataFilesPlanner(table, cache=False).plan_with_stats(), 80),
        (lambda table: fp.doctor(table, sample=0), 80),
        (fp.inspect_table, 40),
    ],
    ids=["plan of some", "plan of all", "rewrite plan", "doctor", "inspect"],
)
def test_many_manifests_and_files(archive: str, query: Callable[[str], object], micros: float) -> None:
    with cpu_seconds_below(2 + 1000 * MANIFESTS * micros / 1e6):
        query(archive)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning_tables, "CACHE", tmp_path_factory.mktemp("archive"))
        return str(planning_tables.tenfold(MANIFESTS))
