"""Commands that change tables, as scripts see them: JSON keys, exit codes, unchanged tables after errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.scan.plan import plan_scan
from tests.support.tables.two_specs import events

pytestmark = pytest.mark.unit

KEYS = {
    "operation",
    "mode",
    "snapshot_id",
    "rows_deleted",
    "rows_inserted",
    "rows_updated",
    "data_files_added",
    "data_files_removed",
    "delete_files_added",
    "delete_files_removed",
    "manifests_written",
    "attempts",
}
ERROR = {"kind", "message", "context", "retryable", "committed"}


class Shell:
    """The command line on the embedded catalog with one table: an unpartitioned file, then one file per region."""

    def __init__(self, catalog: SqlCatalog, capsys: pytest.CaptureFixture[str]) -> None:
        self.catalog, self._capsys = catalog, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        return code, *self._capsys.readouterr()

    def document(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self(*arguments, "--json")
        assert code == 0, (out, err)
        found: dict[str, Any] = json.loads(out)
        return found

    def error(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        before = self.table.metadata_location
        code, out, _ = self(*arguments, "--json")
        found = json.loads(out)["error"]
        assert found.keys() == ERROR
        assert self.table.metadata_location == before
        return code, found

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.events")

    def ids(self, ref: str | None = None) -> list[int]:
        rows: list[int] = plan_scan(self.table, ref=ref).to_arrow()["id"].to_pylist()
        return sorted(rows)

    def column(self, name: str) -> dict[int, Any]:
        rows = plan_scan(self.table).to_arrow()
        return dict(zip(rows["id"].to_pylist(), rows[name].to_pylist(), strict=True))


def make_catalog() -> SqlCatalog:
    catalog = open_catalog()
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", events(0, 1).schema)
    table.append(events(0, 100))
    with table.update_spec() as update:
        update.add_identity("region")
    table.append(events(100, 130))
    return catalog


@pytest.fixture
def shell(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(make_catalog(), capsys)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SqlCatalog]]:
    home = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOEPLAN_HOME", str(home))
        catalog = make_catalog()
    yield home, catalog
    catalog.close()


@pytest.fixture
def unchanged(
    shared_home: tuple[Path, SqlCatalog],
    floeplan_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    """A shell with one table shared by all tests that change nothing."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(shared_home[0]))
    return Shell(shared_home[1], capsys)


def parquet(rows: pa.Table, name: str = "new.parquet") -> str:
    pq.write_table(rows, name)
    return name


def test_delete(shell: Shell) -> None:
    document = shell.document("delete", "db.events", "--where", "id >= 90 AND id < 110")
    assert document.keys() == KEYS
    assert (document["operation"], document["mode"]) == ("delete", "copy-on-write")
    assert (document["rows_deleted"], document["attempts"]) == (20, 1)
    assert document["snapshot_id"] == shell.table.metadata.current_snapshot_id
    assert {manifest["spec_id"] for manifest in document["manifests_written"]} == {0, 1}
    assert document["manifests_written"][0].keys() == {"path", "spec_id", "content", "entries"}
    assert shell.ids() == [*range(90), *range(110, 130)]


def test_delete_by_metadata_alone(shell: Shell) -> None:
    document = shell.document("delete", "db.events", "--where", "region = 'eu' AND id >= 100")
    assert (document["data_files_removed"], document["data_files_added"]) == (1, 0)


def test_delete_merge_on_read(shell: Shell) -> None:
    document = shell.document("delete", "db.events", "--where", "id = 5", "--mode", "merge-on-read")
    assert (document["mode"], document["delete_files_added"], document["data_files_removed"]) == ("merge-on-read", 1, 0)
    assert 5 not in shell.ids()


def test_deleting_nothing_commits_nothing_and_says_so(unchanged: Shell) -> None:
    before = unchanged.table.metadata_location
    assert unchanged.document("delete", "db.events", "--where", "id = 5000")["snapshot_id"] is None
    code, out, _ = unchanged("delete", "db.events", "--where", "id = 5000")
    assert code == 0
    assert "nothing was committed" in out
    assert unchanged.table.metadata_location == before


def test_dry_run_shows_metadata_only_deletes_and_files_to_read(unchanged: Shell) -> None:
    before = unchanged.table.metadata_location
    document = unchanged.document("delete", "db.events", "--where", "region = 'eu'", "--dry-run")
    assert document == {
        "dry_run": True,
        "operation": "delete",
        "mode": "copy-on-write",
        "files_total": 4,
        "files_by_metadata": 1,
        "rows_by_metadata": 10,
        "files_to_read": 1,
        "rows_to_read": 100,
        "bytes_to_read": document["bytes_to_read"],
    }
    document = unchanged.document("update", "db.events", "--set", "v = 1", "--where", "region = 'eu'", "--dry-run")
    assert (document["files_by_metadata"], document["files_to_read"]) == (0, 2)
    code, out, _ = unchanged("delete", "db.events", "--where", "region = 'eu'", "--dry-run")
    assert (code, "nothing was changed" in out) == (0, True)
    assert unchanged.table.metadata_location == before


def test_a_dry_run_of_a_merge_shows_the_files_that_may_match(unchanged: Shell) -> None:
    before = unchanged.table.metadata_location
    source = parquet(pa.table({"id": [1, 2, 500], "v": [10.0, None, 30.0]}))
    merge = (
        "merge",
        "db.events",
        "--source",
        source,
        "--on",
        "id",
        "--dry-run",
        "--when-not-matched-insert",
        "id = source.id",
    )
    document = unchanged.document(*merge, "--when-matched-update", "v = source.v")
    read = {name: document[name] for name in ("operation", "files_total", "files_to_read", "rows_to_read")}
    assert read == {"operation": "merge", "files_total": 4, "files_to_read": 1, "rows_to_read": 100}
    code, out, _ = unchanged(*merge)
    assert (code, "nothing was changed" in out) == (0, True)
    assert unchanged.error(*merge, "--when-matched-update", "nope = 1")[0] == 2
    assert unchanged.table.refresh().metadata_location == before


def test_a_dry_run_refuses_what_the_change_would_refuse(unchanged: Shell) -> None:
    assert unchanged.error("delete", "db.events", "--where", "nope = 1", "--dry-run")[0] == 2
    assert unchanged.error("update", "db.events", "--set", "nope = 1", "--where", "TRUE", "--dry-run")[0] == 2


def test_update(shell: Shell) -> None:
    document = shell.document(
        "update", "db.events", "--set", "v = id + 0.5", "--set", "region = concat(region, '!')", "--where", "id < 2"
    )
    assert document.keys() == KEYS
    assert (document["operation"], document["rows_updated"], document["rows_deleted"]) == ("update", 2, 0)
    assert (shell.column("v")[1], shell.column("region")[1], shell.column("region")[2]) == (1.5, "us!", "ap")


def test_append(shell: Shell) -> None:
    document = shell.document("append", "db.events", parquet(events(200, 210)))
    assert document.keys() == KEYS
    assert (document["operation"], document["rows_inserted"], document["data_files_added"]) == ("append", 10, 3)
    assert shell.ids() == [*range(130), *range(200, 210)]


def test_append_under_another_spec(shell: Shell) -> None:
    document = shell.document("append", "db.events", parquet(events(200, 210)), "--spec", "0")
    assert document["data_files_added"] == 1
    assert {manifest["spec_id"] for manifest in document["manifests_written"]} == {0}


def test_add_files_registers_them(shell: Shell) -> None:
    rows = events(300, 301).cast(schema_to_pyarrow(shell.table.schema()))
    path = str(Path(parquet(rows)).absolute())
    document = shell.document("append", "db.events", path, "--add-files", "--spec", "0")
    assert document["rows_inserted"] == 1
    assert 300 in shell.ids()
    assert any(file.path.endswith("new.parquet") for file in plan_scan(shell.table).files)


def test_merge(shell: Shell) -> None:
    source = parquet(pa.table({"id": [1, 2, 500], "v": [10.0, None, 30.0]}))
    document = shell.document(
        *("merge", "db.events", "--source", source, "--on", "target.id = source.id"),
        *("--when-matched-delete", "source.v IS NULL", "--when-matched-update", "v = source.v, region = 'new'"),
        *("--when-not-matched-insert", "id = source.id, v = source.v"),
    )
    assert document.keys() == KEYS
    assert (document["rows_deleted"], document["rows_updated"], document["rows_inserted"]) == (1, 1, 1)
    assert (shell.column("v")[1], shell.column("region")[1], shell.column("v")[500]) == (10.0, "new", 30.0)
    assert 2 not in shell.ids()


def test_merge_everything_from_a_table_by_one_column(shell: Shell) -> None:
    shell.catalog.create_table("db.news", events(0, 1).schema).append(events(128, 135))
    document = shell.document(
        *("merge", "db.events", "--source", "db.news", "--on", "id"),
        *("--when-matched-update", "*", "--when-not-matched-insert", "*"),
        *("--when-not-matched-by-source-delete", "target.id >= 100"),
    )
    assert (document["rows_updated"], document["rows_inserted"], document["rows_deleted"]) == (2, 5, 28)
    assert shell.ids() == [*range(100), *range(128, 135)]


def test_sql(shell: Shell) -> None:
    assert shell.document("sql", "DELETE FROM db.events e WHERE e.ID = 7")["rows_deleted"] == 1
    assert shell.document("sql", "UPDATE db.events SET v = 0 WHERE id = 8")["rows_updated"] == 1
    document = shell.document("sql", "INSERT INTO db.events (id, region) VALUES (700, 'eu'), (701, upper('eu'))")
    assert (document["operation"], document["rows_inserted"]) == ("append", 2)
    assert (shell.column("region")[701], shell.column("v")[700]) == ("EU", None)
    shell.catalog.create_table("db.news", events(0, 1).schema).append(events(9, 10))
    merging = "MERGE INTO db.events t USING db.news n(a, b, c, d) ON t.id = n.a WHEN MATCHED THEN DELETE"
    assert shell.document("sql", merging)["rows_deleted"] == 1
    assert not {7, 9} & set(shell.ids())


def test_sql_alters_the_partitioning(shell: Shell) -> None:
    document = shell.document("sql", "ALTER TABLE local.db.events REPLACE PARTITION FIELD region WITH bucket(4, id)")
    assert document.keys() > KEYS
    assert (document["operation"], document["spec_id"], document["attempts"]) == ("alter", 2, 1)
    assert [field["name"] for field in document["spec"]] == ["id_bucket_4"]
    code, out, _ = shell("sql", "ALTER TABLE db.events ADD PARTITION FIELD truncate(2, region) AS start")
    assert (code, "start" in out, "truncate[2] of region" in out, "bucket[4] of id" in out) == (0, True, True, True)
    assert shell("sql", "ALTER TABLE db.events DROP PARTITION FIELD start")[0] == 0
    code, out, _ = shell("sql", "ALTER TABLE db.events DROP PARTITION FIELD id_bucket_4")
    assert (code, "unpartitioned" in out) == (0, True)


def test_a_branch_is_changed_alone(shell: Shell) -> None:
    shell.table.manage_snapshots().create_branch(shell.table.metadata.current_snapshot_id, "audit").commit()
    shell.document("delete", "db.events", "--where", "id = 1", "--branch", "audit")
    shell.document("sql", "DELETE FROM db.events.branch_audit WHERE id = 2")
    assert shell.ids("audit") == [0, *range(3, 130)]
    assert shell.ids() == [*range(130)]
    code, error = shell.error("sql", "DELETE FROM db.events.branch_audit WHERE id = 2", "--branch", "other")
    assert (code, "branch other is requested" in error["message"]) == (2, True)


def test_results_for_people(shell: Shell) -> None:
    code, out, err = shell("delete", "db.events", "--where", "id = 3")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "delete (copy-on-write)"
    assert "1 deleted" in out
    assert f"{shell.table.metadata.current_snapshot_id}, after 1 attempt" in out


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["delete", "db.nope", "--where", "TRUE"], "unknown-table"),
        (["delete", "db.events", "--where", "nope = 1"], "unknown-column"),
        (["delete", "db.events", "--where", "id ="], "predicate-syntax"),
        (["delete", "db.events", "--where", "id = 1", "--mode", "sideways"], "invalid-option"),
        (["delete", "db.events", "--where", "id = 1", "--isolation", "none"], "invalid-option"),
        (["delete", "db.events", "--where", "id = 1", "--branch", "nope"], "unknown-snapshot"),
        (["delete", "db.events", "--where", "id = 1", "--spark", "hadoop://x"], "invalid-option"),
        (["delete", "db.events"], "invalid-option"),
        (["update", "db.events", "--where", "TRUE"], "invalid-option"),
        (["update", "db.events", "--set", "v", "--where", "TRUE"], "bad-input"),
        (["update", "db.events", "--set", "v = 1", "--set", "v = 2", "--where", "TRUE"], "bad-input"),
        (["update", "db.events", "--set", "id = 'x'", "--where", "TRUE"], "type-mismatch"),
        (["append", "db.events", "nope.parquet"], "unknown-file"),
        (["append", "db.events", "nope.parquet", "--spec", "x"], "invalid-option"),
        (
            ["merge", "db.events", "--source", "nope.parquet", "--on", "id", "--when-matched-update", "*"],
            "unknown-file",
        ),
        (["merge", "db.events", "--source", "nope.parquet", "--on", "id"], "invalid-option"),
        (["sql", "SHOW TABLES"], "bad-input"),
        (["sql", "SELECT * FROM db.events", "--mode", "merge-on-read"], "bad-input"),
        (["sql", "DELETE FROM db.nope"], "unknown-table"),
        (["sql", "INSERT INTO db.events (id) VALUES (1)", "--mode", "merge-on-read"], "bad-input"),
        (["sql", "ALTER TABLE db.events ADD PARTITION FIELD id", "--branch", "b"], "bad-input"),
        (["sql", "MERGE INTO db.events t USING db.events n(a) ON t.id = n.a WHEN MATCHED THEN DELETE"], "bad-input"),
        (["sql", "INSERT INTO db.events VALUES (1)"], "bad-input"),
        (["sql", "INSERT INTO db.events PARTITION (v = 1) VALUES (1, 'eu', NULL)"], "bad-input"),
        (["sql", "INSERT INTO db.events (id, nope) VALUES (1, 2)"], "unknown-column"),
        (["sql", "ALTER TABLE db.events ADD PARTITION FIELD nope"], "unknown-column"),
    ],
)
def test_bad_input_is_exit_2_and_changes_nothing(unchanged: Shell, arguments: list[str], kind: str) -> None:
    code, error = unchanged.error(*arguments)
    assert (code, error["kind"], error["committed"]) == (2, kind, False)


def test_an_unknown_spec_is_named(unchanged: Shell) -> None:
    code, error = unchanged.error("append", "db.events", parquet(events(200, 201)), "--spec", "17")
    assert (code, error["kind"]) == (2, "unknown-spec")
    assert "17" in error["message"]


@pytest.mark.parametrize(
    "command",
    [
        ["delete", "--where", "TRUE"],
        ["update", "--set", "v = 1", "--where", "TRUE"],
        ["append", "new.parquet"],
        ["merge", "--source", "new.parquet", "--on", "id", "--when-matched-update", "*"],
    ],
)
def test_a_metadata_file_is_read_only(unchanged: Shell, command: list[str]) -> None:
    parquet(events(200, 201))
    name, *options = command
    code, error = unchanged.error(name, unchanged.table.metadata_location, *options)
    assert code == 2
    assert "read-only" in error["message"]


def test_a_commit_that_always_conflicts_is_exit_3(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with shell.table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "0"})

    def refuse(*_: object) -> None:
        raise CommitFailedException("another writer was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    for command in (
        ["delete", "db.events", "--where", "id = 1"],
        ["sql", "ALTER TABLE db.events ADD PARTITION FIELD v"],
    ):
        code, error = shell.error(*command)
        assert (code, error["kind"], error["retryable"], error["committed"]) == (3, "commit-conflict", True, False)


def test_an_error_for_people_is_one_line(unchanged: Shell) -> None:
    code, out, err = unchanged("sql", "DROP TABLE db.events")
    assert (code, out) == (2, "")
    assert err.startswith("floeplan: DROP is not supported")
    assert err.count("\n") == 1


def test_concurrently_added_rows_are_a_conflict(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqlCatalog.commit_table
    calls: list[int] = []

    def second(catalog: SqlCatalog, *arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 1:
            shell.table.append(events(5, 6))
        return commit(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", second)
    code, out, _ = shell("delete", "db.events", "--where", "id = 5", "--json")
    error = json.loads(out)["error"]
    assert (code, error["kind"], error["retryable"]) == (3, "commit-conflict", True)
    assert shell.ids().count(5) == 2
    calls.clear()
    document = shell.document("delete", "db.events", "--where", "id = 6", "--isolation", "snapshot")
    assert (document["rows_deleted"], document["attempts"]) == (1, 2)
    assert shell.ids().count(5) == 3


def test_append_creates_a_table(shell: Shell, tmp_path: Path) -> None:
    first, second = (str(tmp_path / f"{name}.parquet") for name in ("first", "second"))
    pq.write_table(events(0, 30), first)
    pq.write_table(events(30, 60), second)
    create = ["--create", "--partitioned-by", "region, bucket(4, id)"]
    code, error = shell.error("append", "web.clicks", first)
    assert (code, error["kind"]) == (2, "unknown-table")
    done = shell.document("append", "web.clicks", first, second, *create)
    assert done.keys() >= KEYS
    assert (done["operation"], done["rows_inserted"]) == ("append", 60)
    table = shell.catalog.load_table("web.clicks")
    assert [field.name for field in table.spec().fields] == ["region", "id_bucket"]
    assert shell.document("append", "web.clicks", first, *create)["rows_inserted"] == 30, "it exists already"

    # A table whose rows cannot be written is dropped again, and one that exists stays.
    other = str(tmp_path / "other.parquet")
    pq.write_table(pa.table({"unknown": [1]}), other)
    for name in ("web.new", "web.clicks"):
        assert shell("append", name, first, other, "--create")[0] == 2
    assert not shell.catalog.table_exists("web.new")
    assert shell.catalog.table_exists("web.clicks")
    for arguments in (
        ("web.new", first, "--partitioned-by", "region"),
        ("web.new", first, "--create", "--partitioned-by", "days(nope)"),
        ("web.new", str(tmp_path / "missing.parquet"), "--create"),
        ("new", first, "--create"),
    ):
        assert shell("append", *arguments)[0] == 2, arguments
    assert not shell.catalog.table_exists("web.new")
