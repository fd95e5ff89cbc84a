"""Files and entries by spec: any spec of the table is valid, groups are sorted, unknown specs are named."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, VoidTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampType

from floeplan.errors import UnknownSpecError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.transaction.manifests import (
    find_compatible_schema,
    group_entries_by_spec,
    group_files_by_spec,
    validate_added_data_files,
)
from tests.support.tables.layouts import Layout

pytestmark = pytest.mark.unit

ID = NestedField(1, "id", LongType(), required=False)
TS = NestedField(2, "ts", TimestampType(), required=False)
REGION = NestedField(3, "region", StringType(), required=False)
BY_DAY = PartitionField(2, 1000, DayTransform(), "day")
BY_REGION = PartitionField(3, 1001, IdentityTransform(), "region")
LAYOUT = Layout(
    Schema(ID, TS, REGION, schema_id=0),
    (PartitionSpec(spec_id=0), PartitionSpec(BY_DAY, spec_id=1), PartitionSpec(BY_DAY, BY_REGION, spec_id=2)),
)


def files(*spec_ids: int | None) -> EntriesTable:
    return LAYOUT.entries([{"spec_id": spec_id} for spec_id in spec_ids]) if spec_ids else no_files()


def no_files() -> EntriesTable:
    return LAYOUT.entries([{"spec_id": 0}]).take(pa.array([], pa.int64()).to_numpy())


def paths(groups: dict[int, EntriesTable]) -> dict[int, list[str]]:
    return {spec_id: group.path.to_pylist() for spec_id, group in groups.items()}


def test_group_files_by_spec_empty() -> None:
    assert group_files_by_spec(no_files()) == {}


def test_group_files_by_spec_single_spec() -> None:
    given = files(0, 0)
    groups = group_files_by_spec(given)
    assert list(groups) == [0]
    assert groups[0] is given, "one spec needs no copy"


def test_group_files_by_spec_multiple_specs() -> None:
    assert paths(group_files_by_spec(files(0, 1, 0))) == {0: ["f0.parquet", "f2.parquet"], 1: ["f1.parquet"]}


def test_group_files_by_spec_v1_defaults_to_zero() -> None:
    groups = group_files_by_spec(files(None, 0, 1))
    assert paths(groups) == {0: ["f0.parquet", "f1.parquet"], 1: ["f2.parquet"]}
    assert groups[0].array("spec_id").to_pylist() == [0, 0]


def test_group_files_by_spec_is_sorted() -> None:
    assert list(group_files_by_spec(files(2, 0, 1, 2))) == [0, 1, 2]


def test_group_entries_by_spec_empty() -> None:
    assert group_entries_by_spec(no_files()) == {}


def test_group_entries_by_spec_single_spec() -> None:
    assert paths(group_entries_by_spec(files(1, 1))) == {1: ["f0.parquet", "f1.parquet"]}


def test_group_entries_by_spec_multiple_specs() -> None:
    assert paths(group_entries_by_spec(files(2, 0, 2))) == {0: ["f1.parquet"], 2: ["f0.parquet", "f2.parquet"]}


def test_validate_accepts_any_valid_spec() -> None:
    validate_added_data_files(files(1, 0, 2, None), [0, 1, 2])


def test_validate_rejects_unknown_spec() -> None:
    with pytest.raises(UnknownSpecError):
        validate_added_data_files(files(0, 99), [0, 1])


def test_validate_rejects_unknown_spec_with_clear_message() -> None:
    with pytest.raises(UnknownSpecError, match=r"f1\.parquet is of partition spec 99.*it has 0, 1$") as caught:
        validate_added_data_files(files(0, 99), [1, 0])
    assert caught.value.context == {"spec_id": 99, "file": "f1.parquet"}


def table(schemas: Sequence[Schema]) -> TableMetadata:
    """Metadata whose current schema is the last one."""
    return TableMetadataUtil.parse_obj(
        {
            "format-version": 2,
            "table-uuid": "6f1c2b9e-0000-4000-8000-000000000001",
            "location": "somewhere",
            "last-updated-ms": 1,
            "last-column-id": 9,
            "schemas": [schema.model_dump() for schema in schemas],
            "current-schema-id": schemas[-1].schema_id,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "last-sequence-number": 0,
        }
    )


def test_the_current_schema_is_taken_if_the_sources_are_in_it() -> None:
    found = find_compatible_schema(table([Schema(TS, schema_id=0), Schema(ID, TS, schema_id=1)]), LAYOUT.spec(1))
    assert found.schema_id == 1


def test_the_newest_historical_schema_is_taken_if_a_source_was_dropped() -> None:
    schemas = [Schema(ID, TS, schema_id=0), Schema(TS, schema_id=1), Schema(ID, schema_id=2)]
    assert find_compatible_schema(table(schemas), LAYOUT.spec(1)).schema_id == 1


def test_a_schema_in_which_the_source_has_an_unfit_type_is_not_taken() -> None:
    unfit = NestedField(2, "ts", IntegerType(), required=False)
    assert (
        find_compatible_schema(table([Schema(TS, schema_id=0), Schema(unfit, schema_id=1)]), LAYOUT.spec(1)).schema_id
        == 0
    )


def test_a_void_field_needs_no_source() -> None:
    spec = PartitionSpec(PartitionField(2, 1000, VoidTransform(), "day"), spec_id=3)
    assert find_compatible_schema(table([Schema(ID, schema_id=0)]), spec).schema_id == 0


def test_a_spec_that_no_schema_fits_is_named() -> None:
    spec = PartitionSpec(PartitionField(8, 1000, BucketTransform(4), "b"), spec_id=7)
    with pytest.raises(UnknownSpecError, match="partition spec 7"):
        find_compatible_schema(table([Schema(ID, schema_id=0)]), spec)
