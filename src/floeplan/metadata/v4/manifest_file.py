"""Reads columns of v4 manifests by field id.

``ManifestFile`` is an open root or leaf. Columns are found by field id, not by name or order, and only the
requested ones are read. ``Rows`` are the columns as vectors, those of structs too.

Fail-safe: a file that is damaged or lacks a required column is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from floeplan.errors import CorruptMetadataError, FloeplanError
from floeplan.format4 import resolve_all
from floeplan.metadata.files import open_file
from floeplan.metadata.manifests.parquet_reader import MOST_BYTES, UNREADABLE, field_id_of
from floeplan.metadata.v4 import fields as ids
from floeplan.predicate.stats import POOL
from floeplan.text import one_line
from floeplan.vectors import Ints, Mask, arrow, arrow_binary, integers, one_array, valid_mask, without_nulls

Path = tuple[int, ...]
"""The field ids that lead to a column."""

Names = tuple[str, ...]
"""The names that lead to it."""

ARROW_SCHEMA = b"ARROW:schema"
"""The key of the Arrow schema that Arrow stores in a footer."""

REQUIRED: tuple[Path, ...] = (
    (ids.TRACKING, ids.STATUS),
    (ids.CONTENT_TYPE,),
    (ids.FILE_FORMAT_VERSION,),
    (ids.LOCATION,),
    (ids.FILE_FORMAT,),
    (ids.RECORD_COUNT,),
    (ids.FILE_SIZE,),
)
OFTEN_NULL = frozenset({(ids.KEY_METADATA,), (ids.SORT_ORDER_ID,), (ids.TRACKING, ids.FIRST_ROW_ID)})
"""Columns that nearly all manifests have no values of; statistics of the footer tell it for less than reading them."""

MANY_VALUES = frozenset({(ids.LOCATION,), (ids.RECORD_COUNT,), (ids.FILE_SIZE,)})
"""Columns that nearly never have one value."""


def open_parquet(path: str, io: FileIO | None) -> pq.ParquetFile:
    """A metadata file that is a Parquet file; raises as ``open_file``, and what Arrow raises for other files."""
    return pq.ParquetFile(open_file(path, io), page_checksum_verification=True)


class ManifestFile:
    """An open root or leaf.

    ``like`` is another one, which nearly always has the same schema; ``file`` is the file itself if it is open.
    """

    def __init__(
        self,
        path: str,
        io: FileIO | None,
        expected_bytes: int | None = None,
        like: ManifestFile | None = None,
        file: pq.ParquetFile | None = None,
    ) -> None:
        self.path = path
        try:
            self._file = open_parquet(path, io) if file is None else file
            footer = self._file.metadata
            self.rows = footer.num_rows
            self.properties: Mapping[bytes, bytes] = footer.metadata or {}
            claimed = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
            size = expected_bytes or claimed
            same = like if like is not None and self._is_like(like) else None
            if same is None:
                columns = _columns_by_id(self._file.schema_arrow)
                self.found: Mapping[Path, Names] = {path: names for path, (names, _) in columns.items()}
                self._types = {path: type_ for path, (_, type_) in columns.items()}
                self._places: dict[str, int] = {}
            else:
                self.found, self._types, self._places = same.found, same._types, same._places
        except FloeplanError:
            raise
        except UNREADABLE as error:
            raise self.damaged(one_line(error)) from error
        if claimed > MOST_BYTES or self.rows > max(size, claimed):
            raise self.damaged("its footer counts more rows than its bytes can hold")
        missing = [path for path in REQUIRED if path not in self.found]
        if missing:
            numbers = ", ".join(str(path[-1]) for path in missing)
            raise self.damaged(f"it lacks the columns with the field ids {numbers}")

    def _is_like(self, other: ManifestFile) -> bool:
        """Whether names, ids and types of the columns are the same; an Arrow schema in a footer may change types."""
        if self.properties.get(ARROW_SCHEMA) != other.properties.get(ARROW_SCHEMA):
            return False
        return bool(self._file.metadata.schema.equals(other._file.metadata.schema))

    def damaged(self, why: str) -> CorruptMetadataError:
        """The error that names the file."""
        return CorruptMetadataError(f"{self.path} is not a valid v4 manifest: {why}", context={"file": self.path})

    def read(self, wanted: Iterable[Path]) -> Rows:
        """The columns that the file has, and no others; those with one value are known from the footer."""
        paths = [path for path in dict.fromkeys(wanted) if path in self.found]
        try:
            same = {path: value for path in paths if (value := self._one_value(path)) is not None}
            stored = [path for path in paths if path not in same]
            table = self._file.read([".".join(self.found[path]) for path in stored], use_threads=False)
            rows = _flat(table, {path: self.found[path] for path in stored}, same, self.path, self.rows)
        except UNREADABLE as error:
            raise self.damaged(one_line(error)) from error
        if stored and len(table) != self.rows:
            raise self.damaged(f"it has {len(table)} rows, its footer counts {self.rows}")
        return rows

    def is_null(self, path: Path) -> bool:
        """Whether statistics of the footer show that a column has no values, so that it need not be read."""
        if path not in self.found:
            return True
        try:
            return all(one is not None and one.has_null_count and one.num_values == 0 for one in self._stats(path))
        except UNREADABLE:
            return False  # read it

    def _one_value(self, path: Path) -> pa.Scalar | None:
        """The value of all rows, if equal bounds in the footer show that there is one, as of spec or format."""
        if path in MANY_VALUES:
            return None
        value: int | bytes | None = None
        for stats in self._stats(path):
            # Bounds may be truncated; a value between two equal ones is equal to them all the same.
            if stats is None or not (stats.has_min_max and stats.has_null_count) or stats.null_count:
                return None
            low, high = stats.min_raw, stats.max_raw
            if low != high or value not in (None, low) or not isinstance(low, int | bytes):
                return None
            value = low
        if value is None:
            return None
        type_ = self._types[path]
        if isinstance(value, bytes):
            return arrow_binary([value]).cast(type_)[0] if pa.types.is_string(type_) else None
        if type_ in (pa.int32(), pa.int64(), pa.date32()):
            return arrow(np.array([value], dtype=np.int64 if type_ == pa.int64() else np.int32)).cast(type_)[0]
        return None

    def _stats(self, path: Path) -> Iterator[pq.Statistics | None]:
        """The statistics of a column in each row group."""
        footer = self._file.metadata
        if not self._places:
            self._places |= {footer.schema.column(at).path: at for at in range(footer.num_columns)}
        at = self._places.get(".".join(self.found[path]))
        for number in range(footer.num_row_groups):
            chunk = None if at is None else footer.row_group(number).column(at)
            yield chunk.statistics if chunk is not None and chunk.is_stats_set else None


def _columns_by_id(
    fields: Iterable[pa.Field], above: Path = (), names: Names = ()
) -> dict[Path, tuple[Names, pa.DataType]]:
    """Every column, and struct, with the names that lead to it and its type."""
    found: dict[Path, tuple[Names, pa.DataType]] = {}
    for field in fields:
        path, here = (*above, field_id_of(field)), (*names, field.name)
        if path[-1] < 0:
            continue  # a column without an id is none of Iceberg's
        if path in found:
            raise ValueError(f"two columns have the field id {path[-1]}")
        found[path] = here, field.type
        if pa.types.is_struct(field.type):
            found |= _columns_by_id(field.type, path, here)
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of manifests of one schema.

    Attributes:
        columns: The columns that were read, by field ids; null where a struct around them is null.
        present: Where a struct is not null, for the outer structs of these columns.
        path: The manifest, or one of them.
        length: The number of rows.
    """

    columns: Mapping[Path, pa.Array]
    present: Mapping[Path, Mask]
    path: str
    length: int

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several manifests, of which the same columns were read."""
        first = parts[0]
        if len(parts) == 1:
            return first
        columns = {path: pa.concat_arrays([part.columns[path] for part in parts], POOL) for path in first.columns}
        present = {path: np.concatenate([part.present[path] for part in parts]) for path in first.present}
        return cls(columns, present, first.path, sum(part.length for part in parts))

    def __len__(self) -> int:
        return self.length

    def filter(self, keep: Mask) -> Rows:
        """The rows where the mask is true."""
        if keep.all():
            return self
        mask, length = arrow(keep), int(np.count_nonzero(keep))
        columns = {path: array.filter(mask) for path, array in self.columns.items()}
        return Rows(columns, {path: valid[keep] for path, valid in self.present.items()}, self.path, length)

    def resolved(self, location: str) -> Rows:
        """With absolute paths of files, as large strings: all paths of a table may have more than 2 GB."""
        resolved = resolve_all(location, self.text((ids.LOCATION,))).cast(pa.large_string(), memory_pool=POOL)
        return replace(self, columns={**self.columns, (ids.LOCATION,): resolved})

    def array(self, path: Path) -> pa.Array | None:
        """A column; null where a struct around it is null."""
        return self.columns.get(path)

    def ints(self, path: Path, missing: int = -1) -> Ints:
        """An integer column; nulls and a missing column read as ``missing``."""
        array = self.array(path)
        if array is None:
            return np.full(len(self), missing, dtype=np.int64)
        self.check_ints(path)
        return integers(without_nulls(array, missing))

    def check_ints(self, path: Path) -> None:
        """Refuse a column that is missing or not of integers."""
        type_ = self._required(path).type
        if not pa.types.is_signed_integer(type_):
            raise self._stored_as(path, type_, "an integer")

    def text(self, path: Path) -> pa.Array:
        """A column of text; refused if it is missing."""
        array = self._required(path)
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise self._stored_as(path, array.type, "text")
        return array

    def binary(self, path: Path) -> pa.Array | None:
        """A column of byte strings."""
        array = self.columns.get(path)
        if not (array is None or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
            raise self._stored_as(path, array.type, "binary")
        return array

    def _required(self, path: Path) -> pa.Array:
        if path not in self.columns:
            raise CorruptMetadataError(f"{self.path} has no field {path[-1]}", context={"file": self.path})
        return self.columns[path]

    def _stored_as(self, path: Path, type_: pa.DataType, expected: str) -> CorruptMetadataError:
        return CorruptMetadataError(
            f"{self.path} stores field {path[-1]} as {type_}, not as {expected}", context={"file": self.path}
        )

    def valid(self, path: Path) -> Mask:
        """Where a column has a value, or where an outer struct is not null."""
        if path in self.present:
            return self.present[path]
        array = self.array(path)
        return np.zeros(len(self), dtype=np.bool_) if array is None else valid_mask(array)


def _flat(table: pa.Table, wanted: Mapping[Path, Names], same: Mapping[Path, pa.Scalar], of: str, length: int) -> Rows:
    """The columns of structs as columns of their own; ``same`` has the columns with one value."""
    known: dict[Names, pa.Array] = {}

    def column(names: Names) -> pa.Array:
        if names not in known:
            if len(names) == 1:
                known[names] = one_array(table.column(names[0]))
            else:
                around = column(names[:-1])
                known[names] = pc.struct_field(around, names[-1]) if around.null_count else around.field(names[-1])
        return known[names]

    columns = {path: column(names) for path, names in wanted.items()}
    columns |= {path: pa.repeat(value, length, memory_pool=POOL) for path, value in same.items()}
    present = {path[:1]: valid_mask(known[names[:1]]) for path, names in wanted.items() if len(path) > 1}
    present |= {path[:1]: np.ones(length, dtype=np.bool_) for path in same if len(path) > 1}
    return Rows(columns, present, of, length)
