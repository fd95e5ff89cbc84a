"""Which column tells a row its number in its file.

Rule: Spark's Parquet reader counts rows in a column of its own, which ``_metadata.row_index`` is made of row by row;
asked for directly it costs less. That name is not documented, and a reader put in place of Spark's may leave it null or
fill it otherwise, so that deleted rows would come back and others be lost. It is used only in a session where a small
file of several row groups, read the same way, came back with the right numbers.

Fail-safe: any doubt (another Spark, an error, tasks that do not see the folders of this machine) means the documented
column.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StructField, StructType

from floeplan.spark.columns import FIELD_ID, ROW_INDEX
from floeplan.spark.file_log import process_folder, read_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTED = "_metadata.row_index"
KNOWN_TO_COUNT = "4.1."
"""The Spark whose reader has ``ROW_INDEX``."""
_ROWS, _ROWS_PER_GROUP, _SKIPPED = 12, 3, 7
"""The file of the probe, and how many of its rows a filter leaves out: two row groups and a part of the third."""

_proven: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def row_number(spark: SparkSession) -> str:
    """The column to ask for in a session."""
    if not spark.version.startswith(KNOWN_TO_COUNT):
        return DOCUMENTED
    if spark not in _proven:
        _proven[spark] = _counts_rightly(spark)
    return ROW_INDEX if _proven[spark] else DOCUMENTED


def _counts_rightly(spark: SparkSession) -> bool:
    path = Path(process_folder()) / "numbered.parquet"
    field = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([pa.array(range(_ROWS))], pa.schema([field])), path, row_group_size=_ROWS_PER_GROUP)
    asked = StructType([StructField("n", LongType(), True, {FIELD_ID: 1}), StructField(ROW_INDEX, LongType())])
    sizes = np.array([path.stat().st_size])
    try:
        whole = read_logged(spark, asked, pa.array([str(path)]), sizes, np.zeros(1, dtype=np.int64), may_miss=True)
        found = whole.unionAll(whole.where(f"n >= {_SKIPPED}")).collect()
    except Exception:
        return False
    return sorted(map(tuple, found)) == sorted((n, n) for n in (*range(_ROWS), *range(_SKIPPED, _ROWS)))
