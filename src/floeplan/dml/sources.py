"""Rows from outside: Arrow data in any wrapping, Spark DataFrames, Parquet files and other tables.

Columns of outside data are found by name. Field ids that they may carry are those of another table and mean nothing
here, so they are taken off first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floeplan.catalog import load_table
from floeplan.errors import BadInputError, UnknownFileError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read_selected
from floeplan.parquet.source import open_source
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BYTES_IN_MEMORY = 8
"""Bytes of rows that one byte of a file may become."""


def is_data_frame(data: object) -> TypeGuard[DataFrame]:
    """Whether this is a DataFrame of Spark, classic or Connect."""
    return hasattr(data, "mapInArrow") and hasattr(data, "toArrow")


def frame_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a DataFrame as Arrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema)


def frame_rows(frame: DataFrame, most: int, most_bytes: int) -> pa.Table | None:
    """The rows of a DataFrame; ``None`` above the limits of rows or bytes."""
    from floeplan.spark.jvm import collect_if_small

    rows = collect_if_small(frame, most_bytes // _BYTES_IN_MEMORY)
    if rows is None:
        rows = frame.limit(most + 1).toArrow()
    return without_ids(rows) if rows.num_rows <= most else None


def source_frame(spark: SparkSession, rows: pa.Table, schema: Schema) -> DataFrame:
    """Arrow rows as a DataFrame of exactly their types: timestamps without a zone stay without one."""
    from floeplan.spark.types import spark_schema

    return spark.createDataFrame(rows, schema=spark_schema(schema))


def parquet_paths(data: object) -> list[str] | None:
    """The files meant by a path, a folder or several of them; ``None`` when this is something else."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, list | tuple) or not given or not all(isinstance(p, str | os.PathLike) for p in given):
        return None
    return [path for item in given for path in _files_of(os.fspath(item))]


def arrow_batches(data: object) -> Iterator[pa.Table]:
    """Arrow data in any wrapping as tables that carry no field ids.

    Raises:
        BadInputError: It is not Arrow data.
    """
    for table in _tables(data):
        if table.num_rows:
            yield without_ids(table)


def arrow_table(data: object, io: FileIO) -> pa.Table:
    """All rows of a source as one table: Arrow data, a table or its name, Parquet files."""
    if isinstance(data, Table) or (isinstance(data, str) and _is_table_name(data)):
        return without_ids(plan_scan(load_table(data), options=ScanOptions(report=False)).to_arrow())
    paths = parquet_paths(data)
    if paths is not None:
        return pa.concat_tables([table for path in paths for table in ParquetRows(path, io).tables()])
    tables = [without_ids(table) for table in _tables(data)]
    if not tables:
        raise BadInputError("the source has no rows and no columns; give a table with its columns")
    return pa.concat_tables(tables)


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The rows of a Parquet file, some row groups at a time; INT96 times are instants, as Spark and Hive write them."""

    path: str
    io: FileIO

    def tables(self) -> Iterator[pa.Table]:
        """Row group by row group; a file without any gives its columns."""
        source = open_source(self.path, self.io)
        footer = read_footer(source)
        for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
            rows = RowSelection.from_runs(np.array([first]), np.array([count]))
            yield without_ids(_with_instants(read_selected(source, footer, None, rows), footer))
        if not footer.num_row_groups:
            yield without_ids(_with_instants(read_selected(source, footer, None), footer))


def _with_instants(table: pa.Table, footer: ParquetFooter) -> pa.Table:
    for leaf in footer.leaves:
        if leaf.physical is Physical.INT96 and len(leaf.path) == 1:
            position = table.schema.get_field_index(leaf.path[0])
            column = table.column(position)
            table = table.set_column(position, leaf.path[0], column.cast(pa.timestamp(column.type.unit, "UTC")))
    return table


def without_ids(table: pa.Table) -> pa.Table:
    """The same rows without field ids and other metadata."""
    schema = pa.schema([_bare(field) for field in table.schema])
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _tables(data: Any) -> Iterable[pa.Table]:
    if isinstance(data, pa.Table):
        return [data]
    if isinstance(data, pa.RecordBatch):
        return [pa.Table.from_batches([data])]
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return (pa.Table.from_batches([batch]) for batch in reader)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        return (table for part in data for table in _tables(part))
    raise BadInputError(
        f"unsupported input type: {type(data).__name__}; use Arrow data, a Spark DataFrame or paths of Parquet files"
    )


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare_type(field.type), field.nullable)


def _bare_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_bare(child) for child in type_])
    if pa.types.is_list(type_):
        return pa.list_(_bare(type_.value_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(_bare(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(_bare(type_.key_field), _bare(type_.item_field))
    return type_


def _files_of(path: str) -> Sequence[str]:
    """A file as it is; the Parquet files of a local folder, hidden ones left out."""
    if "://" in path:
        return [path]
    local = Path(path)
    if local.is_dir():
        found = [p for p in local.rglob("*.parquet") if not p.name.startswith(("_", "."))]
        if not found:
            raise UnknownFileError(f"there is no Parquet file in {path}", context={"file": path})
        return sorted(map(str, found))
    if not local.exists():
        raise UnknownFileError(f"there is no file {path}", context={"file": path})
    return [path]


def _is_table_name(text: str) -> bool:
    return "/" not in text and not text.endswith(".parquet")
