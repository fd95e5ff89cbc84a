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
from floeplan.errors import TypeMismatchError, UnknownColumnError
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
    with pytest.raises(UnknownColumnError, match=r"no column _partition\.nothing; did you mean _partition"):
        fp.plan_scan(table, "_partition.nothing = 1", options=QUIET)
    with pytest.raises(TypeMismatchError, match=r"_partition is a struct .* name a primitive field"):
        fp.plan_scan(table, "_partition = 1", options=QUIET)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("_deleted", [1, 3]),
        ("_deleted AND id > 1", [3]),
        ("id < 5 OR _deleted", [0, 1, 2, 3, 4]),  # metadata prove the first part for all rows
        ("id < 3 AND NOT _deleted", [0, 2]),
        ("_deleted IS NULL", []),
        ("id < 3", [0, 2]),
        ("_partition IS NULL AND _pos < 4", [0, 2]),
    ],
)
def test_a_predicate_with_deleted_returns_deleted_rows(tmp_path: Path, where: str, expected: list[int]) -> None:
    files = Files(tmp_path)
    path = files.data([{"id": n} for n in range(5)], Schema(ID), group=2)
    files.positions([(path, 1)])
    files.keys([{"id": 3}], Schema(ID), [1])
    table = files.table(Layout(Schema(ID), (PLAIN,)))
    plan = fp.plan_scan(table, where, columns=["id"], options=QUIET)
    assert plan.to_arrow()["id"].to_pylist() == expected
    assert plan.to_arrow_batch_reader().read_all()["id"].to_pylist() == expected
    assert plan.to_arrow(limit=2)["id"].to_pylist() == expected[:2]
    assert plan.count() == len(expected)
    marked = plan.to_arrow(["id", "_deleted"]).to_pylist()
    assert {row["id"]: row["_deleted"] for row in marked if row["id"] in expected} == {n: n in (1, 3) for n in expected}


def test_a_change_refuses_metadata_columns_in_its_condition(tmp_path: Path) -> None:
    table = partitioned_twice(tmp_path, "2")
    for where in ("_pos = 1", "_deleted OR id = 1", "_partition.p = 'ap'"):
        with pytest.raises(UnknownColumnError, match=r"there is no column _.*(columns are id|did you mean)"):
            fp.delete(table, where)
        with pytest.raises(UnknownColumnError, match="there is no column _"):
            fp.update(table, {"id": "id + 1"}, where)
    assert fp.plan_scan(table, options=QUIET).count() == 2


def test_metadata_columns_are_found_whatever_their_case(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.data([{"id": n} for n in range(3)], Schema(ID))
    table = files.table(Layout(Schema(ID), (PLAIN,)))
    assert fp.plan_scan(table, "_POS = 1", case_sensitive=False, options=QUIET).to_arrow()["id"].to_pylist() == [1]


def test_fields_of_the_partition_filter(tmp_path: Path) -> None:
    table = partitioned_twice(tmp_path, "2")
    for where, expected in (
        ("_partition.p = 'ap'", [2]),
        ("_partition.p_1000 = 1", [1]),
        ("_partition.p IS NULL", [1]),
        ("_partition.p IS NULL OR id = 2", [1, 2]),
        ("upper(_partition.p) = upper(region)", [2]),
        ("_partition IS NOT NULL AND _spec_id > 0", [1, 2]),
        ("_partition.p IN ('eu', 'us')", []),
    ):
        plan = fp.plan_scan(table, where, columns=["id"], options=QUIET)
        assert sorted(plan.to_arrow()["id"].to_pylist()) == expected, where
        assert plan.count() == len(expected)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_partition_has_the_fields_whose_source_column_exists(tmp_path: Path, version: str) -> None:
    """As Java's ``Partitioning.partitionType``; the name of a field with a dropped source is free for another."""
    table = partitioned_twice(tmp_path, version)
    catalog = table.catalog
    assert partitions(table) == [{"p_1000": None, "p": "ap"}, {"p_1000": 1, "p": None}]
    with table.update_spec() as update:
        update.remove_field("p")
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("region")
    assert partitions(catalog.load_table("db.events")) == [{"p": None}, {"p": 1}]
    assert metadata_rows(catalog.load_table("db.events"), "files")["partition"].to_pylist() == [{"p": None}, {"p": 1}]


def partitioned_twice(tmp_path: Path, version: str) -> Table:
    """A row partitioned by its id, and one by its region, both as ``p``."""
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
    return catalog.load_table("db.events")


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
