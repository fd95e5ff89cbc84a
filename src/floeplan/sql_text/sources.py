"""The source of a MERGE: in this process where it can be had there, otherwise as a DataFrame.

Rule: a table of the catalog is read by Floeplan, Parquet files by Arrow. Queries, views and everything else are
Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.dml.sources import arrow_table
from floeplan.errors import BadInputError
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.sql_text.relations import Views, find_table, query_frame, quoted
from floeplan.sql_text.statements import Relation, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Rows = TypeVar("Rows", pa.Table, DataFrame)

_PARQUET = "parquet"


def local_source(source: Source, target: Table, catalog: str | Catalog | None) -> pa.Table | None:
    """The rows of a table of the catalog or of Parquet files; ``None`` when they are not to be had without Spark."""
    if not isinstance(source, Relation):
        return None
    if len(source.parts) == 2 and source.parts[0].lower() == _PARQUET:
        return arrow_table([source.parts[1]], target.io)
    found = find_table(source.parts, catalog)
    if found is None:
        return None
    table, ref = found
    return plan_scan(table, ref=ref, options=ScanOptions(report=False)).to_arrow()


def source_frame(source: Source, made: Views, catalog: str | Catalog | None) -> DataFrame:
    """The rows of any source, from Spark."""
    if isinstance(source, Relation):
        return query_frame(f"SELECT * FROM {'.'.join(map(quoted, source.parts))}", made, catalog)
    return query_frame(source.text, made, catalog)


def named(rows: Rows, columns: tuple[str, ...] | None) -> Rows:
    """The rows with their columns called as the alias of the source says."""
    if columns is None:
        return rows
    given = rows.column_names if isinstance(rows, pa.Table) else rows.columns
    if len(given) != len(columns):
        raise BadInputError(f"the source has {len(given)} columns, and its alias names {len(columns)}")
    return rows.rename_columns(columns) if isinstance(rows, pa.Table) else rows.toDF(*columns)
