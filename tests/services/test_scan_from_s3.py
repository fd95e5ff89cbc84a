"""A scan from S3: metadata files and footers are requested once, and no file is asked for its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bench.local_contenders import s3_options
from bench.local_tables import BucketIO
from bench.object_store import BUCKET, ObjectStore, serve
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.metadata.files import guarded_reads
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import equality_delete

pytestmark = pytest.mark.services

FILES, ROWS = 3, 1_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve(tmp_path, latency=0) as served:
        yield served


def bucket_catalog(store: ObjectStore, tmp_path: Path) -> SqlCatalog:
    """Writes to the folder that the store serves."""
    io = {"py-io-impl": f"{BucketIO.__module__}.{BucketIO.__name__}", "bench.folder": tmp_path.as_uri()}
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{BUCKET}"}
    return SqlCatalog("s3", **place, **io, **s3_options(store.endpoint))


def reloaded(written: Table, store: ObjectStore) -> Table:
    """The same table, read from the store."""
    return fp.load_table(written.metadata_location, NoopCatalog("s3", **s3_options(store.endpoint)))


@pytest.fixture
def table(store: ObjectStore, tmp_path: Path) -> Table:
    """Files of ``ROWS`` rows, small enough for their footer to be read with all of their bytes."""
    catalog = bucket_catalog(store, tmp_path)
    catalog.create_namespace("db")
    written = catalog.create_table("db.t", pa.schema({"id": pa.int64(), "name": pa.string()}))
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        fp.append(written.refresh(), pa.table({"id": ids, "name": [f"name {one}" for one in ids]}), fast=True)
    return reloaded(written.refresh(), store)


@pytest.mark.parametrize(("where", "files", "rows"), [("id % 2 = 0", FILES, FILES * ROWS // 2), ("id = 7", 1, 1)])
def test_a_footer_is_read_once_for_planning_and_reading(
    table: Table, store: ObjectStore, where: str, files: int, rows: int
) -> None:
    store.traffic()
    plan = fp.plan_scan(table, where, options=fp.ScanOptions(cache=False))
    assert store.traffic().requests == 1 + plan.summary.manifests_kept + files
    assert plan.to_arrow().num_rows == rows
    assert store.traffic().requests == files


def test_small_files_are_read_with_their_footer(table: Table, store: ObjectStore) -> None:
    store.traffic()
    plan = fp.plan_scan(table, options=fp.ScanOptions(cache=False))
    assert plan.to_arrow().num_rows == FILES * ROWS
    assert store.traffic().requests == 1 + plan.summary.manifests_kept + FILES


def test_rows_are_counted_from_the_columns_of_the_condition(table: Table, store: ObjectStore) -> None:
    plan = fp.plan_scan(table, "id % 2 = 0", options=fp.ScanOptions(cache=False))
    store.traffic()
    assert plan.count() == FILES * ROWS // 2
    assert store.traffic().requests == FILES


def test_metadata_is_requested_once(table: Table, store: ObjectStore) -> None:
    catalog = NoopCatalog("s3", **s3_options(store.endpoint))
    store.traffic()
    assert fp.load_table(table.metadata_location, catalog).metadata == table.metadata
    assert store.traffic().requests == 1
    with pytest.raises(fp.FloeplanError, match="no metadata file"):
        fp.load_table(f"s3://{BUCKET}/db/t/metadata/gone.metadata.json", catalog)


def write_larger(table: Table, store: ObjectStore, tmp_path: Path) -> Table:
    """One file that is longer than the tail that is read for its footer; its ids are in no order."""
    written = bucket_catalog(store, tmp_path).create_table("db.larger", table.schema())
    ids = np.random.default_rng(1).permutation(100_000)
    fp.append(written, pa.table({"id": ids, "name": [f"name {one}" for one in ids]}), fast=True)
    return written.refresh()


@pytest.fixture
def larger(table: Table, store: ObjectStore, tmp_path: Path) -> Table:
    return reloaded(write_larger(table, store, tmp_path), store)


def test_a_small_file_is_fetched_once_where_all_columns_are_read(larger: Table, store: ObjectStore) -> None:
    plan = fp.plan_scan(larger, options=fp.ScanOptions(cache=False))
    store.traffic()
    assert plan.to_arrow().num_rows == 100_000
    traffic = store.traffic()
    assert (traffic.requests, traffic.bytes) == (1, plan.files[0].file_size - len(b"PAR1"))


def test_a_limit_fetches_a_small_file_once(larger: Table, store: ObjectStore) -> None:
    plan = fp.plan_scan(larger, options=fp.ScanOptions(cache=False))
    store.traffic()
    assert plan.to_arrow(limit=10).num_rows == 10
    assert store.traffic().requests == 1


def test_no_byte_of_a_column_is_fetched_with_the_footer_and_again(larger: Table, store: ObjectStore) -> None:
    plan = fp.plan_scan(larger, columns=["name"], options=fp.ScanOptions(cache=False))
    file_size = plan.files[0].file_size
    store.traffic()
    assert plan.to_arrow().num_rows == 100_000
    traffic = store.traffic()
    assert traffic.requests == 2
    assert traffic.bytes < file_size, "the ids are not fetched"


def test_the_tail_of_a_small_file_is_short(larger: Table, store: ObjectStore) -> None:
    store.traffic()
    plan = fp.plan_scan(larger, "id = 7", options=fp.ScanOptions(cache=False))
    metadata = store.traffic().bytes
    assert plan.summary.row_groups_kept == 1
    assert metadata < 64 * 1024 < plan.files[0].file_size


def test_no_byte_is_fetched_for_planning_and_again_for_reading(larger: Table, store: ObjectStore) -> None:
    store.traffic()
    fp.plan_scan(larger, "id % 2 = 0", options=fp.ScanOptions(cache=False, footers=False))
    metadata = store.traffic().bytes
    plan = fp.plan_scan(larger, "id % 2 = 0", options=fp.ScanOptions(cache=False))
    assert plan.to_arrow()["id"].to_numpy().sum() == sum(range(0, 100_000, 2))
    assert store.traffic().bytes - metadata <= plan.files[0].file_size


def test_columns_of_a_small_file_are_fetched_with_those_of_the_condition(larger: Table, store: ObjectStore) -> None:
    plan = fp.plan_scan(larger, "id < 50 AND id % 2 = 0", options=fp.ScanOptions(cache=False))
    store.traffic()
    names = plan.to_arrow()["name"].to_pylist()
    assert sorted(names) == sorted(f"name {one}" for one in range(0, 50, 2))
    assert store.traffic().requests == 1


def test_manifests_and_footers_are_requested_at_once(table: Table, tmp_path: Path) -> None:
    with serve(tmp_path, latency=0.2) as store:
        slow = reloaded(table, store)
        store.traffic()
        plan = fp.plan_scan(slow, "name LIKE 'name %7'", options=fp.ScanOptions(cache=False))
        traffic = store.traffic()
    assert plan.summary.row_groups_kept == FILES
    assert traffic.requests == 1 + 2 * FILES
    assert traffic.round_trips == 3


def test_few_deletes_are_requested_with_the_rows(table: Table, store: ObjectStore, tmp_path: Path) -> None:
    """After the manifest list: all manifests at once, the footer, and the rows with the deletes."""
    written = write_larger(table, store, tmp_path)
    fp.delete(written, "id % 20 = 7", mode="merge-on-read")
    with serve(tmp_path, latency=0.2) as slow_store:
        slow = reloaded(written.refresh(), slow_store)
        slow_store.traffic()
        plan = fp.plan_scan(slow, "id IN (7, 40)", options=fp.ScanOptions(cache=False))
        assert plan.to_arrow()["id"].to_pylist() == [40]
        assert slow_store.traffic().round_trips == 4


def test_pages_of_many_deleted_rows_are_not_fetched(table: Table, store: ObjectStore, tmp_path: Path) -> None:
    catalog = bucket_catalog(store, tmp_path)
    written = catalog.create_table("db.wide", pa.schema({"id": pa.int64(), "noise": pa.int64()}))
    noise = np.random.default_rng(1).integers(-(2**62), 2**62, 1_000_000)
    fp.append(written, pa.table({"id": np.arange(1_000_000), "noise": noise}), fast=True)
    fp.delete(written.refresh(), "id >= 100000", mode="merge-on-read")
    plan = fp.plan_scan(reloaded(written.refresh(), store), options=fp.ScanOptions(cache=False))
    store.traffic()
    assert plan.to_arrow()["noise"].to_numpy().sum() == noise[:100_000].sum()
    assert store.traffic().bytes < plan.files[0].file_size // 2


def test_equality_deletes_that_the_summary_does_not_count_apply(
    table: Table, store: ObjectStore, tmp_path: Path
) -> None:
    written = bucket_catalog(store, tmp_path).load_table("db.t")
    location = commit_change(written, equality_delete(written, [7, 8], 0, bounds=True)).table.metadata_location
    metadata = tmp_path / location.removeprefix(f"s3://{BUCKET}/")
    text = metadata.read_text()
    assert '"total-equality-deletes":"2"' in text
    metadata.write_text(text.replace('"total-equality-deletes":"2"', '"total-equality-deletes":"0"'))
    found = fp.load_table(location, NoopCatalog("s3", **s3_options(store.endpoint)))
    plan = fp.plan_scan(found, "id < 10", options=fp.ScanOptions(cache=False))
    assert plan.to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert [step.name for step in plan.passes] == ["manifest list", "manifest entries", "footers"]
    assert [len(file.deletes) for file in plan.files] == [1], "by the bounds of the keys"


def test_a_guard_sees_all_manifests(table: Table, store: ObjectStore, tmp_path: Path) -> None:
    written = bucket_catalog(store, tmp_path).load_table("db.t")
    fp.delete(written, "id = 7", mode="merge-on-read")
    found, seen = reloaded(written.refresh(), store), list[str]()
    with guarded_reads(seen.append):
        plan = fp.plan_scan(found, options=fp.ScanOptions(cache=False))
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert plan.summary.delete_manifests_kept == 1
    assert set(seen) == {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(written.io))}


@pytest.mark.parametrize("what", ["manifest", "data file"])
def test_a_file_that_the_store_lacks_is_named(table: Table, tmp_path: Path, what: str) -> None:
    suffix = "-m0.avro" if what == "manifest" else ".parquet"
    gone = sorted(tmp_path.rglob(f"*{suffix}"))[1]
    gone.unlink()
    if what == "manifest":
        with pytest.raises(fp.FloeplanError, match=gone.name):
            fp.plan_scan(table, "id >= 0 AND name = 'x'", options=fp.ScanOptions(cache=False))
        return
    plan = fp.plan_scan(table, "name LIKE 'name %7'", options=fp.ScanOptions(cache=False))
    assert [gone.name in one.message for one in plan.warnings if one.kind == "footer-not-used"] == [True]
    assert len(plan.files) == FILES
