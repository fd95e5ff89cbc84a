"""Reads delete files: deletion vectors, position deletes, and the keys of equality deletes.

A partition-scoped position delete and an equality delete apply to many data files, so decoded files stay in an LRU
cache while a plan is read. A Puffin file holds the deletion vectors of many data files: those that are announced with
``expect`` are fetched together.

Fail-safe: a delete file that cannot be read is an error that names it; leaving it out would bring deleted rows back.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache, cached
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from floeplan.errors import CorruptFileError, UnsupportedError
from floeplan.formats.files import ParquetFile, open_stored
from floeplan.formats.stored import PARQUET, StoredFile
from floeplan.metadata.delete_index import DeleteKind
from floeplan.object_stores import is_s3
from floeplan.parquet.footer.footer import DEFAULT_TAIL, ParquetFooter
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read_plain_int64
from floeplan.parquet.source import ByteSource, ObjectStoreSource, Range, open_referenced
from floeplan.scan.model import DeleteScan
from floeplan.scan.projection import field_id, project

Positions: TypeAlias = npt.NDArray[np.int64]

_MAGIC = b"\xd1\xd3\x39\x64"
PATH_ID, POSITION_ID = 2147483546, 2147483545
_POSITION = (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
CACHED_FILES = 256
MOST_BEGUN = 64
"""Most position delete files to fetch before they are needed; only the tail of each, with its footer."""
VECTOR_BYTES_AT_ONCE = 8 * 1024 * 1024
"""The most bytes of announced deletion vectors that one request fetches."""


class DeleteFileReader:
    """Reads delete files of one table through an LRU cache; thread-safe."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._lock = threading.Lock()
        cache = cached(LRUCache(CACHED_FILES), key=lambda name, make: name, lock=threading.Lock())
        self._once: Callable[[Hashable, Callable[[], Any]], Any] = cache(lambda name, make: make())
        self._expected: defaultdict[str, set[Range]] = defaultdict(set)
        self._fetched: dict[tuple[str, Range], bytes] = {}
        self._begun: dict[str, ByteSource | None] = {}
        self._waiting = 0

    def expect(self, deletes: Iterable[DeleteScan]) -> None:
        """Announce deletes that will be read."""
        for delete in deletes:
            if delete.kind is DeleteKind.VECTOR:
                self._expected[delete.path].add(_blob_range(delete))

    def begin(self, deletes: Iterable[DeleteScan]) -> None:
        """Begin to fetch position deletes from S3, so that the rows of their data file can be fetched meanwhile.

        Each is fetched once, at most ``MOST_BEGUN`` at a time: fetched bytes stay in memory until they are decoded.
        """
        chosen = [one for one in deletes if one.kind in _POSITION and one.format == PARQUET and is_s3(one.path)]
        with self._lock:
            for delete in chosen:
                if delete.path in self._begun or self._waiting == MOST_BEGUN:
                    continue
                source = open_referenced(delete.path, self._io)
                assert isinstance(source, ObjectStoreSource), "of S3"
                source.begin_suffix(DEFAULT_TAIL)
                self._begun[delete.path] = source
                self._waiting += 1

    def positions(self, delete: DeleteScan, data_path: str) -> Positions:
        """The rows of a data file that a position delete or a deletion vector removes, sorted."""
        _refuse_encrypted(delete)
        if delete.kind is DeleteKind.VECTOR:
            blob = ("vector", delete.path, delete.content_offset)
            positions: Positions = self._once(blob, lambda: self._vector(delete))
        else:
            file = ("positions", delete.path)
            by_path: Mapping[str, Positions] = self._once(file, lambda: self._by_path(delete, data_path))
            positions = by_path.get(data_path, np.zeros(0, dtype=np.int64))
        if len(positions) and positions[0] < 0:
            raise CorruptFileError(
                f"{delete.path} deletes row {positions[0]} of {data_path}; rows are counted from 0",
                context={"file": delete.path, "data-file": data_path},
            )
        return positions

    def keys(self, delete: DeleteScan, schemas: tuple[Schema, ...]) -> pa.Table:
        """The keys an equality delete removes, one column per schema of one column each."""
        _refuse_encrypted(delete)

        def read() -> pa.Table:
            file = self._open(delete, delete.equality_ids)
            stored = _all_rows(file, delete.equality_ids)
            file.check_times(stored, schemas)
            return key_columns(stored, schemas, {}, delete.path, stored.num_rows)

        return self._once(("keys", delete.path, str(schemas)), read)

    def _vector(self, delete: DeleteScan) -> Positions:
        vector = decode_deletion_vector(self._blob(delete), delete.path)
        if len(vector) != delete.record_count:
            raise CorruptFileError(
                f"the deletion vector in {delete.path} has {len(vector)} positions, its manifest says "
                f"{delete.record_count}",
                context={"file": delete.path},
            )
        return np.frombuffer(vector.to_array(), dtype=np.uint64).astype(np.int64)

    def _blob(self, delete: DeleteScan) -> bytes:
        """The bytes of a deletion vector; announced ones of the same file are fetched with it."""
        path, own = delete.path, _blob_range(delete)
        with self._lock:
            blob = self._fetched.pop((path, own), None)
            if blob is not None:
                return blob
            announced = sorted(self._expected[path] - {own})
            fits = np.cumsum([size for _, size in announced]) <= VECTOR_BYTES_AT_ONCE - own[1]
            ranges = [own, *announced[: int(fits.sum())]]
            self._expected[path].difference_update(ranges)
        blob, *others = map(bytes, open_referenced(path, self._io).read_ranges(ranges))
        with self._lock:
            self._fetched.update(((path, range_), other) for range_, other in zip(ranges[1:], others, strict=True))
        return blob

    def _by_path(self, delete: DeleteScan, expected: str) -> Mapping[str, Positions]:
        """Positions by path. The path column is not read where statistics prove that it holds only ``expected``."""
        file = self._open(delete, (PATH_ID, POSITION_ID))
        if isinstance(file, ParquetFile) and _holds_only(file.footer, expected):
            positions = read_plain_int64(file.source, file.footer, file.footer.leaf_by_id[POSITION_ID])
            if positions is None:
                positions = np.asarray(_all_rows(file, (POSITION_ID,)).column(0), dtype=np.int64)
            return {expected: positions if (positions[1:] > positions[:-1]).all() else np.sort(positions)}
        table = _all_rows(file, (PATH_ID, POSITION_ID))
        if not table.num_rows:
            return {}
        columns = {field_id(field): column for field, column in zip(table.schema, table.columns, strict=True)}
        encoded = columns[PATH_ID].combine_chunks().dictionary_encode()
        codes = np.asarray(encoded.indices)
        positions = np.asarray(columns[POSITION_ID], dtype=np.int64)
        order = np.lexsort((positions, codes))
        cuts = np.searchsorted(codes[order], np.arange(1, len(encoded.dictionary)))
        return dict(zip(encoded.dictionary.to_pylist(), np.split(positions[order], cuts), strict=True))

    def _open(self, delete: DeleteScan, field_ids: tuple[int, ...]) -> StoredFile:
        with self._lock:
            begun = self._begun.get(delete.path)
            self._begun[delete.path] = None  # not again: the cache has what is decoded
            self._waiting -= begun is not None
        file = open_stored(delete.path, delete.format, self._io, "delete file", source=begun)
        missing = [i for i in field_ids if i not in (file.field_ids or ())]
        if missing:
            raise CorruptFileError(
                f"delete file {delete.path} has no column with field id {missing[0]}", context={"file": delete.path}
            )
        return file


def _refuse_encrypted(delete: DeleteScan) -> None:
    if delete.encrypted:
        raise UnsupportedError(
            f"delete file {delete.path} is encrypted; encrypted files are not read", context={"file": delete.path}
        )


def _holds_only(footer: ParquetFooter, path: str) -> bool:
    """Whether statistics prove that a position delete file lists rows of one data file only."""
    chunks = footer.chunks(footer.leaf_by_id[PATH_ID])
    bounds = [*chunks.min_value, *chunks.max_value]
    # A truncated upper bound is never equal to the full path.
    return bool(bounds) and all(one == path.encode() for one in bounds) and bool((chunks.null_count == 0).all())


def _blob_range(delete: DeleteScan) -> Range:
    """Offset and length of a deletion vector in its Puffin file."""
    if delete.content_offset is None or delete.content_size is None:
        raise CorruptFileError(
            f"the manifest entry of the deletion vector in {delete.path} has no content offset",
            context={"file": delete.path},
        )
    return delete.content_offset, delete.content_size


def _all_rows(file: StoredFile, field_ids: tuple[int, ...]) -> pa.Table:
    return file.read(field_ids, RowSelection.all_rows(file.num_rows))


def decode_deletion_vector(blob: bytes, path: str) -> BitMap64:
    """Decode the deleted row positions of one ``deletion-vector-v1`` blob of the Puffin specification.

    Layout: length of magic and bitmap (4 bytes, big-endian), magic, a 64-bit Roaring bitmap in the portable format,
    CRC-32 of magic and bitmap (big-endian). A damaged vector is never applied in part.
    """
    if len(blob) < 12:
        raise _corrupt(path, f"{len(blob)} bytes are too few")
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise _corrupt(path, f"it says {length} bytes and has {len(blob) - 8}")
    body = blob[4 : 4 + length]
    if body[:4] != _MAGIC:
        raise _corrupt(path, f"magic {body[:4].hex()} is not {_MAGIC.hex()}")
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if zlib.crc32(body) != checksum:
        raise _corrupt(path, "the checksum does not match")
    try:
        return BitMap64.deserialize(body[4:])
    except Exception as error:
        raise _corrupt(path, f"the bitmap cannot be read: {error}") from error


def encode_deletion_vector(positions: BitMap64) -> bytes:
    """The blob for a set of row positions."""
    body = _MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _corrupt(path: str, why: str) -> CorruptFileError:
    return CorruptFileError(f"deletion vector in {path} is damaged: {why}", context={"file": path})


def key_columns(
    stored: pa.Table, keys: Sequence[Schema], constants: Mapping[int, object], path: str, rows: int
) -> pa.Table:
    """The columns of a key out of a file's rows; each schema holds one column, which may lie within structs."""
    columns = []
    for key in keys:
        column = project(stored, key, constants, path, rows).column(0)
        while pa.types.is_struct(column.type):  # a nested key: null where one of its structs is
            column = pc.struct_field(column, [0])
        columns.append(column)
    return pa.table(columns, names=[str(key) for key in range(len(keys))])


def matches_any(rows: pa.Table, deletes: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row's key is among the deletes; both tables have the key columns in the same order.

    A row is deleted when all its key columns equal those of one delete row: null equals null, NaN equals NaN, and -0.0
    differs from 0.0, as Iceberg compares struct keys. Keys become integer codes column by column.
    """
    codes = np.zeros(rows.num_rows + deletes.num_rows, dtype=np.int64)
    for left, right in zip(map(_comparable, rows.columns), map(_comparable, deletes.columns), strict=True):
        # One integer per row of both columns, equal where the values are; null has a code of its own.
        both = pa.chunked_array([*left.chunks, *right.chunks], type=left.type).combine_chunks()
        encoded = pc.dictionary_encode(both, null_encoding="encode")
        column = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        pairs = codes * (column.max(initial=0) + 1) + column
        _, codes = np.unique(pairs, return_inverse=True)
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floating point as bit patterns with one NaN, extension types as their storage, everything else as it is."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if pa.types.is_floating(column.type):
        values = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
        bits = pa.int64() if column.type == pa.float64() else pa.int32()
        return pa.chunked_array([chunk.view(bits) for chunk in values.chunks], type=bits)
    return column
