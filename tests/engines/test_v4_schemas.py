"""The schema of v4 manifests equals the one Iceberg Java derives, for random schemas and histories of specs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from floeplan.errors import UnsupportedError
from floeplan.metadata.v4.schemas import content_stats_type, tracked_file_schema, union_tuple_type
from floeplan.opaque_types import OpaqueType, accept_opaque_types
from tests.support.tables.layouts import Layout
from tests.support.tree_judge import JudgeError, TreeJudge

pytestmark = pytest.mark.engines

accept_opaque_types()

PRIMITIVES: list[PrimitiveType] = [
    *(type_() for type_ in (BinaryType, BooleanType, DateType, DoubleType, FloatType, IntegerType, LongType)),
    *(type_() for type_ in (StringType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)),
    *(type_() for type_ in (TimeType, UUIDType, UnknownType)),
    DecimalType(9, 2),
    DecimalType(38, 10),
    FixedType(3),
    *(OpaqueType(text) for text in ("variant", "geometry", "geography")),
]
IGNORED = ("doc", "schema-id", "identifier-field-ids")
"""What Java adds to a schema, and what is not part of it."""
TRANSFORMS = [
    IdentityTransform(),
    BucketTransform(4),
    TruncateTransform(3),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Columns with gaps between their ids, nested in structs, lists and maps."""
    ids = iter(range(1, 100_000, draw(st.sampled_from([1, 3, 17]))))

    def nested(depth: int) -> list[NestedField]:
        made = []
        for number in range(draw(st.integers(1, 4))):
            field_id = next(ids)
            kind = draw(st.sampled_from(["", "", "", "struct", "list", "map"])) if depth else ""
            primitive = draw(st.sampled_from(PRIMITIVES))
            required = draw(st.booleans()) and not isinstance(primitive, UnknownType)
            match kind:
                case "struct":
                    type_: Any = StructType(*nested(depth - 1))
                case "list":
                    type_ = ListType(next(ids), draw(st.sampled_from([primitive, StructType(*nested(0))])), False)
                case "map":
                    type_ = MapType(next(ids), StringType(), next(ids), primitive, value_required=False)
                case _:
                    type_ = primitive
            made.append(NestedField(field_id, f"c{depth}_{number}", type_, required=required and not kind))
        return made

    return Schema(*nested(2))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Specs on columns, nested ones too, that may be renamed, promoted or dropped since.

    Partition fields are renamed, made void and used again.
    """
    schema = draw(schemas())
    inside = NestedField(200_003, "inside", draw(st.sampled_from([IntegerType(), TimestampType()])), required=False)
    dropped = [
        NestedField(200_001, "dropped", draw(st.sampled_from([StringType(), DateType(), LongType()]))),
        NestedField(200_002, "dropped_struct", StructType(inside), required=False),
    ]

    def before(field: NestedField) -> NestedField:
        type_ = (
            draw(st.sampled_from([IntegerType(), LongType()])) if field.field_type == LongType() else field.field_type
        )
        name = draw(st.sampled_from([field.name, f"{field.name}_before"]))
        return NestedField(field.field_id, name, type_, required=field.required)

    older = Schema(*map(before, schema.fields), *dropped, schema_id=1)
    sources = [field for field in leaves((*schema.fields, *dropped)) if not isinstance(field.field_type, OpaqueType)]
    choices = [(field, t) for field in sources for t in TRANSFORMS if t.can_transform(field.field_type)]
    used = draw(st.lists(st.sampled_from(choices), max_size=5)) if choices else []
    specs = [PartitionSpec(spec_id=0)]
    for spec_id in range(1, draw(st.integers(1, 4))):
        fields = []
        for number, (source, transform) in enumerate(used):
            if draw(st.booleans()):
                kept = draw(st.sampled_from([transform, transform, VoidTransform()]))
                name = f"p{number}{draw(st.sampled_from(['', '_renamed']))}"
                fields.append(PartitionField(source.field_id, 1000 + number, kept, name))
        specs.append(PartitionSpec(*fields, spec_id=spec_id))
    # Java refuses a default spec whose source column was dropped.
    bound = [field for field in specs[-1].fields if field.source_id not in (200_001, 200_003)]
    specs.append(PartitionSpec(*bound, spec_id=len(specs)))
    return Layout(replace_id(schema, 2), tuple(specs), version=4, older_schemas=(older,))


def leaves(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    """The columns that can be sources of partition fields: primitives, in structs too."""
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from leaves(field.field_type.fields)
        elif isinstance(field.field_type, PrimitiveType):
            yield field


def replace_id(schema: Schema, schema_id: int) -> Schema:
    return Schema(*schema.fields, schema_id=schema_id)


def derived(judge: TreeJudge, layout: Layout) -> tuple[Any, Any]:
    """Our schema and Java's, as JSON without documentation; statistics by ascending id."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v1.metadata.json"
        path.write_text(json.dumps(layout.metadata(Path(folder), path, 0)))
        metadata = StaticTable.from_metadata(str(path)).metadata
        theirs = judge.ask("schema", metadata=str(path))
    ours = tracked_file_schema(union_tuple_type(metadata), content_stats_type(metadata.schema()))
    return plain(json.loads(ours.model_dump_json())), plain(theirs)


def plain(node: Any) -> Any:
    match node:
        case {"name": "content_stats", "type": {"fields": fields}}:
            ordered = sorted(map(plain, fields), key=lambda field: field["id"])
            return {"id": node["id"], "required": node["required"], "fields": ordered}
        case dict():
            return {key: plain(value) for key, value in node.items() if key not in IGNORED}
        case list():
            return [plain(value) for value in node]
        case str():
            return node.replace(" ", "")
    return node


@given(layouts())
def test_the_schema_is_the_one_that_java_derives(tree_judge: TreeJudge, layout: Layout) -> None:
    ours, theirs = derived(tree_judge, layout)
    assert ours == theirs


def test_wide_schemas_have_statistics_of_the_columns_that_java_infers(tree_judge: TreeJudge) -> None:
    inner = StructType(*(NestedField(500 + n, f"i{n}", LongType()) for n in range(30)))
    fields = [NestedField(n, f"c{n}", StringType()) for n in range(1, 91)]
    schema = Schema(fields[0], NestedField(499, "s", inner), *fields[1:])
    ours, theirs = derived(tree_judge, Layout(schema, (PartitionSpec(spec_id=0),), version=4))
    assert ours == theirs
    assert len(next(field for field in ours["fields"] if field["id"] == 146)["fields"]) == 100


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((PartitionField(1, 1000, BucketTransform(4), "b"), PartitionField(1, 1000, BucketTransform(8), "b")), "id"),
        ((PartitionField(1, 1000, UnknownTransform("zorder"), "z"),), "'z'"),
    ],
    ids=["one id for two fields", "unknown transform"],
)
def test_specs_without_a_union_are_refused_as_in_java(
    tree_judge: TreeJudge, fields: tuple[PartitionField, ...], why: str
) -> None:
    specs = tuple(PartitionSpec(field, spec_id=number) for number, field in enumerate(fields))
    layout = Layout(Schema(NestedField(1, "id", LongType())), specs, version=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v1.metadata.json"
        path.write_text(json.dumps(layout.metadata(Path(folder), path, 0)))
        with pytest.raises(UnsupportedError, match=why):
            union_tuple_type(StaticTable.from_metadata(str(path)).metadata)
        with pytest.raises(JudgeError, match="ValidationException"):
            tree_judge.ask("schema", metadata=str(path))
