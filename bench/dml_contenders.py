"""Each change twice: as a call of Floeplan and as a statement for Iceberg's own Spark commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

import floeplan as fp
from bench.compressed_pages import compressed_pages
from floeplan.dml.commit import DmlResult
from floeplan.parquet.pages.zstd import Decompressor
from floeplan.spark.distribution import distributed
from floeplan.spark.jvm import is_small, with_settings
from floeplan.spark.write import BATCHES, flag_wide_rows, with_unscaled_decimals, without_flag
from floeplan.tasks.runner import LOCAL_BYTES
from floeplan.write.data_files import coalesce_batches
from floeplan.write.parquet_file import encoded_file, high_cardinality_columns
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_BAR, APPEND_BAR = 0.2, 1.0
"""The bars of DELETE and MERGE, and of appends."""
UPDATE_BAR, TASKS_BAR, SIZED_MERGE_BAR = 0.4, 0.7, 0.5
"""The bars, for CPU time alone, of UPDATE, of an append in tasks, and of a merge of very many keys."""
IDS = 1_000
IN_TASKS = "a DataFrame in tasks"


@dataclass(frozen=True, slots=True)
class Case:
    """A change; ``statement`` names the table as ``{table}``, and the bar may be for CPU time alone.

    ``columns_read`` are those that a change of rows in every page keeps or compares: decompressing them is its floor.
    """

    name: str
    bar: float
    ours: Callable[[Table], DmlResult]
    statement: str
    cpu_only: bool = False
    columns_read: tuple[str, ...] = ()


def deletes(spark: SparkSession, rows: int) -> list[Case]:
    """Some rows of every file by id, and 5 % of all rows by a value."""
    ids = np.sort(np.random.default_rng(1).choice(rows, IDS, replace=False)).tolist()
    by_id, by_value = f"id IN ({', '.join(map(str, ids))})", "qty < 5"
    return [
        Case(
            f"DELETE {what}",
            ROW_BAR,
            lambda table, where=where: fp.delete(table, where, spark=spark),  # type: ignore[misc]
            f"DELETE FROM {{table}} WHERE {where}",
        )
        for what, where in ((f"{IDS:,} ids", by_id), ("5 % by value", by_value))
    ]


def update(spark: SparkSession) -> Case:
    """New values for 1 % of all rows, some in every page: all pages of columns that are not replaced are needed."""
    return Case(
        "UPDATE 1 % by value",
        UPDATE_BAR,
        lambda table: fp.update(table, {"price": "price + 1", "note": "'again'"}, "qty = 50", spark=spark),
        "UPDATE {table} SET price = price + 1, note = 'again' WHERE qty = 50",
        cpu_only=True,
        columns_read=("id", "ts", "region", "customer", "qty", "price"),
    )


def decompression(table: Table, columns: Sequence[str]) -> float:
    """CPU seconds in which Zstandard alone decompresses all pages of some columns, which are in memory."""
    taken, decompressor = 0.0, Decompressor()
    for path in table.inspect.data_files().column("file_path").to_pylist():
        pages = [(page, size) for column, page, size in compressed_pages(path) if column in columns]
        started = time.process_time()
        for page, size in pages:
            decompressor.decompress(page, size)
        taken += time.process_time() - started
    return taken


def merge(spark: SparkSession, path: str, keys: int, *, at_size: bool = False) -> Case:
    """Existing rows get a new value, the others are inserted."""
    view = f"source_{keys}"
    frame = spark.read.parquet(path)
    frame.createOrReplaceTempView(view)

    def ours(table: Table) -> DmlResult:
        begun = fp.merge(table, frame, "t.id = s.id").when_matched_update({"qty": "s.new_qty"})
        return begun.when_not_matched_insert({"id": "s.id", "qty": "s.new_qty"}).execute()

    return Case(
        f"MERGE {keys:,} keys",
        SIZED_MERGE_BAR if at_size else ROW_BAR,
        ours,
        f"MERGE INTO {{table}} t USING {view} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.qty = s.new_qty "
        "WHEN NOT MATCHED THEN INSERT (id, qty) VALUES (s.id, s.new_qty)",
        cpu_only=at_size,
        columns_read=("id", "ts", "region", "customer", "price", "note") if at_size else (),
    )


def appends(spark: SparkSession, path: str, rows: int) -> list[Case]:
    """New rows from Parquet files: as a DataFrame, and as file paths.

    A DataFrame that is too large for this process is written by Spark tasks.
    """
    frame = spark.read.parquet(path)
    frame.createOrReplaceTempView("new_rows")
    several = frame.union(frame).union(frame)
    statement = "INSERT INTO {table} SELECT * FROM new_rows"
    found = [
        Case(f"APPEND {rows:,} rows, a DataFrame", APPEND_BAR, lambda table: fp.append(table, frame), statement),
        Case(
            f"APPEND {rows:,} rows, Parquet files",
            APPEND_BAR,
            lambda table: fp.append(table, path, spark=spark),
            statement,
        ),
    ]
    if not is_small(several, LOCAL_BYTES // 2):
        more = f"{statement} UNION ALL SELECT * FROM new_rows UNION ALL SELECT * FROM new_rows"
        name = f"APPEND {3 * rows:,} rows, {IN_TASKS}"
        found.append(Case(name, TASKS_BAR, lambda table: fp.append(table, several), more, cpu_only=True))
    return found


def send_to_tasks(spark: SparkSession, table: Table, *, encode: bool) -> None:
    """The rows of an append in tasks, distributed by partition and sent to tasks that only count or encode them.

    They are encoded with the table's options into memory, neither sorted nor divided, and without metrics.
    """

    def receive(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, plain = 0, None
        for part in coalesce_batches(without_flag(batches)):
            rows += part.num_rows
            if encode:
                plain = high_cardinality_columns(part) if plain is None else plain
                encoded_file(part, target.options, plain)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["rows"])

    frame = spark.table("new_rows")
    flagged, target = flag_wide_rows(frame.union(frame).union(frame)), WriteTarget.of(table)
    assert flagged is not None
    sent, _ = with_unscaled_decimals(flagged, target)
    with_settings(distributed(sent, target).mapInArrow(receive, "rows long"), BATCHES).toArrow()


def many_manifests(spark: SparkSession) -> list[Case]:
    """Metadata-only changes on the archive of events, whose data files do not exist."""
    where = "ts >= TIMESTAMP '2022-03-05 00:00:00' AND ts < TIMESTAMP '2022-03-06 00:00:00'"
    return [
        Case("DELETE a day", 1.0, lambda table: fp.delete(table, where), f"DELETE FROM {{table}} WHERE {where}"),
        Case(
            "APPEND a row",
            1.0,
            lambda table: fp.append(table, _event(table), fast=True),
            "INSERT INTO {table} (id, region, ts) VALUES (1, 'eu', TIMESTAMP '2022-03-05 00:00:00')",
        ),
    ]


def _event(table: Table) -> pa.Table:
    columns = {"id": pa.array([1]), "region": pa.array(["eu"]), "ts": pa.array([1646438400_000000])}
    return pa.table(columns).cast(table.schema().select("id", "region", "ts").as_arrow())
