"""CALL: Iceberg's procedures by name, argument and result column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import BadInputError, FloeplanError, UnknownTableError
from floeplan.sql_text.call import ProcedureResult
from floeplan.transaction.refs import create_branch

pytestmark = pytest.mark.unit

SCHEMA = pa.schema({"k": pa.int64(), "region": pa.string()})
Call = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """Six appends of ten rows."""
    catalog = SqlCatalog("other", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", SCHEMA)
    for start in range(0, 60, 10):
        regions = ["eu", "us"] * 5
        fp.append(made.refresh(), pa.table({"k": range(start, start + 10), "region": regions}, SCHEMA))
    yield made.refresh()
    catalog.close()


@pytest.fixture
def call(table: Table) -> Call:
    def call(statement: str) -> list[dict[str, Any]]:
        result = fp.sql(None, f"CALL floeplan.system.{statement}", catalog=table.catalog)
        assert isinstance(result, ProcedureResult)
        document = result.to_dict()
        assert list(document["rows"][0] if document["rows"] else document["columns"]) == document["columns"]
        assert result.to_arrow().num_rows == len(document["rows"])
        rows: list[dict[str, Any]] = document["rows"]
        return rows

    return call


def ids(table: Table) -> list[int]:
    return [one.snapshot_id for one in table.refresh().snapshots()]


def test_rewrite_data_files(call: Call, table: Table) -> None:
    (row,) = call("rewrite_data_files(table => 'db.t', options => map('min-input-files', '2'))")
    size = row.pop("rewritten_bytes_count")
    assert size > 0
    assert row == {
        "rewritten_data_files_count": 6,
        "added_data_files_count": 1,
        "failed_data_files_count": 0,
        "removed_delete_files_count": 0,
    }
    assert len(fp.plan_scan(table.refresh()).files) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "strategy => 'sort', sort_order => 'region DESC NULLS LAST, k'",
        "strategy => 'sort', sort_order => 'zorder(k, region)'",
        "sort_order => 'ZORDER(k)'",
    ],
)
def test_rewrite_data_files_sorts(call: Call, table: Table, arguments: str) -> None:
    options = "options => map('rewrite-all', true)"
    (row,) = call(f"rewrite_data_files(table => 'db.t', {arguments}, {options}, where => 'K >= 0')")
    assert row["rewritten_data_files_count"] == 6
    assert fp.plan_scan(table.refresh()).count() == 60


def test_positional_arguments_and_nulls(call: Call, table: Table) -> None:
    assert (
        call("rewrite_data_files('db.t', 'binpack', NULL, map('rewrite-all', 'true'))")[0]["added_data_files_count"]
        == 1
    )
    assert fp.sql(None, "CALL system.ancestors_of('db.t', NULL);", catalog=table.catalog).to_dict()["rows"] != []


def test_rewrite_manifests(call: Call) -> None:
    assert call("rewrite_manifests(table => '`db`.`t`', use_caching => false)") == [
        {"rewritten_manifests_count": 6, "added_manifests_count": 1}
    ]


def test_expire_snapshots(call: Call, table: Table) -> None:
    fp.overwrite(table, pa.table({"k": [1], "region": ["eu"]}, SCHEMA))
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    (row,) = call(f"expire_snapshots(table => 'db.t', older_than => TIMESTAMP '{later}', retain_last => 1)")
    assert row["deleted_data_files_count"] == 6
    assert row["deleted_position_delete_files_count"] == row["deleted_statistics_files_count"] == 0
    assert row["deleted_manifest_lists_count"] == 6
    assert len(ids(table)) == 1


def test_remove_orphan_files(call: Call) -> None:
    assert call("remove_orphan_files(table => 'db.t', dry_run => true)") == []
    assert call("remove_orphan_files(table => 'db.t', older_than => '2020-01-01 00:00:00')") == []


def test_rollback_and_current_snapshot(call: Call, table: Table) -> None:
    all_ids = ids(table)
    moved = {"previous_snapshot_id": all_ids[5], "current_snapshot_id": all_ids[2]}
    assert call(f"rollback_to_snapshot('db.t', {all_ids[2]}L)") == [moved]
    moved = {"previous_snapshot_id": all_ids[2], "current_snapshot_id": all_ids[5]}
    assert call(f"set_current_snapshot(table => 'db.t', snapshot_id => {all_ids[5]})") == [moved]
    create_branch(table.refresh(), "b", all_ids[1])
    assert call("set_current_snapshot('db.t', ref => 'b')")[0]["current_snapshot_id"] == all_ids[1]
    assert call("fast_forward('db.t', 'b', 'main')") == [
        {"branch_updated": "b", "previous_ref": all_ids[1], "updated_ref": all_ids[1]}
    ]
    assert [row["snapshot_id"] for row in call("ancestors_of('db.t')")] == [all_ids[1], all_ids[0]]
    second = datetime.fromtimestamp(table.snapshots()[1].timestamp_ms / 1000, UTC)
    moved = {"previous_snapshot_id": all_ids[1], "current_snapshot_id": all_ids[0]}
    assert call(f"rollback_to_timestamp('db.t', TIMESTAMP '{second.isoformat()}')") == [moved]
    with pytest.raises(BadInputError, match="older than"):
        call("rollback_to_timestamp('db.t', TIMESTAMP '2020-01-01 00:00:00')")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("nope('db.t')", "unknown procedure nope"),
        ("rewrite_manifest('db.t')", "did you mean rewrite_manifests"),
        ("rewrite_manifests()", "needs table"),
        ("rewrite_manifests(5)", "needs table"),
        ("rewrite_manifests('db.t', tabel => 1)", "did you mean table"),
        ("rewrite_manifests(table => 'db.t', false)", "must be named"),
        ("rewrite_manifests('db.t', table => 'db.t')", "given twice"),
        ("rewrite_manifests('db.t', true, 1, 2)", "at most 3 arguments"),
        ("rewrite_manifests('db.t', spec_id => 'x')", "must be a number"),
        ("rewrite_manifests('db.t', spec_id => 1 + 1)", "must be a literal"),
        ("expire_snapshots('db.t', retain_last => -1.5)", "must be a literal, not retain_last => -1.5"),
        ("rewrite_manifests('db.t') x", "the end of the statement"),
        ("rewrite_data_files('db.t', options => map('a'))", r"map\('a'\) has a key without a value"),
        ("rewrite_data_files('db.t', options => map('min-input', '1'))", "min-input"),
        ("rewrite_data_files('db.t', options => map('allow-late-equality-deletes', 'yes'))", "must be true or false"),
        ("rewrite_position_delete_files('db.t', options => map('rewrite-all', 1))", "must be true or false"),
        ("expire_snapshots('db.t', older_than => 'soon')", "not a time"),
        (
            "remove_orphan_files('db.t', TIMESTAMP '2099-01-01 00:00:00')",
            r"^older_than is 2099-01-01T00:00:00\+00:00, but files younger than 1 day may belong to a running commit; "
            "give an earlier time$",
        ),
        ("rollback_to_snapshot('db.t')", "snapshot_id is missing"),
        ("set_current_snapshot('db.t')", "either snapshot_id or ref"),
    ],
)
def test_bad_calls_change_nothing(call: Call, table: Table, statement: str, message: str) -> None:
    with pytest.raises(FloeplanError, match=message):
        call(statement)
    assert table.refresh().metadata_location == table.metadata_location


def test_names_and_catalogs(table: Table) -> None:
    with pytest.raises(BadInputError, match="write CALL floeplan"):
        fp.sql(None, "CALL rewrite_manifests('db.t')", catalog=table.catalog)
    with pytest.raises(FloeplanError, match="no catalog 'nope'"):
        fp.sql(None, "CALL nope.system.rewrite_manifests('db.t')", catalog=table.catalog)
    with pytest.raises(UnknownTableError):
        fp.sql(None, "CALL floeplan.system.rewrite_manifests('db.nope')", catalog=table.catalog)
    with pytest.raises(BadInputError, match="does not take branch"):
        fp.sql(None, "CALL floeplan.system.rewrite_manifests('db.t')", catalog=table.catalog, branch="b")
