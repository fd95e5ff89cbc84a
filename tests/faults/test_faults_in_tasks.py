"""A store that fails while Spark tasks read and write: the change succeeds, or fails and leaves the table unchanged.

The faults apply to requests for data files, which only tasks send here. A transient fault is retried by the client of
the task; a permanent one fails the job, and files of other tasks are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

import floeplan as fp
from floeplan.dml.merge import run as merging
from floeplan.errors import FloeplanError
from floeplan.tasks import runner
from tests.support.faults.faulty_store import (
    KINDS,
    NEW,
    OPERATIONS,
    PATIENT,
    START,
    UPSERT,
    FaultyStore,
    Rows,
    arrow,
    faulty_store,
)
from tests.support.faults.proxies import Fault, Kind, always
from tests.support.servers import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.services

REWRITE_ALL = {"rewrite-all": "true"}
CHANGES: dict[str, Callable[[Table, SparkSession], object]] = {
    "append": lambda t, spark: fp.append(t, spark.createDataFrame(arrow(NEW)).repartition(2), options=PATIENT),
    "delete": lambda t, spark: fp.delete(t, "id % 5 = 3", spark=spark, mode="merge-on-read", options=PATIENT),
    "update": lambda t, spark: fp.update(
        t, {"v": "v + 1"}, "id % 4 = 1", spark=spark, mode="copy-on-write", options=PATIENT
    ),
    "update by Spark": lambda t, spark: fp.update(
        t, {"v": "v + length(md5('x')) - 31"}, "id % 4 = 1", spark=spark, mode="copy-on-write", options=PATIENT
    ),
    "merge": lambda t, spark: upsert(t, spark, "id", "copy-on-write"),
    "merge on read": lambda t, spark: upsert(t, spark, "id", "merge-on-read"),
    "joined merge": lambda t, spark: upsert(t, spark, ONLY_SPARK, "copy-on-write"),
    "joined merge on read": lambda t, spark: upsert(t, spark, ONLY_SPARK, "merge-on-read"),
    "rewrite": lambda t, spark: fp.rewrite_data_files(t, spark=spark, options=REWRITE_ALL, commit=PATIENT),
}
ONLY_SPARK = "t.id = s.id AND md5(CAST(t.id AS STRING)) = md5(CAST(s.id AS STRING))"
"""A condition that Arrow cannot evaluate."""
READ, WRITE = "GET", "PUT|POST"


def upsert(table: Table, spark: SparkSession, on: str, mode: str) -> object:
    merge = fp.merge(table, arrow(UPSERT), on, spark=spark, mode=mode, options=PATIENT)
    return merge.when_matched_update().when_not_matched_insert().execute()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with faulty_store(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(autouse=True)
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all work on Spark, whatever its size."""
    monkeypatch.setattr(runner, "LOCAL_BYTES", -1)
    monkeypatch.setattr(merging, "INSERT_ROWS", 1)
    monkeypatch.setattr(runner.LocalThreads, "run", lambda *_: pytest.fail("this was to be done by tasks"))


def files(table: Table) -> set[str]:
    """Data and delete files in the store, referenced or not."""
    assert isinstance(table.io, PyArrowFileIO)
    system = table.io.fs_by_scheme("s3", BUCKET)
    found = system.get_file_info(pa.fs.FileSelector(BUCKET, recursive=True))
    return {info.path for info in found if info.path.endswith((".parquet", ".puffin"))}


@pytest.mark.parametrize(
    ("change", "kind", "method", "nth"),
    [
        ("append", "throttled", WRITE, 1),
        pytest.param("append", "error-after", WRITE, 2, marks=pytest.mark.matrix),
        ("delete", "truncated", READ, 2),
        ("update", "reset", READ, 3),
        ("update by Spark", "throttled", READ, 1),
        ("merge", "truncated", READ, 2),
        ("merge on read", "throttled", WRITE, 1),
        ("joined merge", "reset", READ, 1),
        pytest.param("joined merge", "error-after", WRITE, 2, marks=pytest.mark.matrix),
        ("joined merge on read", "throttled", READ, 3),
        ("rewrite", "reset-after", WRITE, 1),
    ],
)
def test_a_transient_fault_is_retried(
    spark: SparkSession, store: FaultyStore, change: str, kind: Kind, method: str, nth: int
) -> None:
    fault = Fault(kind, method, KINDS["data"], nth)
    with store.opened() as (table, proxy):
        with proxy.with_faults(fault):
            CHANGES[change](table, spark)
        assert fault.applied == 1
        assert store.rows(table) == after(change)
        assert store.missing(table) == []


@pytest.mark.parametrize(
    ("change", "kind", "method", "what", "nth"),
    [
        ("append", "error", WRITE, "data", 2),
        ("delete", "shortened", READ, "data", 2),
        pytest.param("delete", "reset", WRITE, "vector", 1, marks=pytest.mark.matrix),
        ("update", "error", WRITE, "data", 2),
        ("update by Spark", "shortened", READ, "data", 1),
        pytest.param("update by Spark", "error", WRITE, "data", 2, marks=pytest.mark.matrix),
        pytest.param("merge", "truncated", READ, "data", 2, marks=pytest.mark.matrix),
        ("merge", "error", WRITE, "data", 2),
        ("merge on read", "reset", WRITE, "vector", 1),
        ("joined merge", "shortened", READ, "data", 2),
        pytest.param("joined merge", "error", WRITE, "data", 1, marks=pytest.mark.matrix),
        pytest.param("joined merge", "throttled", WRITE, "data", 2, marks=pytest.mark.matrix),
        ("joined merge on read", "error", WRITE, "vector", 1),
        pytest.param("rewrite", "truncated", READ, "data", 2, marks=pytest.mark.matrix),
        ("rewrite", "throttled", WRITE, "data", 2),
    ],
)
def test_a_permanent_fault_is_reported_and_leaves_the_table_unchanged(
    spark: SparkSession, store: FaultyStore, change: str, kind: Kind, method: str, what: str, nth: int
) -> None:
    fault = always(kind, method, KINDS[what], nth=nth)
    with store.opened() as (table, proxy):
        before = files(table)
        with proxy.with_faults(fault), pytest.raises(FloeplanError) as raised:
            CHANGES[change](table, spark)
        assert fault.applied > 0
        assert not raised.value.committed
        assert "\n" not in raised.value.message
        assert store.rows(table) == START
        assert store.missing(table) == []
        assert files(table) == before, "nothing is left over"


def after(change: str) -> Rows:
    kind = next(name for name in OPERATIONS if name in change)
    return OPERATIONS[kind].of_rows(START)
