"""Evolve a partition spec: add, drop, replace and rename fields, exactly as Iceberg's ``UpdatePartitionSpec`` does.

    format 1    a dropped field is replaced by a void field; field ids are consecutive from 1000 in every spec
    format 2+   a dropped field is removed; a field that an earlier spec of the table had is reused with its field id

Dropping a field and adding the same (source, transform) in one change keeps it, perhaps under another name. A void
field is renamed to ``name_<field id>`` if a new field needs its name. A field without a name is named after
its source: ``region``, ``id_bucket_16``, ``name_trunc_4``, ``ts_day``.

Fail-safe: what Iceberg rejects (two equal fields, a name that is taken or belongs to another column, two new time
fields on one column, an unknown transform in the current spec) is rejected before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg import transforms as pt
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import BadInputError, TypeMismatchError, UnsupportedError
from floeplan.partition.transforms import Transform, can_apply
from floeplan.predicate.names import Names


@dataclass(frozen=True, slots=True)
class Term:
    """A transform of a column: ``bucket(16, id)``; the column is a path into structs."""

    column: tuple[str, ...]
    transform: Transform = field(default_factory=pt.IdentityTransform)

    def __str__(self) -> str:
        return f"{self.transform}({'.'.join(self.column)})"

    @property
    def sql(self) -> str:
        """As in SQL: the column of an identity, otherwise the transform around it: ``day(ts)``, ``bucket(16, id)``."""
        source = ".".join(self.column)
        match self.transform:
            case pt.IdentityTransform():
                return source
            case pt.BucketTransform(num_buckets=parameter):
                return f"bucket({parameter}, {source})"
            case pt.TruncateTransform(width=parameter):
                return f"truncate({parameter}, {source})"
        return f"{self.transform}({source})"


@dataclass(frozen=True, slots=True)
class AddField:
    """Add a partition field; without a name, it gets Iceberg's default name."""

    term: Term
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DropField:
    """Drop a partition field, given by its name or by its term."""

    which: str | Term


@dataclass(frozen=True, slots=True)
class RenameField:
    """Rename a partition field; its id and its values stay."""

    name: str
    new_name: str


SpecChange: TypeAlias = AddField | DropField | RenameField


def replace_field(which: str | Term, term: Term, name: str | None = None) -> tuple[SpecChange, ...]:
    """The changes that replace one field by another."""
    return DropField(which), AddField(term, name)


def evolved_spec(metadata: TableMetadata, changes: Iterable[SpecChange]) -> PartitionSpec:
    """Apply changes to the default spec, in order, all or none.

    If the table has a spec with the same sources, transforms and names, it is returned; otherwise a new one with the
    next free id.
    """
    evolving = _Evolving(metadata)
    for change in changes:
        match change:
            case AddField(term, name):
                evolving.add(term, name)
            case DropField(which):
                evolving.drop(which)
            case RenameField(name, new_name):
                evolving.rename(name, new_name)
    fields = tuple(evolving.fields())
    _check_fields(fields, metadata)

    def described(of: Iterable[PartitionField]) -> list[tuple[int, str, str]]:
        return [(field.source_id, str(field.transform), field.name) for field in of]

    for spec in metadata.partition_specs:
        if described(spec.fields) == described(fields):
            return spec
    next_id = max((spec.spec_id for spec in metadata.partition_specs), default=-1) + 1
    return PartitionSpec(*fields, spec_id=next_id)


def drop_all(metadata: TableMetadata) -> tuple[DropField, ...]:
    """The changes that leave a table unpartitioned."""
    return tuple(DropField(f.name) for f in metadata.spec().fields if not isinstance(f.transform, pt.VoidTransform))


@dataclass(slots=True)
class _Slot:
    """A field of the current spec and its changes."""

    field: PartitionField
    name: str
    dropped: bool = False

    @property
    def is_void(self) -> bool:
        return isinstance(self.field.transform, pt.VoidTransform)

    def release_name(self) -> None:
        self.name = f"{self.field.name}_{self.field.field_id}"


class _Evolving:
    """The state of an evolution. Fields of the current spec are found by their current names."""

    def __init__(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self.names = Names(metadata.schema())
        self.slots = [_Slot(field, field.name) for field in metadata.spec().fields]
        self.added: list[PartitionField] = []
        self.last_id = metadata.last_partition_id or PARTITION_FIELD_ID_START - 1
        for slot in self.slots:
            if isinstance(slot.field.transform, pt.UnknownTransform):
                raise UnsupportedError(
                    f"the current spec has field {slot.name} with the unknown transform {slot.field.transform}; "
                    "change the spec with the engine that created it",
                    context={"field": slot.name},
                )

    def add(self, term: Term, name: str | None) -> None:
        if any(field.name == name for field in self.added):
            raise _refused(f"partition field {name} is added twice", name)
        source_id = self._source_id(term)
        known = self._slot_of(source_id, term.transform)
        if known is not None and known.dropped:
            # Dropped and added again in one change: it is kept, perhaps under another name.
            known.dropped = False
            if name is not None and name != known.field.name:
                self.rename(known.field.name, name)
            return
        if known is not None:
            raise _refused(f"the table is partitioned by {term} already, as {known.name}", known.name)
        if any(_is_of(field, source_id, term.transform) for field in self.added):
            raise _refused(f"{term} is added twice", name)
        field = self._earlier(source_id, term.transform, name)
        if field is None:
            self.last_id += 1
            if name is None:
                name = _default_name(self.metadata.schema(), source_id, term.transform)
            field = PartitionField(source_id, self.last_id, term.transform, name)
        self._append(field)

    def drop(self, which: str | Term) -> None:
        if isinstance(which, str):
            slot = self._found(self._slot_named(which), which)
        else:
            slot = self._found(self._slot_of(self._source_id(which), which.transform), str(which))
        if slot.name != slot.field.name:
            raise _refused(f"partition field {slot.field.name} is renamed and dropped", slot.field.name)
        slot.dropped = True

    def rename(self, name: str, new_name: str) -> None:
        taken = self._slot_named(new_name)
        if taken is not None and taken.is_void:
            taken.release_name()
        slot = self._found(self._slot_named(name), name)
        if slot.dropped:
            raise _refused(f"partition field {name} is dropped and renamed", name)
        slot.name = new_name

    def fields(self) -> Iterator[PartitionField]:
        for slot in self.slots:
            if not slot.dropped:
                yield PartitionField(slot.field.source_id, slot.field.field_id, slot.field.transform, slot.name)
            elif self.metadata.format_version < 2:
                yield PartitionField(slot.field.source_id, slot.field.field_id, pt.VoidTransform(), slot.name)
        yield from self.added

    def _append(self, field: PartitionField) -> None:
        if isinstance(field.transform, pt.TimeTransform):
            for other in self.added:
                if other.source_id == field.source_id and isinstance(other.transform, pt.TimeTransform):
                    raise _refused(f"{field.name} and {other.name} divide one column by time; add only one", field.name)
        slot = self._slot_named(field.name)
        if slot is not None and not (slot.dropped or slot.is_void):
            raise _refused(
                f"there is a partition field {field.name} already; give the new one another name", field.name
            )
        if slot is not None:
            slot.release_name()
        self.added.append(field)

    def _earlier(self, source_id: int, transform: Transform, name: str | None) -> PartitionField | None:
        """A field of any spec with this source and transform, and this name if there is one; the newest spec wins."""
        if self.metadata.format_version < 2:
            return None
        specs = sorted(self.metadata.partition_specs, key=lambda spec: -spec.spec_id)
        fields = (field for spec in specs for field in spec.fields if _is_of(field, source_id, transform))
        return next((field for field in fields if name is None or field.name == name), None)

    def _source_id(self, term: Term) -> int:
        column = self.names.find_dotted(".".join(term.column))
        if not can_apply(term.transform, column.type):
            raise TypeMismatchError(
                f"{term.transform} cannot be applied to column {column} of type {column.type}",
                context={"column": str(column), "transform": str(term.transform)},
            )
        return column.field_id

    def _slot_named(self, name: str) -> _Slot | None:
        return next((slot for slot in self.slots if slot.field.name == name), None)

    def _slot_of(self, source_id: int, transform: Transform) -> _Slot | None:
        return next((slot for slot in reversed(self.slots) if _is_of(slot.field, source_id, transform)), None)

    def _found(self, slot: _Slot | None, name: str) -> _Slot:
        if slot is None:
            known = ", ".join(f"{one.field.name} = {one.field.transform}" for one in self.slots) or "none"
            raise _refused(f"the current spec has no partition field {name}; its fields are {known}", name)
        return slot


def _check_fields(fields: tuple[PartitionField, ...], metadata: TableMetadata) -> None:
    schema = metadata.schema()
    columns = {name: schema.find_field(name).field_id for name in schema.column_names}
    names = [field.name for field in fields]
    for position, one in enumerate(fields):
        if not one.name:
            raise _refused("a partition field needs a name", one.name)
        if names.index(one.name) != position:
            raise _refused(f"two partition fields would be called {one.name}; name one of them with AS", one.name)
        if columns.get(one.name, one.source_id) != one.source_id:
            raise _refused(
                f"partition field {one.name} would have the name of another column; name it with AS", one.name
            )
        if metadata.format_version < 2 and one.field_id != PARTITION_FIELD_ID_START + position:
            raise UnsupportedError(
                f"format 1 numbers partition fields one after the other, and {one.name} would be {one.field_id}; "
                "upgrade the table to format 2",
                context={"field": one.name},
            )


def _default_name(schema: Schema, source_id: int, transform: Transform) -> str:
    """Iceberg's default name of a partition field."""
    source = schema.find_column_name(source_id)
    match transform:
        case pt.IdentityTransform():
            return f"{source}"
        case pt.BucketTransform():
            return f"{source}_bucket_{transform.num_buckets}"
        case pt.TruncateTransform():
            return f"{source}_trunc_{transform.width}"
    return f"{source}_{transform}"


def _is_of(field: PartitionField, source_id: int, transform: Transform) -> bool:
    return field.source_id == source_id and str(field.transform) == str(transform)


def _refused(message: str, name: object) -> BadInputError:
    return BadInputError(message, context={"field": name})
