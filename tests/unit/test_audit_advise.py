"""Advice: workloads come from scan reports, layouts are evaluated as the planner does, and estimates hold."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import NestedField, StringType, TimestampType

from floeplan.audit.advisor import AdviceResult, AdviseOptions, advise, apply_candidate
from floeplan.audit.candidates import Candidate
from floeplan.audit.reports import read_workload
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.dml.append import append
from floeplan.errors import BadInputError
from floeplan.maintenance.doctor import doctor
from floeplan.metadata.manifests.entries import Content, Status, new_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.report import JsonLinesReportStore, TableReportStore
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from tests.support.scan_reports import foreign_report, leaf, write_lines
from tests.support.tables.two_specs import catalog, two_spec_table

pytestmark = pytest.mark.unit

FILES, ROWS = 24, 400
START = datetime(2024, 3, 1)
SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.int64()), ("region", pa.string()), ("ts", pa.timestamp("us"))])


def archive(folder: Path, opened: Catalog | None = None) -> Table:
    """Files in time order; users and regions are spread over all of them."""
    table = (opened or catalog(folder)).create_table("db.archive", SCHEMA)
    random = np.random.default_rng(1)
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = {
            "id": ids,
            "user": random.integers(0, 100_000, ROWS),
            "region": random.choice(["ap", "eu", "in", "us"], ROWS),
            "ts": [START + timedelta(minutes=int(i)) for i in ids],
        }
        table.append(pa.table(rows, SCHEMA))
    return table


def run_queries(table: Table, reports: Path, queries: list[str]) -> int:
    """Plan queries with reports; returns the bytes of the files they keep."""
    options = ScanOptions(footers=False, report=JsonLinesReportStore(reports))
    return sum(plan_scan(table, where, options=options).summary.bytes_kept for where in queries)


def small_targets(table: Table) -> Table:
    """The table with its present file size as the target, so that a rewrite keeps the number of files."""
    size = int(table.refresh().inspect.files()["file_size_in_bytes"].to_numpy().mean())
    table.transaction().set_properties({"write.target-file-size-bytes": str(size)}).commit_transaction()
    return table.refresh()


def best(result: AdviceResult, kind: str) -> Candidate:
    return next(candidate for candidate in result.candidates if candidate.kind == kind)


@pytest.mark.parametrize("sample", [0, 5000])
@pytest.mark.parametrize("kind", ["sort", "spec", "zorder"])
def test_applied_advice_saves_what_was_estimated(tmp_path: Path, kind: str, sample: int) -> None:
    table = archive(tmp_path)
    queries = {
        "sort": [f"user BETWEEN {start} AND {start + 3000}" for start in range(0, 90_000, 9_000)],
        "spec": [f"region = '{region}'" for region in ("ap", "eu", "in", "us")],
        "zorder": [f"user < {u} AND region = 'eu'" for u in (9_000, 25_000)] + ["user > 60000 AND user < 70000"],
    }[kind]
    before = run_queries(table, tmp_path / "reports", queries)
    result = advise(small_targets(table), str(tmp_path / "reports"), AdviseOptions(kind=kind, sample=sample, most=50))
    candidate = best(result, kind)
    assert candidate.estimated_bytes_before == before
    apply_candidate(table.refresh(), candidate)
    after = run_queries(table.refresh(), tmp_path / "later", queries)
    assert after < before / 1.5
    assert candidate.estimated_bytes_after / 2 <= after <= 2 * candidate.estimated_bytes_after


def test_columns_that_already_prune_need_no_advice(tmp_path: Path) -> None:
    table = archive(tmp_path)
    run_queries(table, tmp_path / "reports", [f"id BETWEEN {i} AND {i + 100}" for i in range(0, 9000, 1000)])
    result = advise(table, str(tmp_path / "reports"))
    assert [candidate for candidate in result.candidates if candidate.kind == "sort"] == []


def test_equalities_are_worth_buckets_and_ranges_are_not(tmp_path: Path) -> None:
    table = small_targets(archive(tmp_path))
    run_queries(table, tmp_path / "equal", [f"user = {u}" for u in range(500, 60_000, 5_000)])
    run_queries(table, tmp_path / "range", [f"user > {u}" for u in range(500, 60_000, 5_000)])
    equal, ranges = (advise(table, str(tmp_path / name), AdviseOptions(kind="spec")) for name in ("equal", "range"))
    assert ("bucket(16, user)",) in [candidate.columns for candidate in equal.candidates]
    assert ("bucket(16, user)",) not in [candidate.columns for candidate in ranges.candidates]


def test_tiny_files_are_not_divided_further(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "region", StringType()), NestedField(2, "ts", TimestampType()))
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"))
    table = catalog(tmp_path).create_table("db.tiny", schema, partition_spec=spec)
    times = [START + timedelta(days=day) for day in range(90) for _ in range(3)]
    append(table, pa.table({"region": ["ap", "eu", "us"] * 90, "ts": times}, schema.as_arrow()))
    run_queries(table.refresh(), tmp_path / "reports", ["region = 'eu'"] * 4)
    result = advise(table.refresh(), str(tmp_path / "reports"))
    first = result.candidates[0]
    assert first.files_total[1] < first.files_total[0] == 90
    assert all(candidate.files_total[1] <= 90 for candidate in result.candidates)
    coarser = next(finding for finding in doctor(table.refresh()).findings if finding.kind == "over-partitioned")
    columns = [candidate.columns for candidate in result.candidates if candidate.kind == "spec"]
    fixes = [f"partition by {', '.join(one)} instead" if one else "make the table unpartitioned" for one in columns]
    assert any(fix in coarser.message for fix in fixes)


def test_ties_share_a_rank_and_every_line_says_what_it_is_based_on(tmp_path: Path) -> None:
    table = archive(tmp_path)
    run_queries(table, tmp_path / "reports", [f"user = {u}" for u in range(500, 60_000, 5_000)])
    for sample, basis, confidence in ((5000, "rows of 24 files", "high"), (0, "bounds", "low")):
        found = advise(
            small_targets(table), str(tmp_path / "reports"), AdviseOptions(sample=sample, most=50)
        ).candidates
        layouts = [one for one in found if one.kind != "manifests"]
        assert all(basis in one.basis and one.confidence == confidence for one in layouts)
        assert all(one.basis.endswith(", 12 runs") for one in found)
        assert [one.rank for one in found] == sorted(one.rank for one in found)
        for one, other in pairwise(found):
            tied = one.rank == other.rank
            assert tied or one.gain > other.gain
    run_queries(table, tmp_path / "once", ["user = 500"])
    once = advise(small_targets(table), str(tmp_path / "once")).candidates
    assert once
    assert all(one.basis.endswith(", 1 run") for one in once)


REGIONS = ("ap", "eu", "in", "us")


def two_specs(folder: Path) -> Table:
    """Files of all regions, then files of one region each, each in its own manifest."""
    table = catalog(folder).create_table("db.t", SCHEMA)

    def rows(number: int) -> pa.Table:
        names = [REGIONS[(number + i) % 4] for i in range(100)]
        values = {"id": range(100), "user": [7] * 100, "region": names, "ts": [START] * 100}
        return pa.table(values, SCHEMA)

    for number in range(6):
        table.append(rows(number))
    with table.update_spec() as update:
        update.add_identity("region")
    for number in range(6):
        table.append(rows(number))
    return table


def test_old_spec_files_are_noticed(tmp_path: Path) -> None:
    table = two_specs(tmp_path)
    run_queries(table, tmp_path / "reports", ["region = 'eu'"] * 3)
    found = {c.kind: c for c in advise(table, str(tmp_path / "reports"), AdviseOptions(most=50)).candidates}
    upgrade = found["upgrade-spec"]
    assert upgrade.columns == ("region",)
    assert upgrade.bytes_rewritten > 0
    assert upgrade.estimated_bytes_after < upgrade.estimated_bytes_before / 2


def test_an_applied_upgrade_saves_what_was_estimated(tmp_path: Path) -> None:
    table = two_specs(tmp_path)
    queries = [f"region = '{region}'" for region in REGIONS]
    before = run_queries(table, tmp_path / "reports", queries)
    result = advise(table, str(tmp_path / "reports"), AdviseOptions(kind="upgrade-spec"))
    candidate = best(result, "upgrade-spec")
    apply_candidate(table, candidate)
    after = run_queries(table.refresh(), tmp_path / "later", queries)
    assert {file.spec_id for file in plan_scan(table).files} == {table.spec().spec_id}
    assert after < before / 1.5
    assert candidate.saved / 2 <= before - after <= 2 * candidate.saved


def scattered(folder: Path) -> Table:
    """Twelve manifests, each with a file of each of sixty regions; the data files do not exist."""
    table = catalog(folder).create_table("db.scattered", SCHEMA)
    with table.update_spec() as update:
        update.add_identity("region")
    union = UnionPartitionType.of_table(table.metadata)
    partition = f"partition.{table.spec().fields[0].field_id}"
    for commit in range(12):
        columns = {
            "spec_id": pa.array([table.spec().spec_id] * 60, pa.int32()),
            "status": pa.array([int(Status.ADDED)] * 60, pa.int8()),
            "content": pa.array([int(Content.DATA)] * 60, pa.int8()),
            "file_path": pa.array([f"file:///nowhere/{commit}-{number}.parquet" for number in range(60)]),
            "file_format": pa.array(["PARQUET"] * 60),
            "record_count": pa.array([10] * 60),
            "file_size_in_bytes": pa.array([1000] * 60),
            partition: pa.array([f"region {number:02}" for number in range(60)]),
        }
        change = SnapshotChange(Operation.APPEND, added_data=new_entries(columns, union))
        table = commit_change(table, change).table
    return table


def test_applied_clustering_of_manifests_saves_what_was_estimated(tmp_path: Path) -> None:
    table = scattered(tmp_path)
    queries = [f"region = 'region {number:02}'" for number in range(0, 60, 7)]
    run_queries(table, tmp_path / "reports", queries)
    candidate = best(advise(table, str(tmp_path / "reports"), AdviseOptions(kind="manifests")), "manifests")
    assert candidate.estimated_bytes_before == manifest_bytes(table, queries)
    assert candidate.to_dict()["cost"] == {"bytes_rewritten": 0, "metadata_only": True}
    apply_candidate(table, candidate)
    after = manifest_bytes(table.refresh(), queries)
    assert after < candidate.estimated_bytes_before / 4
    assert candidate.estimated_bytes_after / 2 <= after <= 2 * candidate.estimated_bytes_after


def manifest_bytes(table: Table, queries: list[str]) -> int:
    """The bytes of the manifests that queries open, according to the manifest list."""
    listed = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    total = 0
    for query in queries:
        region = query.split("'")[1].encode()
        ranges = [(manifest, manifest.partitions[0]) for manifest in listed if manifest.partitions]
        total += sum(m.manifest_length for m, part in ranges if part.lower_bound <= region <= part.upper_bound)
    return total


@pytest.mark.parametrize("sample", [0, 50])
def test_every_type_can_be_advised_on(tmp_path: Path, sample: int) -> None:
    days = [date(2024, 1, 1) + timedelta(days=i) for i in range(40)]
    rows = pa.table(
        {
            "flag": [i % 2 == 0 for i in range(40)],
            "price": pa.array([Decimal(i) / 4 for i in range(40)], pa.decimal128(9, 2)),
            "wide": pa.array([Decimal(i) for i in range(40)], pa.decimal128(30, 2)),
            "ratio": pa.array(
                [None if i % 5 == 0 else float("nan") if i == 7 else i / 3 for i in range(40)], pa.float32()
            ),
            "day": days,
            "name": [None if i % 7 == 0 else f"n{i}" for i in range(40)],
            "data": [str(i).encode() for i in range(40)],
            "nothing": pa.nulls(40, pa.int64()),
            "place": [{"city": f"c{i % 3}"} for i in range(40)],
        }
    )
    table = catalog(tmp_path).create_table("db.types", rows.schema)
    for first in range(0, 40, 10):
        table.append(rows.take(pa.array(range(first // 10, 40, 4))))
    queries = [
        "flag",
        "price > 3",
        "wide = 7",
        "ratio < 2",
        "day = DATE '2024-01-09'",
        "name = 'n9'",
        "name LIKE 'n3%'",
    ]
    queries += ["data = X'31'", "nothing = 4", "place.city IN ('c0', 'c1')", "ratio IS NULL", "true"]
    run_queries(table, tmp_path / "reports", queries)
    result = advise(table, str(tmp_path / "reports"), AdviseOptions(sample=sample, most=1000))
    assert (result.runs, result.unusable) == (len(queries), 0)
    assert all(c.cost[1] <= 0.95 * c.cost[0] for c in result.candidates)


def test_tables_without_files_or_queries_have_no_candidates(tmp_path: Path) -> None:
    empty = catalog(tmp_path).create_table("db.archive", SCHEMA)
    run_queries(empty, tmp_path / "reports", ["user = 3"])
    assert advise(empty, str(tmp_path / "reports")).candidates == ()
    unused = write_lines(tmp_path / "none/a.jsonl", [])
    assert advise(empty, str(unused)).runs == 0


def test_a_workload_counts_what_it_can_use_and_what_it_cannot(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    lines: list[Any] = [
        foreign_report(leaf("eq", "region", "eu"), kept=1, skipped=0),
        foreign_report(leaf("eq", "region", "eu"), kept=1, skipped=0, table="prod.db.events"),
        "INFO " + json.dumps(foreign_report(leaf("gt", "id", 5), kept=1, skipped=0)),
        foreign_report(leaf("eq", "region", "(hash-1a2b3c4d)"), kept=1, skipped=0),
        foreign_report(leaf("eq", "gone", 1), kept=1, skipped=0),
        foreign_report(leaf("eq", "region", "eu"), kept=1, skipped=0, table="db.other_events"),
        "{broken db.events",
    ]
    folder = write_lines(tmp_path / "reports/a.jsonl", lines)
    workload = read_workload(str(folder), "db.events", table.schema())
    assert [(str(predicate), runs) for predicate, runs in workload.predicates] == [("region = 'eu'", 2), ("id > 5", 1)]
    assert workload.unusable == 2
    with pytest.raises(BadInputError, match="no reports at"):
        read_workload(str(tmp_path / "nowhere"), "db.events", table.schema())


def test_reports_in_a_table_count_like_those_in_a_folder(
    tmp_path: Path, floeplan_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_spec_table(tmp_path)
    store = TableReportStore.create(catalog(tmp_path), "db.reports")
    plan_scan(table, "v > 3", options=ScanOptions(report=store))
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    workload = read_workload("db.reports", "db.events", table.schema(), catalog="local")
    assert [(str(predicate), runs) for predicate, runs in workload.predicates] == [("v > 3.0 AND NOT isnan(v)", 1)]


def test_the_command_shows_candidates_and_rejects_invalid_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = archive(tmp_path)
    run_queries(table, tmp_path / "reports", ["user < 5000"])
    lines = (tmp_path / "reports").glob("*.jsonl")
    text = "".join(path.read_text() for path in lines).replace("db.archive", table.metadata_location)
    folder = write_lines(tmp_path / "named/a.jsonl", [text])
    place = ["advise", table.metadata_location, "--reports", str(folder)]
    assert main([*place, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {"kind", "columns", "estimated_bytes_before", "estimated_bytes_after", "basis", "cost", "command"}
    assert document["candidates"][0].keys() >= keys | {"rank", "confidence", "files_opened_after", "files_total_after"}
    assert main([*place, "--kind", "sort"]) == 0
    assert "--strategy sort --by user" in capsys.readouterr().out
    assert main([*place, "--kind", "magic"]) == 2
    assert main([*place, "--apply"]) == 2
    assert "read-only" in capsys.readouterr().err


def test_the_command_applies_its_first_candidate(
    tmp_path: Path, floeplan_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_catalog()
    opened.create_namespace("db")
    table = archive(tmp_path, opened)
    before = run_queries(table, tmp_path / "reports", ["user < 5000"])
    table.transaction().set_properties({"write.target-file-size-bytes": "8000"}).commit_transaction()
    command = ["advise", "db.archive", "--reports", str(tmp_path / "reports"), "--kind", "sort", "--apply", "--json"]
    assert main(command) == 0
    assert len(json.loads(capsys.readouterr().out)["applied"]["snapshot_ids"]) == 1
    assert run_queries(table.refresh(), tmp_path / "later", ["user < 5000"]) < before / 2
    assert main(command) == 2
    assert "nothing to apply" in capsys.readouterr().out
