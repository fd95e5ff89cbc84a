"""Field ids for files without ids: columns, structs, lists and maps by the name mapping."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json

from floeplan.errors import UnsupportedError
from floeplan.scan.file_rows import with_mapped_ids
from floeplan.scan.projection import field_id

pytestmark = pytest.mark.unit

MAPPING = """[
    {"field-id": 1, "names": ["id", "record_id"]},
    {"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["a", "A"]}]},
    {"field-id": 4, "names": ["l"], "fields": [
        {"field-id": 5, "names": ["element"], "fields": [{"field-id": 6, "names": ["x"]}]}]},
    {"field-id": 7, "names": ["m"], "fields": [
        {"field-id": 8, "names": ["key"]}, {"field-id": 9, "names": ["value"]}]}
]"""


@pytest.fixture(scope="module")
def mapping() -> NameMapping:
    return parse_mapping_from_json(MAPPING)


def test_columns_on_every_level_get_their_ids(mapping: NameMapping) -> None:
    type_ = pa.schema(
        [
            ("record_id", pa.int64()),
            ("s", pa.struct([("A", pa.string()), ("b", pa.string())])),
            ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int64())])))),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    rows = [{"record_id": 1, "s": {"A": "a", "b": "b"}, "l": [{"x": 1}], "m": [("k", 2)]}]
    mapped = with_mapped_ids(pa.Table.from_pylist(rows, schema=type_), mapping, "f.parquet")
    assert mapped.to_pylist() == rows
    assert [field_id(field) for field in mapped.schema] == [1, 2, 4, 7]
    struct, list_, map_ = (mapped.schema.field(name).type for name in ("s", "l", "m"))
    assert [field_id(field) for field in struct] == [3, None]
    assert field_id(list_.value_field) == 5
    assert field_id(list_.value_type.field(0)) == 6
    assert (field_id(map_.key_field), field_id(map_.item_field)) == (8, 9)


def test_column_the_mapping_does_not_name_gets_no_id(mapping: NameMapping) -> None:
    mapped = with_mapped_ids(pa.table({"id": [1], "other": [2]}), mapping, "f.parquet")
    assert [field_id(field) for field in mapped.schema] == [1, None]


def test_large_lists_are_mapped_too(mapping: NameMapping) -> None:
    type_ = pa.large_list(pa.field("element", pa.struct([("x", pa.int64())])))
    mapped = with_mapped_ids(pa.table({"l": pa.array([[{"x": 1}]], type_)}), mapping, "f.parquet")
    assert field_id(mapped.schema.field("l").type.value_type.field(0)) == 6


def test_without_a_mapping_the_file_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"f\.parquet carry no field ids"):
        with_mapped_ids(pa.table({"id": [1]}), None, "f.parquet")
