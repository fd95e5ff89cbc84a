"""Names in a merge: the side of each column, and qualified names for an engine."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from floeplan.dml.merge.compile import MergeNames, is_source, source_schema
from floeplan.errors import UnknownColumnError

pytestmark = pytest.mark.unit

INSIDE = StructType(NestedField(4, "b", StringType(), required=False))
TARGET = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "only", LongType(), required=False),
    NestedField(3, "nested", INSIDE, required=False),
)
SOURCE = source_schema(pa.schema([("id", pa.int64()), ("k", pa.int64()), ("a b", pa.int64())]))
NAMES = MergeNames(TARGET, source=SOURCE)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("t.id = s.id", "target.id = source.id"),
        ("T.id = SOURCE.id", "target.id = source.id"),
        ("k + only", "source.k + target.only"),
        ("nested.b = 'k'", "target.nested.b = 'k'"),
        ("t.nested.b", "target.nested.b"),
        ("`a b` > 1 -- k", "source.`a b` > 1 -- k"),
        ("CAST(k AS INT)", "CAST(source.k AS INT)"),
        (
            "aggregate(array(k), 0, (x, y) -> x + y + only)",
            "aggregate(array(source.k), 0, (x, y) -> x + y + target.only)",
        ),
        ("TRUE", "TRUE"),
    ],
)
def test_an_engine_sees_every_column_qualified(text: str, written: str) -> None:
    assert NAMES.qualified(text) == written


def test_one_side_alone() -> None:
    inserts = MergeNames(Schema(), source=SOURCE)
    assert inserts.qualified("id + 1") == "source.id + 1"
    alone = MergeNames(TARGET, source=Schema())
    assert alone.qualified("id + 1") == "target.id + 1"
    assert inserts.find(("id",)).field.field_id >= 1_500_000_000
    assert alone.find(("target", "id")).field.field_id == 1


def test_sides_are_distinguished_by_field_id() -> None:
    assert not is_source(NAMES.find(("t", "id")).field.field_id)
    assert is_source(NAMES.find(("source", "id")).field.field_id)
    assert not is_source(2147483540)


def test_names_of_both_sides_are_ambiguous() -> None:
    with pytest.raises(UnknownColumnError, match=r"both tables have a column id; write target\.id or source\.id"):
        NAMES.find(("id",))
    with pytest.raises(UnknownColumnError, match="missing"):
        NAMES.find(("missing",))


def test_other_qualifiers() -> None:
    names = MergeNames(TARGET, source=SOURCE, target_qualifiers=("old",), source_qualifiers=("new rows",))
    assert names.qualified("old.id = `new rows`.id") == "old.id = `new rows`.id"
    assert names.qualified("only = k") == "old.only = `new rows`.k"
