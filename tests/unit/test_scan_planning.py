"""The three passes on a small table of two specs: kept, proven and residual parts, and the summary."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import DoubleType

import floeplan as fp
from floeplan.errors import BadInputError, CorruptMetadataError, UnknownColumnError, UnknownSnapshotError
from floeplan.maintenance.inspect import inspect_table
from floeplan.predicate.stats import TriState
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader
from tests.support.tables.two_specs import START, catalog, events, two_spec_table

pytestmark = pytest.mark.unit

NO_FOOTERS = ScanOptions(footers=False)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("events"))


def ids(table: Table, where: str | None = None, **options: object) -> list[int]:
    found = plan_scan(table, where, **options).to_arrow(["id"])  # type: ignore[arg-type]
    return sorted(found.column("id").to_pylist())


def test_without_a_predicate_everything_is_kept_and_proven(table: Table) -> None:
    plan = plan_scan(table)
    assert (plan.summary.manifests_kept, plan.summary.manifests_total) == (3, 3)
    assert (plan.summary.files_kept, plan.summary.files_total) == (5, 5)
    assert (plan.summary.rows_kept, plan.summary.rows_total) == (300, 300)
    assert plan.summary.row_groups_total is None
    assert plan.summary.bytes_kept == plan.summary.bytes_total
    assert {file.tri_state for file in plan.files} == {TriState.TRUE}
    assert ids(table) == list(range(300))


def test_total_bytes_are_those_of_data_files_as_inspect_counts_them(tmp_path: Path) -> None:
    """A snapshot summary counts delete files too; those of manifests that a plan does not read stay in the total."""
    table = two_spec_table(tmp_path)
    for where in ("id = 5", "id = 203"):
        fp.delete(table, where, mode="merge-on-read")
    table = table.refresh()
    data, deletes = (inspect_table(table).sizes[name] for name in ("data_bytes", "delete_bytes"))
    whole, part = plan_scan(table), plan_scan(table, "region = 'zz'", options=NO_FOOTERS)
    assert (whole.summary.bytes_kept, whole.summary.bytes_total) == (data, data)
    assert part.summary.delete_manifests_kept == 1
    assert part.summary.bytes_total is not None
    assert data < part.summary.bytes_total < data + deletes
    assert "≤" in part.explain()
    assert "≤" not in whole.explain()


def test_partition_values_and_column_bounds_prune_together(table: Table) -> None:
    plan = plan_scan(table, "region = 'eu' AND id >= 150", options=NO_FOOTERS)
    assert {file.spec_id: file.partition for file in plan.files} == {0: {}, 1: {"region": "eu"}}
    by_spec = {spec.spec_id: spec for spec in plan.specs}
    assert (by_spec[0].files_kept, by_spec[0].files_total) == (1, 2)
    assert (by_spec[1].files_kept, by_spec[1].files_total) == (1, 3)


def test_manifest_summaries_prune_whole_manifests(table: Table) -> None:
    plan = plan_scan(table, "region = 'zz' AND id >= 200", options=NO_FOOTERS)
    assert (plan.summary.manifests_kept, plan.summary.manifests_total) == (2, 3)
    assert len(plan.files) == 0


def test_residual_leaves_out_what_is_proven(table: Table) -> None:
    plan = plan_scan(table, "region = 'eu' AND id >= 250", options=NO_FOOTERS)
    (file,) = [file for file in plan.files if file.spec_id == 1]
    assert str(file.residual) == "id >= 250"
    assert file.tri_state is TriState.UNKNOWN


def test_proven_file_needs_no_evaluation(table: Table) -> None:
    plan = plan_scan(table, "region = 'eu' AND id >= 200")
    (file,) = plan.files
    assert file.tri_state is TriState.TRUE
    assert str(file.residual) == "true"
    assert file.row_groups is None, "a proven file is not opened"


@pytest.mark.parametrize(
    "where",
    [
        "region = 'eu'",
        "region <> 'eu' AND id BETWEEN 90 AND 210",
        "id IN (3, 250, 999) OR region IS NULL",
        "v IS NULL",
        "NOT (v > 100)",
        "upper(region) = 'EU' AND id < 20",
        "ts >= '2024-03-05' AND ts < TIMESTAMP_NTZ '2024-03-09 12:00:00'",
        "FALSE",
        "id = NULL",
    ],
)
def test_rows_and_counts_equal_a_full_read(table: Table, where: str) -> None:
    everything = plan_scan(table).to_arrow()
    expected = [
        row["id"]
        for row in everything.to_pylist()
        if _matches(where, row)  # evaluated in plain Python
    ]
    assert ids(table, where) == sorted(expected)
    assert plan_scan(table, where).count() == len(expected)


def _matches(where: str, row: dict[str, object]) -> bool:
    i, region, v, ts = row["id"], row["region"], row["v"], row["ts"]
    return {
        "region = 'eu'": region == "eu",
        "region <> 'eu' AND id BETWEEN 90 AND 210": region != "eu" and 90 <= i <= 210,  # type: ignore[operator]
        "id IN (3, 250, 999) OR region IS NULL": i in (3, 250, 999),
        "v IS NULL": v is None,
        "NOT (v > 100)": v is not None and v <= 100,  # type: ignore[operator]
        "upper(region) = 'EU' AND id < 20": region == "eu" and i < 20,  # type: ignore[operator]
        "ts >= '2024-03-05' AND ts < TIMESTAMP_NTZ '2024-03-09 12:00:00'": START + timedelta(days=4)
        <= ts  # type: ignore[operator]
        < START + timedelta(days=8, hours=12),
        "FALSE": False,
        "id = NULL": False,
    }[where]


def test_predicates_in_all_forms_give_one_plan(table: Table) -> None:
    by_text = plan_scan(table, "region = 'eu'", options=NO_FOOTERS)
    by_expression = plan_scan(table, EqualTo("region", "eu"), options=NO_FOOTERS)
    by_tuple = plan_scan(table, [("region", "=", "eu")], options=NO_FOOTERS)
    kept = [[file.path for file in plan.files] for plan in (by_text, by_expression, by_tuple)]
    assert kept[0] == kept[1] == kept[2]


def test_counting_opens_no_data_file_where_metadata_is_enough(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    assert plan_scan(table).count() == 300
    assert plan_scan(table, "region = 'eu' AND id >= 200").count() == 33


def test_file_that_cannot_be_opened_is_kept_with_a_warning(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    gone = min(tmp_path.rglob("*.parquet"), key=os.path.getmtime)
    gone.unlink()
    plan = plan_scan(table, "v > 10 AND id < 100")
    assert [file.path.endswith(gone.name) for file in plan.files] == [True]
    (warning,) = plan.warnings
    assert warning.kind == "footer-not-used"
    assert gone.name in warning.message


def test_row_groups_are_pruned_and_bytes_counted_for_projected_columns(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table(
        "db.grouped", events(0, 1).schema, properties={"write.parquet.row-group-limit": "100"}
    )
    table.append(events(0, 1000))
    plan = plan_scan(table, "id >= 950", columns=["id"])
    assert (plan.summary.row_groups_kept, plan.summary.row_groups_total) == (1, 10)
    assert plan.summary.rows_kept == 100
    assert plan.files[0].row_groups == (9,)
    whole = plan_scan(table, "id >= 950")
    assert 0 < plan.summary.bytes_kept < whole.summary.bytes_kept
    assert ids(table, "id >= 950") == list(range(950, 1000))


def test_columns_are_in_the_requested_order(table: Table) -> None:
    assert plan_scan(table, columns=["v", "id"]).to_arrow().column_names == ["v", "id"]
    assert plan_scan(table, "region = 'eu'").to_arrow(["ts"], limit=3).num_rows == 3


def test_snapshots_refs_and_times(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    first, second, third = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    table.manage_snapshots().create_tag(second, "before").create_branch(first, "old").commit()
    assert ids(table, snapshot_id=first) == list(range(100))
    assert ids(table, ref="before") == list(range(200))
    assert ids(table, ref="old") == list(range(100))
    assert ids(table, ref="main") == list(range(300))
    third_time = table.metadata.snapshot_by_id(third).timestamp_ms  # type: ignore[union-attr]
    assert ids(table, timestamp_ms=third_time) == list(range(300))
    with pytest.raises(UnknownSnapshotError, match="no snapshot 7; its latest are"):
        plan_scan(table, snapshot_id=7)
    with pytest.raises(UnknownSnapshotError, match="no branch or tag dev; it has: before, main, old"):
        plan_scan(table, ref="dev")
    with pytest.raises(UnknownSnapshotError, match="no snapshot as old as 1970-01-01 00:00:00 UTC; its first is of"):
        plan_scan(table, timestamp_ms=5)
    with pytest.raises(BadInputError, match="exclude each other"):
        plan_scan(table, snapshot_id=first, ref="main")


def test_past_snapshot_is_shown_in_its_own_schema(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    snapshot = table.metadata.current_snapshot_id
    with table.update_schema() as update:
        update.rename_column("v", "value")
    assert plan_scan(table, "value > 140").to_arrow().column_names == ["id", "region", "ts", "value"]
    assert plan_scan(table, "v > 140", snapshot_id=snapshot).to_arrow().column_names[-1] == "v"
    with pytest.raises(UnknownColumnError, match="value"):
        plan_scan(table, "value > 140", snapshot_id=snapshot)


def test_renamed_dropped_and_readded_columns_are_bound_by_id(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    with table.update_schema() as update:
        update.rename_column("id", "key").delete_column("v")
    with table.update_schema() as update:
        update.add_column("v", DoubleType())
    assert plan_scan(table, "key = 250").count() == 1
    assert plan_scan(table, "v > 0").count() == 0
    assert plan_scan(table, "v IS NULL").count() == 300


def test_names_may_ignore_case(table: Table) -> None:
    with pytest.raises(UnknownColumnError):
        plan_scan(table, "REGION = 'eu'")
    assert plan_scan(table, "REGION = 'eu'", case_sensitive=False, columns=["ID"]).count() == 100


def test_unknown_column_names_its_neighbours(table: Table) -> None:
    with pytest.raises(UnknownColumnError, match=r"no column 'regoin'; did you mean region\?"):
        plan_scan(table, columns=["regoin"])


def test_table_without_data(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.empty", events(0, 1).schema)
    plan = plan_scan(table, "id = 1")
    assert (plan.summary.files_kept, plan.summary.files_total, plan.count()) == (0, 0, 0)
    assert plan.to_arrow().column_names == ["id", "region", "ts", "v"]


def test_plan_from_a_metadata_file(table: Table) -> None:
    assert fp.plan_scan(table.metadata_location, "id < 5").count() == 5
    static = StaticTable.from_metadata(table.metadata_location)
    assert plan_scan(static).target.name == table.metadata_location


def test_a_manifest_list_is_decoded_once_while_its_content_is_the_same(tmp_path: Path) -> None:
    """It is read for every plan; another content under its name is decoded again, and a damaged one is an error."""
    table = two_spec_table(tmp_path)
    snapshots = {"older": table.snapshots()[0], "newer": table.current_snapshot()}
    older, newer = (SnapshotReader.open(table, snapshot).manifests for snapshot in snapshots.values())
    assert SnapshotReader.open(table, snapshots["newer"]).manifests is newer
    assert (len(older), len(newer)) == (1, 3)
    paths = {name: Path(one.manifest_list.removeprefix("file://")) for name, one in snapshots.items() if one}
    content = paths["newer"].read_bytes()
    paths["newer"].write_bytes(paths["older"].read_bytes())
    assert SnapshotReader.open(table, snapshots["newer"]).manifests.path == older.path
    paths["newer"].write_bytes(content[:-20])
    with pytest.raises(CorruptMetadataError):
        SnapshotReader.open(table, snapshots["newer"])
    paths["newer"].unlink()
    with pytest.raises(CorruptMetadataError):
        SnapshotReader.open(table, snapshots["newer"])


def test_files_behave_as_a_sequence(table: Table) -> None:
    files = plan_scan(table).files
    assert [file.path for file in files] == [files[i].path for i in range(-5, 0)]
    assert [file.path for file in files[1:3]] == [files[1].path, files[2].path]
    with pytest.raises(IndexError):
        files[5]


def test_page_index_narrows_the_rows(table: Table) -> None:
    plan = plan_scan(table, "id = 250", options=ScanOptions(page_index=True, bloom_filter=True))
    assert plan.count() == 1


def test_recovered_counts_files_whose_new_partition_is_provable(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.moved", events(0, 1).schema)
    table.append(events(0, 1))
    table.append(events(0, 30))
    with table.update_spec() as update:
        update.add_identity("region")
    plan = plan_scan(table, options=ScanOptions(recover=True))
    by_spec = {spec.spec_id: spec.recovered for spec in plan.specs}
    assert by_spec == {0: 1, 1: 0}
