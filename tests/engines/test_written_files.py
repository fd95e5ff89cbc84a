"""Spark with Iceberg reads the files Floeplan writes, and computes the same statistics for the same rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform

from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.plan import plan_scan
from floeplan.write.conform import conform
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.tables import every_type as every_column
from tests.support.tables.layouts import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

PARTITIONED = PartitionSpec(
    PartitionField(13, 1000, TruncateTransform(1), "text_cut"),
    PartitionField(11, 1001, DayTransform(), "at_day"),
    PartitionField(1, 1002, BucketTransform(2), "id_bucket"),
    spec_id=1,
)
LAYOUT = {v: Layout(every_column.SPARK_SCHEMA, (PartitionSpec(spec_id=0), PARTITIONED), v) for v in (1, 2, 3)}


def registered(spark: SparkSession, name: str, table: Table) -> str:
    """Register the table in Spark's catalog, which reads totals from the snapshot summary."""
    path = Path(table.metadata_location)
    metadata = json.loads(path.read_text())
    metadata["snapshots"][0]["summary"] |= {"total-records": "0", "total-data-files": "0"}
    path.write_text(json.dumps(metadata))
    spark.sql(f"CALL local.system.register_table(table => 'db.{name}', metadata_file => '{path.as_uri()}')")
    return f"local.db.{name}"


def all_rows(file_format: str = "parquet") -> pa.Table:
    """Rows with a value of every type; for ORC without the times that it does not hold."""
    rows = pa.concat_tables([every_column.rows(every_column.SPARK_SCHEMA)] * 4)
    if file_format == "orc":
        for name, moved in (("at", -999_999), ("instant", -86_400_000_000)):
            at, column = rows.schema.get_field_index(name), rows.column(name)
            earlier = pc.add(column.cast(pa.int64()), moved).cast(column.type)
            rows = rows.set_column(at, rows.schema.field(at), earlier)
    return rows


def written(folder: Path, version: int, file_format: str = "parquet") -> tuple[WriteTarget, EntriesTable]:
    layout = LAYOUT[version]
    target = WriteTarget.of(layout.write_table(folder / "empty", layout.entries([])))
    target = replace(target, properties={**target.properties, "write.format.default": file_format})
    return target, write_data_files(target, [all_rows(file_format)], file_name_token="t")


def together(*parts: EntriesTable) -> EntriesTable:
    return EntriesTable(pa.concat_tables([part.table for part in parts]).combine_chunks(), parts[0].partition_types)


def values(rows: pa.Table) -> list[str]:
    """Rows as text, each value in the type of the table: NaN equals NaN, -0.0 differs from 0.0."""
    return sorted(map(repr, conform(rows, every_column.SPARK_SCHEMA).to_pylist()))


@pytest.mark.parametrize(
    ("version", "file_format"), [(1, "parquet"), (2, "parquet"), (3, "parquet"), (2, "orc"), (2, "avro")]
)
def test_spark_reads_every_type_from_every_format(
    spark: SparkSession, tmp_path: Path, version: int, file_format: str
) -> None:
    from pyspark.sql.functions import expr

    _, entries = written(tmp_path, version, file_format)
    assert set(entries.array("file_format").to_pylist()) == {file_format.upper()}
    table = LAYOUT[version].write_table(tmp_path / "full", entries)
    name = registered(spark, f"written_v{version}_{file_format}", table)
    expected = all_rows(file_format)
    optional = "STRUCT<x: DOUBLE, note: STRING>"  # Spark cannot return null structs of required fields
    point, path = expr(f"CAST(point AS {optional})"), expr(f"CAST(path AS ARRAY<{optional}>)")
    found = spark.table(name).withColumns({"point": point, "path": path}).toArrow()
    assert values(found) == values(expected)
    assert values(plan_scan(table).to_arrow()) == values(expected)
    assert spark.table(name).where("text = '' AND at < TIMESTAMP '1970-01-01'").count() == 4


@pytest.mark.parametrize(
    ("kind", "file_format"),
    [("file", "parquet"), ("partition", "parquet"), ("vectors", "parquet"), ("file", "orc"), ("partition", "avro")],
)
def test_spark_leaves_out_the_deleted_rows(spark: SparkSession, tmp_path: Path, kind: str, file_format: str) -> None:
    version = 3 if kind == "vectors" else 2
    target, data = written(tmp_path, version, file_format)
    gone = [np.arange(1, rows) for rows in data.record_count]
    if kind == "vectors":
        deletes = write_deletion_vectors(target, data, gone, file_name_token="d")
    else:
        deletes = write_position_deletes(target, data, gone, file_name_token="d", per_file=kind == "file")
        assert set(deletes.array("file_format").to_pylist()) == {file_format.upper()}
    table = LAYOUT[version].write_table(tmp_path / "full", together(data, deletes))
    name = registered(spark, f"deleted_{kind}_{file_format}", table)
    assert sorted(row.id for row in spark.table(name).select("id").collect()) == [1, 2, 3]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_spark_sees_the_row_ids_that_were_written(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    layout = LAYOUT[3]
    target = WriteTarget.of(layout.write_table(tmp_path / "empty", layout.entries([])), spec_id=0)
    target = replace(target, properties={**target.properties, "write.format.default": file_format})
    rows = all_rows(file_format).slice(0, 3)
    rows = rows.append_column("_row_id", pa.array([70, None, 60]))
    rows = rows.append_column("_last_updated_sequence_number", pa.array([5, None, None], pa.int64()))
    table = layout.write_table(tmp_path / "full", write_data_files(target, [rows], file_name_token="t"))
    name = registered(spark, f"lineage_{file_format}", table)
    found = spark.sql(f"SELECT id, _row_id, _last_updated_sequence_number AS updated FROM {name} ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, 70, 5), (2, 1, 9), (3, 60, 9)]


def statistics(entries: EntriesTable) -> dict[str, dict[int, Any]]:
    (row,) = entries.table.to_pylist()
    return {name: {pair["key"]: pair["value"] for pair in row[name] or ()} for name in STAT_MAPS}


def test_statistics_are_those_that_spark_states(spark: SparkSession, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Sizes depend on the encoder; everything else is equal."""
    local_catalog.create_namespace_if_not_exists("db")
    properties = {"write.metadata.metrics.column.number": "none", "write.metadata.metrics.column.flag": "counts"}
    table = local_catalog.create_table("db.stated", every_column.SPARK_SCHEMA, properties=properties)
    target = WriteTarget.of(table)
    rows = every_column.rows(every_column.SPARK_SCHEMA).cast(target.arrow_schema)
    ours = write_data_files(target, [rows], file_name_token="t")
    plain = Layout(every_column.SPARK_SCHEMA, (PartitionSpec(spec_id=0),))
    entries = write_data_files(
        WriteTarget.of(plain.write_table(tmp_path / "empty", plain.entries([]))),
        [every_column.rows(every_column.SPARK_SCHEMA)],
        file_name_token="t",
    )
    source = registered(spark, "to_be_stated", plain.write_table(tmp_path / "full", entries))
    spark.sql(f"INSERT INTO local.db.stated SELECT /*+ COALESCE(1) */ * FROM {source}")
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    union = UnionPartitionType.of_table(table.metadata)
    theirs = statistics(read_entries(read_manifest_list(snapshot.manifest_list), union, EntryColumns(WHOLE)))
    found = statistics(ours)
    assert found["column_sizes"].keys() == theirs["column_sizes"].keys()
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert found[name] == theirs[name], name
