"""Merges that Spark joins, with a driver of 1 GiB: what reaches the driver does not grow with the rows.

20,000 keys by default, 20 million with ``FLOEPLAN_LOAD=large`` (``make load``). Half of the rows share one key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import floeplan as fp
from floeplan.dml import spark_rows
from floeplan.dml.merge import run
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.servers import DRIVER, client
from tests.support.tables.commits import leftovers, open_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.load, pytest.mark.matrix]

KEYS = 20_000_000 if os.environ.get("FLOEPLAN_LOAD") == "large" else 20_000
FILES = 16
SETTINGS = DRIVER | {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "8"}
PER_FILE = 16 * 1024
"""Bytes that a changed file may return to the driver: manifest entries, with their bounds, of a few files."""
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "key", LongType(), required=False),
    NestedField(3, "note", StringType(), required=False),
)


def merge_in_driver(spark: SparkSession, properties: Mapping[str, str], keys: int) -> tuple[int, int, int]:
    """Merge keys, half of them new; the rows updated and inserted, and the bytes that tasks returned."""
    run.SHIPPED_ROWS = min(run.SHIPPED_ROWS, keys // 2)
    returned, load = [0], spark_rows.load_results

    def counted(results, *more):  # type: ignore[no-untyped-def]
        returned[0] += results.nbytes
        return load(results, *more)

    spark_rows.load_results = counted
    catalog = SqlCatalog("local", **properties)
    table = catalog.load_table("db.merged")
    # Every second row has the key 0, the others have keys of their own; the source has each key once.
    rows = spark.range(0, keys, 1, FILES).selectExpr("id", "IF(id % 2 = 0, 0, id) AS key", "concat('old ', id) AS note")
    fp.append(table, rows)
    source = spark.range(0, keys, 1, FILES).selectExpr("IF(id = 0, 0, 2 * id + 1) AS key", "concat('new ', id) AS note")
    done = (
        fp.merge(table, source, "t.key = s.key")
        .when_matched_update({"note": "s.note"})
        .when_not_matched_insert({"key": "s.key", "note": "s.note"})
        .execute()
    )
    catalog.close()
    return done.rows_updated, done.rows_inserted, returned[0]


@pytest.mark.parametrize("version", [2, 3])
def test_a_merge_of_many_skewed_keys_needs_little_memory_of_the_driver(tmp_path: Path, version: int) -> None:
    catalog = open_catalog(tmp_path)
    properties = {"format-version": str(version), "write.merge.mode": "merge-on-read"}
    with writable_metadata(catalog._load_file_io()):
        catalog.create_table("db.merged", SCHEMA, properties=properties)
    with client("local[2]", SETTINGS) as driver:
        updated, inserted, returned = driver.run(merge_in_driver, dict(catalog.properties), KEYS)
    # Keys 0 and 3, 5, ... below KEYS match; 1 is the key of no source row.
    assert updated == KEYS // 2 + KEYS // 2 - 1
    assert inserted == KEYS // 2
    assert returned < 3 * FILES * PER_FILE
    table = catalog.load_table("db.merged")
    found = fp.plan_scan(table).to_arrow()
    assert found.num_rows == KEYS + inserted
    news = sum(note.startswith("new ") for note in found.column("note").to_pylist()) if KEYS < 10**6 else None
    assert news in (None, updated + inserted)
    assert leftovers(table) == set()
    catalog.close()
