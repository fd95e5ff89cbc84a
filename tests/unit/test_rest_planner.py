"""Plans as REST clients get them: pages, deletes, snapshots, statistics, callers."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest.scan_planning import PlanCompleted, ScanTasks
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField

from floeplan.dml.append import append as append_rows
from floeplan.errors import BadInputError, UnknownColumnError, UnknownSnapshotError, UnsupportedError
from floeplan.metadata import held
from floeplan.metadata.manifests.entries import new_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.rest import planner as planner_module
from floeplan.rest.pages import PlanFiles
from floeplan.rest.planner import Caller, PlannerOptions, PlanResponse, ScanPlanner
from floeplan.rest.requests import PlanTableScanRequest
from floeplan.rest.tokens import KeyRing, NoSuchPlanTaskError
from floeplan.scan.plan import plan_scan
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.archive import write_evolved_archive
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    append,
    create_table,
    delete_first_rows,
    equality_delete,
    evolved_table,
    open_catalog,
    patient,
    rows_of,
)

pytestmark = pytest.mark.unit

SPARK, PYICEBERG = Caller("me", "Spark", "4.1"), Caller("me", "PyIceberg", "0.12.0")
KEYS = KeyRing.generate()
EQ_A = {"type": "eq", "term": "part", "value": "a"}


def planner(**options: Any) -> ScanPlanner:
    return ScanPlanner(KEYS, PlannerOptions(**options))


def request(**keys: Any) -> PlanTableScanRequest:
    return PlanTableScanRequest(**keys)


def body(response: PlanResponse) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(response.body)
    return document


def planned(table: Table, caller: Caller = SPARK, scans: ScanPlanner | None = None, **keys: Any) -> dict[str, Any]:
    return body((scans or planner()).plan(table, request(**keys), caller))


def paths(page: dict[str, Any]) -> list[str]:
    return [task["data-file"]["file-path"] for task in page["file-scan-tasks"]]


def expected_paths(table: Table, where: str | None = None, **target: Any) -> list[str]:
    return [file.path for file in plan_scan(table, where, options=NO_SCAN_EXTRAS, **target).files]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOEPLAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(open_catalog(tmp_path))


@pytest.fixture
def archive(tmp_path: Path) -> StaticTable:
    """Three specs, 240 files."""
    return StaticTable.from_metadata(str(write_evolved_archive(tmp_path, 12, 20)))


def test_a_plan_has_the_files_and_their_content(table: Table) -> None:
    page = planned(table, filter=EQ_A)
    assert page["status"] == "completed"
    assert page["plan-tasks"] == page["delete-files"] == []
    assert paths(page) == expected_paths(table, "part = 'a'")
    task = page["file-scan-tasks"][0]
    file = task["data-file"]
    assert task["residual-filter"] is True
    assert file["partition"] == ["a"]
    assert (file["spec-id"], file["content"], file["file-format"], file["record-count"]) == (0, "data", "parquet", 10)
    assert file["split-offsets"] == [4]
    assert file["file-size-in-bytes"] > 0
    assert "delete-file-references" not in task


def test_residuals_are_what_files_do_not_prove(table: Table) -> None:
    low = {"type": "lt", "term": "id", "value": 25}
    page = planned(table, filter={"type": "and", "left": EQ_A, "right": low})
    assert [task["residual-filter"] for task in page["file-scan-tasks"]] == [low, True]


def test_a_table_without_data(tmp_path: Path) -> None:
    empty = create_table(open_catalog(tmp_path), rows=[])
    page = planned(empty, filter=EQ_A)
    assert (page["file-scan-tasks"], page["delete-files"], page["plan-tasks"]) == ([], [], [])


def test_nothing_matches(table: Table) -> None:
    assert planned(table, filter={"type": "eq", "term": "part", "value": "z"})["file-scan-tasks"] == []
    assert planned(table, filter=False)["file-scan-tasks"] == []


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_by_reference(tmp_path: Path, version: int) -> None:
    """Position deletes or vectors, and an equality delete; each page has the delete files of its own tasks."""
    table = delete_first_rows(create_table(open_catalog(tmp_path), version), slice(0, 2))
    table = commit_change(table, equality_delete(table, [5], 0, "a"), options=patient()).table
    scans = planner(page_bytes=100)
    first = planned(table, scans=scans)
    pages = [first, *(body(scans.fetch_tasks(table, token, SPARK)) for token in first["plan-tasks"])]
    assert len(pages) == 3
    plans = {file.path: file for file in plan_scan(table, options=NO_SCAN_EXTRAS).files}
    kinds = set()
    for page in pages:
        for task in page["file-scan-tasks"]:
            sent = [page["delete-files"][at] for at in task.get("delete-file-references", ())]
            wanted = plans[task["data-file"]["file-path"]].deletes
            assert sorted(one["file-path"] for one in sent) == sorted(one.path for one in wanted)
            for one in sent:
                kinds.add(one["content"])
                if one["content"] == "equality-deletes":
                    assert one["equality-ids"] == [1]
                elif version == 3:
                    assert one["file-format"] == "puffin"
                    assert one["referenced-data-file"] == task["data-file"]["file-path"]
                    assert (one["content-offset"], one["content-size-in-bytes"]) > (0, 0)
            if version == 3:
                assert task["data-file"]["first-row-id"] >= 0
                assert task["data-file"]["data-sequence-number"] > 0
        used = {at for task in page["file-scan-tasks"] for at in task.get("delete-file-references", ())}
        assert used == set(range(len(page["delete-files"])))
    assert kinds == {"position-deletes", "equality-deletes"}


def test_pages_of_any_instance_make_up_the_plan(archive: StaticTable) -> None:
    one, other = planner(page_bytes=10_000), planner(page_bytes=10_000)
    filter_ = {"type": "eq", "term": "region", "value": "eu"}
    first = planned(archive, scans=one, filter=filter_)
    assert len(first["plan-tasks"]) > 3
    served = [one, other]
    rest = [body(served[at % 2].fetch_tasks(archive, t, SPARK)) for at, t in enumerate(first["plan-tasks"])]
    found = [path for page in (first, *rest) for path in paths(page)]
    assert found == expected_paths(archive, "region = 'eu'")
    sizes = [len(json.dumps(page)) for page in rest[:-1]]
    assert 4_000 < min(sizes) <= max(sizes) < 20_000


def test_a_page_of_another_plan_is_refused(archive: StaticTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of a release that prunes more must not serve ranges of a plan that has more files."""
    one, other = planner(page_bytes=10_000), planner(page_bytes=10_000)
    tokens = planned(archive, scans=one)["plan-tasks"]
    plan = planner_module.plan_target

    def without_first(*given: Any, **options: Any) -> Any:
        made = plan(*given, **options)
        return replace(made, files=made.files.take(np.arange(1, len(made.files))))

    monkeypatch.setattr(planner_module, "plan_target", without_first)
    with pytest.raises(NoSuchPlanTaskError):
        other.fetch_tasks(archive, tokens[0], SPARK)
    assert one.fetch_tasks(archive, tokens[0], SPARK).body


def test_long_filters_make_long_pages(archive: StaticTable) -> None:
    """Every token repeats the filter; the tokens of a plan stay a small part of it."""
    names = [f"nowhere-{number}" for number in range(400)]
    filter_ = {"type": "or", "left": True, "right": {"type": "in", "term": "region", "values": names}}
    scans = planner(page_bytes=10_000, unasked_stats=0)
    assert len(json.dumps(filter_)) > 4096
    assert planned(archive, scans=scans, filter=filter_)["plan-tasks"] == []
    assert len(planned(archive, scans=scans)["plan-tasks"]) > 3


def test_pyiceberg_parses_every_page(archive: StaticTable) -> None:
    scans = planner(page_bytes=10_000)
    first = scans.plan(archive, request(), PYICEBERG)
    parsed = PlanCompleted.model_validate_json(first.body)
    tasks = [*parsed.file_scan_tasks]
    for token in parsed.plan_tasks:
        page = ScanTasks.model_validate_json(scans.fetch_tasks(archive, token, PYICEBERG).body)
        tasks += page.file_scan_tasks
    assert [task.data_file.file_path for task in tasks] == expected_paths(archive)
    scan = FileScanTask.from_rest_response(tasks[0], [])
    assert scan.file.record_count == tasks[0].data_file.record_count


def test_the_next_page_is_written_ahead_for_pyiceberg_only(
    archive: StaticTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, int]] = []
    page_of = PlanFiles.page

    def page(files: PlanFiles, start: int, end: int, *, pyiceberg: bool) -> tuple[bytes, bytes]:
        written.append((start, end))
        return page_of(files, start, end, pyiceberg=pyiceberg)

    scans = planner(page_bytes=10_000)
    tasks = planned(archive, PYICEBERG, scans)["plan-tasks"]
    expected = [scans.fetch_tasks(archive, task, PYICEBERG).body for task in tasks]
    assert scans.fetch_tasks(archive, tasks[0], SPARK).ahead is None, "Java fetches all pages at once"
    assert scans.fetch_tasks(archive, tasks[-1], PYICEBERG).ahead is None
    monkeypatch.setattr(PlanFiles, "page", page)
    response = scans.plan(archive, request(), PYICEBERG)
    for task, page_body in zip(body(response)["plan-tasks"], expected, strict=True):
        before = len(written)
        assert response.ahead is not None
        response.ahead()
        response.ahead()
        response = scans.fetch_tasks(archive, task, PYICEBERG)
        assert response.body == page_body
        assert len(written) == before + 1, "once, and before it was asked for"


def test_a_page_that_is_being_written_is_waited_for(archive: StaticTable, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = planner(page_bytes=10_000)
    response = scans.plan(archive, request(), PYICEBERG)
    task = body(response)["plan-tasks"][0]
    expected = scans.fetch_tasks(archive, task, PYICEBERG).body
    begun, go_on, page_of = threading.Event(), threading.Event(), PlanFiles.page
    written: list[int] = []

    def page(files: PlanFiles, start: int, end: int, *, pyiceberg: bool) -> tuple[bytes, bytes]:
        written.append(start)
        begun.set()
        assert go_on.wait(60)
        return page_of(files, start, end, pyiceberg=pyiceberg)

    monkeypatch.setattr(PlanFiles, "page", page)
    assert response.ahead is not None
    with ThreadPoolExecutor(2) as threads:
        ahead = threads.submit(response.ahead)
        assert begun.wait(60)
        fetched = threads.submit(scans.fetch_tasks, archive, task, PYICEBERG)
        go_on.set()
        ahead.result()
        assert fetched.result().body == expected
    assert len(written) == 1


def test_few_pages_are_written_ahead(archive: StaticTable) -> None:
    """Also where clients give up their scans, or ask for pages that other instances cut elsewhere."""
    scans = planner(page_bytes=2_000)
    responses = [scans.plan(archive, request(), PYICEBERG)]
    responses += [scans.fetch_tasks(archive, task, PYICEBERG) for task in body(responses[0])["plan-tasks"][:6]]
    for response in responses:
        assert response.ahead is not None
        response.ahead()
    (plan,) = scans._plans.values()
    assert len(plan.written) == planner_module._PAGES_AHEAD
    assert plan.size > planner_module._PAGES_AHEAD * 2_000


def test_an_error_of_a_page_that_is_written_ahead_is_that_of_its_request(
    archive: StaticTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = planner(page_bytes=10_000)
    response = scans.plan(archive, request(), PYICEBERG)
    task = body(response)["plan-tasks"][0]
    expected = scans.fetch_tasks(archive, task, PYICEBERG).body

    def fail(*_: object, **__: object) -> tuple[bytes, bytes]:
        raise MemoryError("no memory for a page")

    assert response.ahead is not None
    with monkeypatch.context() as patched:
        patched.setattr(PlanFiles, "page", fail)
        response.ahead()
    with pytest.raises(MemoryError, match="no memory for a page"):
        scans.fetch_tasks(archive, task, PYICEBERG)
    assert scans.fetch_tasks(archive, task, PYICEBERG).body == expected, "the error is not kept"


def test_a_page_that_is_written_ahead_is_of_the_callers_own_plan_task(archive: StaticTable) -> None:
    scans = planner(page_bytes=10_000)
    response = scans.plan(archive, request(), PYICEBERG)
    assert response.ahead is not None
    response.ahead()
    with pytest.raises(NoSuchPlanTaskError):
        scans.fetch_tasks(archive, body(response)["plan-tasks"][0], Caller("another", "PyIceberg", "0.12.0"))


def test_no_page_of_a_plan_that_is_not_kept_is_written_ahead(archive: StaticTable) -> None:
    scans = planner(page_bytes=10_000, cache_bytes=0)
    response = scans.plan(archive, request(), PYICEBERG)
    assert body(response)["plan-tasks"]
    assert response.ahead is None


def with_null_part(table: Table) -> Table:
    """One more file, whose partition is null."""
    entries = append(table, rows_of(40, 50)).added_data
    assert entries is not None
    columns = {name: entries.array(name) for name in entries.table.column_names if name != "partition.1000"}
    nulled = new_entries(columns, UnionPartitionType.of_table(table.metadata))
    return commit_change(table, SnapshotChange(Operation.APPEND, added_data=nulled)).table


def test_null_partition_values(table: Table) -> None:
    table = with_null_part(table)
    for caller, expected in ((SPARK, "[None]"), (PYICEBERG, "[]")):
        sent = [str(task["data-file"]["partition"]) for task in planned(table, caller)["file-scan-tasks"]]
        assert sorted(sent) == ["['a']", "['a']", "['b']", expected]


def test_pyiceberg_never_reads_an_empty_partition() -> None:
    """Where a file lacks the column of an identity field, PyIceberg fails on the empty partition: no wrong value."""
    with pytest.raises(IndexError):
        Record()[0]


def test_void_fields_are_null(tmp_path: Path) -> None:
    table = evolved_table(open_catalog(tmp_path))
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    table = table.refresh()
    table = commit_change(table, append(table, rows_of(50, 51))).table
    partitions = [task["data-file"]["partition"] for task in planned(table)["file-scan-tasks"]]
    assert partitions.count([]) == 4
    assert [values for values in partitions if values] == [["a", BucketTransform(4).transform(LongType())(50)]]
    fields = [field.transform for field in UnionPartitionType.of_table(table.metadata).specs[2].fields]
    assert [type(one) for one in fields] == [IdentityTransform, BucketTransform]
    assert VoidTransform not in map(type, fields)


def test_time_travel_and_branches(table: Table) -> None:
    first, second, _ = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert paths(planned(table, snapshot_id=first)) == expected_paths(table, snapshot_id=first)
    assert len(paths(planned(table, snapshot_id=second, use_snapshot_schema=True))) == 2
    with pytest.raises(UnknownSnapshotError):
        planned(table, snapshot_id=99)


def test_columns_newer_than_the_snapshot(table: Table) -> None:
    with writable_metadata(table.io), table.update_schema() as update:
        update.add_column("extra", IntegerType())
    table = table.refresh()
    snapshot = table.metadata.current_snapshot_id
    filter_ = {"type": "is-null", "term": "extra"}
    for keys in ({}, {"snapshot_id": snapshot, "use_snapshot_schema": True}, {"snapshot_id": snapshot}):
        page = planned(table, filter=filter_, select=("extra", "_file"), **keys)
        assert len(page["file-scan-tasks"]) == 3
    with pytest.raises(UnknownColumnError):
        planned(table, filter={"type": "is-null", "term": "nothing"}, snapshot_id=snapshot)


def test_select_takes_metadata_columns_and_no_unknown_ones(table: Table) -> None:
    assert len(paths(planned(table, select=("id", "_pos", "_partition.part", "_row_id")))) == 3
    assert len(paths(planned(table, select=("ID",), case_sensitive=False))) == 3
    with pytest.raises(UnknownColumnError, match="'nothing'"):
        planned(table, select=("nothing",))


def test_incremental_scans(table: Table) -> None:
    first, second, third = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    added = paths(planned(table, start_snapshot_id=first, end_snapshot_id=third))
    assert sorted(added) == sorted(set(expected_paths(table)) - set(expected_paths(table, snapshot_id=first)))
    assert len(paths(planned(table, end_snapshot_id=second))) == 2
    assert paths(planned(table, start_snapshot_id=third, end_snapshot_id=third)) == []
    with pytest.raises(BadInputError, match="not an ancestor"):
        planned(table, start_snapshot_id=third, end_snapshot_id=first)


def test_enough_rows_end_the_plan(table: Table) -> None:
    for rows, files in ((0, 1), (1, 1), (10, 1), (11, 2), (30, 3), (1000, 3)):
        assert len(paths(planned(table, min_rows_requested=rows))) == files
    uncertain = {"type": "not-eq", "term": "id", "value": 5}
    kept = paths(planned(table, min_rows_requested=11, filter=uncertain))
    certain = [file for file in plan_scan(table, options=NO_SCAN_EXTRAS).files if file.path in kept]
    assert sum(file.record_count for file in certain) >= 11


def test_rows_that_may_be_deleted_do_not_count(table: Table) -> None:
    table = delete_first_rows(table, slice(0, 3))
    assert len(paths(planned(table, min_rows_requested=1))) == 3


def test_statistics_on_request(table: Table) -> None:
    file = planned(table, stats_fields=("id",))["file-scan-tasks"][0]["data-file"]
    values = json.loads(json.dumps(file["lower-bounds"]))
    assert values["keys"] == [1]
    assert bytes.fromhex(values["values"][0]) in {to_bytes(LongType(), low) for low in (0, 10, 20)}
    assert file["value-counts"] == {"keys": [1], "values": [10]}
    assert file["null-value-counts"] == {"keys": [1], "values": [0]}
    assert file["nan-value-counts"] == {"keys": [], "values": []}
    with pytest.raises(UnknownColumnError, match="stats-fields"):
        planned(table, stats_fields=("nothing",))


def test_statistics_unasked_where_engines_can_use_them(table: Table) -> None:
    file = planned(table, filter=EQ_A)["file-scan-tasks"][0]["data-file"]
    assert file["upper-bounds"]["keys"] == [1, 2]
    every = planned(table, filter=EQ_A, select=("part", "id", "_file"))["file-scan-tasks"][0]["data-file"]
    assert every["upper-bounds"]["keys"] == [1, 2]
    assert "upper-bounds" not in planned(table, filter=EQ_A, select=("id",))["file-scan-tasks"][0]["data-file"]
    assert "upper-bounds" not in planned(table, PYICEBERG, filter=EQ_A)["file-scan-tasks"][0]["data-file"]
    partly = planned(table, filter={"type": "lt", "term": "id", "value": 5})
    assert "upper-bounds" not in partly["file-scan-tasks"][0]["data-file"]
    large = planned(table, scans=planner(unasked_stats=1))
    assert "upper-bounds" not in large["file-scan-tasks"][0]["data-file"]
    deleted = planned(delete_first_rows(table, slice(0, 1)))
    assert "upper-bounds" not in deleted["file-scan-tasks"][0]["data-file"]


def test_system_functions_prune(tmp_path: Path) -> None:
    """``system.bucket(4, id) = n`` keeps the files of that bucket alone, and is proven there."""
    catalog = open_catalog(tmp_path)
    table = evolved_table(catalog)
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    table = table.refresh()
    for number in range(60, 70):
        table = commit_change(table, append(table, rows_of(number, number + 1))).table
    wanted = BucketTransform(4).transform(LongType())(60)
    filter_ = {"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": "id"}, "value": wanted}
    page = planned(table, filter=filter_)
    by_bucket = [task for task in page["file-scan-tasks"] if len(task["data-file"]["partition"]) == 2]
    assert {task["data-file"]["partition"][1] for task in by_bucket} == {wanted}
    assert all(task["residual-filter"] is True for task in by_bucket)
    others = [task for task in page["file-scan-tasks"] if task not in by_bucket]
    assert len(others) == 4, "files of other specs may hold any bucket"
    assert all(task["residual-filter"] == filter_ for task in others)


def test_tokens_belong_to_caller_table_and_time(archive: StaticTable, table: Table) -> None:
    scans = planner(page_bytes=10_000)
    token = planned(archive, scans=scans)["plan-tasks"][0]
    assert scans.fetch_tasks(archive, token, SPARK).report is None
    for other, caller in ((archive, replace(SPARK, principal="you")), (table, SPARK)):
        with pytest.raises(NoSuchPlanTaskError):
            scans.fetch_tasks(other, token, caller)
    expired = planned(archive, scans=planner(page_bytes=10_000, token_seconds=1e-9))["plan-tasks"][0]
    with pytest.raises(NoSuchPlanTaskError):
        scans.fetch_tasks(archive, expired, SPARK)


def test_a_snapshot_that_expired_between_pages(table: Table) -> None:
    scans = planner(page_bytes=100, cache_bytes=0)
    token = planned(table, scans=scans)["plan-tasks"][0]
    assert scans.fetch_tasks(table, token, SPARK).body
    kept = [s for s in table.metadata.snapshots if s.snapshot_id != table.metadata.current_snapshot_id]
    metadata = table.metadata.model_copy(update={"snapshots": kept})
    later = Table(table.name(), metadata, table.metadata_location + "2", table.io, table.catalog)
    with pytest.raises(NoSuchPlanTaskError):
        scans.fetch_tasks(later, token, SPARK)


def test_pages_stay_the_same_while_the_table_changes(table: Table) -> None:
    """A rename and a new spec between pages: the token has the snapshot and the schemas."""
    scans = planner(page_bytes=100, cache_bytes=0)
    first, before_location = planned(table, scans=scans, filter=EQ_A), table.metadata_location
    before = [body(scans.fetch_tasks(table, token, SPARK)) for token in first["plan-tasks"]]
    with writable_metadata(table.io), table.update_schema() as update:
        update.rename_column("part", "region")
    with writable_metadata(table.io), table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "id_bucket")
    changed = table.refresh()
    assert changed.metadata_location != before_location
    assert [body(scans.fetch_tasks(changed, token, SPARK)) for token in first["plan-tasks"]] == before
    with pytest.raises(UnknownColumnError):
        planned(changed, filter=EQ_A)


def test_plans_are_kept_by_metadata_and_request(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = planner_module.plan_target

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append("plan")
        return original(*arguments, **options)

    monkeypatch.setattr(planner_module, "plan_target", counted)
    scans = planner()
    responses = [scans.plan(table, request(filter=EQ_A), caller) for caller in (SPARK, replace(SPARK, principal="b"))]
    assert len(made) == 1
    ids = [response.plan_id for response in responses]
    assert ids[0] != ids[1]
    reports = [response.report for response in responses]
    assert [report and report["floeplan"]["served"]["cached"] for report in reports] == [False, True]
    scans.plan(table, request(filter=EQ_A, snapshot_id=table.metadata.current_snapshot_id), SPARK)
    newer = commit_change(table, append(table, rows_of(90, 95))).table
    assert len(paths(planned(newer, scans=scans, filter=EQ_A))) == 3
    assert len(made) == 3
    planner(cache_bytes=0).plan(table, request(), SPARK)
    scans_without = planner(cache_bytes=0)
    for _ in range(2):
        scans_without.plan(table, request(), SPARK)
    assert len(made) == 6


@pytest.mark.parametrize("values", [1, 1000])
def test_plans_count_their_memory(archive: StaticTable, values: int) -> None:
    def some(number: int) -> PlanTableScanRequest:
        listed = [number * 1_000_000 + i for i in range(values)]
        return PlanTableScanRequest.parse(json.dumps({"filter": {"type": "in", "term": "id", "values": listed}}))

    scans = planner()
    for number in range(5):  # what is kept once for all plans
        scans.plan(archive, some(number), SPARK)
    before = scans._plans.currsize
    tracemalloc.start()
    try:
        for number in range(5, 15):
            scans.plan(archive, some(number), SPARK)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown <= scans._plans.currsize - before, "of Python's objects alone"


def test_room_is_made_before_every_file_is_planned(archive: StaticTable, monkeypatch: pytest.MonkeyPatch) -> None:
    filters: list[dict[str, str]] = [{"type": "not-null", "term": name} for name in ("id", "ts")]
    probe = planner()
    planned(archive, scans=probe, filter=filters[1])
    scans = planner(cache_bytes=int(2.1 * next(iter(probe._plans.values())).size))
    kept, make = list[int](), ScanPlanner._make

    def counted(self: ScanPlanner, *given: Any) -> Any:
        kept.append(len(self._plans))
        return make(self, *given)

    monkeypatch.setattr(ScanPlanner, "_make", counted)
    for each in filters:
        planned(archive, scans=scans, filter=each)
    assert len(scans._plans) == 2, "both fit"
    assert len(planned(archive, scans=scans)["file-scan-tasks"]) == len(expected_paths(archive))
    assert kept == [0, 1, 1], "one of them was dropped before the third was made"


def test_the_report_tells_who_asked_for_what(table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(tmp_path / "reports"))
    response = planner().plan(table, request(filter=EQ_A, select=("id",)), PYICEBERG)
    report = response.report
    assert report is not None
    assert report["filter"] == EQ_A
    assert report["projected-field-names"] == ["id"]
    assert report["metadata"]["engine-name"] == "PyIceberg"
    assert report["metrics"]["result-data-files"]["value"] == 2
    served = report["floeplan"]["served"]
    assert (served["principal"], served["plan_id"]) == ("me", response.plan_id)
    assert report["floeplan"]["predicate"] == "part = 'a'"
    assert not (tmp_path / "reports").exists(), "the caller stores reports"
    json.dumps(report, default=str)


def test_plan_ids_are_optional(table: Table) -> None:
    response = planner(plan_ids=False).plan(table, request(), SPARK)
    assert "plan-id" not in body(response)
    assert response.plan_id


def test_options_are_checked() -> None:
    with pytest.raises(BadInputError, match="page_bytes"):
        PlannerOptions(page_bytes=0)


def test_paths_that_need_escapes(table: Table) -> None:
    entries = append(table, rows_of(40, 50)).added_data
    assert entries is not None
    strange = 's3://b/a "quoted" \\ path\u0001/ü.parquet'
    at = entries.table.schema.get_field_index("file_path")
    renamed = entries.table.set_column(at, "file_path", pa.array([strange], pa.large_string()))
    changed = replace(entries, table=renamed)
    table = commit_change(table, SnapshotChange(Operation.APPEND, added_data=changed)).table
    assert strange in paths(planned(table))


def test_names_in_another_case(table: Table) -> None:
    filter_ = {"type": "eq", "term": "PART", "value": "a"}
    assert len(paths(planned(table, filter=filter_, case_sensitive=False))) == 2
    with pytest.raises(UnknownColumnError):
        planned(table, filter=filter_)


def test_partition_values_that_clients_cannot_read(tmp_path: Path) -> None:
    """NaN in an identity partition: an engine would read null rows from it."""
    catalog = open_catalog(tmp_path)
    schema = Schema(NestedField(1, "x", DoubleType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"), spec_id=0)
    with writable_metadata(catalog._load_file_io()):
        table = catalog.create_table("db.nan", schema, partition_spec=spec)
    append_rows(table, pa.table({"x": [1.5]}))
    table = table.refresh()
    assert planned(table)["file-scan-tasks"][0]["data-file"]["partition"] == [1.5]
    append_rows(table, pa.table({"x": [float("nan")]}))
    with pytest.raises(UnsupportedError, match="scan-planning-mode=client"):
        planned(table.refresh())
    tasks = planned(table, PYICEBERG)["file-scan-tasks"]
    assert [task["data-file"]["partition"] for task in tasks] == [[], [1.5]], "it reads the column from the file"


def test_plans_with_bounds_of_manifests_are_the_same(archive: StaticTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a column's bounds are known per manifest, scans evaluate fewer entries and plan the same files."""
    monkeypatch.setattr(held, "_LEAST_EVALUATED", 0)
    scans = planner()
    kept = []
    for month in (1, 4, 7, 10, 1, 4, 7, 10):
        first, last = datetime(2021, month, 3, tzinfo=UTC), datetime(2021, month, 20, tzinfo=UTC)
        low, high = ({"type": op, "term": "ts", "value": at.isoformat()} for op, at in (("gt-eq", first), ("lt", last)))
        filter_ = {"type": "and", "left": low, "right": high}
        made = scans.plan(archive, request(filter=filter_, min_rows_requested=10**9 + len(kept)), SPARK)
        where = f"ts >= TIMESTAMP '{first.isoformat()}' AND ts < TIMESTAMP '{last.isoformat()}'"
        assert paths(body(made)) == expected_paths(archive, where)
        assert made.report is not None
        kept.append(made.report["floeplan"]["summary"]["manifests_kept"])
    manifests, effects = (made.report["floeplan"]["passes"][0][key] for key in ("total", "effects"))
    assert kept[0] == manifests // 3, "the summaries of the first spec have no time"
    assert max(kept[4:]) <= 2
    assert sum(effect["by_bounds"] for effect in effects) > 0
