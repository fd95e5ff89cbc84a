"""The union partition type: one tuple for the files of all specs, keyed by partition field id.

Rule: fields of different specs are one column if they have the same partition field id, source and transform.
The name is the newest one, so a rename does not split a column, and fields whose source column is gone are kept.
A void field, which format 1 leaves in place of a dropped field, is always null and not a column.

Formats that did not track partition field ids number them by position, so two specs may use one id for different
fields. Those are never mixed: the oldest keeps the id, the others get free ids above all others. Names that collide
get the id of their column as a suffix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField, StructType

from floeplan.errors import UnknownSpecError
from floeplan.partition.fields import BoundField, SourceTypes, bind_field, source_types
from floeplan.partition.projection import SpecProjection

_Meaning: TypeAlias = tuple[int, int, str]
_SpecPosition: TypeAlias = tuple[PartitionSpec, int]


@dataclass(frozen=True, slots=True)
class UnionField:
    """One column of the union tuple.

    ``bound.column.field_id`` is unique in the union; ``field_id`` is the id in the metadata. ``positions`` says where
    the field stands in the tuple of each spec that has it.
    """

    bound: BoundField
    field_id: int
    positions: Mapping[int, int]

    @property
    def id(self) -> int:
        """The id of the column in the union tuple."""
        return self.bound.column.field_id

    @property
    def name(self) -> str:
        """The newest name, made unique."""
        return self.bound.column.path[0]


@dataclass(frozen=True, slots=True)
class UnionPartitionType:
    """The partition fields of all specs of a table by their id in the union, and every spec in terms of them."""

    fields: tuple[UnionField, ...]
    specs: Mapping[int, SpecProjection]

    @classmethod
    def of(cls, specs: Iterable[PartitionSpec], sources: SourceTypes) -> UnionPartitionType:
        """The union over specs; a spec is newer than another when its id is higher."""
        ordered = sorted(specs, key=lambda spec: spec.spec_id)
        positions = _positions(ordered)
        ids = _column_ids(positions)
        fields = [_union_field(ids[meaning], positions[meaning], sources) for meaning in positions]
        projections = {spec.spec_id: _projection(spec, ids, sources) for spec in ordered}
        return cls(tuple(sorted(_with_unique_names(fields), key=lambda field: field.id)), projections)

    @classmethod
    def of_table(cls, metadata: TableMetadata) -> UnionPartitionType:
        """The union over all specs of a table, with sources looked up in all its schemas."""
        return cls.of(metadata.partition_specs, source_types(metadata.schema(), metadata.schemas))

    @property
    def bound_fields(self) -> tuple[BoundField, ...]:
        """All fields, for ``partition_answer`` over the entries of all specs at once.

        Sound when the statistics of a field are unknown for the files whose spec does not have it.
        """
        return tuple(field.bound for field in self.fields)

    def spec(self, spec_id: int) -> SpecProjection:
        """One spec of the table; an id the metadata does not know is an error that names it."""
        if spec_id not in self.specs:
            known = ", ".join(map(str, sorted(self.specs)))
            raise UnknownSpecError(
                f"the table has no partition spec {spec_id}; it has {known}", context={"spec-id": spec_id}
            )
        return self.specs[spec_id]

    def struct_type(self) -> StructType:
        """The union tuple as an Iceberg struct of optional fields."""
        return StructType(*(NestedField(f.id, f.name, f.bound.column.type, required=False) for f in self.fields))


def _meaning(field: PartitionField) -> _Meaning:
    return field.field_id, field.source_id, repr(field.transform)


def _positions(ordered: Iterable[PartitionSpec]) -> dict[_Meaning, list[_SpecPosition]]:
    """The specs that have each distinct field and its position there, oldest spec first."""
    positions: dict[_Meaning, list[_SpecPosition]] = {}
    for spec in ordered:
        for position, field in enumerate(spec.fields):
            if not isinstance(field.transform, VoidTransform):
                positions.setdefault(_meaning(field), []).append((spec, position))
    return positions


def _column_ids(meanings: Iterable[_Meaning]) -> dict[_Meaning, int]:
    """The partition field id for the oldest field that uses it, free ids for the others."""
    meanings = list(meanings)
    free = max((field_id for field_id, _, _ in meanings), default=PARTITION_FIELD_ID_START - 1)
    ids: dict[_Meaning, int] = {}
    taken: set[int] = set()
    for meaning in meanings:
        column_id = meaning[0]
        if column_id in taken:
            column_id = free = free + 1
        taken.add(column_id)
        ids[meaning] = column_id
    return ids


def _union_field(column_id: int, positions: list[_SpecPosition], sources: SourceTypes) -> UnionField:
    newest, position = positions[-1]
    field = newest.fields[position]
    return UnionField(
        bind_field(field, sources, column_id), field.field_id, {spec.spec_id: position for spec, position in positions}
    )


def _projection(spec: PartitionSpec, ids: Mapping[_Meaning, int], sources: SourceTypes) -> SpecProjection:
    fields = (bind_field(field, sources, ids.get(_meaning(field))) for field in spec.fields)
    return SpecProjection(spec.spec_id, tuple(fields))


def _with_unique_names(fields: Iterable[UnionField]) -> Iterable[UnionField]:
    """Add the column id to names that are taken; the newest field keeps the plain name."""
    taken: set[str] = set()
    for field in sorted(fields, key=lambda field: (-max(field.positions), field.id)):
        name = field.name
        while name in taken:
            name = f"{name}_{field.id}"
        taken.add(name)
        yield field if name == field.name else _renamed(field, name)


def _renamed(field: UnionField, name: str) -> UnionField:
    return replace(field, bound=replace(field.bound, column=replace(field.bound.column, path=(name,))))
