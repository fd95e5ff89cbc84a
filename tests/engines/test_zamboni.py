"""`floeplan maintain` and iceberg-zamboni, its package in an environment of its own, on the same tables of format 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

import floeplan as fp
from floeplan.metadata.manifests.entries import Content
from tests.support.environments import BIN, environment
from tests.support.tables.commits import live_entries
from tests.support.tables.two_specs import EVENTS, START, events

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

FILES, ROWS, HEALTHY = 24, 400, 20
WORK = "compact,remove-dangling-deletes,rewrite-manifests"
MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "format-version": "2"}


def lake(folder: Path) -> SqlCatalog:
    """Small files without partitions, by day, under two specs, and with position deletes; and healthy tables."""
    folder.mkdir()
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("db")
    for name in ("flat", "days", "evolved", "deletes"):
        table = catalog.create_table(f"db.{name}", EVENTS, properties=MERGE_ON_READ)
        if name == "evolved":
            with table.update_spec() as update:
                update.add_identity("region")
            append(table, 0, FILES // 2)
            with table.update_spec() as update:
                update.remove_field("region")
                update.add_field("ts", DayTransform(), "day")
            append(table, FILES // 2, FILES)
        else:
            if name != "flat":
                with table.update_spec() as update:
                    update.add_field("ts", DayTransform(), "day")
            append(table, 0, FILES)
        if name == "deletes":
            for at in range(3):
                fp.delete(table, f"id % 11 = {at}")
    for number in range(HEALTHY):
        append(catalog.create_table(f"db.healthy{number:02d}", EVENTS, properties=MERGE_ON_READ), 0, 1)
    return catalog


def append(table: Table, first: int, last: int) -> None:
    """Append files, each with rows of five days."""
    for number in range(first, last):
        rows = events(number * ROWS, (number + 1) * ROWS)
        days = pa.array([START + timedelta(days=id_ % 5) for id_ in rows["id"].to_pylist()], pa.timestamp("us"))
        fp.append(table, rows.set_column(2, "ts", days), fast=True)


@dataclass(frozen=True)
class State:
    """What a table is made of."""

    ids: tuple[int, ...]
    data_files: int
    delete_files: int
    specs: tuple[int, ...]
    manifests: int

    @classmethod
    def of(cls, table: Table) -> State:
        entries = live_entries(table)
        contents = Counter((entries.content == Content.DATA).tolist())
        rows = fp.plan_scan(table, columns=["id"], options=fp.ScanOptions(report=False)).to_arrow()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return cls(
            tuple(sorted(rows["id"].to_pylist())),
            contents[True],
            contents[False],
            tuple(sorted(set(entries.spec_id.tolist()))),
            sum(one.has_added_files() or one.has_existing_files() for one in snapshot.manifests(table.io)),
        )


def states(catalog: SqlCatalog) -> dict[str, State]:
    return {name: State.of(catalog.load_table(("db", name))) for _, name in sorted(catalog.list_tables("db"))}


def cpu_seconds(command: list[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Run a program and return its CPU time."""
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return used.ru_utime + used.ru_stime


def floeplan_maintains(folder: Path) -> float:
    variables = {
        "PYICEBERG_CATALOG__LOCAL__TYPE": "sql",
        "PYICEBERG_CATALOG__LOCAL__URI": f"sqlite:///{folder}/catalog.db",
        "PYICEBERG_CATALOG__LOCAL__WAREHOUSE": folder.as_uri(),
    }
    # The files are new, but their partitions are complete.
    (folder / "policy.toml").write_text('[defaults]\npartition-age = "0d"\n')
    command = [str(BIN / "floeplan"), "maintain", "db.*", "--policy", "policy.toml", "--catalog", "local", "--json"]
    return cpu_seconds(command, folder, variables)


def zamboni_maintains(folder: Path) -> float:
    zamboni, config = str(environment("iceberg-zamboni") / "zamboni"), str(folder / "table-config.json")
    local = ["--local-warehouse", str(folder), "--db", "local"]
    cpu_seconds([zamboni, "table-config", "generate", "-o", config, *local], folder, {})
    operations = ["--operations", WORK, "--table-config", config, "--yes"]
    return cpu_seconds([zamboni, "maintenance", *operations, *local], folder, {})


def test_the_same_tables_maintained_by_both(tmp_path: Path) -> None:
    ours, theirs = lake(tmp_path / "ours"), lake(tmp_path / "theirs")
    before = states(ours)
    assert {name: state.ids for name, state in states(theirs).items()} == {n: s.ids for n, s in before.items()}
    used = floeplan_maintains(tmp_path / "ours"), zamboni_maintains(tmp_path / "theirs")
    after, peer = states(ours), states(theirs)
    lines = [f"CPU s: {used[0]:.2f} Floeplan, {used[1]:.2f} iceberg-zamboni, {len(before)} tables"]
    for name, state in before.items():
        shown = [
            f"{one.data_files} data, {one.delete_files} delete files of specs {one.specs} in {one.manifests} manifests"
            for one in (state, after[name], peer[name])
        ]
        lines.append(f"{name}: {' | '.join(shown)}")
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    for name, state in before.items():
        assert after[name].ids == peer[name].ids == state.ids, name
        assert (after[name].specs, after[name].delete_files) == (state.specs, 0), name
    files = {name: state.data_files for name, state in after.items() if not name.startswith("healthy")}
    assert files == {"flat": 1, "days": 5, "deletes": 5, "evolved": 8}  # one file for each partition of each spec
    ours.close()
    theirs.close()
