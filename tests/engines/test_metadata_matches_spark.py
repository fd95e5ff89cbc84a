"""Metadata as columns equals Iceberg's own metadata tables, for every matrix table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, Summaries, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from tests.support.spark.iceberg_java import JavaTable
from tests.support.spark.matrix import FEW, Matrix, MatrixTable, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

RESERVED = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539, "pos": 2147483545}
PLAIN = (
    "content",
    "file_path",
    "file_format",
    "spec_id",
    "record_count",
    "file_size_in_bytes",
    "split_offsets",
    "equality_ids",
    "sort_order_id",
    "first_row_id",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)
PER_COLUMN = {
    "column_size": "column_sizes",
    "value_count": "value_counts",
    "null_count": "null_value_counts",
    "nan_count": "nan_value_counts",
    "lower": "lower_bounds",
    "upper": "upper_bounds",
}


def field_ids(table: Table) -> frozenset[int]:
    """Every column the table has ever had, and those of position delete files and row lineage."""
    known = {field_id for schema in table.metadata.schemas for field_id in schema.field_ids}
    return frozenset(known | {POSITION_DELETE_PATH, *RESERVED.values()})


def our_entries(table: Table, manifests: ManifestListTable) -> EntriesTable:
    columns = EntryColumns(stats=field_ids(table), sizes=field_ids(table))
    return read_entries(manifests, UnionPartitionType.of_table(table.metadata), columns)


def manifest_list(table: Table, snapshot_id: int | None = None) -> ManifestListTable:
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return read_manifest_list(snapshot.manifest_list)


def spark_entry(row: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """An entry of Spark's metadata table in our form, without null or empty values."""
    file = row["data_file"]
    entry = {name: row[name] for name in ("status", "snapshot_id", "sequence_number", "file_sequence_number")}
    entry |= {name: file[name] for name in PLAIN}
    entry |= {f"partition.{ids[name]}": physical(value) for name, value in file["partition"].items()}
    entry |= {f"{ours}.{key}": value for ours, spark in PER_COLUMN.items() for key, value in file[spark] or ()}
    return {name: value for name, value in entry.items() if value is not None}


def physical(value: Any) -> Any:
    """A partition value in its physical form."""
    match value:
        case bool():
            return int(value)
        case date():
            return (value - date(1970, 1, 1)).days
        case Decimal():
            return int(value.scaleb(2))
        case float():
            return repr(value)
    return value


def comparable(entries: EntriesTable, columns: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Our entries without what Spark lacks: the manifest, the position in it, and some partition fields."""
    for row in entries.table.to_pylist():
        entry = {name: value for name, value in row.items() if value is not None and name in columns}
        yield {key: repr(v) if key.startswith("partition.") and isinstance(v, float) else v for key, v in entry.items()}


def in_order(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["file_path"], row.get("content_offset", 0), row["status"]))


def union_partition_ids(spark: SparkSession, table: JavaTable) -> dict[str, int]:
    """Partition field ids by their names in the partition column of Iceberg's metadata tables."""
    fields = spark._jvm.org.apache.iceberg.Partitioning.partitionType(table).fields()
    return {field.name(): field.fieldId() for field in fields}


def assert_same_entries(made: MatrixTable, table: Table, snapshot_id: int | None = None) -> None:
    ids = union_partition_ids(made.spark, made.java())
    theirs = made.metadata("entries", snapshot_id).drop_columns("readable_metrics").to_pylist()
    entries = our_entries(table, manifest_list(table, snapshot_id))
    known_to_spark = {f"partition.{field_id}" for field_id in ids.values()}
    ours_only = {"manifest", "ordinal", "key_metadata"} | {
        name for name in entries.table.schema.names if name.startswith("partition.") and name not in known_to_spark
    }
    ours = in_order(comparable(entries, frozenset(entries.table.schema.names) - ours_only))
    assert ours == in_order(spark_entry(row, ids) for row in theirs)


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_entries_equal_the_entries_table_of_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    assert_same_entries(made, local_catalog.load_table(made.identifier))


@pytest.mark.parametrize(
    "name", parametrized(["evolving_v1", "evolving_v2_position_partition", "evolving_v2_to_v3_vectors"])
)
def test_entries_of_every_snapshot_equal_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = local_catalog.load_table(made.identifier)
    for snapshot_id in made.snapshots():
        assert_same_entries(made, table, snapshot_id)


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_manifests_equal_the_manifests_table_of_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = local_catalog.load_table(made.identifier)
    theirs = [spark_manifest(row) for row in made.metadata("manifests").to_pylist()]
    ours = our_manifests(manifest_list(table), table, set(union_partition_ids(made.spark, made.java()).values()))
    assert sorted(ours, key=itemgetter("path")) == sorted(theirs, key=itemgetter("path"))


def spark_manifest(row: dict[str, Any]) -> dict[str, Any]:
    """A manifest of Spark's metadata table, which counts data and delete files separately."""
    kind, other = ("data", "delete") if row["content"] == 0 else ("delete", "data")
    counts = {status: row.pop(f"{status}_{kind}_files_count") for status in ("added", "existing", "deleted")}
    assert not any(row.pop(f"{status}_{other}_files_count") for status in counts)
    return row | counts


def our_manifests(manifests: ManifestListTable, table: Table, known_to_spark: set[int]) -> Iterator[dict[str, Any]]:
    for row, path in enumerate(manifests.path.to_pylist()):
        summaries = range(manifests.summaries.offsets[row], manifests.summaries.offsets[row + 1])
        spec = table.specs()[int(manifests.spec_id[row])]
        fields = UnionPartitionType.of_table(table.metadata).specs[spec.spec_id].fields
        yield {
            "path": path,
            "content": manifests.content[row],
            "length": manifests.length[row],
            "partition_spec_id": manifests.spec_id[row],
            "added_snapshot_id": manifests.added_snapshot_id[row],
            "added": manifests.added_files[row],
            "existing": manifests.existing_files[row],
            "deleted": manifests.deleted_files[row],
            "partition_summaries": [
                readable(
                    manifests.summaries, summary, field.transform, bound.column.type, field.field_id in known_to_spark
                )
                for summary, field, bound in zip(summaries, spec.fields, fields, strict=True)
            ],
        }


def readable(summaries: Summaries, row: int, transform: Any, type_: PrimitiveType, known: bool) -> dict[str, Any]:
    """A summary as Iceberg displays it; fields of dropped source columns have no bounds."""

    def show(raw: bytes | None) -> str:
        if raw is None or not known:
            return "null"
        value = from_bytes(type_, raw)
        return java_float(value) if isinstance(value, float) else transform.to_human_string(type_, value)

    return {
        "contains_null": bool(summaries.contains_null[row]),
        "contains_nan": {-1: None, 0: False, 1: True}[int(summaries.contains_nan[row])],
        "lower_bound": show(summaries.lower[row].as_py()),
        "upper_bound": show(summaries.upper[row].as_py()),
    }


def java_float(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).replace("e+", "E")


@pytest.mark.parametrize("name", ["dropped_sources_v1", "dropped_sources_v3_vectors", "evolving_v2", "truncations_v3"])
def test_an_identity_partition_value_is_the_value_in_the_file(
    name: str, matrix: Matrix, local_catalog: SqlCatalog
) -> None:
    """Compared with the data files: Iceberg's metadata tables lack fields of dropped source columns."""
    table = local_catalog.load_table(matrix.table(name).identifier)
    union = UnionPartitionType.of_table(table.metadata)
    entries = our_entries(table, manifest_list(table)).live()
    identities = [field for field in union.fields if isinstance(field.bound.transform, IdentityTransform)]
    checked = 0
    for row in entries.table.to_pylist():
        for field in identities:
            if row["content"] == 0 and row["spec_id"] in field.positions:
                (value,) = set(map(repr, column_of(row["file_path"], field.bound.source_id)))
                assert repr(row[f"partition.{field.id}"]) == value, row["file_path"]
                checked += 1
    assert checked >= len(identities)


def column_of(location: str, field_id: int) -> list[Any]:
    path = local_path(location)
    columns = pq.read_schema(path)
    (name,) = [field.name for field in columns if field.metadata[b"PARQUET:field_id"] == str(field_id).encode()]
    column = pq.read_table(path, columns=[name], partitioning=None)[name]
    return column.cast(pa.int64()).to_pylist() if pa.types.is_boolean(column.type) else column.to_pylist()
