"""Columns of row groups without some of their rows, made of their pages: values are moved, not built and encoded anew.

Plain values stay as they are stored; where rows are gone the others move together. Numbers that refer to a dictionary
are unpacked, and packed again to refer to one dictionary that all row groups share (``stored_values``). Small pages are
put together to ones of the size that the table wants. Bounds are those of the rows that stay.

Rule: a column is made this way if it is stored as the new file will store it, in plain values or numbers of a
dictionary, whatever its codec.

Fail-safe: a column with a page of another kind, NaN, or a value too long for a bound is left to the encoder
(``UNUSUAL`` of ``data_pages``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from floeplan.parquet.data_pages import (
    DICTIONARY_PAGE,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    MadePage,
    Page,
    data_page,
    dictionary_page,
    first_kind,
    kernel,
    page_content,
    read_pages,
)
from floeplan.parquet.footer import ChunkPlace
from floeplan.parquet.page_codec import PageCodec
from floeplan.parquet.schema import LeafColumn, Physical
from floeplan.parquet.stored_values import Bounds, Dictionary, StoredValues, Values, plain_values
from floeplan.predicate.tristate import Mask
from floeplan.rewrite.joined_file import Piece
from floeplan.rewrite.page_chunk import NewPage, PageChunk, PagePart, part_of, statistics
from floeplan.write.options import WriteOptions

_BIT_PACKED = 4
_KNOWN = frozenset({PLAIN, PLAIN_DICTIONARY, RLE, _BIT_PACKED, RLE_DICTIONARY})
_LONGEST_BOUND = 4096


def can_thin(leaf: LeafColumn, place: ChunkPlace) -> bool:
    """Whether a column of a row group looks like one whose pages can be made without some rows."""
    if kernel is None or leaf.type is None or leaf.max_rep or leaf.max_def > 1 or leaf.physical is Physical.INT96:
        return False
    return place.encodings is not None and place.encodings <= _KNOWN and PageCodec.knows(place.codec)


@dataclass(frozen=True, slots=True)
class OldPages:
    """The pages of a column of one row group.

    Attributes:
        data: The pages.
        place: What the footer says of them.
        rows: How many rows they hold.
        keep: The rows that stay; ``None`` for all.
        kept: What is known of the pages, where they can stay as they are.
    """

    data: memoryview
    place: ChunkPlace
    rows: int
    keep: Mask | None
    kept: PagePart | None


def thinned(leaf: LeafColumn, codec: int, options: WriteOptions, sources: Sequence[OldPages]) -> PageChunk:
    """A column of a new row group: the rows of all sources that stay."""
    chunk = _Column(leaf, PageCodec(codec, options.level), options).chunk(sources)
    if statistics(leaf, chunk.parts) is None:
        raise ValueError("bounds that cannot be compared")
    return chunk


@dataclass(frozen=True, slots=True)
class _Thin:
    """The rows of a page that stay; ``bounds`` where thinning found them."""

    values: Values
    bounds: Bounds
    rows: int
    present: Mask | None


class _Column:
    """A column in the making."""

    def __init__(self, leaf: LeafColumn, codec: PageCodec, options: WriteOptions) -> None:
        self.leaf, self.codec, self.options = leaf, codec, options
        self.parts: list[PagePart] = []
        self.pages: list[Piece] = []
        self.made: list[NewPage] = []
        self.waiting: list[_Thin] = []
        self._codec = cache(PageCodec)
        self._tuned = False

    def chunk(self, sources: Sequence[OldPages]) -> PageChunk:
        kinds = {first_kind(source.data) == DICTIONARY_PAGE for source in sources}
        if len(kinds) > 1:
            raise ValueError("a dictionary in some row groups only")
        form, dictionary = self._with_dictionary(sources) if kinds == {True} else (plain_values(self.leaf), None)
        for number, source in enumerate(sources):
            if source.kept is not None and dictionary is None:
                self._end_part(form)
                self.parts.append(source.kept)
                self.pages.append(source.data)
            else:
                self._add_source(form, number, source)
        self._end_part(form)
        return PageChunk(self.leaf, self.codec.number, self.parts, self.pages, dictionary)

    def _with_dictionary(self, sources: Sequence[OldPages]) -> tuple[Dictionary, MadePage]:
        form = Dictionary(self.leaf, [next(self._read(source)) for source in sources])
        if len(form.stored_entries) > self.options.dictionary_size:
            raise ValueError("a dictionary larger than the table wants")
        return form, dictionary_page(form.stored_entries, form.size, self.codec)

    def _read(self, source: OldPages) -> Iterator[Page]:
        place = source.place
        return read_pages(source.data, self._codec(place.codec), self.leaf.max_def, place.uncompressed_size)

    def _add_source(self, form: StoredValues, number: int, source: OldPages) -> None:
        row = 0
        for page in self._read(source):
            if page.kind == DICTIONARY_PAGE:
                continue
            if page.encoding not in form.read_from:
                raise ValueError(f"a page of encoding {page.encoding}")
            keep = None if source.keep is None else source.keep[row : row + page.rows]
            row += page.rows
            some = _thin(form, number, page, keep)
            if some.rows:
                self._add(form, some)
        if row != source.rows:
            raise ValueError(f"{row} rows instead of {source.rows}")

    def _add(self, form: StoredValues, some: _Thin) -> None:
        """Take what stays of a page; it shares a page with what waits if that is no larger than the table wants."""
        rows = some.rows + sum(one.rows for one in self.waiting)
        size = some.values.nbytes + sum(one.values.nbytes for one in self.waiting)
        if rows > self.options.page_rows or size > self.options.page_size:
            self._end_page(form)
        self.waiting.append(some)

    def _end_page(self, form: StoredValues) -> None:
        """Make a page of what waits."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        stored, bounds = form.stored([one.values for one in waiting], [one.bounds for one in waiting])
        if bounds is not None and max(map(len, bounds)) > _LONGEST_BOUND:
            raise ValueError("a value too long for a bound")
        rows, present = sum(one.rows for one in waiting), _present(waiting)
        content = page_content(stored, rows, present, self.leaf.max_def)
        if not self._tuned:
            self.codec.tune(content)
            self._tuned = True
        page = data_page(content, form.encoding, rows, self.codec)
        nulls = 0 if present is None else rows - int(np.count_nonzero(present))
        self.made.append(NewPage(page, rows, nulls, *(bounds or (None, None))))

    def _end_part(self, form: StoredValues) -> None:
        """Make a part of the pages that were made."""
        self._end_page(form)
        if self.made:
            self.parts.append(part_of(self.leaf, form.encoding, self.made))
            self.pages += [piece for one in self.made for piece in (one.page.header, one.page.body)]
            self.made = []


def _thin(form: StoredValues, source: int, page: Page, keep: Mask | None) -> _Thin:
    """What stays of a page."""
    rows = page.rows if keep is None else int(np.count_nonzero(keep))
    if keep is None or rows == page.rows:
        values, bounds = form.thin(page.values, page.count, None, source)
        return _Thin(values, bounds, rows, page.present)
    if not rows:
        return _NOTHING
    present = None
    if page.present is not None:
        keep, present = keep[page.present], page.present[keep]
    values, bounds = form.thin(page.values, page.count, keep, source)
    return _Thin(values, bounds, rows, present)


_NOTHING = _Thin(np.zeros(0, dtype=np.uint8), None, 0, None)


def _present(parts: Sequence[_Thin]) -> Mask | None:
    if all(part.present is None for part in parts):
        return None
    return np.concatenate([np.ones(p.rows, dtype=np.bool_) if p.present is None else p.present for p in parts])
