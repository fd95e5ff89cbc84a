"""Columns of row groups without some of their rows, made of their pages: values are moved, not built and encoded anew.

Plain values stay as they are stored; where rows are gone the others move together. Ints that refer to a dictionary
are unpacked, and packed again to refer to one dictionary that all row groups share (``stored_values``). Small pages are
put together to ones of the size that the table wants. Bounds are those of the rows that stay.

Rule: a column is made this way if it is stored as the new file will store it, in plain values or numbers of a
dictionary, whatever its codec.

Fail-safe: a column with a page of another kind, NaN, or a value too long for a bound is left to the encoder
(``UNSUPPORTED_PAGE`` of ``data_pages``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from floeplan.parquet.footer.column_chunks import ChunkLocation
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.codec import PageCodec
from floeplan.parquet.pages.data_pages import (
    DICTIONARY_PAGE,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    Page,
    data_page,
    dictionary_page,
    first_page_type,
    kernel,
    page_content,
    read_pages,
)
from floeplan.parquet.pages.value_encodings import Bounds, Dictionary, ValueEncoding, Values, plain_value_encoding
from floeplan.rewrite.pages.column_chunk import DescribedPage, PageChunk, PageRun, page_run, statistics
from floeplan.rewrite.pages.joined_file import Piece
from floeplan.vectors import Mask
from floeplan.write.options import WriteOptions

_BIT_PACKED = 4
_KNOWN = frozenset({PLAIN, PLAIN_DICTIONARY, RLE, _BIT_PACKED, RLE_DICTIONARY})
_LONGEST_BOUND = 4096


def can_filter_pages(leaf: LeafColumn, place: ChunkLocation) -> bool:
    """Whether a column of a row group looks like one whose pages can be made without some rows."""
    if kernel is None or leaf.type is None or leaf.max_rep or leaf.max_def > 1 or leaf.physical is Physical.INT96:
        return False
    return place.encodings is not None and place.encodings <= _KNOWN and PageCodec.knows(place.codec)


@dataclass(frozen=True, slots=True)
class SourcePages:
    """The pages of a column of one row group.

    Attributes:
        data: The pages.
        place: What the footer says of them.
        rows: How many rows they hold.
        keep: The rows that stay; ``None`` for all.
        kept: What is known of the pages, where they can stay as they are.
    """

    data: memoryview
    place: ChunkLocation
    rows: int
    keep: Mask | None
    kept: PageRun | None


@dataclass(frozen=True, slots=True)
class _Thin:
    """The rows of a page that stay; ``bounds`` where thinning found them."""

    values: Values
    bounds: Bounds
    rows: int
    present: Mask | None


class FilteredColumn:
    """A column of a new row group in the making: the rows of some old ones that stay."""

    def __init__(self, leaf: LeafColumn, codec: int, options: WriteOptions) -> None:
        self.leaf, self.options = leaf, options
        self._codec, self._old_codec = PageCodec(codec, options.level), cache(PageCodec)
        self._form: ValueEncoding | None = None
        self._parts: list[PageRun] = []
        self._pages: list[Piece] = []
        self._made: list[DescribedPage] = []
        self._waiting: list[_Thin] = []

    def add(self, source: SourcePages) -> None:
        """Take what stays of the pages of a row group."""
        form = self._form_of(source)
        if source.kept is not None and not isinstance(form, Dictionary):
            self._end_part(form)
            self._parts.append(source.kept)
            self._pages.append(source.data)
        else:
            self._add_pages(form, source)

    def finish(self) -> PageChunk:
        """The column."""
        form = self._form
        assert form is not None
        self._end_part(form)
        dictionary = None
        if isinstance(form, Dictionary):
            entries = form.stored_entries
            if len(entries) > self.options.dictionary_size:
                raise ValueError("a dictionary larger than the table wants")
            dictionary = dictionary_page(entries, form.size, self._codec)
        if statistics(self.leaf, self._parts) is None:
            raise ValueError("bounds that cannot be compared")
        return PageChunk(self.leaf, self._codec.number, self._parts, self._pages, dictionary)

    def _form_of(self, source: SourcePages) -> ValueEncoding:
        """How values are stored, by the first row group; the others must be alike."""
        with_dictionary = first_page_type(source.data) == DICTIONARY_PAGE
        if self._form is None:
            self._form = Dictionary(self.leaf) if with_dictionary else plain_value_encoding(self.leaf)
        if isinstance(self._form, Dictionary) != with_dictionary:
            raise ValueError("a dictionary in some row groups only")
        return self._form

    def _add_pages(self, form: ValueEncoding, source: SourcePages) -> None:
        place, row = source.place, 0
        codec = self._old_codec(place.codec)
        for page in read_pages(source.data, codec, self.leaf.max_def, place.uncompressed_size, source.rows):
            if page.kind == DICTIONARY_PAGE and isinstance(form, Dictionary):
                form.learn(page)
                continue
            if page.encoding not in form.read_from or page.kind == DICTIONARY_PAGE:
                raise ValueError(f"a page of encoding {page.encoding}")
            keep = None if source.keep is None else source.keep[row : row + page.rows]
            row += page.rows
            some = _thin(form, page, keep)
            if some.rows:
                self._add(form, some)
        if row != source.rows:
            raise ValueError(f"{row} rows instead of {source.rows}")

    def _add(self, form: ValueEncoding, some: _Thin) -> None:
        """Take what stays of a page; it shares a page with what waits if that is no larger than the table wants."""
        rows = some.rows + sum(one.rows for one in self._waiting)
        size = some.values.nbytes + sum(one.values.nbytes for one in self._waiting)
        if rows > self.options.page_rows or size > self.options.page_size:
            self._end_page(form)
        self._waiting.append(some)

    def _end_page(self, form: ValueEncoding) -> None:
        """Make a page of what waits."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        stored, bounds = form.stored([one.values for one in waiting], [one.bounds for one in waiting])
        if bounds is not None and max(map(len, bounds)) > _LONGEST_BOUND:
            raise ValueError("a value too long for a bound")
        rows, present = sum(one.rows for one in waiting), _present(waiting)
        content = page_content(stored, rows, present, self.leaf.max_def, form.width)
        if not self._parts and not self._made:
            self._codec.tune(content)
        page = data_page(content, form.encoding, rows, self._codec)
        nulls = 0 if present is None else rows - int(np.count_nonzero(present))
        self._made.append(DescribedPage(page, rows, nulls, *(bounds or (None, None))))

    def _end_part(self, form: ValueEncoding) -> None:
        """Make a part of the pages that were made."""
        self._end_page(form)
        if self._made:
            self._parts.append(page_run(self.leaf, form.encoding, self._made))
            self._pages += [piece for one in self._made for piece in (one.page.header, one.page.body)]
            self._made = []


def _thin(form: ValueEncoding, page: Page, keep: Mask | None) -> _Thin:
    """What stays of a page."""
    rows = page.rows if keep is None else int(np.count_nonzero(keep))
    if keep is None or rows == page.rows:
        values, bounds = form.thin(page.values, page.count, None)
        return _Thin(values, bounds, rows, page.present)
    if not rows:
        return _NOTHING
    present = None
    if page.present is not None:
        keep, present = keep[page.present], page.present[keep]
    values, bounds = form.thin(page.values, page.count, keep)
    return _Thin(values, bounds, rows, present)


_NOTHING = _Thin(np.zeros(0, dtype=np.uint8), None, 0, None)


def _present(parts: Sequence[_Thin]) -> Mask | None:
    if all(part.present is None for part in parts):
        return None
    return np.concatenate([np.ones(p.rows, dtype=np.bool_) if p.present is None else p.present for p in parts])
