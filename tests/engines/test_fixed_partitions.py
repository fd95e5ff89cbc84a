"""Partition values of fixed type as Iceberg Java writes them: with a length that the schema lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

CODES = (b"abc", b"\x06bc", None)


def java_table(spark: SparkSession, folder: Path) -> str:
    """A table partitioned by a fixed column, one file per partition; returns its metadata location."""
    jvm: Any = spark._jvm
    iceberg, nested = jvm.org.apache.iceberg, jvm.org.apache.iceberg.types.Types.NestedField
    fixed = jvm.org.apache.iceberg.types.Types.FixedType.ofLength(3)
    columns = jvm.java.util.ArrayList()
    columns.add(nested.optional(1, "code", fixed))
    schema = iceberg.Schema(columns)
    spec = iceberg.PartitionSpec.builderFor(schema).identity("code").build()
    tables = iceberg.hadoop.HadoopTables(spark._jsparkSession.sparkContext().hadoopConfiguration())
    table = tables.create(schema, spec, str(folder))
    append = table.newAppend()
    for number, code in enumerate(CODES):
        partition = iceberg.PartitionData(spec.partitionType())
        if code is not None:
            partition.put(0, jvm.java.nio.ByteBuffer.wrap(code))
        file = iceberg.DataFiles.builder(spec).withPath(f"{folder}/{number}.parquet").withRecordCount(number + 1)
        append.appendFile(file.withFileSizeInBytes(100).withPartition(partition).build())
    append.commit()
    return str(table.operations().current().metadataFileLocation())


def test_values_that_java_wrote_are_read_and_prune(spark: SparkSession, tmp_path: Path) -> None:
    table = StaticTable.from_metadata(java_table(spark, tmp_path / "codes"))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    union = UnionPartitionType.of_table(table.metadata)
    entries = read_entries(read_manifest_list(snapshot.manifest_list), union, io=table.io)
    assert entries.array("partition.1000").to_pylist() == list(CODES)
    assert entries.record_count.tolist() == [1, 2, 3]
    plan = plan_scan(table, "code = X'616263'", options=ScanOptions(footers=False, report=False))
    assert [file.record_count for file in plan.files] == [1]
