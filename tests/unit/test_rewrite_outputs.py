"""Output files have the target size for any codec and deletes, and narrow bounds if clustered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

import floeplan as fp
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "key", LongType(), required=False),
    NestedField(3, "text", StringType(), required=False),
)
ROWS, FILES = 40_000, 16
TARGET = 256 * 1024
SIZES = {"target-file-size-bytes": str(TARGET), "min-input-files": "2", "delete-ratio-threshold": "0.1"}


def written(folder: Path, codec: str, rows: int = ROWS, files: int = FILES) -> Table:
    """Rows sorted neither by ``id`` nor by ``key``, with text that compresses well."""
    table = catalog(folder).create_table("db.t", SCHEMA, properties={"write.parquet.compression-codec": codec})
    key = np.random.default_rng(1).permutation(rows)
    for part in np.array_split(np.random.default_rng(2).permutation(rows), files):
        texts = [f"the row of number {number:>40}" for number in part.tolist()]
        fp.append(table, pa.table({"id": part, "key": key[part], "text": texts}))
    return table


def sizes(table: Table) -> list[int]:
    return [file.file_size for file in fp.plan_scan(table.refresh()).files]


@pytest.mark.parametrize("strategy", ["binpack", "sort"])
def test_files_have_the_target_size_with_a_stronger_codec(tmp_path: Path, strategy: str) -> None:
    table = written(tmp_path, "uncompressed")
    before = fp.plan_scan(table).to_arrow().sort_by("id")
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.compression-codec": "zstd"})
    planned = sum(sizes(table)) // TARGET
    by = ("id",) if strategy == "sort" else ()
    done = fp.rewrite_data_files(table, strategy=strategy, by=by, options=SIZES)
    assert done.files_rewritten == FILES
    assert len(sizes(table)) < planned / 3, "far fewer than the bytes of old files would give"
    assert max(sizes(table)) <= TARGET * 1.4
    assert fp.plan_scan(table).to_arrow().sort_by("id").equals(before)
    assert fp.rewrite_data_files(table, strategy=strategy, by=by, options=SIZES).snapshot_ids == ()


def test_files_have_the_target_size_when_most_rows_are_deleted(tmp_path: Path) -> None:
    table = written(tmp_path, "uncompressed")
    fp.delete(table, "key % 4 <> 0", mode="merge-on-read")
    done = fp.rewrite_data_files(table, options=SIZES)
    assert done.files_rewritten == FILES
    assert min(sizes(table)) >= 0.7 * TARGET
    assert fp.rewrite_data_files(table, options=SIZES).snapshot_ids == ()


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_clustering_cuts_the_files_read_by_a_filter_on_two_columns_tenfold(tmp_path: Path, curve: str) -> None:
    table = written(tmp_path, "zstd", rows=64_000, files=64)
    where = "key BETWEEN 20000 AND 22000 AND id BETWEEN 41000 AND 43000"
    before = fp.plan_scan(table, where)
    assert len(before.files) == 64
    options = {"rewrite-all": "true", "target-file-size-bytes": str(sum(sizes(table)) // 80)}
    fp.rewrite_data_files(table, strategy=curve, by=["key", "id"], options=options)
    after = fp.plan_scan(table.refresh(), where)
    assert len(sizes(table)) >= 40
    assert len(after.files) * 10 <= len(before.files)
    assert after.to_arrow().sort_by("id").equals(before.to_arrow().sort_by("id"))


@pytest.mark.parametrize(("strategy", "by"), [("binpack", ()), ("sort", ("id desc",)), ("zorder", ("key", "id"))])
def test_rows_scattered_over_new_partitions_take_one_run(tmp_path: Path, strategy: str, by: tuple[str, ...]) -> None:
    """Old and new partitions are unrelated: each new one gets one file, although it has rows of all old files."""
    table = catalog(tmp_path).create_table("db.t", SCHEMA)
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "by_id")
    for part in np.array_split(np.random.default_rng(2).permutation(6000), 3):
        fp.append(table, pa.table({"id": part, "key": part % 150, "text": [str(number) for number in part.tolist()]}))
    with table.update_spec() as update:
        update.remove_field("by_id")
        update.add_identity("key")
    before = fp.plan_scan(table).to_arrow().sort_by("id")
    arguments = {"strategy": strategy, "by": by, "spec": "current", "options": {"min-input-files": "2"}}
    done = fp.rewrite_data_files(table, **arguments)
    assert (done.files_rewritten, done.files_added) == (12, 150), "more partitions than a writer has files open"
    assert fp.plan_scan(table.refresh()).to_arrow().sort_by("id").equals(before)
    assert {file.spec_id for file in fp.plan_scan(table).files} == {table.spec().spec_id}
    if strategy == "sort":
        ids = fp.plan_scan(table, "key = 7").to_arrow()["id"].to_pylist()
        assert ids == sorted(ids, reverse=True)
    assert fp.rewrite_data_files(table, **arguments).snapshot_ids == ()
