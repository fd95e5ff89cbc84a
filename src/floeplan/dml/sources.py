"""Input rows: Arrow data in any container, Spark DataFrames, Parquet files and other tables.

Columns of input data are matched by name. Field ids that they may carry belong to another table, so they are removed
first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from floeplan.catalog import load_table
from floeplan.errors import BadInputError, UnknownFileError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read_selected
from floeplan.parquet.source import ByteSource, open_source
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import reusable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BYTES_IN_MEMORY = 8
"""Bytes of rows that one byte of a file may become."""


def is_data_frame(data: object) -> TypeGuard[DataFrame]:
    """Whether this is a DataFrame of Spark, classic or Connect."""
    return hasattr(data, "mapInArrow") and hasattr(data, "toArrow")


def frame_rows(frame: DataFrame, most: int, most_bytes: int) -> pa.Table | None:
    """The rows of a DataFrame; ``None`` above the limits of rows or bytes.

    At most about twice the bytes are collected: one task has all rows up to the limit, and returns no more.
    """
    from floeplan.spark.jvm import collect_if_small

    rows = collect_if_small(frame, most_bytes // _BYTES_IN_MEMORY)
    if rows is None:
        ensure_package(frame.sparkSession)

        @reusable
        def first_bytes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            left = 2 * most_bytes
            for batch in batches:
                yield batch
                left -= batch.nbytes
                if left < 0:
                    return

        rows = frame.limit(most + 1).coalesce(1).mapInArrow(first_bytes, frame.schema).toArrow()
    return without_ids(rows) if rows.num_rows <= most and rows.nbytes <= most_bytes else None


def parquet_paths(data: object) -> list[str] | None:
    """The files of a path, a folder or several of them; ``None`` for anything else."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, list | tuple) or not given or not all(isinstance(p, str | os.PathLike) for p in given):
        return None
    found: list[str] = []
    for path in map(os.fspath, given):
        local = Path(path)
        if "://" not in path and local.is_dir():
            # The Parquet files of a local folder, without hidden ones.
            inside = [file for file in local.rglob("*.parquet") if not file.name.startswith(("_", "."))]
            if not inside:
                raise UnknownFileError(f"there is no Parquet file in {path}", context={"file": path})
            found += sorted(map(str, inside))
        elif "://" in path or local.exists():
            found.append(path)
        else:
            raise UnknownFileError(f"there is no file {path}", context={"file": path})
    return found


def arrow_batches(data: object) -> Iterator[pa.Table]:
    """Arrow data in any container as tables without field ids.

    Raises:
        BadInputError: It is not Arrow data.
    """
    for table in _tables(data):
        if table.num_rows:
            yield without_ids(table)


def arrow_table(data: object, io: FileIO, catalog: str | Catalog | None = None) -> pa.Table:
    """All rows of a source as one table: Arrow data, a table or its name, Parquet files."""
    if isinstance(data, Table) or (isinstance(data, str) and "/" not in data and not data.endswith(".parquet")):
        return without_ids(plan_scan(load_table(data, catalog), options=ScanOptions(report=False)).to_arrow())
    paths = parquet_paths(data)
    if paths is not None:
        return pa.concat_tables([table for path in paths for table in parquet_tables(path, io)])
    tables = [without_ids(table) for table in _tables(data)]
    if not tables:
        raise BadInputError("the source has no rows and no columns; give a table with its columns")
    return pa.concat_tables(tables)


def parquet_tables(path: str, io: FileIO) -> Iterator[pa.Table]:
    """The rows of a Parquet file, row group by row group; a file without any gives its columns."""
    source = open_source(path, io)
    footer = read_footer(source)
    groups: list[RowSelection | None] = [
        RowSelection.from_runs(np.array([first]), np.array([count]))
        for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True)
    ]
    for rows in groups or [None]:
        yield _parquet_rows(source, footer, rows)


def parquet_schema(path: str, io: FileIO) -> pa.Schema:
    """The columns of a Parquet file as they are appended."""
    source = open_source(path, io)
    return _parquet_rows(source, read_footer(source), RowSelection.none()).schema


def _parquet_rows(source: ByteSource, footer: ParquetFooter, rows: RowSelection | None) -> pa.Table:
    table = read_selected(source, footer, None, rows)
    for leaf in footer.leaves:
        if leaf.physical is Physical.INT96 and len(leaf.path) == 1:  # an instant, as Spark and Hive write it
            position = table.schema.get_field_index(leaf.path[0])
            column = table.column(position)
            table = table.set_column(position, leaf.path[0], column.cast(pa.timestamp(column.type.unit, "UTC")))
    return without_ids(table)


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
