"""iceberg-go and iceberg-rust change tables in turns with Floeplan; they and Flink read the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.maintenance.doctor import doctor
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.transaction.metadata_json import writable_metadata
from scripts.fetch_rest_catalog import ensure_iceberg_go, ensure_iceberg_rust, ensure_iceberg_rust_python
from tests.support.flink import run_flink
from tests.support.spark.lake import NAME, Lake
from tests.support.tables.commits import Rows, arrow, create_table, read_rows, rows_of

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

ALL = {"rewrite-all": "true"}
RUST = """
import sys
from datafusion import SessionContext
from pyiceberg_core.datafusion import IcebergDataFusionTable

context = SessionContext()
table = IcebergDataFusionTable(identifier=("db", "t"), metadata_location=sys.argv[1], file_io_properties={})
context.register_table("t", table)
for batch in context.sql("SELECT id, part FROM t").collect():
    for row in batch.to_pylist():
        print(row["id"], row["part"])
"""
CHANGES: tuple[Callable[[Table], object], ...] = (
    lambda table: fp.append(table, arrow(rows_of(30, 40, "c"))),
    lambda table: fp.delete(table, "id IN (1, 12, 33)", mode="merge-on-read"),
    lambda table: fp.delete(table, "id = 2", mode="copy-on-write"),
    lambda table: fp.update(table, {"part": "'d'"}, "id IN (3, 34)", mode="merge-on-read"),
    lambda table: fp.merge(table, pa.table({"k": [4, 13]}), "id = k").when_matched_update({"part": "'e'"}).execute(),
    lambda table: fp.rewrite_data_files(table, options=ALL),
    lambda table: fp.upgrade_spec(table, options=UpgradeOptions(allow_coarser=True)),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def catalog(lake: Lake) -> Iterator[SqlCatalog]:
    opened = lake.open_catalog()
    opened.create_namespace("db")
    yield opened
    opened.close()


def go(lake: Lake, *arguments: str) -> str:
    """Run the program on the table."""
    command = [str(ensure_iceberg_go()), str(lake.database), lake.warehouse.as_uri(), "db.t", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_rows(lake: Lake) -> Rows:
    rows: list[dict[str, Any]] = [json.loads(line) for line in go(lake, "read").splitlines()]
    return sorted((row["id"], row["part"]) for row in rows)


def datafusion_rows(table: Table) -> Rows:
    environment = os.environ | {"PYTHONPATH": str(ensure_iceberg_rust_python())}
    command = [sys.executable, "-c", RUST, table.refresh().metadata_location]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return printed_rows(done.stdout)


def printed_rows(lines: str) -> Rows:
    pairs = [line.split() for line in lines.splitlines()]
    return sorted((int(number), part) for number, part in pairs)


def rust(lake: Lake, *arguments: str) -> str:
    """Run the program on the table."""
    command = [str(ensure_iceberg_rust()), str(lake.database), lake.warehouse.as_uri(), "db", "t", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def evolved(catalog: SqlCatalog, version: int) -> Table:
    """Ids 0 to 29 partitioned by part, in a table that is now partitioned by a bucket of the id too."""
    table = create_table(catalog, version)
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", "bucket[4]", "bucket")
    return table.refresh()


@pytest.mark.parametrize("version", [2, 3])
def test_iceberg_go_reads_what_floeplan_writes(lake: Lake, catalog: SqlCatalog, version: int) -> None:
    table = evolved(catalog, version)
    for change in CHANGES:
        change(table.refresh())
        assert go_rows(lake) == read_rows(table)


@pytest.mark.parametrize("version", [2, 3])
def test_floeplan_changes_what_iceberg_go_writes(lake: Lake, catalog: SqlCatalog, version: int) -> None:
    """Appends under the current spec, and deletes by copy-on-write and merge-on-read.

    iceberg-go 0.7 records position deletes under the current spec, so that they do not apply to files of an older one.
    """
    table = evolved(catalog, version)
    expected = dict(read_rows(table))
    go(lake, "append", json.dumps([{"id": number, "part": "go"} for number in range(50, 60)]))
    expected |= dict.fromkeys(range(50, 60), "go")
    for number, mode in ((5, "copy-on-write"), (53, "merge-on-read")):
        delete_with_go(lake, table, number, mode)
        del expected[number]
        assert dict(read_rows(table)) == expected
    fp.update(table.refresh(), {"part": "'x'"}, "id IN (6, 54)", mode="merge-on-read")
    fp.delete(table.refresh(), "id IN (15, 55)", mode="merge-on-read")
    expected = {n: "x" if n in (6, 54) else part for n, part in expected.items() if n not in (15, 55)}
    assert dict(go_rows(lake)) == dict(read_rows(table)) == expected
    fp.rewrite_data_files(table.refresh(), options=ALL)
    fp.upgrade_spec(table.refresh())
    assert dict(go_rows(lake)) == dict(read_rows(table)) == expected


def delete_with_go(lake: Lake, table: Table, number: int, mode: str) -> None:
    with writable_metadata(table.io), table.refresh().transaction() as change:
        change.set_properties({"write.delete.mode": mode})
    go(lake, "delete", str(number))


def test_the_doctor_repairs_deletes_of_iceberg_go(lake: Lake, catalog: SqlCatalog) -> None:
    """Not even iceberg-go applies the position delete that it records under another spec than its data file."""
    table = evolved(catalog, 2)
    delete_with_go(lake, table, 14, "merge-on-read")
    assert 14 in dict(go_rows(lake))
    assert "unreached-deletes" in {finding.kind for finding in doctor(table.refresh()).findings}
    doctor(table.refresh(), repair=True)
    expected = {number: "b" if 10 <= number < 20 else "a" for number in range(30) if number != 14}
    assert dict(go_rows(lake)) == dict(read_rows(table)) == expected


@pytest.mark.parametrize("version", [2, 3])
def test_iceberg_rust_reads_what_floeplan_writes(catalog: SqlCatalog, version: int) -> None:
    """iceberg-rust 0.10 does not read deletion vectors: a table of format 3 is rewritten before it reads it."""
    table = evolved(catalog, version)
    for change in CHANGES:
        change(table.refresh())
        if version == 2:
            assert datafusion_rows(table) == read_rows(table)
    fp.rewrite_data_files(table.refresh(), options=ALL)
    assert datafusion_rows(table) == read_rows(table)


@pytest.mark.parametrize("version", [2, 3])
def test_floeplan_changes_what_iceberg_rust_writes(lake: Lake, catalog: SqlCatalog, version: int) -> None:
    """Appends under the current spec, before and after changes; iceberg-rust 0.10 has no other change of rows."""
    table = evolved(catalog, version)
    expected = dict(read_rows(table))

    def append(first: int) -> None:
        rust(lake, "append", *(f"{number}=rust" for number in range(first, first + 10)))
        expected.update(dict.fromkeys(range(first, first + 10), "rust"))
        assert dict(read_rows(table)) == expected
        assert not [finding for finding in doctor(table.refresh()).findings if finding.severity == "error"]

    append(50)
    fp.update(table.refresh(), {"part": "'x'"}, "id IN (6, 54)", mode="copy-on-write")
    expected |= dict.fromkeys((6, 54), "x")
    append(60)
    assert dict(printed_rows(rust(lake, "read"))) == expected
    fp.delete(table.refresh(), "id IN (15, 55, 61)", mode="merge-on-read")
    for number in (15, 55, 61):
        del expected[number]
    append(70)
    if version == 2:
        assert dict(printed_rows(rust(lake, "read"))) == expected
    fp.rewrite_data_files(table.refresh(), options=ALL)
    fp.upgrade_spec(table.refresh())
    append(80)
    assert dict(printed_rows(rust(lake, "read"))) == expected


@pytest.mark.parametrize("version", [2, 3])
def test_flink_reads_what_floeplan_writes(lake: Lake, catalog: SqlCatalog, version: int) -> None:
    """The rows after every change, by one process that reads each snapshot."""
    table = evolved(catalog, version)
    expected: dict[int, Rows] = {}
    for change in CHANGES:
        change(table.refresh())
        snapshot = table.refresh().current_snapshot()
        assert snapshot is not None
        expected[snapshot.snapshot_id] = read_rows(table)
    assert len(expected) == len(CHANGES)
    opened = (
        f"CREATE CATALOG `{NAME}` WITH ('type'='iceberg', 'catalog-impl'='org.apache.iceberg.jdbc.JdbcCatalog', "
        f"'uri'='jdbc:sqlite:{lake.database}', 'jdbc.schema-version'='V1', 'warehouse'='{lake.warehouse.as_uri()}')"
    )
    query = "SELECT {0} AS s, id, part FROM `{1}`.db.t /*+ OPTIONS('snapshot-id'='{0}') */"
    rows = run_flink(lake.home, opened, *(query.format(number, NAME) for number in expected))
    assert rows == sorted(f"+I[{number}, {n}, {part}]" for number, read in expected.items() for n, part in read)
