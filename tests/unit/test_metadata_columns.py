"""Metadata columns: precedence of the table's own columns, the fields of ``_partition``, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField

import floeplan as fp
from floeplan.errors import UnknownColumnError
from floeplan.partition.union import partition_type
from floeplan.scan.model import ScanOptions
from floeplan.spark.metadata_tables import metadata_rows
from tests.support.tables import two_specs
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

QUIET = ScanOptions(report=False)
ID = NestedField(1, "id", LongType(), required=False)
PLAIN = PartitionSpec(spec_id=0)


def test_position_file_and_an_unpartitioned_tuple(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.data([{"id": n} for n in range(5)], Schema(ID), group=2)
    files.positions([(path, 1)])
    table = files.table(Layout(Schema(ID), (PLAIN,)))
    plan = fp.plan_scan(table, "_pos >= 1 AND id <> 3", columns=["_pos", "id", "_file", "_partition"], options=QUIET)
    assert plan.to_arrow().to_pylist() == [{"_pos": n, "id": n, "_file": path, "_partition": None} for n in (2, 4)]
    assert plan.to_arrow(["id", "_deleted"]).to_pylist() == [
        {"id": 1, "_deleted": True},
        {"id": 2, "_deleted": False},
        {"id": 4, "_deleted": False},
    ]
    streamed = plan.to_arrow_batch_reader(["_pos"], limit=1).read_all()
    assert streamed.to_pylist() == [{"_pos": 2}]


def test_columns_of_the_table_come_first(tmp_path: Path) -> None:
    schema = Schema(ID, NestedField(2, "_pos", LongType(), required=False))
    files = Files(tmp_path)
    files.data([{"id": 1, "_pos": 70}], schema)
    table = files.table(Layout(schema, (PLAIN,)))
    assert fp.plan_scan(table, "_pos = 70", columns=["_pos"], options=QUIET).to_arrow().to_pylist() == [{"_pos": 70}]


def test_lineage_needs_format_3(tmp_path: Path) -> None:
    table = Files(tmp_path).table(Layout(Schema(ID), (PLAIN,)))
    with pytest.raises(UnknownColumnError, match="row lineage needs format 3, and the table has format 2"):
        fp.plan_scan(table, columns=["_row_id"], options=QUIET)
    with pytest.raises(UnknownColumnError, match="_nothing"):
        fp.plan_scan(table, columns=["_nothing"], options=QUIET)
    with pytest.raises(UnknownColumnError, match="_deleted"):
        fp.plan_scan(table, "_deleted OR _pos = 1", options=QUIET)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_partition_has_the_fields_whose_source_column_exists(tmp_path: Path, version: str) -> None:
    """As Java's ``Partitioning.partitionType``; the name of a field with a dropped source is free for another."""
    catalog = two_specs.catalog(tmp_path)
    table = catalog.create_table("db.events", two_specs.EVENTS, properties={"format-version": version})
    with table.update_spec() as update:
        update.add_field("id", IdentityTransform(), "p")
    fp.append(table, two_specs.events(1, 2))
    with table.update_spec() as update:
        update.remove_field("p")
    with table.update_spec() as update:
        update.add_field("region", IdentityTransform(), "p")
    fp.append(catalog.load_table("db.events"), two_specs.events(2, 3))
    table = catalog.load_table("db.events")
    assert partitions(table) == [{"p_1000": None, "p": "ap"}, {"p_1000": 1, "p": None}]
    with table.update_spec() as update:
        update.remove_field("p")
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("region")
    assert partitions(catalog.load_table("db.events")) == [{"p": None}, {"p": 1}]
    assert metadata_rows(catalog.load_table("db.events"), "files")["partition"].to_pylist() == [{"p": None}, {"p": 1}]


def partitions(table: Table) -> list[dict[str, object]]:
    found = fp.plan_scan(table, columns=["_partition"], options=QUIET).to_arrow()["_partition"].to_pylist()
    return sorted(found, key=repr, reverse=True)


def test_a_field_of_which_only_voids_are_left_is_null(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.data([{"id": 1}], Schema(ID), partition={"gone": None})
    void = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "gone"), spec_id=0)
    table = files.table(Layout(Schema(ID), (void,)))
    assert str(partition_type(table.metadata)) == "struct<1000: gone: optional long>"
    assert partitions(table) == [{"gone": None}]
    assert metadata_rows(table, "files")["partition"].to_pylist() == [{"gone": None}]
