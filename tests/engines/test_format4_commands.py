"""Every command on tables of format 4 that Spark wrote; after each change Spark reads the same rows and writes on."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.scan.plan import plan_scan
from tests.support.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.engines, pytest.mark.foreign]

COLUMNS = "id bigint, region string, ts timestamp, price decimal(9, 2)"
READ = "SELECT id, region, CAST(ts AS string) ts, price FROM {} ORDER BY id"
MODES = ("delete", "update", "merge")


class Turns:
    """A table that commands and Spark change in turns, and the rows that it must have by id."""

    def __init__(self, spark: SparkSession, capsys: pytest.CaptureFixture[str], name: str) -> None:
        self.spark, self.capsys, self.name = spark, capsys, name
        self.rows: dict[int, str] = {}
        self.next = 0
        self.statements = cycle(("delete", "update", "insert"))

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("{t}", f"local.{self.name}"))

    def insert(self, count: int) -> None:
        new = {number: ("eu", "us", "ap")[number % 3] for number in range(self.next, self.next + count)}
        values = (f"({n}, '{r}', TIMESTAMP '2024-03-0{n % 5 + 1} 10:00:00', {n}.25)" for n, r in new.items())
        self.sql(f"INSERT INTO {{t}} VALUES {', '.join(values)}")
        self.next += count
        self.rows |= new

    def run(self, command: str, *options: str) -> Any:
        """A command that succeeds, as JSON."""
        status = main([command, self.name, *options, "--catalog", "local", "--json"])
        captured = self.capsys.readouterr()
        assert status == 0, (command, captured.err)
        return json.loads(captured.out)

    def refused(self, command: str, *options: str, status: int = 2) -> str:
        """The one line of a command that fails."""
        assert main([command, self.name, *options, "--catalog", "local"]) == status
        error = self.capsys.readouterr().err
        assert error.count("\n") == 1, error
        return error

    def check(self) -> None:
        """Spark and Floeplan read the rows; Spark changes one, by another statement each time; both read them again."""
        self.agree()
        victim, changed = min(self.rows), max(self.rows)
        match next(self.statements):
            case "delete":
                self.sql(f"DELETE FROM {{t}} WHERE id = {victim}")
                del self.rows[victim]
            case "update":
                self.sql(f"UPDATE {{t}} SET region = 'sp' WHERE id = {changed}")
                self.rows[changed] = "sp"
            case _:
                self.insert(3)
        self.agree()

    def agree(self) -> None:
        theirs = self.spark.sql(READ.format(f"local.{self.name}")).collect()
        assert {row["id"]: row["region"] for row in theirs} == self.rows
        assert len(theirs) == len(self.rows)
        found = plan_scan(load_table(self.name, "local")).to_arrow().select(["id", "region"]).to_pylist()
        assert {row["id"]: row["region"] for row in found} == self.rows
        assert self.run("scan", "--count")["rows"] == len(found) == len(self.rows)
        ids = self.spark.sql(f"SELECT count(DISTINCT _row_id) FROM local.{self.name}").collect()[0][0]
        assert ids == len(self.rows)
        assert not [one for one in self.run("doctor")["findings"] if one["severity"] == "error"]


@pytest.fixture(params=[(3, "merge-on-read"), (4, "copy-on-write")], ids=["upgraded", "created"])
def turns(
    spark: SparkSession,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Turns:
    """A table of three specs, which Spark upgraded or created in format 4."""
    begins, mode = request.param
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{lake.database}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", lake.warehouse.as_uri())
    turns = Turns(spark, capsys, f"commands.t{uuid4().hex}")
    turns.sql("CREATE NAMESPACE IF NOT EXISTS local.commands")
    modes = ", ".join(f"'write.{one}.mode' = '{mode}'" for one in MODES)
    turns.sql(f"CREATE TABLE {{t}} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '{begins}', {modes})")
    turns.insert(12)
    turns.sql("ALTER TABLE {t} ADD PARTITION FIELD region")
    turns.insert(6)
    if begins < 4:
        dry = turns.run("upgrade-format", "--to", "4", "--dry-run")
        assert (dry["from"], dry["to"], len(dry["changes"])) == (3, 4, 3)
        turns.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '4')")
    turns.sql("ALTER TABLE {t} ADD PARTITION FIELD days(ts)")
    turns.sql("ALTER TABLE {t} DROP PARTITION FIELD region")
    turns.insert(6)
    turns.sql("DELETE FROM {t} WHERE id IN (0, 13)")
    for deleted in (0, 13):
        del turns.rows[deleted]
    assert turns.run("inspect")["format_version"] == 4
    return turns


def test_rows_are_changed(turns: Turns, tmp_path: Path) -> None:
    new = tmp_path / "new.parquet"
    columns = {
        "id": pa.array([1000, 1001]),
        "region": ["fp", "fp"],
        "ts": pa.array([0, 86_400_000_000], pa.timestamp("us", "UTC")),
        "price": pa.array([1, 2], pa.decimal128(9, 2)),
    }
    pq.write_table(pa.table(columns), new)
    turns.run("append", str(new))
    turns.rows |= {1000: "fp", 1001: "fp"}
    turns.check()
    for mode in ("merge-on-read", "copy-on-write"):
        victim, changed = sorted(turns.rows)[:2]
        turns.run("delete", "--where", f"id = {victim}", "--mode", mode)
        del turns.rows[victim]
        turns.check()
        turns.run("update", "--set", "region='up'", "--where", f"id = {changed}", "--mode", mode)
        turns.rows |= {changed: "up"} if changed in turns.rows else {}
        turns.check()
        updates = ("--when-matched-update", "region='mg'", "--when-not-matched-insert", "*")
        turns.run("merge", "--source", str(new), "--on", "id", "--mode", mode, *updates)
        turns.rows |= {1000: "mg", 1001: "mg"}
        turns.check()


def test_files_are_rewritten(turns: Turns) -> None:
    for strategy in ("binpack", "sort", "zorder", "hilbert", "stitch"):
        by = () if strategy in ("binpack", "stitch") else ("--by", "id,region")
        turns.run("rewrite", "--strategy", strategy, *by, "--option", "rewrite-all=true")
        turns.check()
    turns.run("rewrite", "--spec", "current", "--option", "rewrite-all=true")
    turns.check()
    for spec in ("bucket(4, id)", "current"):
        turns.run("upgrade-spec", "--to", spec)
        turns.check()
    turns.run("rewrite-manifests")
    turns.check()
    turns.run("rewrite-deletes", "--rewrite-all")
    turns.check()


def test_history_is_changed(turns: Turns) -> None:
    turns.run("tag", "kept")
    turns.run("branch", "side")
    before = dict(turns.rows)
    turns.insert(2)
    after, added = dict(turns.rows), turns.run("snapshots")["snapshots"][0]["snapshot_id"]
    turns.run("rollback", "--to", "kept")
    turns.rows = before
    turns.agree()
    turns.run("cherrypick", "--snapshot-id", str(added), "--branch", "side")
    turns.run("branch", "main", "--fast-forward", "side")
    turns.rows = after
    turns.check()
    turns.run("properties", "owner=x")
    turns.check()
    turns.run("expire", "--older-than", "0d", "--retain-last", "2", "--yes")
    turns.run("remove-orphans")
    turns.check()
    assert "no table can be downgraded" in turns.refused("upgrade-format", "--to", "3")
    assert turns.run("upgrade-format", "--to", "4")["changes"] == []


def test_metadata_is_written_elsewhere(turns: Turns, tmp_path: Path) -> None:
    tree = turns.run("entries", "-o", str(tmp_path / "tree"), "--leaf-entries", "2")
    where = ("--where", "region = 'eu' AND ts >= TIMESTAMP '2024-03-02'")
    planned, from_tree = turns.run("plan", *where), turns.run("plan", *where, "--root", tree["root"])
    kept = {file["path"] for file in planned["files"]}
    assert kept == {file["path"] for file in from_tree["files"]}
    assert kept
    assert all(turns.run("why", path, *where)["kept"] for path in kept)
    back = turns.run("entries", "--layout", "v3", "--root", tree["root"], "-o", str(tmp_path / "back"))
    assert back["format_version"] == 3
    turns.run("entries", "-o", str(tmp_path / "entries.parquet"))
    turns.run("report", "-o", str(tmp_path / "site"), *where)
    turns.check()
