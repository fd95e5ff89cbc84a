"""Flink's MiniCluster upserts from one streaming job while Floeplan changes the same table: exact rows at the end.

The job commits equality deletes at every checkpoint, under the spec that the table had when it started. Changes run in
rounds, and a round begins after a commit of the job: two writers that retry with exponential backoff may otherwise wait
for each other for minutes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError, UnsupportedError
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.scan.model import ScanOptions
from scripts.fetch_rest_catalog import ensure_flink
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

DRIVER = Path(__file__).parents[1] / "support" / "flink" / "FlinkUpserts.java"
IDS, PER_SECOND = 150, 200
ROUNDS = 4
EXTRA = 10_000
QUIET = ScanOptions(report=False, cache=False)
OPENED = (
    "lang",
    "util",
    "net",
    "nio",
    "lang.invoke",
    "time",
    "text",
    "util.concurrent",
    "util.concurrent.atomic",
    "io",
)


def start_flink(lake: Lake, table: str, version: int, partitioned_by: str, rows: int) -> subprocess.Popen[str]:
    """Start the job; returns when it has created the table."""
    opens = [argument for package in OPENED for argument in ("--add-opens", f"java.base/java.{package}=ALL-UNNAMED")]
    where = [str(lake.database), lake.warehouse.as_uri(), table, str(version)]
    amounts = [*map(str, (rows, IDS, PER_SECOND)), partitioned_by]
    java = ["java", "-Xmx900m", "-XX:TieredStopAtLevel=1", *opens, "-cp", f"{ensure_flink()}/*", str(DRIVER)]
    process = subprocess.Popen([*java, *where, *amounts], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "created\n"
    return process


def changes(table: Table) -> list[Callable[[], object]]:
    """Changes that must not alter which ids the table has, nor the value that Flink wrote last."""
    extra = pa.table({"id": [EXTRA], "region": ["r0"], "v": [-1], "note": ["extra"]}).cast(table.schema().as_arrow())
    small = {"min-input-files": "2", "delete-file-threshold": "1"}
    return [
        lambda: fp.rewrite_data_files(table, options=small),
        lambda: fp.append(table, extra),
        lambda: fp.delete(table, f"id >= {EXTRA}", mode="merge-on-read"),
        lambda: fp.update(table, {"note": "'seen'"}, "id < 20", mode="merge-on-read"),
        lambda: fp.update(table, {"note": "concat('v', v)"}, "region = 'r1'", mode="copy-on-write"),
    ]


def wait_for_commit(flink: subprocess.Popen[str], table: Table) -> bool:
    """Wait until the job has committed once more; false if it ended before."""
    before = job_commits(table)
    while flink.poll() is None:
        if job_commits(table) > before:
            return True
        with suppress(subprocess.TimeoutExpired):
            flink.wait(timeout=0.1)
    return False


def job_commits(table: Table) -> int:
    summaries = [snapshot.summary for snapshot in table.refresh().snapshots()]
    return sum(summary is not None and "flink.job-id" in summary.additional_properties for summary in summaries)


def run_during(flink: subprocess.Popen[str], table: Table, chosen: Sequence[Callable[[], object]]) -> int:
    """Run rounds of changes while the job runs; returns how many were committed."""
    committed = 0
    for _ in range(ROUNDS):
        if not wait_for_commit(flink, table):
            break
        for change in chosen:
            with suppress(CommitConflictError):  # the job changed the same rows first
                change()
                committed += 1
    return committed


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("case", ["one spec", "spec evolves", "rows move"])
def test_rows_are_exact_after_concurrent_upserts(tmp_path: Path, version: int, case: str) -> None:
    """Upserts under the current spec, under an older one, and without partitions while rows move to a partitioned spec.

    Equality deletes of an unpartitioned spec apply to rows of all specs, so that ``upgrade_spec`` runs beside the job.
    Those of a partitioned one apply to its own rows only: what would move rows to another spec is refused.
    """
    lake = Lake(tmp_path)
    catalog: SqlCatalog = lake.open_catalog()
    total = 4000 if case == "one spec" else 10_000  # the job has to outlast the changes after the evolution
    with start_flink(lake, "upserts", version, "" if case == "rows move" else "region", total) as flink:
        table = catalog.load_table("flink.upserts")
        assert run_during(flink, table, changes(table)) > 0
        if case != "one spec":
            fp.sql("ALTER TABLE flink.upserts ADD PARTITION FIELD bucket(4, id)", catalog=catalog)
            table.refresh()
        if case == "spec evolves":
            with pytest.raises(UnsupportedError, match="added equality deletes under partition spec 0"):
                fp.upgrade_spec(table)
            with pytest.raises(UnsupportedError, match="added equality deletes under partition spec 0"):
                fp.update(table, {"note": "'seen'"}, "id < 20", mode="merge-on-read")
            assert run_during(flink, table, changes(table)[:3]) > 0
        if case == "rows move":
            moved: list[int] = []
            move = [lambda: moved.append(fp.upgrade_spec(table).files_by_rewrite)]
            # First, after a commit of the job: copy-on-write updates rewrite files under the current spec too.
            assert run_during(flink, table, [*move, *changes(table)]) > 0
            assert sum(moved) > 0, "upgrade_spec has moved rows beside the job"
        assert flink.stdout is not None
        assert flink.stdout.read() == "finished\n"
    fp.delete(table, f"id >= {EXTRA}", allow_late_equality_deletes=True)  # the job has ended
    expected = {i: max(range(i, total, IDS)) for i in range(IDS)}
    check(table, expected)
    if case != "one spec":  # the job has ended
        fp.upgrade_spec(table, options=UpgradeOptions(allow_late_equality_deletes=True))
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    check(table, expected)
    catalog.close()


def check(table: Table, expected: dict[int, int]) -> None:
    """Every id once, with the value of its last upsert."""
    rows = fp.plan_scan(table.refresh(), columns=["id", "v"], options=QUIET).to_arrow().to_pylist()
    assert len(rows) == len(expected)
    assert {row["id"]: row["v"] for row in rows} == expected
