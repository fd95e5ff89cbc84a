"""What is true of a table whose files were made up: every row, what deletes it, and what a reader must see of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg import transforms as pt
from pyiceberg.schema import Schema
from pyiceberg.types import (
    NestedField,
    PrimitiveType,
)

from floeplan.partition.transforms import apply
from tests.support.datasets import Dataset

Row = dict[int, Any]


@dataclass(frozen=True)
class PartField:
    """A field of a spec."""

    field_id: int
    source_id: int
    transform: Any


@dataclass(frozen=True)
class Spec:
    """A partition spec; its id need not follow that of the one before."""

    spec_id: int
    fields: tuple[PartField, ...]

    @property
    def unpartitioned(self) -> bool:
        return all(isinstance(f.transform, pt.VoidTransform) for f in self.fields)


@dataclass(frozen=True)
class File:
    """A data or delete file with what a manifest says of it; ``rows`` are as stored, by field id."""

    path: str
    content: int
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    rows: tuple[Row, ...]
    types: dict[int, PrimitiveType]
    stats: dict[str, dict[int, Any]]
    constants: Row = field(default_factory=dict)
    positions: tuple[tuple[str, int], ...] = ()
    keys: tuple[int, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_vector(self) -> bool:
        return self.extra.get("file_format") == "PUFFIN"


@dataclass(frozen=True)
class Manifest:
    """Files of one spec and kind, each with its status, as one commit wrote them."""

    content: int
    spec_id: int
    sequence: int
    entries: tuple[tuple[int, File], ...]
    listed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The manifests of a commit and the schema it was made with."""

    snapshot_id: int
    schema: Schema
    manifests: tuple[Manifest, ...]

    def files(self, content: int) -> list[File]:
        return [f for m in self.manifests if m.content == content for status, f in m.entries if status != 2]


@dataclass(frozen=True, repr=False)
class History:
    """A table on disk and all that is true of it; too much to be printed."""

    metadata: Path
    snapshots: tuple[Snapshot, ...]
    schema: Schema
    specs: dict[int, Spec]

    def rows(self, snapshot: Snapshot, file: File, schema: Schema) -> list[Row]:
        """The rows of a file in the columns of a schema, deleted ones included."""
        return [{f.field_id: _shown(file, row, f) for f in schema.fields} for row in file.rows]

    def live(self, snapshot: Snapshot, schema: Schema) -> Iterator[tuple[File, int, Row]]:
        """Every row that is not deleted: its file, its position, its values."""
        deletes = snapshot.files(1)
        for file in snapshot.files(0):
            gone = self._positions(file, deletes)
            lists = [(d.keys, {_key(d, row) for row in d.rows}) for d in deletes if d.keys and self._applies(d, file)]
            for position, row in enumerate(self.rows(snapshot, file, schema)):
                listed = any(
                    tuple(map(_identity, self._key_values(file, position, keys))) in rows for keys, rows in lists
                )
                if position not in gone and not listed:
                    yield file, position, row

    def dataset(self, snapshot: Snapshot, schema: Schema) -> Dataset:
        """All rows, deleted ones included, for drawing predicates."""
        rows = [row for file in snapshot.files(0) for row in self.rows(snapshot, file, schema)]
        return Dataset(schema, len(rows), {f.field_id: [row[f.field_id] for row in rows] for f in schema.fields}, {})

    def _applies(self, delete: File, file: File) -> bool:
        same = (delete.spec_id, code(delete.partition)) == (file.spec_id, code(file.partition))
        if delete.keys:
            return delete.sequence > file.sequence and (same or self.specs[delete.spec_id].unpartitioned)
        return delete.sequence >= file.sequence and same

    def _positions(self, file: File, deletes: list[File]) -> set[int]:
        vectors = [d for d in deletes if d.is_vector and d.extra["referenced_data_file"] == file.path]
        ordinary = [d for d in deletes if not d.keys and not d.is_vector and self._applies(d, file)]
        return {at for d in vectors or ordinary for path, at in d.positions if path == file.path}

    def _key_values(self, file: File, position: int, keys: tuple[int, ...]) -> list[Any]:
        fields = {f.field_id: f for s in self.snapshots for f in s.schema.fields}
        return [_shown(file, file.rows[position], fields[key]) for key in keys]


def moved_partition(history: History, file: File, row: Row, spec_id: int) -> tuple[Any, ...]:
    """The partition of a row of a file under a spec: what the file says where its spec has the field too."""
    own = dict(zip(history.specs[file.spec_id].fields, file.partition, strict=True))
    fields = history.specs[spec_id].fields
    return tuple(own[part] if part in own else _told(history, file, row, part) for part in fields)


def row_partition(history: History, file: File, row: Row, spec_id: int) -> tuple[Any, ...]:
    """The partition that a row itself tells under a spec; old writers file times before 1970 one further on."""
    return tuple(_told(history, file, row, part) for part in history.specs[spec_id].fields)


def _told(history: History, file: File, row: Row, part: PartField) -> Any:
    columns = {f.field_id: f for s in history.snapshots for f in s.schema.fields}
    columns |= {f.field_id: f for f in history.schema.fields}
    column = columns[part.source_id]
    return apply(part.transform, column.field_type, _shown(file, row, column))


def _shown(file: File, row: Row, column: NestedField) -> Any:
    """A stored value, or for a column that the file lacks its partition value, its initial default, or null."""
    if column.field_id in row:
        return row[column.field_id]
    return file.constants.get(column.field_id, column.initial_default)


def _identity(value: Any) -> Any:
    return ("float", repr(value)) if isinstance(value, float) else value


def _key(delete: File, row: Row) -> tuple[Any, ...]:
    return tuple(_identity(row[key]) for key in delete.keys)


def code(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_identity, partition))
