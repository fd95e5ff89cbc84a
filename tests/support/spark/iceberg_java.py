"""Iceberg Java through Spark's JVM: planning, and deletes that Spark SQL cannot write."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JavaTable = Any
JavaExpression = Any


def load_table(spark: SparkSession, name: str) -> JavaTable:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)


def spec_texts(table: JavaTable) -> dict[int, str]:
    """The specs by id, one line each."""
    return {spec_id: " ".join(spec.toString().split()) for spec_id, spec in dict(table.specs()).items()}


def planned_tasks(
    spark: SparkSession, table: JavaTable, filter_: JavaExpression | None = None, snapshot_id: int | None = None
) -> list[Any]:
    """The file scan tasks of Java's planning."""
    scan = table.newScan() if snapshot_id is None else table.newScan().useSnapshot(snapshot_id)
    tasks = (scan if filter_ is None else scan.filter(filter_)).planFiles()
    return list(spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(tasks))


def planned_files(
    spark: SparkSession, table: JavaTable, filter_: JavaExpression | None = None, snapshot_id: int | None = None
) -> set[str]:
    """The data files Java's planning keeps."""
    return {task.file().location() for task in planned_tasks(spark, table, filter_, snapshot_id)}


def convert(spark: SparkSession, name: str, where: str) -> JavaExpression:
    """The part of a predicate that Spark pushes down to Iceberg, without conjuncts that cannot be converted."""
    catalyst = spark._jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
    expressions = spark._jvm.org.apache.iceberg.expressions.Expressions
    pushed = expressions.alwaysTrue()
    for conjunct in _conjuncts(catalyst.collectResolvedSparkExpression(spark._jsparkSession, name, where)):
        with suppress(PySparkException):
            pushed = getattr(expressions, "and")(pushed, catalyst.convertToIcebergExpression(conjunct))
    return pushed


def _conjuncts(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    else:
        yield expression


def add_columns(spark: SparkSession, table: JavaTable, defaults: Mapping[str, int | str]) -> None:
    """Add a column per entry, with the type of its default."""
    package = spark._jvm.org.apache.iceberg
    update = table.updateSchema()
    for name, default in defaults.items():
        type_ = package.types.Types.fromPrimitiveString("int" if isinstance(default, int) else "string")
        update = update.addColumn(name, type_, package.expressions.Expressions.lit(default))
    update.commit()


def delete_equal(
    spark: SparkSession,
    table: JavaTable,
    rows: Sequence[Mapping[str, object]],
    *,
    spec_id: int = 0,
    beside: str | None = None,
) -> None:
    """Commit one equality delete file for ``rows`` (null equals null).

    The delete file has the spec and partition of the data file ``beside``, or the unpartitioned ``spec_id``.
    """
    columns = {name: table.schema().findField(name) for name in rows[0]}
    path = _write_keys(table, columns, rows)
    package = spark._jvm.org.apache.iceberg
    neighbour = next((t.file() for t in planned_tasks(spark, table) if t.file().location() == beside), None)
    spec = table.specs().get(spec_id if neighbour is None else neighbour.specId())
    source = table.io().newInputFile(path)
    ids = spark._sc._gateway.new_array(spark._jvm.int, len(columns))
    for position, field in enumerate(columns.values()):
        ids[position] = field.fieldId()
    builder = (
        package.FileMetadata.deleteFileBuilder(spec)
        .ofEqualityDeletes(ids)
        .withInputFile(source)
        .withFormat(package.FileFormat.PARQUET)
        .withMetrics(package.parquet.ParquetUtil.fileMetrics(source, package.MetricsConfig.getDefault()))
    )
    if neighbour is not None:
        builder = builder.withPartition(neighbour.partition())
    table.newRowDelta().addDeletes(builder.build()).commit()


_KEY_TYPES = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "date": pa.date32(), "double": pa.float64()}


def _write_keys(table: JavaTable, columns: Mapping[str, Any], rows: Sequence[Mapping[str, object]]) -> str:
    schema = pa.schema(
        [
            pa.field(name, _KEY_TYPES[field.type().toString()], metadata={"PARQUET:field_id": str(field.fieldId())})
            for name, field in columns.items()
        ]
    )
    folder = Path(table.location().removeprefix("file:"), "data")
    path = folder / f"equal-{uuid4()}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return f"file:{path}"


# --- recorded results of Iceberg Java 1.12 on file sizes and packing, and its packer as a plain loop

VECTORS = Path(__file__).parents[2] / "data" / "iceberg_java_1_12_planner.txt"


@dataclass(frozen=True)
class SizeVector:
    target: int
    smallest: int
    largest: int
    input_bytes: int
    expected_outputs: int
    split_size: int
    write_max: int


@dataclass(frozen=True)
class PackVector:
    items: list[int]
    target: int
    lookback: int
    largest_bin_first: bool
    max_items: int
    packed: list[list[int]]
    packed_from_end: list[list[int]]


def size_vectors() -> list[SizeVector]:
    return [SizeVector(*map(int, line.split(","))) for line in _lines() if not line.startswith("P|")]


def pack_vectors() -> list[PackVector]:
    return [_pack_vector(line) for line in _lines() if line.startswith("P|")]


def _pack_vector(line: str) -> PackVector:
    _, items, target, lookback, largest, most, packed, from_end = line.split("|")
    lists = (ast.literal_eval(text) for text in (items, packed, from_end))
    item_list, packed_list, end_list = lists
    return PackVector(item_list, int(target), int(lookback), largest == "true", int(most), packed_list, end_list)


def _lines() -> Iterator[str]:
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line


def pack(
    items: Sequence[int], target: int, lookback: int = 1, largest_bin_first: bool = False, max_items: int = 2**63
) -> list[list[int]]:
    """First fit among the open bins; beyond the lookback the largest or the oldest bin is closed."""
    open_bins: list[list[int]] = []
    closed: list[list[int]] = []
    for item in items:
        fitting = (b for b in open_bins if sum(b) + item <= target and len(b) < max_items)
        chosen = next(fitting, None)
        if chosen is not None:
            chosen.append(item)
            continue
        open_bins.append([item])
        if len(open_bins) > lookback:
            full = max(open_bins, key=sum) if largest_bin_first else open_bins[0]
            open_bins = [b for b in open_bins if b is not full]
            closed.append(full)
    return closed + open_bins
