"""Metadata tables, incremental reads and changelogs on Spark, compared with Iceberg's own and with the rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from floeplan.errors import BadInputError, UnknownOptionError, UnknownSnapshotError
from floeplan.spark.incremental import incremental
from floeplan.spark.metadata_tables import metadata_rows, metadata_table
from tests.support.spark.matrix import Matrix, MatrixTable, interpreted, parametrized
from tests.support.spark.matrix_predicates import canonical, load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.engines

COMPARED = {
    "snapshots": ("committed_at", "snapshot_id", "parent_id", "operation", "manifest_list"),
    "history": ("made_current_at", "snapshot_id", "parent_id", "is_current_ancestor"),
    "refs": ("name", "type", "snapshot_id"),
    "manifests": (
        "content",
        "path",
        "length",
        "partition_spec_id",
        "added_snapshot_id",
        "added_data_files_count",
        "existing_data_files_count",
        "deleted_data_files_count",
        "added_delete_files_count",
        "existing_delete_files_count",
        "deleted_delete_files_count",
    ),
    "files": (
        "content",
        "file_path",
        "partition",
        "file_format",
        "spec_id",
        "record_count",
        "file_size_in_bytes",
        "column_sizes",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
        "split_offsets",
        "equality_ids",
    ),
    "entries": ("status", "snapshot_id", "sequence_number", "file_sequence_number"),
    "data_files": ("content", "file_path", "spec_id", "record_count"),
    "delete_files": ("content", "file_path", "spec_id", "record_count"),
    "metadata_log_entries": ("file", "timestamp", "latest_snapshot_id", "latest_schema_id", "latest_sequence_number"),
    "all_manifests": ("path", "content", "reference_snapshot_id", "added_data_files_count"),
    "all_entries": ("status", "snapshot_id", "sequence_number", "file_sequence_number"),
    "all_files": ("content", "file_path", "spec_id", "record_count"),
    "all_data_files": ("content", "file_path", "spec_id", "record_count"),
    "all_delete_files": ("content", "file_path", "spec_id", "record_count"),
    "position_deletes": ("file_path", "pos", "spec_id", "delete_file_path"),
}


@pytest.mark.parametrize(
    "name", parametrized(["evolving_v2_position_file", "evolving_v3_equality", "voids_v1", "dropped_sources_v2"])
)
def test_metadata_tables_equal_those_of_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    for of, columns in COMPARED.items():
        ours = metadata_table(matrix.spark, table, of).toArrow()
        theirs = matrix.spark.table(f"{made.name}.{of}").select(*columns).toArrow()
        for column in columns:
            pair = list(dict.fromkeys((columns[0], column, *({"file_path"} & {*columns}))))
            assert values(ours.select(pair)) == values(theirs.select(pair)), (of, column)


def values(rows: pa.Table) -> list[str]:
    """Rows as texts, with maps sorted by key."""
    return sorted(
        repr({name: sorted(value) if isinstance(value, list) else value for name, value in row.items()})
        for row in rows.to_pylist()
    )


@pytest.mark.parametrize("name", parametrized(["evolving_v2_position_file", "evolving_v3_equality", "voids_v1"]))
def test_partitions_sum_up_the_files_of_each_spec_apart(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    expected: dict[tuple[int, str], Counter[str]] = {}
    for file in made.metadata("files").to_pylist():
        kind = ("", "position_delete_", "equality_delete_")[file["content"]]
        sums = expected.setdefault((file["spec_id"], partition(file)), Counter())
        sums.update({f"{kind}record_count": file["record_count"], f"{kind}file_count": 1})
        if not kind:
            sums["total_data_file_size_in_bytes"] += file["file_size_in_bytes"]
    rows = metadata_rows(load(made, local_catalog), "partitions").to_pylist()
    counted = [column for column in rows[0] if column.endswith(("_count", "_bytes"))]
    found = {(row["spec_id"], partition(row)): Counter({c: row[c] for c in counted if row[c]}) for row in rows}
    assert found == expected
    assert len(rows) == len(found)
    times = {at: row["committed_at"] for row in made.metadata("snapshots").to_pylist() for at in [row["snapshot_id"]]}
    assert all(row["last_updated_at"] == times[row["last_updated_snapshot_id"]] for row in rows)


def partition(row: dict[str, Any]) -> str:
    return repr(sorted(str(value) for value in row["partition"].values() if value is not None))


def test_unknown_names_are_one_clear_line(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    table = load(matrix.table("evolving_v2"), local_catalog)
    with pytest.raises(UnknownOptionError, match="unknown metadata table 'filez'; must be one of snapshots"):
        metadata_rows(table, "filez")
    with pytest.raises(UnknownSnapshotError):
        incremental(matrix.spark, table, None, 1)
    with pytest.raises(BadInputError, match="is not an ancestor of"):
        incremental(matrix.spark, table, 1)


@pytest.mark.parametrize("name", parametrized(["evolving_v2", "evolving_v3_vectors"]))
def test_appended_rows_equal_those_of_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table, history = load(made, local_catalog), main_line(made, local_catalog)
    for start, end in ((history[0], history[-1]), (history[1], history[4])):
        reader = matrix.spark.read.format("iceberg").option("start-snapshot-id", start).option("end-snapshot-id", end)
        theirs = reader.load(made.name).toArrow()
        assert theirs.num_rows
        assert canonical(incremental(matrix.spark, table, start, end).toArrow()) == canonical(theirs)
        few = incremental(matrix.spark, table, start, end, where="region = 'eu'", columns=["pk"]).toArrow()
        assert canonical(few) == canonical(theirs.filter(_is_eu(theirs)).select(["pk"]))


def _is_eu(rows: pa.Table) -> Any:
    import pyarrow.compute as pc

    return pc.equal(rows["region"], "eu")


def main_line(made: MatrixTable, catalog: SqlCatalog) -> list[int]:
    """The ancestors of the current snapshot, oldest first."""
    log = load(made, catalog).metadata.snapshot_log
    return [entry.snapshot_id for entry in log]


def test_the_changelog_equals_that_of_iceberg(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table("evolving_v2")
    table, history = load(made, local_catalog), main_line(made, local_catalog)
    options = f"map('start-snapshot-id', '{history[1]}', 'end-snapshot-id', '{history[-1]}')"
    call = f"create_changelog_view(table => '{made.name}', options => {options}, changelog_view => 'theirs')"
    matrix.spark.sql(f"CALL local.system.{call}")
    theirs, ours = (matrix.spark.table("theirs"), incremental(matrix.spark, table, history[1], changelog=True))
    assert {row["_change_type"] for row in theirs.select("_change_type").collect()} == {"INSERT", "DELETE"}
    assert net_changes(ours.toArrow()) == net_changes(theirs.toArrow())


def net_changes(rows: pa.Table) -> dict[str, int]:
    """Inserts minus deletes of each row, by commit.

    Iceberg compares binary values by identity, so it reports unchanged rows that have any.
    """
    net: Counter[str] = Counter()
    for row in rows.select(sorted(rows.column_names)).to_pylist():
        sign = 1 if row.pop("_change_type") == "INSERT" else -1
        net[repr(row)] += sign
    return {row: count for row, count in net.items() if count}


@pytest.mark.parametrize(
    "name",
    parametrized(["evolving_v2_position_file", "evolving_v3_equality", "evolving_v2_to_v3_vectors", "voids_v1"]),
)
def test_the_changelog_is_the_difference_of_the_rows(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table, history = load(made, local_catalog), main_line(made, local_catalog)
    shown = made.columns
    with interpreted(matrix.spark):
        ours = incremental(matrix.spark, table, None, changelog=True).toArrow().to_pylist()
    states = [Counter[str]()] + [Counter(map(repr, made.rows(snapshot_id=at).to_pylist())) for at in history]
    for number, snapshot_id in enumerate(history):
        before, after = states[number], states[number + 1]
        changes = [row for row in ours if row["_commit_snapshot_id"] == snapshot_id]
        for kind, expected in (("INSERT", after - before), ("DELETE", before - after)):
            found = Counter(repr({c: row[c] for c in shown}) for row in changes if row["_change_type"] == kind)
            assert found == expected, (snapshot_id, kind)
