"""Deletes in tables with incomplete metadata still apply to their data files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField

from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

OLD = Schema(NestedField(1, "id", LongType()), NestedField(9, "gone", LongType()), schema_id=0)
NOW = Schema(NestedField(1, "id", LongType()), schema_id=1)
BY_BOTH = PartitionSpec(
    PartitionField(9, 1000, IdentityTransform(), "gone"), PartitionField(1, 1001, IdentityTransform(), "id"), spec_id=0
)
PLAIN = PartitionSpec(spec_id=1)


def filed(gone: int, number: int) -> dict[str, int]:
    return {"spec_id": 0, "partition.1000": gone, "partition.1001": number}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def forgetful(files: Files) -> StaticTable:
    """The table without any schema that has the column `gone`."""
    table = files.table(Layout(NOW, (BY_BOTH, PLAIN), older_schemas=(OLD,)))
    path = Path(table.metadata_location)
    document = json.loads(path.read_text())
    document["schemas"] = [schema for schema in document["schemas"] if schema["schema-id"] == 1]
    path.write_text(json.dumps(document))
    return StaticTable.from_metadata(str(path))


def test_partition_of_unknown_type_that_only_deletes_have(files: Files) -> None:
    files.data([{"id": 5, "gone": 1}], OLD, **filed(1, 5))
    files.data([{"id": 7}, {"id": 8}], NOW, spec_id=1)
    files.keys([{"id": 7}], NOW, [1], **filed(2, 7))
    plan = plan_scan(forgetful(files), "id = 7", options=ScanOptions(report=False))
    assert plan.summary.manifests_kept == 1
    assert plan.to_arrow().to_pylist() == [{"id": 7}]


def test_a_partition_of_unknown_type_still_separates_files(files: Files) -> None:
    for gone in (1, 2):
        files.data([{"id": 7, "gone": gone}, {"id": 8, "gone": gone}], OLD, **filed(gone, 7))
    files.keys([{"id": 7}], NOW, [1], **filed(2, 7))
    assert plan_scan(forgetful(files)).to_arrow().to_pylist() == [{"id": 7}, {"id": 8}, {"id": 8}]


def test_delete_manifests_of_other_partitions_are_not_opened(files: Files) -> None:
    files.data([{"id": 7, "gone": 1}], OLD, **filed(1, 7))
    files.keys([{"id": 8}], NOW, [1], **filed(1, 8))
    summary = plan_scan(forgetful(files), "id = 7").summary
    assert (summary.delete_manifests_kept, summary.delete_manifests_total, summary.deletes_total) == (0, 1, 1)


def test_keys_deleted_under_void_fields_alone_are_deleted_everywhere(files: Files) -> None:
    """A spec with only void fields is unpartitioned, so its equality deletes are global."""
    by_id = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"), spec_id=0)
    dropped = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "id"), spec_id=1)
    files.data([{"id": 7}], NOW, spec_id=0, **{"partition.1000": 7})
    files.data([{"id": 7}, {"id": 8}], NOW, spec_id=1)
    files.keys([{"id": 7}], NOW, [1], spec_id=1)
    assert plan_scan(files.table(Layout(NOW, (by_id, dropped)))).to_arrow().to_pylist() == [{"id": 8}]
