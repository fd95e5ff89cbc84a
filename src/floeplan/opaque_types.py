"""Column types whose values Floeplan carries as they are stored: variant, geometry and geography.

PyIceberg 0.12 has no variant type and parses geometry types only with a quoted CRS, which Java does not write, so a
table with one such column does not load. ``accept_opaque_types`` makes PyIceberg keep these types as the text that the
metadata has. The other columns are planned, pruned and read as in any table.

Rows have a geometry or geography as WKB in binary, and a variant as a struct of its two encoded parts, ``metadata`` and
``value``. A shredded variant, whose value is spread over typed columns, is put together (``scan.variants``).

PyIceberg offers no way to add a type, and its validator is compiled into every model that has a schema. So the code of
that one function is replaced; ``tests/unit/test_opaque_types.py`` fails when it changes.

Statistics files of other engines, such as Presto, have blobs of types that PyIceberg does not list, so that the table
would not load either. Their descriptions are kept, and written back, as they are.

Files are written with the annotation of each such column (``write.parquet_file``). Fields of variants can be compared
(``predicate.variants``) and have bounds (``write.variant_bounds``); geometries are compared by their boxes only
(``predicate.geometries``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from types import FunctionType
from typing import Any, get_args

from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import (
    BinaryType,
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)

from floeplan.schemas import fields_by_id

_OPAQUE = re.compile(r"(variant|geometry|geography)\b", re.IGNORECASE)


class OpaqueType(PrimitiveType):
    """A type that is known by the text of the metadata only."""

    root: str

    def __init__(self, text: str) -> None:
        super().__init__(root=text)

    def __repr__(self) -> str:
        return f"OpaqueType({self.root!r})"

    def __getnewargs__(self) -> tuple[str]:
        return (self.root,)

    def minimum_format_version(self) -> TableVersion:
        """These types came with format 3."""
        return 3


def is_opaque(type_: IcebergType) -> bool:
    """Whether values of a type are only known as they are stored."""
    return isinstance(type_, OpaqueType | GeometryType | GeographyType)


def is_variant(type_: IcebergType) -> bool:
    """Whether a type is a variant."""
    return isinstance(type_, OpaqueType) and type_.root.lower().startswith("variant")


def as_stored(type_: IcebergType) -> IcebergType:
    """A type with binary in place of such types, at any depth."""
    match type_:
        case StructType(fields=fields):
            return StructType(*(as_stored_field(field) for field in fields))
        case ListType():
            return type_.model_copy(update={"element_type": as_stored(type_.element_type)})
        case MapType():
            key, value = as_stored(type_.key_type), as_stored(type_.value_type)
            return type_.model_copy(update={"key_type": key, "value_type": value})
    return BinaryType() if is_opaque(type_) else type_


def as_stored_field(field: NestedField) -> NestedField:
    """A field with binary in place of such types."""
    return field.model_copy(update={"field_type": as_stored(field.field_type)})


def logical_types(schema: Schema) -> dict[int, str]:
    """The types of such columns as text, by field id: what their Parquet columns have to be annotated with."""
    return {i: str(field.field_type) for i, field in fields_by_id(schema).items() if is_opaque(field.field_type)}


@cache
def accept_opaque_types() -> None:
    """Let PyIceberg load tables with these types, and with statistics of any type; once."""
    IcebergType.handle_primitive_type.__func__.__code__ = _validator.__code__
    _accept_statistics()
    _accept_defaults()


def _accept_defaults() -> None:
    """Defaults of timestamps with nanoseconds, which PyIceberg refuses, as integers; written as Java writes them."""
    from pyiceberg import conversions
    from pyiceberg.utils.datetime import timestamp_to_nanos, timestamptz_to_nanos

    from_json: Any = conversions.from_json
    to_json: Any = conversions.to_json

    def register(type_: type[PrimitiveType], parse: Callable[[str], int], zone: str) -> None:
        def text(_: PrimitiveType, value: int) -> str:
            seconds, nanos = divmod(value, 10**9)
            fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
            return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat() + fraction + zone

        from_json.register(type_)(lambda _, value: parse(value) if isinstance(value, str) else value)
        to_json.register(type_)(text)

    register(TimestampNanoType, timestamp_to_nanos, "")
    register(TimestamptzNanoType, timestamptz_to_nanos, "+00:00")


def _accept_statistics() -> None:
    from pyiceberg.table import metadata  # imported late: predicates on files alone need no table
    from pyiceberg.table.statistics import BlobMetadata

    fields, usual = BlobMetadata.model_fields, metadata.cleanup_snapshot_id
    known = get_args(fields["type"].annotation)
    required = {field.alias or name for name, field in fields.items() if field.is_required()}

    def blob(found: Any) -> Any:
        if not isinstance(found, dict) or found.get("type") in known or not required <= found.keys():
            return found
        return BlobMetadata.model_validate(found | {"type": known[0]}).model_copy(update={"type": found["type"]})

    def prepared(data: dict[str, Any]) -> dict[str, Any]:
        # The models of all formats call it before they validate.
        for file in data.get("statistics") or ():
            if isinstance(file, dict) and isinstance(blobs := file.get("blob-metadata"), list):
                file["blob-metadata"] = [blob(one) for one in blobs]
        return usual(data)

    metadata.cleanup_snapshot_id = prepared


def _validator(cls: Any, v: Any, handler: Any) -> Any:
    # This code runs as a function of ``pyiceberg.types`` and sees the names of that module only.
    from floeplan.opaque_types import parse_type

    return parse_type(cls, v, handler)


_of_pyiceberg: FunctionType = IcebergType.handle_primitive_type.__func__
_usual: Callable[..., Any] = FunctionType(_of_pyiceberg.__code__, _of_pyiceberg.__globals__)


def parse_type(cls: type[IcebergType], v: Any, handler: Callable[[Any], Any]) -> Any:
    """A type from metadata: as PyIceberg parses it, or opaque."""
    if isinstance(v, str) and _OPAQUE.match(v):
        return handler(v) if cls is OpaqueType else OpaqueType(v)
    return _usual(cls, v, handler)
