"""Fetches and decodes only the pages that hold selected rows.

Rule: a column chunk that is fully selected or has no offset index is fetched as one piece; of all others only the data
pages that hold a selected row are fetched, and the dictionary page if one of them needs it. The pieces of all leaves
are fetched in one round trip. The result per leaf is exactly the selected rows, in file order.

pyarrow decodes the pieces: they are assembled to a small Parquet file in memory, which holds one top-level field of the
original with the column chunk of one leaf per row group: its dictionary page, if needed, and some of its data pages,
byte for byte. The schema elements are the original's, so types, nesting and field ids are as pyarrow reads them;
``created_by`` is kept, because decoders work around writer bugs by it.

Fail-safe: every page header is compared with the offset index. A column whose pages do not match it is fetched as whole
chunks instead, and one that decodes to another number of rows than the footer states is an error. The number of values
comes from the page headers, not from the offset index, which lacks it for nested columns.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.thrift import BINARY, I32, I64, LIST, STRUCT, encode_struct, integer, read_struct
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.source import ByteSource, Range, byte_ranges, corrupt
from floeplan.vectors import Ints, Mask, arrow

Data = TypeVar("Data", pa.Table, pa.ChunkedArray)

_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_HEADER_SHAPE = {1: None, 3: None, 5: {1: None, 2: None}, 8: {1: None, 3: None, 4: None}}
_DICTIONARY_ENCODINGS = (2, 8)
MAX_KNOWN_FIELDS = 1024
FEW_RUNS = 32
"""Up to this number of runs, slices are faster than a mask."""
WORTH_THREADS = 4 * 1024 * 1024
"""Compressed bytes from which decoding with several threads pays."""
_MAGIC = b"PAR1"
_ANY_ENCODINGS = (LIST, (I32, (0, 3, 8)))
_REQUIRED = 0


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One top-level field: its encoded schema elements from the original footer, and its leaves in order.

    ``arrow_field`` is the field in the Arrow schema that the writer stored, if any.
    """

    elements: tuple[bytes, ...]
    leaves: tuple[LeafColumn, ...]
    created_by: bytes
    arrow_field: pa.Field | None


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """The pieces of one leaf that hold selected rows, in file order: single pages or whole column chunks."""

    leaf: LeafColumn
    selection: RowSelection
    row_group: Ints
    first_row: Ints
    row_count: Ints
    offset: Ints
    size: Ints
    is_chunk: Mask
    dictionaries: Mapping[int, Range]
    """By row group: dictionary pages that the selected pages may be encoded with."""
    skipped_dictionaries: Mapping[int, Range]
    """The same where the selected pages most likely are not: once a writer falls back to plain, it stays there."""

    @property
    def ranges(self) -> list[Range]:
        """The pieces, then the dictionary pages."""
        return [*byte_ranges(self.offset, self.size), *self.dictionaries.values()]

    @property
    def bytes(self) -> int:
        """Bytes to fetch."""
        return int(self.size.sum()) + sum(length for _, length in self.dictionaries.values())


def plan_leaf(footer: ParquetFooter, leaf: LeafColumn, selection: RowSelection, index: PageIndex | None) -> LeafPlan:
    """Choose the pieces of a leaf that hold the selected rows."""
    chunks = footer.chunks(leaf)
    selected = selection.rank(footer.first_rows + footer.row_group_rows) - selection.rank(footer.first_rows)
    by_page = np.zeros(footer.num_row_groups, dtype=np.bool_)
    if index is not None:
        by_page[index.row_groups[index.has_offset_index]] = True
        by_page &= selected < footer.row_group_rows
    # Whole chunks first; pages are added after them and all pieces sorted by row.
    groups = np.flatnonzero((selected > 0) & ~by_page)
    pieces = np.stack(
        (
            groups,
            footer.first_rows[groups],
            footer.row_group_rows[groups],
            chunks.start[groups],
            footer.chunk_sizes(chunks)[groups],
            np.ones_like(groups),
        )
    )
    dictionaries: dict[int, Range] = {}
    skipped: dict[int, Range] = {}
    if index is not None and by_page.any():
        first_row = footer.first_rows[index.row_group] + index.first_row
        wanted = np.flatnonzero(by_page[index.row_group] & selection.overlaps(first_row, index.row_count))
        pages = (index.row_group, first_row, index.row_count, index.offset, index.size, np.zeros_like(first_row))
        pieces = np.concatenate((pieces, np.stack(pages)[:, wanted]), axis=1)
        pieces = pieces[:, np.argsort(pieces[1], kind="stable")]
        # The dictionary page precedes the first data page of a chunk, and dictionary-encoded pages precede plain ones.
        position = np.repeat(np.arange(len(index.row_groups)), np.diff(index.page_starts))[wanted]
        encoded = chunks.dictionary_pages[index.row_groups[position]]
        needs = (encoded < 0) | (wanted - index.page_starts[position] < encoded)
        needed = set(index.row_groups[position[needs]].tolist())
        present = distinct(position)
        groups = index.row_groups[present]
        starts = chunks.start[groups]
        spans = byte_ranges(starts, index.offset[index.page_starts[present]] - starts)
        for group, span in zip(groups.tolist(), spans, strict=True):
            if span[1] > 0:
                (dictionaries if group in needed else skipped)[group] = span
    row_group, first_row, row_count, offset, size, chunk = pieces
    return LeafPlan(leaf, selection, row_group, first_row, row_count, offset, size, chunk == 1, dictionaries, skipped)


def read_leaves(
    source: ByteSource, footer: ParquetFooter, plans: Sequence[LeafPlan], layouts: Mapping[int, FieldLayout]
) -> dict[int, pa.ChunkedArray]:
    """Fetch in one round trip and decode: by leaf index, exactly the rows each plan selects."""
    fetched = _fetch(source, plans)
    counted = [_count_values(footer, one) for one in fetched]
    # Columns whose pages do not match the offset index are fetched again as whole chunks.
    mismatched = [number for number, values in enumerate(counted) if values is None]
    chunk_plans = [plan_leaf(footer, plans[n].leaf, plans[n].selection, None) for n in mismatched]
    for number, again in zip(mismatched, _fetch(source, chunk_plans), strict=True):
        fetched[number], counted[number] = again, _count_values(footer, again)
    # Skipped dictionaries that a page header turned out to need, for all columns at once.
    missing = [(one, group) for one in fetched for group in sorted(one.missing)]
    buffers = source.read_ranges([one.plan.skipped_dictionaries[group] for one, group in missing])
    for (one, group), buffer in zip(missing, buffers, strict=True):
        one.dictionaries[group] = buffer
    jobs = list(zip(fetched, counted, strict=True))

    def decode(job: tuple[_Fetched, list[int] | None]) -> pa.ChunkedArray:
        return _decode(footer, job[0], job[1] or [], layouts[job[0].plan.leaf.index])

    if len(jobs) < 2 or sum(plan.bytes for plan in plans) < WORTH_THREADS:
        arrays: Iterable[pa.ChunkedArray] = map(decode, jobs)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            arrays = list(pool.map(decode, jobs))
    return {plan.leaf.index: array for plan, array in zip(plans, arrays, strict=True)}


@dataclass(frozen=True, slots=True)
class _Fetched:
    plan: LeafPlan
    pieces: Sequence[memoryview]
    dictionaries: dict[int, memoryview]
    missing: set[int] = field(default_factory=set)
    """Row groups whose skipped dictionary is needed."""


def _fetch(source: ByteSource, plans: Sequence[LeafPlan]) -> list[_Fetched]:
    """All pieces of all plans in one round trip."""
    buffers = iter(source.read_ranges([span for plan in plans for span in plan.ranges]))
    return [
        _Fetched(plan, [next(buffers) for _ in plan.offset], {group: next(buffers) for group in plan.dictionaries})
        for plan in plans
    ]


def _count_values(footer: ParquetFooter, fetched: _Fetched) -> list[int] | None:
    """Values per piece, from the page headers; ``None`` when a page does not match the offset index."""
    plan, leaf = fetched.plan, fetched.plan.leaf
    totals = footer.chunks(leaf).num_values
    counts: list[int] = []
    pieces = zip(fetched.pieces, plan.row_group.tolist(), plan.row_count.tolist(), plan.is_chunk.tolist(), strict=True)
    for piece, group, rows, is_chunk in pieces:
        if is_chunk:
            # One value per row, or at least one in a repeated column.
            values = int(totals[group])
            if values < rows or (values > rows and leaf.max_rep == 0):
                raise corrupt(footer.file, f"column {leaf} claims {values} values in {rows} rows")
            counts.append(values)
            continue
        # One data page of this length and number of rows, else it does not match the offset index.
        try:
            header, body = read_struct(bytes(piece), 0, _HEADER_SHAPE, "page header", footer.file)
            kind, size = integer(header, 1), integer(header, 3)
            details = header[5 if kind == _DATA_PAGE else 8]
            values, encoding = integer(details, 1), integer(details, 2 if kind == _DATA_PAGE else 4)
            # A v1 header has no row count: in a flat column it equals the values, in a repeated one it is not known.
            page_rows = integer(details, 3) if kind == _DATA_PAGE_V2 else values if leaf.max_rep == 0 else rows
        except (CorruptFileError, ValueError, KeyError, AttributeError):
            return None
        is_page = kind in (_DATA_PAGE, _DATA_PAGE_V2) and body + size == len(piece)
        if not is_page or page_rows != rows or values < rows:
            return None
        counts.append(values)
        if encoding in _DICTIONARY_ENCODINGS and group in plan.skipped_dictionaries:
            fetched.missing.add(group)
    return counts


def _decode(footer: ParquetFooter, fetched: _Fetched, values: Sequence[int], layout: FieldLayout) -> pa.ChunkedArray:
    plan = fetched.plan
    codecs = footer.chunks(plan.leaf).codec
    groups = []
    for group, members in groupby(range(len(values)), key=lambda piece: int(plan.row_group[piece])):
        pieces = list(members)
        dictionary = [fetched.dictionaries[group]] if group in fetched.dictionaries else []
        rows, total = int(plan.row_count[pieces].sum()), sum(values[piece] for piece in pieces)
        pages = [*dictionary, *(fetched.pieces[piece] for piece in pieces)]
        groups.append(_GroupPages(rows, total, int(codecs[group]), pages))
    try:
        encoded = pa.py_buffer(_parquet_file(layout, plan.leaf, groups))
        file = pq.ParquetFile(encoded, coerce_int96_timestamp_unit="us")
        own = [plan.leaf.index - layout.leaves[0].index]  # a nested field is returned with only this leaf inside
        decoded = file.reader.read_all(column_indices=own, use_threads=False).column(0)
    except (OSError, pa.ArrowException) as error:
        raise corrupt(footer.file, f"the pages of column {plan.leaf} cannot be decoded: {error}") from None
    expected = int(plan.row_count.sum())
    if len(decoded) != expected:
        raise corrupt(footer.file, f"column {plan.leaf} holds {len(decoded)} rows instead of {expected}")
    return take_rows(decoded, plan.selection.relative_to(plan.first_row, plan.row_count))


def take_rows(data: Data, rows: RowSelection) -> Data:
    """The selected rows of a table or column: slices for few runs, else one pass with a mask."""
    if rows.row_count == len(data):
        return data
    if len(rows) > FEW_RUNS:
        return data.filter(arrow(rows.to_mask(len(data))))
    slices = [data.slice(start, count) for start, count in rows.to_pairs()]
    if isinstance(data, pa.Table):
        return pa.concat_tables(slices)
    return pa.chunked_array([chunk for part in slices for chunk in part.chunks], type=data.type)


class _GroupPages(NamedTuple):
    """The fetched pages of one leaf in one row group, the dictionary page first if present."""

    num_rows: int
    num_values: int
    codec: int
    pages: Sequence[bytes | memoryview]


@lru_cache(MAX_KNOWN_FIELDS)
def read_arrow_field(field: FieldLayout) -> pa.Field:
    """The field as pyarrow reads it; files of one table mostly share it."""
    return pq.read_schema(pa.py_buffer(_parquet_file(field, field.leaves[0], ()))).field(0)


def _parquet_file(field: FieldLayout, leaf: LeafColumn, groups: Sequence[_GroupPages]) -> bytes:
    """A file with the pages of one leaf; the other leaves of the field are listed in the footer and never read."""
    parts: list[bytes | memoryview] = [_MAGIC]
    row_groups, offset = [], len(_MAGIC)
    for group in groups:
        group_size = sum(map(len, group.pages))
        chunks = []
        for column in field.leaves:
            size = group_size if column.index == leaf.index else 0
            metadata = [
                (1, I32, column.physical),
                (2, *_ANY_ENCODINGS),
                (3, LIST, (BINARY, [part.encode() for part in column.path])),
                (4, I32, group.codec),
                (5, I64, group.num_values),
                (6, I64, size),
                (7, I64, size),
                (9, I64, offset),
            ]
            chunks.append(encode_struct([(2, I64, offset), (3, STRUCT, encode_struct(metadata))]))
        row_groups.append(encode_struct([(1, LIST, (STRUCT, chunks)), (2, I64, group_size), (3, I64, group.num_rows)]))
        parts += group.pages
        offset += group_size
    root = encode_struct([(3, I32, _REQUIRED), (4, BINARY, b"schema"), (5, I32, 1)])
    fields = [
        (1, I32, 2),
        (2, LIST, (STRUCT, [root, *field.elements])),
        (3, I64, sum(group.num_rows for group in groups)),
        (4, LIST, (STRUCT, row_groups)),
    ]
    if field.arrow_field is not None:
        schema = base64.b64encode(pa.schema([field.arrow_field]).serialize())
        fields.append((5, LIST, (STRUCT, [encode_struct([(1, BINARY, b"ARROW:schema"), (2, BINARY, schema)])])))
    footer = encode_struct([*fields, (6, BINARY, field.created_by)])
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), _MAGIC])
