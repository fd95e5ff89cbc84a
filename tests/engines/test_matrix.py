"""The matrix tables have the properties that their names state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.transforms import VoidTransform

from tests.support.spark.iceberg_java import planned_tasks, spec_texts
from tests.support.spark.matrix import Matrix, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

pytestmark = [pytest.mark.engines, pytest.mark.matrix]


def delete_files(matrix: Matrix, name: str) -> list[dict[str, Any]]:
    return matrix.table(name).metadata("delete_files").drop_columns("readable_metrics").to_pylist()


def loaded(matrix: Matrix, name: str, catalog: SqlCatalog) -> Table:
    return catalog.load_table(matrix.table(name).identifier)


def test_a_renamed_partition_field_keeps_its_id(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    specs = loaded(matrix, "evolving_v2", local_catalog).specs()
    names = {
        field.field_id: {f.name for s in specs.values() for f in s.fields if f.field_id == field.field_id}
        for field in specs[5].fields
    }
    assert list(names.values()) == [{"ts_month", "when_month"}]


@pytest.mark.parametrize("name", parametrized(["evolving_v1", "evolving_v2", "evolving_v3"]))
def test_evolved_tables_have_live_files_of_five_specs(name: str, matrix: Matrix) -> None:
    assert len(set(matrix.table(name).metadata("data_files")["spec_id"].to_pylist())) == 5


def test_format_1_has_files_of_a_spec_of_nothing_but_voids(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    specs = loaded(matrix, "voids_v1", local_catalog).specs()
    void = {
        i
        for i, spec in specs.items()
        if spec.fields and all(isinstance(f.transform, VoidTransform) for f in spec.fields)
    }
    assert void & set(matrix.table("voids_v1").metadata("data_files")["spec_id"].to_pylist())


def test_spec_ids_have_gaps_and_do_not_start_at_0(matrix: Matrix) -> None:
    made = matrix.table("gaps_v2")
    assert sorted(spec_texts(made.java())) == [2, 4]


def test_an_old_spec_partitions_by_a_column_of_the_same_name_and_another_id(
    matrix: Matrix, local_catalog: SqlCatalog
) -> None:
    table = loaded(matrix, "dropped_sources_v2", local_catalog)
    sources = {field.source_id for spec in table.specs().values() for field in spec.fields if "region" in field.name}
    assert len(sources) == 2
    assert table.schema().find_field("region").field_id == max(sources)


def test_partition_granularity_makes_deletes_of_several_files(matrix: Matrix) -> None:
    """Iceberg writes bounds of the path only for a delete file of one data file."""
    files = delete_files(matrix, "evolving_v2_position_partition")
    with_bounds = [bool(file["lower_bounds"]) for file in files]
    assert True in with_bounds
    assert False in with_bounds


def test_the_upgraded_table_has_position_deletes_and_vectors(matrix: Matrix) -> None:
    name = "evolving_v2_to_v3_vectors"
    assert {file["file_format"] for file in delete_files(matrix, name)} == {"PARQUET", "PUFFIN"}
    tasks = planned_tasks(matrix.spark, matrix.table(name).java())
    kinds = {tuple(sorted(delete.format().toString() for delete in task.deletes())) for task in tasks}
    assert ("PUFFIN",) in kinds
    assert any(set(kind) == {"PARQUET"} for kind in kinds)


def test_deletion_vectors_share_a_file(matrix: Matrix) -> None:
    files = delete_files(matrix, "evolving_v3_vectors")
    assert len({file["file_path"] for file in files}) < len(files)
    assert len({file["spec_id"] for file in files}) == 5


def test_equality_deletes_are_global_partitioned_and_of_void_specs(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    files = delete_files(matrix, "voids_v1_to_v2_equality")
    specs = loaded(matrix, "voids_v1_to_v2_equality", local_catalog).specs()
    voids = {
        file["spec_id"]: [isinstance(f.transform, VoidTransform) for f in specs[file["spec_id"]].fields]
        for file in files
    }
    assert [] in voids.values()
    assert any(fields and all(fields) for fields in voids.values())
    assert any(fields and not any(fields) for fields in voids.values())
    assert {len(file["equality_ids"]) for file in files} == {1, 2}


def test_a_fork_changes_and_the_shared_table_does_not(matrix: Matrix) -> None:
    shared, fork = matrix.table("evolving_v2"), matrix.fork("evolving_v2")
    before = shared.rows().to_pylist()
    matrix.spark.sql(f"DELETE FROM {fork.name} WHERE region = 'eu'")
    assert fork.rows().num_rows < len(before)
    assert repr(shared.rows().to_pylist()) == repr(before)
