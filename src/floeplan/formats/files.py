"""Opens data and delete files by the format that their manifest entries state; Parquet files.

``ParquetFile`` reads selected rows by ``parquet.read``; ORC and Avro files have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO

from floeplan.errors import UnsupportedError
from floeplan.formats.stored import PARQUET, StoredFile
from floeplan.parquet.footer.footer import DEFAULT_TAIL, ParquetFooter, read_footer
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.decoder import FlatColumns, ValueCounts, skips_pages
from floeplan.parquet.read.reader import (
    REMOTE_ROUND_TRIP_BYTES,
    read_row_groups,
    read_selected,
    selects_most_pages,
)
from floeplan.parquet.source import (
    ByteSource,
    LocalSource,
    ObjectStoreSource,
    PrefetchingSource,
    byte_ranges,
    open_referenced,
)
from floeplan.vectors import Ints, Mask

SMALL_BYTES = 8 * 1024 * 1024
"""Compressed columns that are read and scanned for their page headers in the time that page indexes take."""


class ParquetFile(StoredFile):
    """A Parquet file."""

    def __init__(self, source: ByteSource, footer: ParquetFooter | None = None, tail: int = DEFAULT_TAIL) -> None:
        self.source: ByteSource = source
        self.footer: ParquetFooter = footer or read_footer(source, tail=tail)
        self.path, self.num_rows = source.name, self.footer.num_rows
        self.first_rows, self.row_group_rows = self.footer.first_rows, self.footer.row_group_rows

    @property
    def field_ids(self) -> frozenset[int] | None:
        """The ids of all fields, nested ones included; ``None`` if the columns carry none."""
        return self.footer.columns.field_ids if self.footer.has_field_ids else None

    def read(
        self, field_ids: Sequence[int] | None, selection: RowSelection, *, keep_dictionaries: bool = False
    ) -> pa.Table:
        """The selected rows: by page where that skips some, else by row group."""
        if field_ids and selects_most_pages(self.footer, selection):
            return read_row_groups(self.source, self.footer, field_ids, selection, keep_dictionaries=keep_dictionaries)
        return read_selected(self.source, self.footer, field_ids, selection)

    def read_kept(self, field_ids: Sequence[int] | None, selection: RowSelection, kept: Mask) -> pa.Table:
        """Those of the selected rows whose flag is set; the others are not decoded where all pages are read."""
        if field_ids and selects_most_pages(self.footer, selection):
            return read_row_groups(self.source, self.footer, field_ids, selection, kept=kept)
        return super().read_kept(field_ids, selection, kept)

    def worth_two_reads(self, field_ids: Sequence[int], selection: RowSelection) -> bool:
        """Always for a local file; else if these fields have more bytes than a store sends during a round trip."""
        if not self.footer.has_field_ids or isinstance(self.source, LocalSource):
            return self.footer.has_field_ids
        return self._stored_bytes(field_ids, selection) > REMOTE_ROUND_TRIP_BYTES

    def worth_pages(self, field_ids: Sequence[int], selection: RowSelection) -> bool:
        """Not in a small local file whose decoder skips pages: it finds those with needed rows faster than an index."""
        leaves = [leaf for field_id in field_ids for leaf in self.footer.leaves_of_column(field_id)]
        if not isinstance(self.source, LocalSource) or not skips_pages(self.footer, leaves):
            return True
        return self._stored_bytes(field_ids, selection) > SMALL_BYTES

    def _stored_bytes(self, field_ids: Iterable[int], selection: RowSelection) -> int:
        """The compressed bytes of these fields in the row groups with selected rows."""
        groups = np.flatnonzero(selection.overlaps(self.first_rows, self.row_group_rows))
        leaves = [leaf for field_id in field_ids for leaf in self.footer.leaves_of_column(field_id)]
        return int(self.footer.compressed_sizes[leaves][:, groups].sum())

    def fetch_together(self, field_ids: Iterable[int], selection: RowSelection) -> bool:
        """Fetch these fields with the next read, if all pages of the row groups are read."""
        if isinstance(self.source, PrefetchingSource):
            return True
        if not self.footer.has_field_ids or not selects_most_pages(self.footer, selection):
            return False
        groups = np.flatnonzero(selection.overlaps(self.first_rows, self.row_group_rows))
        chunks = [self.footer.chunks(leaf) for one in field_ids for leaf in self.footer.leaves_of_column(one)]
        source = PrefetchingSource(self.source)
        for chunk in chunks:
            source.prefetch(byte_ranges(chunk.start[groups], chunk.total_compressed_size[groups]))
        self.source = source
        return True

    def value_counts(self, field_id: int, selection: RowSelection) -> list[ValueCounts] | None:
        """By the dictionaries of the row groups, without decoding a value for each row."""
        leaves = self.footer.leaves_of_column(field_id)
        groups = np.flatnonzero(selection.overlaps(self.first_rows, self.row_group_rows))
        whole = int(self.row_group_rows[groups].sum()) == selection.row_count
        if not self.footer.has_field_ids or not whole or len(leaves) != 1:
            return None
        return FlatColumns(self.source, self.footer, groups, {}, None).value_counts(leaves[0])

    def group_bytes(self, field_ids: Iterable[int] | None) -> Ints:
        """The uncompressed bytes of these fields in each row group."""
        leaves: Iterable[int] = range(len(self.footer.leaves))
        if field_ids is not None and self.footer.has_field_ids:
            leaves = [leaf for field_id in field_ids for leaf in self.footer.leaves_of_column(field_id)]
        sizes = np.zeros(self.footer.num_row_groups, dtype=np.int64)
        for leaf in leaves:
            sizes += self.footer.chunks(leaf).total_uncompressed_size
        return sizes


def open_stored(
    path: str,
    format_: str,
    io: FileIO | None,
    what: str = "data file",
    footer: ParquetFooter | None = None,
    tail: int = DEFAULT_TAIL,
    source: ByteSource | None = None,
) -> StoredFile:
    """Open a file by its format; a Parquet file whose footer is known is opened without a request.

    Otherwise the last ``tail`` bytes of a Parquet file are requested for its footer, of its ``source`` if that is open.

    Raises:
        UnsupportedError: The format is none of ``READABLE``.
    """
    if format_ == PARQUET:
        source = source or open_referenced(path, io, footer.file_size if footer else None)
        if footer is not None and isinstance(source, ObjectStoreSource):
            source.keep_tail(footer.tail, footer.file_size)
        return ParquetFile(source, footer, tail)
    make = _OPENERS.get(format_)
    if make is None:
        raise UnsupportedError(
            f"{what} {path} is {format_}; supported formats are Parquet, ORC and Avro",
            context={"file": path, "format": format_},
        )
    return make(open_referenced(path, io))


def _open_orc(source: ByteSource) -> StoredFile:
    from floeplan.formats.orc import OrcFile  # imported late: pyarrow.orc is a library of its own

    return OrcFile(source)


def _open_avro(source: ByteSource) -> StoredFile:
    from floeplan.formats.avro import AvroFile

    return AvroFile(source)


_OPENERS: dict[str, Callable[[ByteSource], StoredFile]] = {
    "ORC": _open_orc,
    "AVRO": _open_avro,
}
