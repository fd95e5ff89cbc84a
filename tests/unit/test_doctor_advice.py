"""The doctor recommends a command only when its planner finds something to do, and quotes what it would gain."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform, MonthTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.errors import InvalidOptionError
from floeplan.explorer.documents import RewriteRequest, doctor_document, rewrite_document
from floeplan.explorer.view import TableView
from floeplan.maintenance import doctor as rules
from floeplan.maintenance.doctor import Finding, doctor
from floeplan.partition.evolution import AddField, DropField, Term
from floeplan.partition.transforms import Transform
from floeplan.sql_text.parse import parse_statement
from floeplan.sql_text.statements import AlterPartitioning
from floeplan.transaction.evolve_spec import evolve_spec
from tests.support.advice import follow_advice
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "ts", TimestampType())
)
START = datetime(2024, 1, 1)


def rows(days: int, each: int = 1, *, step: timedelta = timedelta(days=1)) -> pa.Table:
    """``each`` rows a day (or step) in three regions."""
    times = [START + step * day for day in range(days) for _ in range(each)]
    regions = [("ap", "eu", "us")[at % 3] for at in range(len(times))]
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("ts", pa.timestamp("us"))])
    return pa.table({"id": range(len(times)), "region": regions, "ts": times}, schema)


def table_by(folder: Path, *fields: tuple[int, Transform, str]) -> Table:
    parts = [PartitionField(source, 1000 + at, transform, name) for at, (source, transform, name) in enumerate(fields)]
    opened: SqlCatalog = catalog(folder)
    return opened.create_table("db.t", SCHEMA, partition_spec=PartitionSpec(*parts))


def found(table: Table) -> dict[str, Finding]:
    return {finding.kind: finding for finding in doctor(table.refresh(), sample=0).findings}


DAY = (3, DayTransform(), "ts_day")


def test_one_small_file_per_partition_is_no_reason_to_rewrite_but_for_a_coarser_spec(tmp_path: Path) -> None:
    table = table_by(tmp_path, DAY)
    fp.append(table, rows(120))
    findings = found(table)
    assert not fp.RewriteDataFilesPlanner(table).plan().groups
    assert findings.keys() == {"over-partitioned"}
    over = findings["over-partitioned"]
    assert (over.severity, over.files) == ("info", 120)
    assert "120 partitions with a median size of" in over.message


@pytest.mark.parametrize(
    ("fields", "days", "spec"),
    [
        ((DAY,), 120, "month(ts)"),
        (((3, HourTransform(), "ts_hour"),), 120, "month(ts)"),
        (((2, IdentityTransform(), "region"), DAY), 60, "region, month(ts)"),
        (((1, BucketTransform(64), "id_bucket"),), 400, "bucket(8, id)"),
    ],
)
def test_the_coarser_spec_is_the_finest_that_is_large_enough_and_keeps_its_promise(
    tmp_path: Path, fields: tuple[tuple[int, Transform, str], ...], days: int, spec: str
) -> None:
    table = table_by(tmp_path, *fields)
    fp.append(table, rows(days))
    size = int(table.refresh().inspect.files()["file_size_in_bytes"].to_numpy().mean())
    # A target that a month of days reaches a tenth of, but no partition of the table.
    table.transaction().set_properties({"write.target-file-size-bytes": str(size * 60)}).commit_transaction()
    over = found(table)["over-partitioned"]
    assert f"partition by {spec} instead" in over.message
    assert over.fix is not None
    for statement in re.findall(r'floeplan sql "([^"]+)"', over.fix):
        altered = parse_statement(statement)
        assert isinstance(altered, AlterPartitioning)
        evolve_spec(table.refresh(), altered.changes)
    fp.rewrite_data_files(table.refresh(), spec="current")
    promised = int(re.search(r"would become ([\d,]+),", over.message)[1].replace(",", ""))  # type: ignore[index]
    assert promised <= len(table.refresh().inspect.files()) <= 1.25 * promised
    assert "over-partitioned" not in found(table)


def test_small_files_quote_what_the_rewrite_merges(tmp_path: Path) -> None:
    table = table_by(tmp_path)
    for _ in range(12):
        fp.append(table.refresh(), rows(3))
    small = found(table)["small-files"]
    assert "12 files are below the target size of 512.0 MiB: rewrite merges them" in small.message
    assert small.message.endswith("into 1")
    assert small.fix == "floeplan rewrite db.t"
    done = fp.rewrite_data_files(table.refresh())
    assert (done.files_rewritten, done.files_added) == (12, 1)
    assert "small-files" not in found(table)


def test_the_explorer_shows_a_rewrite_exactly_when_its_planner_has_one(tmp_path: Path) -> None:
    table = table_by(tmp_path, DAY)
    fp.append(table, rows(60))
    for merged in (False, True):
        if merged:
            for _ in range(11):
                fp.append(table.refresh(), rows(1))
        kinds = {finding["kind"] for finding in doctor_document(table.refresh())["findings"]}
        planned = rewrite_document(TableView.of(table.refresh()), RewriteRequest())
        assert ("small-files" in kinds) == merged == (planned["groups_total"] > 0)


def test_files_of_a_finer_spec_are_no_reason_to_upgrade(tmp_path: Path) -> None:
    table = table_by(tmp_path, DAY)
    fp.append(table, rows(5))
    evolve_spec(table.refresh(), (DropField("ts_day"), AddField(Term(("ts",), MonthTransform()))))
    assert fp.upgrade_spec(table.refresh(), options=fp.UpgradeOptions(dry_run=True)).reasons == {"coarser-target": 5}
    assert "old-specs" not in found(table)


def test_old_specs_quote_what_the_upgrade_moves_and_rewrites(tmp_path: Path) -> None:
    table = table_by(tmp_path)
    for day in range(3):
        fp.append(table.refresh(), rows(day + 1).slice(day))
    fp.append(table.refresh(), rows(3))
    evolve_spec(table.refresh(), (AddField(Term(("ts",), DayTransform())),))
    old = found(table)["old-specs"]
    assert old.message.startswith(
        "4 files are under an old spec: upgrade-spec moves 3 by metadata alone and rewrites 1 ("
    )
    done = fp.upgrade_spec(table.refresh())
    assert (done.files_by_metadata, done.files_by_rewrite) == (3, 1)
    assert "old-specs" not in found(table)


def test_manifests_quote_what_pass_1_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SPREAD", 1.5)
    table = table_by(tmp_path, (2, IdentityTransform(), "region"))
    for _ in range(4):
        fp.append(table.refresh(), rows(3))
    many = found(table)["many-manifests"]
    assert many.message == (
        "4 manifests: rewrite-manifests makes 1; a scan of one partition opens 1 instead of 4 manifests"
    )
    done = fp.rewrite_manifests(table.refresh())
    assert (done.manifests_before, done.manifests_after) == (4, 1)
    assert "many-manifests" not in found(table)


def test_more_manifests_say_what_pass_1_gains(tmp_path: Path) -> None:
    table = table_by(tmp_path, DAY)
    for _ in range(3):
        fp.append(table.refresh(), rows(60))
    done = fp.rewrite_manifests(table.refresh(), least_entries=30)
    assert (done.manifests_before, done.manifests_after) == (3, 6)
    assert done.gain == "a scan of one partition opens 1 instead of 3 manifests (30 instead of 180 entries)"
    assert (done.specs[0].read_before, done.specs[0].read_after) == (180.0, 30.0)


def test_fewer_manifests_that_a_scan_of_a_partition_does_not_notice(tmp_path: Path) -> None:
    table = table_by(tmp_path, DAY)
    for day in range(3):
        fp.append(table.refresh(), rows(day + 1).slice(day))
    done = fp.rewrite_manifests(table.refresh(), dry_run=True)
    assert (done.manifests_before, done.manifests_after) == (3, 1)
    assert done.gain == "a scan of one partition opens as many manifests as before (3 instead of 1 entries)"


@pytest.mark.parametrize("value", ["abc", "0", "-5"])
def test_a_target_size_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    table = table_by(tmp_path)
    fp.append(table, rows(3))
    table.refresh().transaction().set_properties({"write.target-file-size-bytes": value}).commit_transaction()
    expected = f"write.target-file-size-bytes is set to '{value}', but must be a whole number above 0"
    for use in (fp.doctor, fp.rewrite_data_files):
        with pytest.raises(InvalidOptionError, match=expected):
            use(table.refresh())


def test_snapshots_that_would_not_expire_are_no_reason_to_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MANY_SNAPSHOTS", 3)
    table = table_by(tmp_path)
    for _ in range(4):
        fp.append(table.refresh(), rows(1))
    assert "many-snapshots" not in found(table)
    age = {"history.expire.max-snapshot-age-ms": "0"}
    table.refresh().transaction().set_properties(age).commit_transaction()
    assert found(table)["many-snapshots"].message == "4 snapshots are kept: expire removes 3"


def embedded_table(**properties: str) -> Table:
    opened = open_catalog()
    opened.create_namespace_if_not_exists("db")
    given = {f"write.{name.replace('_', '-')}": value for name, value in properties.items()}
    return opened.create_table("db.t", SCHEMA, properties=given)


def test_files_that_a_rewrite_could_not_make_larger_are_not_recommended_again(floeplan_home: Path) -> None:
    """The rows of small files share the overhead of one file, so that the new files are again below the target."""
    table = embedded_table(target_file_size_bytes="2400")
    for _ in range(30):
        fp.append(table.refresh(), rows(3))
    before = fp.RewriteDataFilesPlanner(table.refresh()).plan()
    assert follow_advice(table)[0] == "small-files"
    plan = fp.RewriteDataFilesPlanner(table.refresh()).plan()
    assert 0 < len(plan.groups[0].rows) < len(before.groups[0].rows), "a further rewrite would merge some of them"
    fp.append(table.refresh(), rows(3))
    expired = fp.expire_snapshots(table.refresh(), older_than=timedelta(0), retain_last=1, dry_run=False)
    assert expired.snapshots_after == 1
    assert "small-files" not in found(table), "the snapshot of the rewrite has expired, its files are known"
    for _ in range(12):
        fp.append(table.refresh(), rows(3))
    assert "small-files" in found(table), "files that were added since are recommended"


def test_files_of_a_rewrite_are_small_again_after_a_larger_target(floeplan_home: Path) -> None:
    """They are far below the new target, so that `maintain` and `rewrite` merge them."""
    table = embedded_table(target_file_size_bytes="2400")
    for _ in range(40):
        fp.append(table.refresh(), rows(3))
    follow_advice(table)
    table.refresh().transaction().set_properties({"write.target-file-size-bytes": "1000000"}).commit_transaction()
    assert found(table)["small-files"].message.endswith("into 1")


def test_small_files_count_those_that_are_too_small_in_groups_that_become_fewer(tmp_path: Path) -> None:
    table = table_by(tmp_path, (2, IdentityTransform(), "region"))
    for _ in range(12):
        fp.append(table.refresh(), rows(1))
    fp.append(table.refresh(), rows(3000))
    large = int(table.refresh().inspect.files()["file_size_in_bytes"].to_numpy().max())
    # In partition ap the file of 1,000 rows is too large.
    table.transaction().set_properties({"write.target-file-size-bytes": str(large // 2)}).commit_transaction()
    assert found(table)["small-files"].message.startswith("12 files are below the target size")


@pytest.mark.parametrize("settings", [{"default": "none"}, {"default": "counts", "column.id": "none"}])
def test_bounds_that_the_properties_turn_off_are_turned_on_before_the_rewrite(
    floeplan_home: Path, settings: dict[str, str]
) -> None:
    table = embedded_table()
    metrics = {f"write.metadata.metrics.{name}": value for name, value in settings.items()}
    table.transaction().set_properties(metrics).commit_transaction()
    fp.append(table.refresh(), rows(3))
    assert follow_advice(table) == ["missing-statistics"]
    assert table.refresh().inspect.files()["lower_bounds"].to_pylist()[0]


def test_other_advice_is_gone_once_it_is_followed(floeplan_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MANY_SNAPSHOTS", 3)
    table = embedded_table()
    table.transaction().set_properties({"history.expire.max-snapshot-age-ms": "0"}).commit_transaction()
    fp.append(table.refresh(), rows(3))
    evolve_spec(table.refresh(), (AddField(Term(("ts",), DayTransform())),))
    for _ in range(6):
        fp.append(table.refresh(), rows(4))
    assert set(follow_advice(table)) == {"small-files", "old-specs", "many-snapshots"}
    assert len(table.refresh().scan().to_arrow()) == 27


@pytest.mark.parametrize("version", [2, 3])
def test_files_with_many_deleted_rows_quote_the_deletes_that_a_rewrite_applies(
    floeplan_home: Path, version: int
) -> None:
    table = embedded_table()
    fp.upgrade_format(table, version)
    for _ in range(2):
        fp.append(table.refresh(), rows(10))
    fp.delete(table.refresh(), "id = 0", mode="merge-on-read")
    assert "many-deletes" not in found(table), "1 of 10 rows of each file"
    fp.delete(table.refresh(), "id IN (1, 2)", mode="merge-on-read")
    plan = fp.RewriteDataFilesPlanner(table.refresh()).plan()
    many = found(table)["many-deletes"]
    assert (many.severity, many.files, many.fix) == ("info", 2, "floeplan rewrite db.t")
    assert sorted(many.examples) == sorted(plan.decisions["file_path"].to_pylist())
    assert many.message.startswith(
        "2 files have at least 30 % of their rows deleted: rewrite applies 2 delete files and turns 2 files ("
    )
    assert many.message.endswith(") into 1")
    kept = sorted(fp.plan_scan(table.refresh()).to_arrow()["id"].to_pylist())
    assert follow_advice(table)[0] == "many-deletes"
    assert not fp.RewriteDataFilesPlanner(table.refresh()).plan().groups
    assert sorted(fp.plan_scan(table.refresh()).to_arrow()["id"].to_pylist()) == kept


def test_the_thresholds_of_a_rewrite_decide_which_deletes_are_many(floeplan_home: Path) -> None:
    table = embedded_table()
    fp.append(table, rows(30))
    fp.append(table.refresh(), rows(20))
    fp.delete(table.refresh(), "id = 1", mode="merge-on-read")
    fp.delete(table.refresh(), "id = 25", mode="merge-on-read")
    assert "many-deletes" not in found(table)
    by_files = fp.RewriteOptions(delete_file_threshold=1)
    (many,) = (one for one in doctor(table.refresh(), rewrite=by_files).findings if one.kind == "many-deletes")
    assert many.files == 2
    assert many.message.startswith("2 files have at least 1 delete file: rewrite applies 2 delete files and turns 2")
    assert many.fix == "floeplan rewrite db.t --option delete-file-threshold=1"
    by_ratio = fp.RewriteOptions(delete_ratio_threshold=0.06)
    (many,) = (one for one in doctor(table.refresh(), rewrite=by_ratio).findings if one.kind == "many-deletes")
    assert many.files == 1
    assert many.message.startswith(
        "1 file has at least 6 % of its rows deleted: rewrite applies 2 delete files and turns 2"
    )
    assert many.fix == "floeplan rewrite db.t --option delete-ratio-threshold=0.06"
    assert main(shlex.split(many.fix)[1:]) == 0
    assert doctor(table.refresh(), rewrite=by_ratio).findings == ()
