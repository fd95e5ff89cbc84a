"""The columns of the union partition tuple: what each spec's partition fields are called and typed.

Rule: one column per partition field, over all specs, keyed by partition field id. A void field says nothing of its
source, so it is no column of that spec. Types come from the newest schema that still has the source column; when none
has it, from the manifests themselves.

Old v1 tables numbered the fields of every spec from 1000, so one id may mean different fields in two specs. Such a
field gets a key of its own; ``of_spec`` tells which key a spec's field has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import PrimitiveType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floeplan.errors import CorruptMetadataError

COLUMN = "partition."
"""Prefix of partition columns; the key follows."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One field of the union tuple; the type is ``UnknownType`` when only manifests can tell it."""

    key: int
    name: str
    type: PrimitiveType

    @property
    def column(self) -> str:
        """Its name in an entries table."""
        return f"{COLUMN}{self.key}"


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """Per spec id its columns by partition field id, in the order of the spec's fields; void fields are left out."""

    by_spec: Mapping[int, Mapping[int, PartitionColumn]]
    positions: Mapping[int, Mapping[int, int]]
    """Per spec id and partition field id the position in the spec, and so in partition summaries."""

    @classmethod
    def of(cls, metadata: TableMetadata) -> PartitionColumns:
        """The columns of a table."""
        newest_first = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
        newest_first.sort(key=lambda schema: schema.schema_id != metadata.current_schema_id)
        return cls.of_specs(metadata.partition_specs, newest_first)

    @classmethod
    def of_specs(cls, specs: Iterable[PartitionSpec], schemas: Sequence[Schema]) -> PartitionColumns:
        """The columns of these specs; ``schemas`` are searched in the order given."""
        ordered = sorted(specs, key=lambda spec: spec.spec_id)
        keys = _keys(ordered)
        by_spec = {}
        for spec in ordered:
            by_spec[spec.spec_id] = {
                field.field_id: PartitionColumn(keys[_meaning(field)], field.name, _result_type(field, schemas))
                for field in spec.fields
                if not isinstance(field.transform, VoidTransform)
            }
        positions = {spec.spec_id: {f.field_id: at for at, f in enumerate(spec.fields)} for spec in ordered}
        return cls(by_spec, positions)

    def of_spec(self, spec_id: int) -> Mapping[int, PartitionColumn]:
        """The columns of one spec by partition field id.

        Raises:
            CorruptMetadataError: The table has no such spec.
        """
        try:
            return self.by_spec[spec_id]
        except KeyError:
            raise CorruptMetadataError(
                f"a manifest belongs to partition spec {spec_id}, which the table does not have; it has "
                f"{', '.join(map(str, sorted(self.by_spec)))}",
                context={"spec_id": spec_id},
            ) from None

    def columns(self) -> dict[int, PartitionColumn]:
        """All columns by key; of a field in several specs the newest name counts."""
        return {column.key: column for fields in self.by_spec.values() for column in fields.values()}

    def specs_with(self, key: int) -> list[int]:
        """The specs that have the column."""
        return [spec for spec, fields in self.by_spec.items() if any(column.key == key for column in fields.values())]


def _meaning(field: PartitionField) -> tuple[int, int, str]:
    return field.field_id, field.source_id, str(field.transform)


def _keys(specs: Sequence[PartitionSpec]) -> dict[tuple[int, int, str], int]:
    """A key for every meaning: the field id for the first meaning it has, a number above all ids for others."""
    meanings = dict.fromkeys(
        _meaning(field) for spec in specs for field in spec.fields if not isinstance(field.transform, VoidTransform)
    )
    fresh = max((meaning[0] for meaning in meanings), default=999)
    keys: dict[tuple[int, int, str], int] = {}
    taken: set[int] = set()
    for meaning in meanings:
        key = meaning[0]
        if key in taken:
            fresh += 1
            key = fresh
        taken.add(key)
        keys[meaning] = key
    return keys


def _result_type(field: PartitionField, schemas: Sequence[Schema]) -> PrimitiveType:
    if isinstance(field.transform, UnknownTransform):
        return UnknownType()
    for schema in schemas:
        try:
            source = schema.find_field(field.source_id).field_type
        except ValueError:
            continue
        result = field.transform.result_type(source)
        return result if isinstance(result, PrimitiveType) else UnknownType()
    return UnknownType()


def avro_primitive(avro_type: Any) -> PrimitiveType:
    """The Iceberg type of an Avro one, or ``UnknownType``."""
    record = {"type": "record", "name": "r", "fields": [{"name": "v", "type": avro_type, "field-id": 1}]}
    try:
        converted = AvroSchemaConversion().avro_to_iceberg(record).fields[0].field_type
    except (ValueError, TypeError, KeyError):
        return UnknownType()
    return converted if isinstance(converted, PrimitiveType) else UnknownType()
