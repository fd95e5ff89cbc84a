"""The tables of the DML benchmarks, in a catalog that Spark and PyIceberg share.

``evolved``: orders whose partition spec changed twice, none → identity(region) → month(ts), written by Iceberg's own
writer; 1 % of the rows are deleted. ``listed``: a metadata-only table with very many manifests.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import MonthTransform

from floeplan.partition.evolution import AddField, SpecChange, Term, replace_field
from floeplan.transaction.evolve_spec import evolve_spec
from tests.support.spark.lake import NAME
from tests.support.tables.archive import write_evolved_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHE = Path(__file__).parent.parent / ".cache" / "bench"
MERGE_ON_READ = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
COLUMNS = "id BIGINT, ts TIMESTAMP, region STRING, customer BIGINT, qty INT, price DECIMAL(12, 2), note STRING"
YEAR = 365 * 86_400
ROWS = f"""
    SELECT id, timestamp_seconds(1672531200 + pmod(xxhash64(id, 1), {YEAR})) AS ts,
        element_at(array('ap', 'au', 'br', 'ca', 'eu', 'in', 'uk', 'us'), cast(pmod(id, 8) AS INT) + 1) AS region,
        pmod(xxhash64(id, 2), 1000000) AS customer, cast(pmod(xxhash64(id, 3), 100) AS INT) AS qty,
        cast(pmod(xxhash64(id, 4), 100000000) / 100 AS DECIMAL(12, 2)) AS price,
        concat('note ', hex(xxhash64(id, 5))) AS note
    FROM range({{first}}, {{last}}, 1, {{tasks}})
"""
ERAS: tuple[tuple[SpecChange, ...], ...] = (
    (),
    (AddField(Term(("region",))),),
    replace_field("region", Term(("ts",), MonthTransform())),
)
"""The spec change before each third of the rows."""
APPENDS = (1, 3, 3)
FIRST_TASKS = 24
"""24 files without a partition, 3 x 8 regions, 3 x 12 months."""
LISTED_FILES = 4
"""Entries per manifest of the table with very many manifests."""


def evolved(spark: SparkSession, catalog: SqlCatalog, format_version: int, rows: int) -> Table:
    """The table of orders."""
    name = f"dml.v{format_version}_{rows}"
    properties = {"format-version": str(format_version), **MERGE_ON_READ}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    spark.sql(f"CREATE TABLE {NAME}.{name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({listed})")
    first, total = 0, rows // len(ERAS)
    for changes, appends in zip(ERAS, APPENDS, strict=True):
        evolve_spec(catalog.load_table(name), changes)
        for _ in range(appends):
            last = first + total // appends
            batch = ROWS.format(first=first, last=last, tasks=FIRST_TASKS if appends == 1 else 2)
            spark.sql(f"INSERT INTO {NAME}.{name} {batch}")
            first = last
    spark.sql(f"DELETE FROM {NAME}.{name} WHERE id % 100 = 7")
    return catalog.load_table(name)


def source(folder: Path, keys: int, rows: int) -> str:
    """A Parquet file with this number of distinct keys, one in eleven of them new, and their new values."""
    ids = np.sort(np.random.default_rng(keys).choice(int(rows * 1.1), keys, replace=False))
    path = folder / f"source-{keys}.parquet"
    pq.write_table(pa.table({"id": ids, "new_qty": pa.array(ids % 7, pa.int32())}), path)
    return str(path)


def new_rows(spark: SparkSession, folder: Path, first: int, count: int) -> str:
    """Parquet files of rows that are not in the table."""
    path = str(folder / "new-rows")
    frame = spark.sql(ROWS.format(first=first, last=first + count, tasks=4))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    frame.write.parquet(path)
    return path


def listed(manifests: int) -> Path:
    """The metadata file of a table without data, created once and kept; manifest merging is off."""
    home = CACHE / f"listed-{manifests}"
    metadata = home / "metadata" / "v1.metadata.json"
    if not metadata.exists():
        shutil.rmtree(home, ignore_errors=True)
        write_evolved_archive(home, manifests, LISTED_FILES)
    unmerged = metadata.with_name("unmerged.metadata.json")
    properties = {"commit.manifest-merge.enabled": "false"}
    unmerged.write_text(json.dumps(json.loads(metadata.read_text()) | {"properties": properties}))
    return unmerged
