"""Values and physical properties of Parquet files of any writer, to compare before and after a change."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, PrimitiveType, TimestampNanoType, TimestamptzNanoType, UUIDType

from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import read_page_indexes
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.source import ByteSource, open_source
from floeplan.predicate.ir import TRUE
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import FileRows, OpenFile, TableRows
from floeplan.scan.model import FileScan
from floeplan.write.parquet_file import encoded_file


def reach(table: pa.Table, leaf: LeafColumn) -> pa.Array:
    """The values of a leaf inside structs, null where an enclosing struct is null."""
    array = table.column(leaf.path[0]).combine_chunks()
    for name in leaf.path[1:]:
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def canonical(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    """Arrow values in the canonical form of an Iceberg type."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type):
        nanos = isinstance(type_, TimestampNanoType | TimestamptzNanoType)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("ns" if nanos else "us", array.type.tz))
        elif pa.types.is_time(array.type):
            array = array.cast(pa.time64("us"), safe=False)
        elif pa.types.is_date64(array.type):
            array = array.cast(pa.date32())
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    values = array.to_pylist()
    if isinstance(type_, DecimalType) and pa.types.is_integer(array.type):
        return [None if value is None else Decimal(value) for value in values]
    if isinstance(type_, UUIDType):
        return [value if value is None or isinstance(value, bytes) else value.bytes for value in values]
    return values


# --- files as page copying opens them, and the properties that must be preserved

IO = PyArrowFileIO()


def opened(path: Path, **more: Any) -> OpenFile:
    """A file of a table, opened."""
    scan: dict[str, Any] = {
        "path": str(path),
        "format": "PARQUET",
        "spec_id": 0,
        "partition": {},
        "record_count": -1,
        "file_size": path.stat().st_size,
        "sequence_number": 1,
        "row_groups": None,
        "row_selection": None,
        "deletes": (),
        "residual": TRUE,
        "tri_state": TriState.TRUE,
        "encrypted": False,
    }
    return FileRows(TableRows((Schema(),), None, IO)).open(FileScan(**(scan | more)))


def facts(source: ByteSource, footer: ParquetFooter) -> list[dict[str, Any]]:
    """For every row group and column: everything except offsets, and the bytes that offsets point to."""
    groups = range(footer.num_row_groups)
    pages = read_page_indexes(source, footer, footer.leaves, groups)
    found = []
    for leaf in footer.leaves:
        chunks, index = footer.chunks(leaf), pages[leaf.index]
        for group in groups:
            mine = index.row_group == group
            found.append(
                {
                    "group": group,
                    "column": leaf.path,
                    "statistics": (chunks.min_value[group], chunks.max_value[group], int(chunks.null_count[group])),
                    "codec": int(chunks.codec[group]),
                    "located": bool(index.has_offset_index[group]),
                    "described": bool(index.has_column_index[group]),
                    "rows": (index.first_row[mine].tolist(), index.row_count[mine].tolist()),
                    "bounds": [(index.lower[at], index.upper[at]) for at in np.flatnonzero(mine)],
                    "bytes": _bytes(source, chunks.start[group], chunks.total_compressed_size[group]),
                    "pages": [_bytes(source, index.offset[at], index.size[at]) for at in np.flatnonzero(mine)],
                    "bloom": _bytes(source, chunks.bloom_offset[group], chunks.bloom_length[group]),
                }
            )
    return found


def facts_of(path: Path) -> list[dict[str, Any]]:
    source = open_source(str(path), IO)
    return facts(source, read_footer(source))


def _bytes(source: ByteSource, at: Any, size: Any) -> bytes:
    return bytes(source.read_ranges([(int(at), int(size))])[0]) if at >= 0 and size > 0 else b""


def expected_facts(paths: list[Path]) -> list[dict[str, Any]]:
    """The facts of all files, with consecutive row group numbers; empty row groups are left out."""
    found: list[dict[str, Any]] = []
    first = 0
    for path in paths:
        of_file = [fact for fact in facts_of(path) if fact["rows"] != ([0], [0])]
        found += [fact | {"group": fact["group"] + first} for fact in of_file]
        first = max((fact["group"] for fact in found), default=-1) + 1
    return sorted(found, key=_place)


def _place(fact: dict[str, Any]) -> tuple[Any, ...]:
    return fact["column"], fact["group"]


def same_place(fact: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(fact, key=_place)


def columns_encoded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The columns that were encoded again when row groups were joined; filled while the test runs."""
    seen: set[str] = set()

    def spy(rows: pa.Table, *rest: Any) -> memoryview:
        seen.update(rows.column_names if rows.num_rows else ())
        return encoded_file(rows, *rest)

    monkeypatch.setattr("floeplan.rewrite.run.join_group.encoded_file", spy)
    return seen
