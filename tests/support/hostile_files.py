"""A Parquet file with all that is ever read of one, damaged where one kind of it lies, and a deletion vector"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from floeplan.parquet.footer.footer import ColumnChunks, read_footer
from floeplan.parquet.pages.data_pages import UNUSUAL
from floeplan.parquet.prune.request import PruneOptions, Pruner
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read, read_selected
from floeplan.parquet.source import open_source
from floeplan.rewrite.pages.thin_pages import OldPages, ThinColumn, can_thin
from floeplan.scan.delete_files import decode_deletion_vector, encode_deletion_vector
from floeplan.write.options import WriteOptions
from tests.support.mutation import Edit, byte_edits, edited_bytes

VECTOR = "deletion vector"
_AROUND_BITMAP = 12
"""Bytes of length, magic and checksum."""
Region = tuple[int, int]
ROWS = 600
ZSTD = 6
_MOST_ROWS = 10**7
"""Whoever makes columns has a flag for each row."""
QUESTIONS = (
    "id >= 120 AND id < 180 AND name = 'n7'",
    "id IN (5, 599, 700) OR price IS NULL",
    "pair.a = 40 AND name LIKE 'n1%'",
    "name = 'nowhere'",
)


def write_sample(path: Path) -> None:
    """Row groups of pages with indexes, bloom filters, dictionaries, nulls, a struct and a list."""
    numbers = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{number % 40}" for number in numbers],
            "price": pa.array([None if number % 7 == 0 else number / 3 for number in numbers], pa.float64()),
            "pair": [{"a": number // 10, "b": None} for number in numbers],
            "tags": [["x"] * (number % 3) for number in numbers],
        }
    )
    pq.write_table(
        table,
        path,
        row_group_size=200,
        max_rows_per_page=25,
        write_page_index=True,
        use_dictionary=["name"],
        bloom_filter_options={"id": {"ndv": 200}, "name": {"ndv": 40}},
    )


def regions(path: Path) -> dict[str, list[Region]]:
    """Where in the file each kind of thing lies."""
    footer = read_footer(open_source(str(path)))
    chunks = [footer.chunks(leaf) for leaf in range(len(footer.leaves))]

    def places(kind: Callable[[ColumnChunks], tuple[object, object]]) -> list[Region]:
        pairs = [pair for chunk in chunks for pair in zip(*kind(chunk), strict=True)]
        return [(int(at), int(at + size)) for at, size in pairs if at > 0 and size > 0]

    return {
        "footer": [(footer.footer_start, footer.file_size)],
        "column index": places(lambda chunk: (chunk.column_index_offset, chunk.column_index_length)),
        "offset index": places(lambda chunk: (chunk.offset_index_offset, chunk.offset_index_length)),
        "bloom filter": places(lambda chunk: (chunk.bloom_offset, chunk.bloom_length)),
        "pages": places(lambda chunk: (chunk.start, chunk.total_compressed_size)),
    }


class FileSample:
    """Files of no table: a Parquet file, of which one part can be damaged, and a deletion vector."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        path = folder / "sample.parquet"
        write_sample(path)
        self._regions = regions(path)
        assert all(self._regions.values()), self._regions
        self._vector = folder / "vector.bin"
        self._vector.write_bytes(
            encode_deletion_vector(BitMap64([1, 5, *range(900, 70_000), 2**33, *range(2**34, 2**34 + 9)]))
        )
        self.files = dict.fromkeys(self._regions, path) | {VECTOR: self._vector}

    def edits(self, target: str, random: Random) -> list[Edit]:
        """Edits of bytes within one place of the kind; counted from the end of the file, or of the bitmap."""
        if target == VECTOR:
            return byte_edits(len(self._vector.read_bytes()) - _AROUND_BITMAP, random)
        start, end = random.choice(self._regions[target])
        behind = self.files[target].stat().st_size - end
        return [[kind, at - behind, text] for kind, at, text in byte_edits(end - start, random)]

    def changed(self, target: str, data: bytes, edits: list[Edit]) -> bytes:
        """The file after the edits; the checksum of a vector is made to fit, or nobody would look behind it."""
        if target != VECTOR:
            return edited_bytes(data, edits)
        body = data[4:8] + edited_bytes(data[8:-4], edits)
        return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))

    def questions(self) -> list[Callable[[], object]]:
        """Pruning by every kind of metadata, and reading by it and without it."""
        path = str(self.files["footer"])
        options = PruneOptions(emit_roaring=True)
        some = RowSelection.from_runs([30, 390], [10, 20])
        return [
            *(lambda where=where: Pruner(where, options=options).prune(path).to_dict() for where in QUESTIONS),
            *(lambda where=where: read(path, where).to_dict() for where in QUESTIONS),
            lambda: read(path).table.validate(full=True),
            lambda: read_selected(source := open_source(path), read_footer(source), selection=some),
            lambda: thin_columns(path),
            lambda: len(decode_deletion_vector(self._vector.read_bytes(), "vector") & BitMap64(range(1000))),
        ]


def thin_columns(path: str) -> None:
    """Columns made of their pages without some rows; pages that are not as they should be are unusual."""
    source = open_source(path)
    footer = read_footer(source)
    for leaf, group in product(footer.leaves, range(footer.num_row_groups)):
        place, rows = footer.place(leaf, group), int(footer.row_group_rows[group])
        if rows <= _MOST_ROWS and can_thin(leaf, place):
            (data,) = source.read_ranges([(place.start, place.size)])
            column = ThinColumn(leaf, ZSTD, WriteOptions())
            with suppress(*UNUSUAL):
                column.add(OldPages(data, place, rows, np.arange(rows) % 3 > 0, None))
                column.finish()
