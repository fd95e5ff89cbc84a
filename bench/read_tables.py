"""The tables of the read benchmarks, in a catalog that Spark and PyIceberg share.

One set of data files, sorted by ``id``, in three tables: clean, with 5 % of the rows deleted by position, and with 5 %
deleted by key. A fourth table has many files of one row, which are links to one file. Two more are in ORC and in Avro.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.metadata.manifests.entries import ENTRY_TYPES, Content, EntriesTable, Status, new_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "ts": pa.timestamp("us", "UTC"),
        "region": pa.string(),
        "amount": pa.decimal128(12, 2),
        "qty": pa.int32(),
        "note": pa.string(),
    }
)
EVERY, REMAINDER = 20, 7
"""One row in this many is deleted, and its remainder: the same rows in every file."""
OF_OTHER_FORMATS = 8, 250_000
"""Files, and rows in each, of the tables in ORC and Avro."""
WITHOUT_TIMES = SCHEMA.remove(SCHEMA.get_field_index("ts"))
"""Spark's own ORC reader cannot open files with a ``timestamptz`` column."""
DELETED = f"id % {EVERY} = {REMAINDER}"


def make_tables(catalog: SqlCatalog, files: int, rows: int, many: int) -> dict[str, Table]:
    """All tables by purpose."""
    catalog.create_namespace_if_not_exists("read")
    tables = {"clean": _appended(catalog, "clean", files, rows)}
    for name in ("positions", "keys"):
        tables[name] = catalog.register_table(f"read.{name}", tables["clean"].metadata_location)
    fp.delete(tables["positions"], DELETED, mode="merge-on-read")
    _delete_keys(tables["keys"], files * rows)
    tables["many"] = _many_files(catalog, many)
    for format_ in ("orc", "avro"):
        tables[format_] = _appended(
            catalog, format_, *OF_OTHER_FORMATS, WITHOUT_TIMES, {"write.format.default": format_}
        )
    return {name: table.refresh() for name, table in tables.items()}


def _appended(
    catalog: SqlCatalog,
    name: str,
    files: int,
    rows: int,
    schema: pa.Schema = SCHEMA,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    table = catalog.create_table(f"read.{name}", schema, properties={"format-version": "2", **properties})
    for number in range(files):
        fp.append(table, _batch(number * rows, rows).select(schema.names), fast=True)
    return table.refresh()


def _batch(first: int, rows: int) -> pa.Table:
    random = np.random.default_rng(first)
    ids = np.arange(first, first + rows)
    return pa.table(
        [
            pa.array(ids),
            pa.array(1_600_000_000_000_000 + ids * 1_000_000).cast(SCHEMA.field("ts").type),
            pa.array(np.array(["eu", "us", "ap", "af"])[random.integers(0, 4, rows)]),
            pa.array(random.integers(0, 10**9, rows)).cast(pa.decimal128(19, 0)).cast(SCHEMA.field("amount").type),
            pa.array(random.integers(0, 1000, rows), pa.int32()),
            pa.array(np.char.add("note ", random.integers(0, 10**9, rows).astype(str))),
        ],
        schema=SCHEMA,
    )


def _delete_keys(table: Table, rows: int) -> None:
    keys = pa.table({"id": pa.array(np.arange(REMAINDER, rows, EVERY))})
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    path = Path(table.location().removeprefix("file://")) / "data" / "deleted-keys.parquet"
    pq.write_table(keys.cast(pa.schema([field])), path)
    counts = {"value_counts": keys.num_rows, "null_value_counts": 0}
    columns = {
        **_file_columns([path], [keys.num_rows], Content.EQUALITY_DELETES),
        "equality_ids": pa.array([[1]], ENTRY_TYPES["equality_ids"]),
        **{name: pa.array([[{"key": 1, "value": count}]], ENTRY_TYPES[name]) for name, count in counts.items()},
    }
    entries = new_entries(columns, UnionPartitionType.of_table(table.metadata))
    commit_change(table, SnapshotChange(Operation.DELETE, added_deletes=entries))


def _many_files(catalog: SqlCatalog, many: int) -> Table:
    table = catalog.create_table("read.many", SCHEMA)
    fp.append(table, _batch(0, 1))
    (first,) = fp.plan_scan(table.refresh()).files
    place = Path(first.path.removeprefix("file://"))
    links = [place.with_name(f"link-{number}.parquet") for number in range(many - 1)]
    for link in links:
        os.link(place, link)
    commit_change(table, SnapshotChange(Operation.APPEND, added_data=_linked(table, links)))
    return table.refresh()


def _linked(table: Table, links: list[Path]) -> EntriesTable:
    columns = _file_columns(links, [1] * len(links), Content.DATA)
    return new_entries(columns, UnionPartitionType.of_table(table.metadata))


def _file_columns(paths: list[Path], records: list[int], content: Content) -> dict[str, pa.Array]:
    count = len(paths)
    return {
        "spec_id": pa.array([0] * count, pa.int32()),
        "status": pa.array([int(Status.ADDED)] * count, pa.int8()),
        "content": pa.array([int(content)] * count, pa.int8()),
        "file_path": pa.array([path.as_uri() for path in paths]),
        "file_format": pa.array(["PARQUET"] * count),
        "record_count": pa.array(records),
        "file_size_in_bytes": pa.array(list(_sizes(paths))),
    }


def _sizes(paths: list[Path]) -> Iterator[int]:
    return (path.stat().st_size for path in paths)
