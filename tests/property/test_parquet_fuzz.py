"""Corrupt Parquet metadata: a Floeplan error or a conservative result, in bounded time and memory.

Consistent wrong bytes cannot be detected: Parquet has no checksum over its metadata. The requirements are that only a
``FloeplanError`` is raised, in bounded time and memory, and that bounds are never tighter than those another reader
finds.
"""

from __future__ import annotations

import io
import math
import time
import tracemalloc
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.types import IntegerType, LongType

from floeplan.errors import FloeplanError
from floeplan.parquet.footer.bloom import probe_file
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import page_column_stats, read_page_indexes
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.footer.thrift import BINARY, BOOL, I32, I64, LIST, STRUCT, encode_struct, read_struct_in_python
from floeplan.parquet.source import BytesSource
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats
from tests.support.oracles.statistics import listed
from tests.support.parquet import forge

pytestmark = pytest.mark.property

SECONDS = 2.0
MEGABYTES = 60


def sample_file() -> bytes:
    rows = 400
    columns: dict[str, Any] = {
        "x": pa.array(range(rows), pa.int64()),
        "small": pa.array([None if i % 7 == 0 else i % 50 for i in range(rows)], pa.int32()),
        "text": [f"text {i}" for i in range(rows)],
        "float": [math.nan if i % 9 == 0 else i / 2 for i in range(rows)],
        "decimal": pa.array(range(rows), pa.decimal128(20, 3)),
        "struct": [{"a": i, "b": [i, i + 1]} for i in range(rows)],
    }
    out = io.BytesIO()
    blooms = {name: {"ndv": 100, "fpp": 0.01} for name in ("x", "text")}
    pq.write_table(
        pa.table(columns), out, row_group_size=100, write_page_index=True, max_rows_per_page=20, write_batch_size=10,
        bloom_filter_options=blooms, compression="none",
    )  # fmt: skip
    return out.getvalue()


FILE = sample_file()
INTACT = read_footer(BytesSource(FILE))
METADATA_START = int(INTACT.chunks(0).bloom_offset.min())


def examine(data: bytes) -> ParquetFooter:
    """Read everything in a file's metadata."""
    source = BytesSource(data)
    footer = read_footer(source)
    columns = [Column(leaf.field_id, leaf.type, leaf.path) for leaf in footer.leaves if leaf.type is not None]
    groups = range(footer.num_row_groups)
    stats = row_group_stats(footer, columns)
    assert stats.length == footer.num_row_groups
    indexes = read_page_indexes(source, footer, footer.leaves, groups)
    for column in columns:
        index = indexes[footer.leaf_by_id[column.field_id].index]
        assert index.row_count.sum() == footer.num_rows
        assert (index.row_count >= 0).all()
        page_column_stats(index, column)
    questions = [(column, (1, 2)) for column in columns if isinstance(column.type, LongType | IntegerType)]
    probe_file(source, footer, questions, groups)
    return footer


def examine_bounded(data: bytes) -> ParquetFooter | None:
    started = time.process_time()
    try:
        return examine(data)
    except FloeplanError:
        return None
    finally:
        assert time.process_time() - started < SECONDS


def test_the_intact_file_is_examined() -> None:
    assert examine(FILE).num_rows == 400


PLACES = st.integers(METADATA_START, len(FILE) - 1)
SNIPPETS = st.binary(min_size=1, max_size=8) | st.just(b"\xff" * 5)
EDITS = st.tuples(PLACES, st.sampled_from(["flip", "overwrite", "take out", "put in"]), SNIPPETS)


def damaged(edits: list[tuple[int, str, bytes]]) -> bytes:
    """The file with a few bytes of its metadata changed, overwritten, removed or inserted."""
    data = bytearray(FILE)
    for place, kind, snippet in edits:
        at = min(place, len(data) - 1)
        if kind == "flip":
            data[at] ^= 1 << snippet[0] % 8
        elif kind == "overwrite":
            data[at : at + len(snippet)] = snippet
        elif kind == "take out":
            del data[at : at + len(snippet)]
        else:
            data[at:at] = snippet
    return bytes(data)


@given(st.lists(EDITS, min_size=1, max_size=4))
@example([(37203, "flip", b"\xff\xff\xff\xff\xff")])
@example([(34704, "flip", b"\x10")])
def test_damage_is_an_error_or_no_more_than_another_reader_sees(edits: list[tuple[int, str, bytes]]) -> None:
    data = damaged(edits)
    footer = examine_bounded(data)
    if footer is not None:
        assert_no_more_than_pyarrow(footer, data)


@given(st.lists(st.tuples(st.integers(1, 1200), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_to_the_footer(changes: list[tuple[int, int]]) -> None:
    data = bytearray(FILE)
    for back, byte in changes:
        data[-back] = byte
    footer = examine_bounded(bytes(data))
    if footer is not None:
        assert_no_more_than_pyarrow(footer, bytes(data))


def assert_no_more_than_pyarrow(footer: ParquetFooter, data: bytes) -> None:
    """Bounds and null counts of plain columns equal those pyarrow reads from the same bytes, or are not used."""
    try:
        theirs = pq.read_metadata(io.BytesIO(data))
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return
    assert footer.num_rows == theirs.num_rows
    for leaf in footer.leaves:
        if isinstance(leaf.type, LongType | IntegerType) and not leaf.max_rep:
            column = Column(leaf.field_id, leaf.type, leaf.path)
            stats = row_group_stats(footer, [column]).columns[leaf.field_id]
            for group in range(footer.num_row_groups):
                if can_be_shown(footer, theirs, group, leaf.index):
                    assert_same_claims(stats, group, theirs.row_group(group).column(leaf.index))


def can_be_shown(footer: ParquetFooter, theirs: pq.FileMetaData, group: int, at: int) -> bool:
    """pyarrow crashes when it shows statistics whose size does not fit the column type."""
    tree = read_struct_in_python(footer._encoded, 0, None)[0]
    sizes = tree[4][group][1][at][3].get(16)
    if not isinstance(sizes, dict):
        return True
    column = theirs.schema.column(at)
    levels = {2: column.max_repetition_level, 3: column.max_definition_level}
    fit = all(len(sizes.get(number, ())) in (0, level + 1) for number, level in levels.items())
    return fit and (1 not in sizes or column.physical_type == "BYTE_ARRAY")


def assert_same_claims(stats: ColumnStats, group: int, chunk: pq.ColumnChunkMetaData) -> None:
    """The writer stores bounds in old and new fields. pyarrow reads only the new ones; if damage hides these, the old
    ones still hold.
    """
    lower, upper = listed(stats.lower)[group], listed(stats.upper)[group]
    claims = chunk.statistics
    if lower is not None or upper is not None:
        if claims is not None and not claims.has_min_max:
            claims = intact_statistics(group, chunk.path_in_schema)
        assert claims is not None
        assert claims.has_min_max
        assert lower is None or lower == int(claims.min)
        assert upper is None or upper == int(claims.max)
    if not stats.may_null[group] and chunk.num_values:
        assert claims is None or not claims.has_null_count or claims.null_count == 0


def intact_statistics(group: int, path: str) -> pq.Statistics | None:
    row_group = pq.read_metadata(io.BytesIO(FILE)).row_group(group)
    columns = [row_group.column(at) for at in range(row_group.num_columns)]
    return next((column.statistics for column in columns if column.path_in_schema == path), None)


@given(st.integers(0, len(FILE) - 1))
def test_a_truncated_file_is_an_error(length: int) -> None:
    assert examine_bounded(FILE[:length]) is None


@given(st.binary(max_size=200))
def test_any_bytes_as_a_footer(garbage: bytes) -> None:
    examine_bounded(forge.sealed(garbage))


@given(st.binary(max_size=60), st.sampled_from([None, {}, {1: None, 2: {1: {}}, 3: ..., 4: {}}]))
@example(b"\x01\x00\x1b\x03\x00\x00\x00\x00\x00\x00", None)
def test_both_decoders_agree_on_any_bytes(data: bytes, shape: Any) -> None:
    compiled = import_module("floeplan.parquet.footer._thrift")
    assert outcome(compiled.read_struct, data, shape) == outcome(read_struct_in_python, data, shape)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3))
def test_both_decoders_agree_on_damaged_footers(changes: list[tuple[int, int]]) -> None:
    compiled = import_module("floeplan.parquet.footer._thrift")
    data = bytearray(INTACT._encoded)
    for at, byte in changes:
        data[at % len(data)] = byte
    assert outcome(compiled.read_struct, bytes(data), None) == outcome(read_struct_in_python, bytes(data), None)


def outcome(read_struct: Any, data: bytes, shape: Any) -> tuple[str, str]:
    """The result as text, since NaN does not equal itself."""
    try:
        return "decoded", repr(read_struct(data, 0, shape))
    except IndexError:
        return "too short", ""
    except ValueError as error:
        return "wrong", str(error)


MANY = 300_000
LEAF = forge.element("x", forge.INT64)


def bomb(**parts: Any) -> bytes:
    """A footer with a list of very many small elements."""
    fields: dict[int, Any] = {
        2: (LIST, (STRUCT, [forge.root(1), LEAF])),
        3: (I64, 0),
        4: (LIST, (STRUCT, [])),
    }
    fields |= {int(name[1:]): value for name, value in parts.items()}
    return forge.sealed(encode_struct((number, *value) for number, value in sorted(fields.items())))


TINY = (LIST, (STRUCT, [b"\0"] * MANY))
FLAT_SCHEMA = (LIST, (STRUCT, [forge.root(MANY), *[LEAF] * MANY]))
NO_CHUNKS = encode_struct([(1, LIST, (STRUCT, [])), (3, I64, 0)])


@pytest.mark.parametrize(
    "data",
    [
        bomb(_2=TINY),
        bomb(_2=FLAT_SCHEMA),
        bomb(_2=FLAT_SCHEMA, _4=TINY),
        bomb(_4=TINY),
        bomb(_4=(LIST, (STRUCT, [NO_CHUNKS] * MANY))),
        bomb(_5=TINY),
        bomb(_7=TINY),
        bomb(_8=TINY),
        bomb(_9=TINY),
        bomb(_4=(LIST, (STRUCT, [encode_struct([(1, *TINY), (3, I64, 0)])]))),
        bomb(_5=(LIST, (LIST, [(STRUCT, [])] * MANY))),
        bomb(_6=(BINARY, bytes(MANY))),
        bomb(_3=TINY),
        bomb(_3=(LIST, (BOOL, [True] * MANY))),
        bomb(_3=(LIST, (I32, [7] * MANY))),
        forge.sealed(b"\x19\xfc\xff\xff\xff\xff\x0f" + bytes(1000)),
        forge.sealed(b"\x1c" * MANY),
    ],
)
def test_huge_lists_are_cheap(data: bytes) -> None:
    tracemalloc.start()
    started = time.process_time()
    try:
        with suppress(FloeplanError):
            examine(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTES * 2**20
    assert time.process_time() - started < 5 * SECONDS


def test_an_index_with_very_many_pages_is_cheap() -> None:
    pages = [encode_struct([(1, I64, 4), (2, I32, 1), (3, I64, 0)])] * MANY
    index = encode_struct([(1, LIST, (STRUCT, pages))])
    places = [(4, I64, 104), (5, I32, len(index))]
    column = forge.chunk(forge.INT64, 10, size=100, outside=places)
    source = BytesSource(forge.one_column(LEAF, [(10, column)], body=bytes(100) + index))
    footer = read_footer(source)
    started = time.process_time()
    found = read_page_indexes(source, footer, footer.leaves, [0])[0]
    assert time.process_time() - started < SECONDS
    assert not found.has_offset_index.any()
    assert np.array_equal(found.row_count, [10])
