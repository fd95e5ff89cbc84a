"""ORC files: stripes are decoded by pyarrow, fields are found by the ids that Iceberg stores as type attributes.

Three quirks of ORC concern timestamps. pyarrow returns them in nanoseconds and fails on one before 1677 or after 2262;
such columns are decoded in microseconds (``orc_times``), but not inside nested ones: the error names the column, and
the others can be read. Java's writer shifts times within the second before 1970 by one second; every reader, Spark
included, returns the shifted time, and so does this one. Timestamps without a time zone are local times of the writer:
Iceberg's writers store UTC, Hive's do not, and such times are no instants for a ``timestamptz`` column.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from io import RawIOBase

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from floeplan.errors import CorruptFileError, FloeplanError, UnsupportedError
from floeplan.formats.orc_footer import OrcFooter, read_orc_footer
from floeplan.formats.orc_times import read_far_times, writer_zones
from floeplan.formats.stored import StoredFile, columns_with, ids_within
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.pages import take_rows
from floeplan.parquet.source import ByteSource, LocalSource
from floeplan.schemas import FIELD_ID
from floeplan.vectors import Ints

_ID, _LENGTH = b"iceberg.id", b"iceberg.length"
_BINARY_TYPE, _LONG_TYPE, _UNIT = b"iceberg.binary-type", b"iceberg.long-type", b"iceberg.timestamp-unit"
_UUID_BYTES = 16
_DAMAGED = (ValueError, IndexError, KeyError, TypeError, OSError, pa.ArrowException, zlib.error)
"""What decoding a damaged stripe raises."""


class OrcFile(StoredFile):
    """An ORC file; its groups of rows are stripes."""

    has_local_times = True

    def __init__(self, source: ByteSource) -> None:
        self.path = source.name
        self._source = source
        self.footer: OrcFooter = read_orc_footer(source)
        self.row_group_rows = self.footer.stripe_rows
        self.first_rows = np.cumsum(self.row_group_rows) - self.row_group_rows
        self.num_rows = int(self.row_group_rows.sum())
        stored = self._open().schema
        self._names = stored.names
        self._schema = pa.schema([_described(field, top=True) for field in stored])

    @property
    def field_ids(self) -> frozenset[int] | None:
        """The ids of all fields, nested ones included; ``None`` if the columns carry none."""
        return frozenset().union(*map(ids_within, self._schema)) or None

    def read(
        self, field_ids: Sequence[int] | None, selection: RowSelection, *, keep_dictionaries: bool = False
    ) -> pa.Table:
        """The selected rows, from the stripes that hold some of them."""
        at = columns_with(self._schema, field_ids)
        if not at:
            return pa.table({"none": pa.nulls(selection.row_count)}).select([])
        schema = pa.schema([self._schema.field(position) for position in at])
        touched = np.flatnonzero(selection.overlaps(self.first_rows, self.row_group_rows))
        opened, tables = self._open(), []
        for stripe in touched.tolist():
            first, count = self.first_rows[stripe : stripe + 1], self.row_group_rows[stripe : stripe + 1]
            rows = selection.intersect(RowSelection.from_runs(first, count)).relative_to(first, count)
            tables.append(take_rows(self._stripe(opened, stripe, at, schema), rows))
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def group_bytes(self, field_ids: Iterable[int] | None) -> Ints:
        """The bytes of each stripe, by the fraction of the columns that are read."""
        part = len(columns_with(self._schema, field_ids)) / max(1, len(self._schema))
        return np.asarray((self.footer.stripe_bytes * part).astype(np.int64))

    def local_zones(self) -> Sequence[str]:
        """By the footers of all stripes, whichever are read: stripes of several writers may share a file."""
        return self._local_zones

    @cached_property
    def _local_zones(self) -> Sequence[str]:
        try:
            return writer_zones(self._source, self.footer)
        except _DAMAGED as error:
            raise _corrupt(self.path, f"the footer of a stripe cannot be decoded: {error}") from None

    def _open(self) -> orc.ORCFile:
        local = isinstance(self._source, LocalSource)
        opened = pa.OSFile(self._source.name) if local else pa.PythonFile(_SourceFile(self._source), mode="r")
        try:
            return orc.ORCFile(opened)
        except (OSError, pa.ArrowException) as error:
            raise _corrupt(self.path, str(error)) from None

    def _stripe(self, opened: orc.ORCFile, stripe: int, at: Sequence[int], schema: pa.Schema) -> pa.Table:
        rows = int(self.row_group_rows[stripe])
        names = [self._names[position] for position in at]
        # ORC takes a dot for a step into a struct.
        plain = all("." not in name and "`" not in name for name in names)
        try:
            batch = opened.read_stripe(stripe, columns=names if plain else None)
            if batch.num_rows != rows:
                raise _corrupt(self.path, f"stripe {stripe} holds {batch.num_rows} rows instead of {rows}")
            columns = [batch.column(name if plain else place) for name, place in zip(names, at, strict=True)]
        except FloeplanError:
            raise
        except (OSError, pa.ArrowException) as error:
            if not _is_far(error):
                raise _corrupt(self.path, f"stripe {stripe} cannot be decoded: {error}") from None
            columns = [self._far(opened, stripe, place, plain) for place in at]
        try:
            columns = [_in_type(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except pa.ArrowException as error:
            raise _corrupt(self.path, str(error)) from None
        return pa.Table.from_arrays(columns, schema=schema)

    def _far(self, opened: orc.ORCFile, stripe: int, position: int, plain: bool) -> pa.Array:
        """A column of a stripe in which some column has a timestamp that pyarrow does not return."""
        name = self._names[position]
        try:
            if plain:
                return opened.read_stripe(stripe, columns=[name]).column(0)
        except (OSError, pa.ArrowException) as error:
            if not _is_far(error):
                raise _corrupt(self.path, f"stripe {stripe} cannot be decoded: {error}") from None
        found = None
        if plain:
            try:
                found = read_far_times(self._source, self.footer, stripe, position)
            except _DAMAGED as error:
                raise _corrupt(self.path, f"the timestamps of column {name} cannot be decoded: {error}") from None
        if found is None:
            raise UnsupportedError(
                f"column {name if plain else 'with timestamps'} of {self.path} has a timestamp before 1677 or after "
                "2262, which is read from top-level columns of ORC files in UTC only; rewrite the file with Spark",
                context={"file": self.path, "column": name},
            )
        if len(found) != self.row_group_rows[stripe]:
            raise _corrupt(self.path, f"column {name} of stripe {stripe} holds {len(found)} rows")
        return found


def _is_far(error: Exception) -> bool:
    """Whether pyarrow refuses a timestamp that nanoseconds do not reach."""
    return "out of range for nanosecond" in str(error)


def _in_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """A column in the type of the schema; timestamps are rounded down to microseconds, as Java reads them."""
    if column.type.equals(type_, check_metadata=True):
        return column
    if pa.types.is_timestamp(type_) and column.type.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(type_)


def _described(field: pa.Field, top: bool = False) -> pa.Field:
    """A field as pyarrow returns it, with its Iceberg id, and in the type given by Iceberg's attributes.

    Top-level timestamps have microseconds, unless an attribute of the column states nanoseconds.
    """
    metadata, type_ = field.metadata or {}, field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_described(child) for child in type_])
    elif pa.types.is_list(type_):
        type_ = pa.list_(_described(type_.value_field))
    elif pa.types.is_map(type_):
        type_ = pa.map_(_described(type_.key_field), _described(type_.item_field))
    elif metadata.get(_BINARY_TYPE) == b"UUID":
        type_ = pa.binary(_UUID_BYTES)
    elif metadata.get(_BINARY_TYPE) == b"FIXED":
        type_ = pa.binary(int(metadata[_LENGTH]))
    elif metadata.get(_LONG_TYPE) == b"TIME":
        type_ = pa.time64("us")
    elif top and pa.types.is_timestamp(type_) and metadata.get(_UNIT) != b"NANOS":
        type_ = pa.timestamp("us", type_.tz)
    own = {FIELD_ID: metadata[_ID]} if _ID in metadata else None
    return pa.field(field.name, type_, field.nullable, own)


def _corrupt(path: str, problem: str) -> CorruptFileError:
    return CorruptFileError(f"{path} is not a readable ORC file: {problem}", context={"file": path})


class _SourceFile(RawIOBase):
    """A byte source as a seekable file for pyarrow."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def read(self, length: int = -1) -> bytes:
        """Read from the current position."""
        left = max(0, self._source.size - self._at)
        size = left if length < 0 else min(length, left)
        found = bytes(self._source.read_ranges([(self._at, size)])[0])
        self._at += size
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def seekable(self) -> bool:
        """Always true."""
        return True

    def readable(self) -> bool:
        """Always true."""
        return True
