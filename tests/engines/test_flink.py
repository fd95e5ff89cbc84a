"""Flink's MiniCluster upserts from one streaming job while Floeplan changes the same table: exact rows at the end.

The job commits equality deletes at every checkpoint, under the spec that the table had when it started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

import floeplan as fp
from floeplan.errors import CommitConflictError, UnsupportedError
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.scan.model import ScanOptions
from floeplan.transaction.metadata_json import writable_metadata
from scripts.fetch_rest_catalog import ensure_flink
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

DRIVER = Path(__file__).parents[1] / "support" / "flink" / "FlinkUpserts.java"
ROWS, IDS, PER_SECOND = 4000, 150, 200
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


def start_flink(lake: Lake, table: str, version: int) -> subprocess.Popen[str]:
    """Start the job; returns when it has created the table."""
    opens = [argument for package in OPENED for argument in ("--add-opens", f"java.base/java.{package}=ALL-UNNAMED")]
    where = [str(lake.database), lake.warehouse.as_uri(), table, str(version), *map(str, (ROWS, IDS, PER_SECOND))]
    command = ["java", "-Xmx900m", "-XX:TieredStopAtLevel=1", *opens, "-cp", f"{ensure_flink()}/*", str(DRIVER), *where]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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


def run_during(flink: subprocess.Popen[str], chosen: Sequence[Callable[[], object]], commits: int | None) -> int:
    """Run changes in turn until the job ends, or until this many are committed; returns how many were."""
    committed = 0
    for change in cycle(chosen):
        if flink.poll() is not None or committed == commits:
            return committed
        with suppress(CommitConflictError):  # the job committed first at every attempt
            change()
            committed += 1
    raise AssertionError("there are changes")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("evolves", [False, True])
def test_rows_are_exact_after_concurrent_upserts(tmp_path: Path, version: int, evolves: bool) -> None:
    """An update moves rows to the current spec, so that it is refused once that is not the job's own."""
    lake = Lake(tmp_path)
    catalog: SqlCatalog = lake.open_catalog()
    with start_flink(lake, "upserts", version) as flink:
        table = catalog.load_table("flink.upserts")
        while table.refresh().current_snapshot() is None:  # until the job's first checkpoint
            assert flink.poll() is None
        assert run_during(flink, changes(table), 5 if evolves else None) >= 5
        if evolves:
            with writable_metadata(table.io), table.refresh().update_spec() as update:
                update.add_field("id", BucketTransform(4), "id_bucket")
            # The job writes equality deletes under the first spec: rows that leave it would be doubled.
            with pytest.raises(UnsupportedError, match="added equality deletes under partition spec 0"):
                fp.upgrade_spec(table)
            with pytest.raises(UnsupportedError, match="added equality deletes under partition spec 0"):
                fp.update(table, {"note": "'seen'"}, "id < 20", mode="merge-on-read")
            run_during(flink, changes(table)[:3], None)
        assert flink.stdout is not None
        assert flink.stdout.read() == "finished\n"
    fp.delete(table, f"id >= {EXTRA}", allow_late_equality_deletes=True)  # the job has ended
    expected = {i: max(range(i, ROWS, IDS)) for i in range(IDS)}
    check(table, expected)
    if evolves:  # the job has ended
        fp.upgrade_spec(table, options=UpgradeOptions(allow_late_equality_deletes=True))
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    check(table, expected)
    catalog.close()


def check(table: Table, expected: dict[int, int]) -> None:
    """Every id once, with the value of its last upsert."""
    rows = fp.plan_scan(table.refresh(), columns=["id", "v"], options=QUIET).to_arrow().to_pylist()
    assert len(rows) == len(expected)
    assert {row["id"]: row["v"] for row in rows} == expected
