"""Spark reads what Floeplan commits to evolved tables of every format, and can change them further.

Each table gets an append, a removal of whole files of every spec, row-level deletes in files of every spec and a
rewrite, each committed. Spark's rows are compared with the expected rows, and Iceberg's metadata tables with Floeplan's
results. Then Spark rewrites the manifests and deletes rows itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.metadata.manifests.manifest_list import DATA, read_manifest_list
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.read import PlanReader
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.spark.matrix import Matrix, MatrixTable, interpreted, parametrized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

PLAIN = ScanOptions(report=False, cache=False)
TABLES = (
    "evolving_v1",
    "dropped_sources_v1",
    "evolving_v2_position_file",
    "dropped_sources_v2_position_partition",
    "voids_v1_to_v2_position_partition",
    "evolving_v2_to_v3_vectors",
    "voids_v1_to_v3_vectors",
    "defaults_v3_vectors",
)


@dataclass
class TableHistory:
    """A table of the matrix and its commits.

    ``rows`` is what Spark read last, by data file and in file order; ``expected`` is the expected row count of each
    ``pk``.
    """

    spark_table: MatrixTable
    table: Table
    expected: Counter[int] = field(default_factory=Counter)
    rows: dict[str, list[int]] = field(default_factory=dict)
    results: list[CommitResult] = field(default_factory=list)

    @classmethod
    def of(cls, spark_table: MatrixTable, catalog: SqlCatalog) -> TableHistory:
        history = cls(spark_table, catalog.load_table(spark_table.identifier))
        history.expected = history.read()
        return history

    @property
    def version(self) -> int:
        version: int = self.table.metadata.format_version
        return version

    def read(self) -> Counter[int]:
        self.rows = {}
        with interpreted(self.spark_table.spark):
            found = self.spark_table.spark.table(self.spark_table.name).select("_file", "_pos", "pk").toArrow()
        for path, _, pk in sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)):
            self.rows.setdefault(path, []).append(pk)
        return Counter(pk for rows in self.rows.values() for pk in rows)

    def commit(self, change: SnapshotChange) -> CommitResult:
        result = commit_change(self.table, change)
        self.table = result.table
        assert self.read() == self.expected
        self.results.append(result)
        return result

    def plan(self) -> ScanPlan:
        return plan_scan(self.table, options=PLAIN)


def one_file_per_spec(plan: ScanPlan, without_deletes: bool = False) -> list[int]:
    """The first planned file of each spec."""
    spec_id = plan.files.entries.spec_id
    usable = [row for row, file in enumerate(plan.files) if not (without_deletes and file.deletes)]
    return sorted({int(spec_id[row]): row for row in reversed(usable)}.values())


def append(history: TableHistory) -> None:
    """Copies of existing rows with new keys under the default spec."""
    rows = history.plan().to_arrow().slice(0, 30)
    keys = list(range(70_000, 70_000 + len(rows)))
    rows = rows.set_column(rows.schema.get_field_index("pk"), "pk", pa.array(keys, rows.schema.field("pk").type))
    added = write_data_files(WriteTarget.of(history.table), [rows], file_name_token="append")
    history.expected.update(keys)
    result = history.commit(SnapshotChange(Operation.APPEND, added_data=added))
    assert {m.spec_id for m in result.manifests_written} == {history.table.metadata.default_spec_id}


def remove_files(history: TableHistory) -> None:
    plan = history.plan()
    files = plan.files.entries.take(np.array(one_file_per_spec(plan)))
    paths = files.path.to_pylist()
    history.expected.subtract(pk for path in paths for pk in history.rows.get(path, []))
    history.expected = +history.expected
    head = history.table.metadata.current_snapshot_id
    change = SnapshotChange(Operation.DELETE, removed_data=frozenset(paths), removed_entries=files, planned_on=head)
    result = history.commit(change)
    assert result.summary["deleted-data-files"] == str(len(paths))
    assert {m.spec_id for m in result.manifests_written} >= set(files.spec_id.tolist())


def delete_rows(history: TableHistory) -> None:
    """The first row of a file of each spec."""
    plan = history.plan()
    files = plan.files.entries.take(np.array(one_file_per_spec(plan, without_deletes=True)))
    history.expected.subtract(history.rows[path][0] for path in files.path.to_pylist())
    history.expected = +history.expected
    write = write_deletion_vectors if history.version > 2 else write_position_deletes
    positions = [np.array([0])] * len(files)
    deletes = write(WriteTarget.of(history.table), files, positions, file_name_token="delete")
    result = history.commit(SnapshotChange(Operation.DELETE, added_deletes=deletes))
    assert {m.spec_id for m in result.manifests_written} == set(files.spec_id.tolist())
    assert result.summary["added-dvs" if history.version > 2 else "added-position-delete-files"] == str(len(files))


def rewrite_files(history: TableHistory) -> None:
    """Files of every spec are rewritten to the default spec; deletion vectors of the old files are removed."""
    plan = history.plan()
    chosen = [plan.files[row] for row in one_file_per_spec(plan)]
    reader = PlanReader.of(plan, history.table.schema())
    rows = [reader.read(file) for file in chosen]
    added = write_data_files(WriteTarget.of(history.table), rows, file_name_token="rewrite")
    removed = frozenset(file.path for file in chosen)
    result = history.commit(SnapshotChange(Operation.REPLACE, added_data=added, removed_data=removed))
    vectors = {(d.path, d.content_offset) for file in chosen for d in file.deletes if d.content_offset is not None}
    assert result.summary.get("removed-dvs", "0") == str(len(vectors))


def check_metadata_tables(history: TableHistory) -> None:
    """Iceberg's metadata tables equal Floeplan's commit results."""
    summaries = {
        row["snapshot_id"]: dict(row["summary"]) for row in history.spark_table.metadata("snapshots").to_pylist()
    }
    for result in history.results:
        expected = {name: value for name, value in result.summary.items() if name != "operation"}
        assert summaries[result.snapshot_id] == expected
    head = history.table.current_snapshot()
    assert head is not None
    listed = read_manifest_list(head.manifest_list)
    seen = {row["path"]: row for row in history.spark_table.metadata("manifests").to_pylist()}
    assert list(seen) == listed.path.to_pylist()
    for row, path in enumerate(seen):
        kind = "data" if listed.content[row] == DATA else "delete"
        assert seen[path]["partition_spec_id"] == listed.spec_id[row]
        assert seen[path]["length"] == listed.length[row]
        for status in ("added", "existing", "deleted"):
            assert seen[path][f"{status}_{kind}_files_count"] == getattr(listed, f"{status}_files")[row]


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_spark_reads_what_was_committed_and_continues(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    history = TableHistory.of(matrix.fork(name), local_catalog)
    append(history)
    remove_files(history)
    if history.version > 1:
        delete_rows(history)
    rewrite_files(history)
    check_metadata_tables(history)
    spark_continues(history)


def spark_continues(history: TableHistory) -> None:
    """If an identity source is dropped, Spark cannot delete rows or rewrite manifests whose spec has its void field."""
    name, spark = history.spark_table.name, history.spark_table.spark
    source_gone = "dropped_sources" in name
    with interpreted(spark):
        if not (source_gone and history.version == 1):
            spark.sql(f"CALL local.system.rewrite_manifests('{name}')").collect()
        if not source_gone:
            gone = sorted(history.expected)[::4]
            spark.sql(f"DELETE FROM {name} WHERE pk IN ({', '.join(map(str, gone))})")
            history.expected -= Counter({pk: history.expected[pk] for pk in gone})
    assert history.read() == history.expected
    history.table.refresh()
    assert Counter(history.plan().to_arrow()["pk"].to_pylist()) == history.expected


def test_spark_creates_floeplan_modifies(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    name = "local.producer.spark_creates"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.producer")
    spark.sql(
        f"CREATE TABLE {name} (pk INT, ts TIMESTAMP, region STRING) USING iceberg PARTITIONED BY (days(ts)) "
        "TBLPROPERTIES ('format-version' = '2')"
    )
    values = "SELECT {} + id AS pk, timestamp'2024-01-01' + make_interval(0, 0, 0, id % 2) AS ts, 'eu' AS region"
    spark.sql(f"INSERT INTO {name} {values.format(0)} FROM range(10)")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD region")
    spark.sql(f"INSERT INTO {name} {values.format(100)} FROM range(10)")
    table = local_catalog.load_table("producer.spark_creates")
    files = plan_scan(table, options=PLAIN).files.entries
    target = WriteTarget.of(table)
    deletes = write_position_deletes(target, files, [np.array([0])] * len(files), file_name_token="d")
    rows = pa.table(
        {"pk": pa.array([999], pa.int32()), "ts": pa.array([0], pa.timestamp("us", "UTC")), "region": ["us"]}
    )
    added = write_data_files(target, [rows], file_name_token="u")
    result = commit_change(table, SnapshotChange(Operation.OVERWRITE, added_data=added, added_deletes=deletes))
    assert [(m.spec_id, m.content) for m in result.manifests_written] == [(1, 0), (0, 1), (1, 1)]
    left = spark.sql(f"SELECT pk FROM {name}").toArrow()["pk"].to_pylist()
    assert len(left) == 20 - len(files) + 1
    assert 999 in left
    manifests = spark.sql(f"SELECT partition_spec_id, added_delete_files_count FROM {name}.manifests").collect()
    assert Counter(spec for spec, deletes in manifests if deletes) == Counter({0: 1, 1: 1})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_floeplan_creates_spark_reads(version: int, spark: SparkSession, local_catalog: SqlCatalog) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.producer")
    schema = Schema(NestedField(1, "pk", LongType()), NestedField(2, "region", StringType()))
    identifier = f"producer.floeplan_creates_v{version}"
    with writable_metadata(local_catalog._load_file_io()):
        table = local_catalog.create_table(
            identifier, schema, partition_spec=PartitionSpec(), properties={"format-version": str(version)}
        )
    table = appended(table, range(10))
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_identity("region")
    table = appended(table, range(100, 110))
    old = plan_scan(table, options=PLAIN).files.entries
    assert set(old.spec_id.tolist()) == {0, 1}
    commit_change(table, SnapshotChange(Operation.DELETE, removed_data=frozenset(old.path.to_pylist()[:1])))
    rows = spark.sql(f"SELECT pk, region FROM local.{identifier}").collect()
    first = int(old.record_count[0])
    assert len(rows) == 20 - first
    specs = spark.sql(f"SELECT DISTINCT partition_spec_id FROM local.{identifier}.manifests ORDER BY 1").collect()
    assert [spec for (spec,) in specs] == [0, 1]
    spark.sql(f"INSERT INTO local.{identifier} VALUES (7, 'late')")
    assert spark.table(f"local.{identifier}").count() == 21 - first


def appended(table: Table, numbers: range) -> Table:
    rows: Any = pa.table({"pk": list(numbers), "region": [("eu", "us")[n % 2] for n in numbers]})
    added = write_data_files(WriteTarget.of(table), [rows], file_name_token="a")
    return commit_change(table, SnapshotChange(Operation.APPEND, added_data=added)).table
