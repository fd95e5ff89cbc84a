"""Column chunks without deleted rows, built by filtering encoded pages instead of decoding and encoding values.

Plain values are copied without those of deleted rows. Dictionary indexes are unpacked and packed again with the indexes
of one dictionary that all row groups share (``parquet.pages.value_encodings``). Small pages are combined up to the
table's page size. Bounds are computed from the remaining rows.

Rule: a column is built this way if its type and levels are the new file's and its pages are plain or
dictionary-encoded, with any codec.

Fail-safe: a column with a page of another encoding, with NaN, or with a value too long for a bound raises one of
``UNSUPPORTED_PAGE``, and the caller decodes and encodes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from floeplan.parquet.footer.footer import ChunkLocation
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.data_pages import (
    DICTIONARY_PAGE,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    PageCodec,
    data_page,
    dictionary_page,
    first_page_type,
    kernel,
    page_content,
    read_pages,
)
from floeplan.parquet.pages.value_encodings import (
    Bounds,
    DictionaryEncoding,
    ValueEncoding,
    Values,
    plain_value_encoding,
)
from floeplan.rewrite.pages.column_chunk import DescribedPage, PageChunk, PageRun, page_run, statistics
from floeplan.rewrite.pages.new_file import Piece
from floeplan.vectors import Mask
from floeplan.write.target import WriteOptions

_BIT_PACKED = 4
_KNOWN = frozenset({PLAIN, PLAIN_DICTIONARY, RLE, _BIT_PACKED, RLE_DICTIONARY})
_LONGEST_BOUND = 4096


def can_filter_pages(leaf: LeafColumn, location: ChunkLocation) -> bool:
    """Whether, by its metadata, the pages of a column chunk can be filtered."""
    if kernel is None or leaf.type is None or leaf.max_rep or leaf.max_def > 1 or leaf.physical is Physical.INT96:
        return False
    return location.encodings is not None and location.encodings <= _KNOWN and PageCodec.knows(location.codec)


@dataclass(frozen=True, slots=True)
class SourcePages:
    """The pages of a column chunk of a source file.

    Attributes:
        data: The pages.
        location: Their location, codec and encodings.
        rows: Number of rows.
        keep: The rows to keep; ``None`` for all.
        kept: The statistics of the pages if they can be copied.
    """

    data: memoryview
    location: ChunkLocation
    rows: int
    keep: Mask | None
    kept: PageRun | None


@dataclass(frozen=True, slots=True)
class _Filtered:
    """The remaining rows of a page; ``bounds`` if filtering computed them."""

    values: Values
    bounds: Bounds
    rows: int
    present: Mask | None


class FilteredColumn:
    """Builds one column chunk of a new row group from the pages of source row groups."""

    def __init__(self, leaf: LeafColumn, codec: int, options: WriteOptions) -> None:
        self.leaf, self.options = leaf, options
        self._codec, self._old_codec = PageCodec(codec, options.level), cache(PageCodec)
        self._form: ValueEncoding | None = None
        self._parts: list[PageRun] = []
        self._pages: list[Piece] = []
        self._made: list[DescribedPage] = []
        self._waiting: list[_Filtered] = []

    def add(self, source: SourcePages) -> None:
        """Add the pages of a source row group: copied if possible, else filtered."""
        # The first row group gives the encoding of the column; the others must have the same.
        with_dictionary = first_page_type(source.data) == DICTIONARY_PAGE
        if self._form is None:
            self._form = DictionaryEncoding(self.leaf) if with_dictionary else plain_value_encoding(self.leaf)
        form = self._form
        if isinstance(form, DictionaryEncoding) != with_dictionary:
            raise ValueError("only some row groups have a dictionary")
        if source.kept is not None and not with_dictionary:
            self._end_part(form)
            self._parts.append(source.kept)
            self._pages.append(source.data)
        else:
            self._add_pages(form, source)

    def finish(self) -> PageChunk:
        """Return the column chunk."""
        form = self._form
        assert form is not None
        self._end_part(form)
        dictionary = None
        if isinstance(form, DictionaryEncoding):
            entries = form.stored_entries
            if len(entries) > self.options.dictionary_size:
                raise ValueError("the dictionary exceeds write.parquet.dict-size-bytes")
            dictionary = dictionary_page(entries, form.size, self._codec)
        if statistics(self.leaf, self._parts) is None:
            raise ValueError("bounds cannot be compared")
        return PageChunk(self.leaf, self._codec.number, self._parts, self._pages, dictionary)

    def _add_pages(self, form: ValueEncoding, source: SourcePages) -> None:
        location, row = source.location, 0
        codec = self._old_codec(location.codec)
        for page in read_pages(source.data, codec, self.leaf.max_def, location.uncompressed_size, source.rows):
            if page.kind == DICTIONARY_PAGE and isinstance(form, DictionaryEncoding):
                form.add_dictionary(page)
                continue
            if page.encoding not in form.read_from or page.kind == DICTIONARY_PAGE:
                raise ValueError(f"unsupported page encoding {page.encoding}")
            keep = None if source.keep is None else source.keep[row : row + page.rows]
            row += page.rows
            kept, present = page.rows, page.present
            if keep is not None and not keep.all():
                kept = int(np.count_nonzero(keep))
                if not kept:
                    continue
                if present is not None:  # only rows with a value are among the values
                    keep, present = keep[present], present[keep]
            else:
                keep = None
            values, bounds = form.filter(page.values, page.count, keep)
            # Combine remaining rows of several pages up to the table's page size.
            rows = kept + sum(one.rows for one in self._waiting)
            size = values.nbytes + sum(one.values.nbytes for one in self._waiting)
            if rows > self.options.page_rows or size > self.options.page_size:
                self._end_page(form)
            self._waiting.append(_Filtered(values, bounds, kept, present))
        if row != source.rows:
            raise ValueError(f"{row} rows instead of {source.rows}")

    def _end_page(self, form: ValueEncoding) -> None:
        """Encode the waiting rows as one page."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        stored, bounds = form.encode([one.values for one in waiting], [one.bounds for one in waiting])
        if bounds is not None and max(map(len, bounds)) > _LONGEST_BOUND:
            raise ValueError("a value is too long for a bound")
        rows, present = sum(one.rows for one in waiting), None
        if any(one.present is not None for one in waiting):
            present = np.concatenate(
                [np.ones(one.rows, dtype=np.bool_) if one.present is None else one.present for one in waiting]
            )
        content = page_content(stored, rows, present, self.leaf.max_def, form.width)
        if not self._parts and not self._made:
            self._codec.tune(content)
        page = data_page(content, form.encoding, rows, self._codec)
        nulls = 0 if present is None else rows - int(np.count_nonzero(present))
        self._made.append(DescribedPage(page, rows, nulls, *(bounds or (None, None))))

    def _end_part(self, form: ValueEncoding) -> None:
        """Combine the new pages into a run."""
        self._end_page(form)
        if self._made:
            self._parts.append(page_run(self.leaf, form.encoding, self._made))
            self._pages += [piece for one in self._made for piece in (one.page.header, one.page.body)]
            self._made = []
