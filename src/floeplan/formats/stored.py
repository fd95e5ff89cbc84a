"""The interface of an open data or delete file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyiceberg.types import TimestamptzNanoType, TimestamptzType

from floeplan.errors import UnsupportedError
from floeplan.parquet.prune.selection import RowSelection
from floeplan.schemas import FIELD_ID, fields_by_id
from floeplan.vectors import Ints, Mask, arrow

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from floeplan.parquet.read.decoder import ValueCounts

PARQUET = "PARQUET"
READABLE = (PARQUET, "ORC", "AVRO")
"""Formats of data files, and of position and equality deletes, as manifest entries name them."""
_INSTANTS = (TimestamptzType, TimestamptzNanoType)


class StoredFile(ABC):
    """One open file."""

    path: str
    num_rows: int
    first_rows: Ints
    """The first row of each group of rows that are stored together."""
    row_group_rows: Ints
    """The number of rows of each group."""
    has_local_times: ClassVar[bool] = False
    """Whether the format stores timestamps without a time zone in that of the writer."""

    @property
    @abstractmethod
    def field_ids(self) -> frozenset[int] | None:
        """The ids of all fields, nested ones included; ``None`` if the columns carry none."""

    @abstractmethod
    def read(
        self, field_ids: Sequence[int] | None, selection: RowSelection, *, keep_dictionaries: bool = False
    ) -> pa.Table:
        """The selected rows of the columns with these fields; of all columns by default.

        Columns of other fields may be among them, and carry their ids. ``keep_dictionaries`` allows text to be returned
        as dictionary arrays.
        """

    def read_kept(self, field_ids: Sequence[int] | None, selection: RowSelection, kept: Mask) -> pa.Table:
        """Those of the selected rows whose flag is set."""
        return self.read(field_ids, selection).filter(arrow(kept))

    def worth_two_reads(self, field_ids: Sequence[int], selection: RowSelection) -> bool:
        """Whether reading these fields costs more than a second read after which fewer rows of them are needed.

        Not where a read decodes all columns, as in Avro files.
        """
        return False

    def worth_pages(self, field_ids: Sequence[int], selection: RowSelection) -> bool:
        """Whether reading only those pages of these fields that have needed rows may pay."""
        return True

    def fetch_together(self, field_ids: Iterable[int], selection: RowSelection) -> bool:
        """Fetch these fields with the next read, so that the one after it has no cost; whether that is possible."""
        return False

    def value_counts(self, field_id: int, selection: RowSelection) -> list[ValueCounts] | None:
        """How many of the selected rows have each value of a column of text, in parts, where that is faster to read."""
        return None

    def local_zones(self) -> Sequence[str]:
        """The time zones other than UTC in which timestamps without a time zone were written; none if unspecified."""
        return ()

    def check_times(self, rows: pa.Table, schemas: Iterable[Schema]) -> None:
        """Refuse rows whose local times these schemas would read as instants, unless they were written in UTC."""
        if not self.has_local_times:
            return
        stored = {i: type_ for field in rows.schema for i, type_ in types_within(field).items()}
        for field in (one for schema in schemas for one in fields_by_id(schema).values()):
            found = stored.get(field.field_id)
            is_local = found is not None and pa.types.is_timestamp(found) and found.tz is None
            if is_local and isinstance(field.field_type, _INSTANTS) and (zones := self.local_zones()):
                raise UnsupportedError(
                    f"column {field.name} of {self.path} has timestamps without a time zone, written in "
                    f"{', '.join(zones)}, and cannot be read as {field.field_type}; write it as timestamp with local "
                    "time zone",
                    context={"file": self.path, "column": field.name, "field_id": field.field_id},
                )

    @abstractmethod
    def group_bytes(self, field_ids: Iterable[int] | None) -> Ints:
        """About the uncompressed bytes of these fields in each group; of all fields by default."""


def columns_with(schema: pa.Schema, field_ids: Iterable[int] | None) -> list[int]:
    """The positions of the top-level columns that are or contain one of these fields; all by default."""
    if field_ids is None:
        return list(range(len(schema)))
    wanted = set(field_ids)
    return [at for at, field in enumerate(schema) if not wanted.isdisjoint(ids_within(field))]


def ids_within(field: pa.Field) -> set[int]:
    """The field ids of an Arrow field and of all fields inside it."""
    return set(types_within(field))


def types_within(field: pa.Field) -> dict[int, pa.DataType]:
    """The types of an Arrow field and of all fields inside it, by field id."""
    own, type_ = (field.metadata or {}).get(FIELD_ID), field.type
    found = {} if own is None else {int(own): type_}
    if pa.types.is_map(type_):
        children = [type_.key_field, type_.item_field]
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        children = [type_.value_field]
    else:
        children = list(type_) if pa.types.is_struct(type_) else []
    for child in children:
        found |= types_within(child)
    return found
