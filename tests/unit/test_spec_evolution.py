"""Spec evolution: field ids, void fields, names, errors as in Iceberg, and concurrent commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, TimestampType

from floeplan.catalog import load_table
from floeplan.errors import BadInputError, CommitConflictError, FloeplanError, UnsupportedError
from floeplan.partition.evolution import AddField, DropField, RenameField, SpecChange, evolved_spec, replace_field
from floeplan.sql_text.parse import parse_term
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy, Timing
from floeplan.transaction.evolve_spec import add_spec, evolve_spec
from tests.support.tables.two_specs import catalog

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "s", StructType(NestedField(5, "city", StringType()))),
    NestedField(6, "v", DoubleType()),
)
MakeTable = Callable[[int], Table]


@pytest.fixture
def local(tmp_path: Path) -> SqlCatalog:
    return catalog(tmp_path)


@pytest.fixture
def make(local: SqlCatalog) -> MakeTable:
    return lambda version: local.create_table("db.t", SCHEMA, properties={"format-version": str(version)})


def add(text: str, name: str | None = None) -> AddField:
    return AddField(parse_term(text), name)


def drop(text: str) -> DropField:
    return DropField(parse_term(text))


def look(table: Table) -> list[tuple[str, str, int]]:
    return [(field.name, str(field.transform), field.field_id) for field in table.spec().fields]


def evolve(table: Table, *changes: SpecChange) -> Table:
    return evolve_spec(table, changes).table


def test_names_iceberg_gives(make: MakeTable) -> None:
    table = evolve(make(2), add("s.city"), add("bucket(8, id)"), add("truncate(3, name)"), add("hours(ts)"), add("id"))
    assert look(table) == [
        ("s.city", "identity", 1000),
        ("id_bucket_8", "bucket[8]", 1001),
        ("name_trunc_3", "truncate[3]", 1002),
        ("ts_hour", "hour", 1003),
        ("id", "identity", 1004),
    ]
    assert table.metadata.last_partition_id == 1004


def test_format_1_keeps_a_dropped_field_as_void_and_takes_its_name_back(make: MakeTable) -> None:
    table = evolve(make(1), add("id"), add("days(ts)"))
    table = evolve(table, drop("id"))
    assert look(table) == [("id", "void", 1000), ("ts_day", "day", 1001)]
    table = evolve(table, add("id"))
    assert look(table) == [("id_1000", "void", 1000), ("ts_day", "day", 1001), ("id", "identity", 1002)]


def test_format_1_repeats_the_spec_under_its_old_name(make: MakeTable) -> None:
    table = evolve(evolve(make(1), add("id"), add("days(ts)")), drop("id"))
    written = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    assert written["partition-spec"] == written["partition-specs"][-1]["fields"]
    assert [field["transform"] for field in written["partition-spec"]] == ["void", "day"]


def test_format_2_removes_a_dropped_field_and_gives_it_its_id_again(make: MakeTable) -> None:
    table = evolve(make(2), add("id"), add("days(ts)"))
    table = evolve(table, drop("id"))
    assert look(table) == [("ts_day", "day", 1001)]
    table = evolve(table, add("id"))
    assert look(table) == [("ts_day", "day", 1001), ("id", "identity", 1000)]
    assert table.metadata.last_partition_id == 1001
    table = evolve(table, drop("id"), add("id", "key"))
    assert look(table) == [("ts_day", "day", 1001), ("key", "identity", 1000)]


def test_a_new_name_is_a_new_field_unless_renamed(make: MakeTable) -> None:
    table = evolve(evolve(evolve(make(2), add("id", "a")), DropField("a")), add("id", "b"))
    assert look(table) == [("b", "identity", 1001)]
    assert look(evolve(table, RenameField("b", "c"))) == [("c", "identity", 1001)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_spec_the_table_has_is_used_again(make: MakeTable, version: int) -> None:
    table = evolve(make(version), add("id"))
    first = table.spec().spec_id
    table = evolve(table, RenameField("id", "key"))
    assert table.spec().spec_id != first
    table = evolve(table, RenameField("key", "id"))
    assert table.spec().spec_id == first
    assert len(table.specs()) == 3


def test_replacing_leaves_the_others(make: MakeTable) -> None:
    table = evolve(make(2), add("days(ts)"), add("id"))
    table = evolve(table, *replace_field("ts_day", parse_term("hours(ts)"), "h"))
    assert look(table) == [("id", "identity", 1001), ("h", "hour", 1002)]


def test_nothing_to_do_commits_nothing(make: MakeTable) -> None:
    table = evolve(make(2), add("id"))
    result = evolve_spec(table, [drop("id"), add("id")])
    assert (result.attempts, result.is_new, result.is_default) == (0, False, True)
    assert result.table.metadata_location == table.metadata_location


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([add("id")], "partitioned by identity(id) already, as id"),
        ([add("days(ts)", "d"), add("days(ts)", "e")], "added twice"),
        ([add("days(ts)", "d"), add("bucket(2, id)", "d")], "d is added twice"),
        ([add("days(ts)"), add("hours(ts)")], "divide one column by time"),
        ([add("bucket(4, name)", "id")], "partition field id already"),
        ([add("bucket(4, id)", "name")], "name of another column"),
        ([add("bucket(4, id)", "")], "needs a name"),
        ([add("days(name)")], "day cannot be applied to column name of type string"),
        ([add("bucket(4, v)")], "bucket[4] cannot be applied to column v"),
        ([add("nope")], "there is no column nope"),
        ([add("s")], "is a struct"),
        ([drop("days(ts)")], "no partition field day(ts); its fields are id = identity"),
        ([DropField("nope")], "no partition field nope"),
        ([RenameField("nope", "x")], "no partition field nope"),
        ([RenameField("id", "x"), DropField("id")], "renamed and dropped"),
        ([DropField("id"), RenameField("id", "x")], "dropped and renamed"),
        ([add("days(ts)"), RenameField("id", "ts_day")], "two partition fields would be called ts_day"),
    ],
)
def test_refusals_leave_the_table_as_it_was(make: MakeTable, changes: list[SpecChange], message: str) -> None:
    table = evolve(make(2), add("id"))
    with pytest.raises(BadInputError) as refused:
        evolve(table, *changes)
    assert message in refused.value.message
    assert table.refresh().metadata_location == table.metadata_location


def test_a_spec_beside_the_default(make: MakeTable) -> None:
    table = evolve(make(2), add("id"), add("days(ts)"))
    result = add_spec(table, [add("bucket(4, name)"), add("days(ts)")])
    assert (result.is_default, result.is_new, result.previous_spec_id) == (False, True, table.spec().spec_id)
    assert [(f.name, f.field_id) for f in result.spec.fields] == [("ts_day", 1001), ("name_bucket_4", 1002)]
    assert result.table.spec() == table.spec()
    assert add_spec(result.table, [add("days(ts)"), add("bucket(4, name)")]).attempts == 0


def test_format_1_has_no_spec_beside_the_default(make: MakeTable) -> None:
    table = evolve(make(1), add("id"))
    with pytest.raises(UnsupportedError, match="upgrade the table to format 2"):
        add_spec(table, [add("days(ts)")])
    assert add_spec(table, [add("id")]).attempts == 0


def test_a_table_opened_by_its_metadata_is_read_only(make: MakeTable) -> None:
    with pytest.raises(BadInputError, match="read-only"):
        evolve(load_table(make(2).metadata_location), add("id"))


def test_the_change_is_made_to_what_another_writer_left(make: MakeTable) -> None:
    table = make(2)

    def interfere(step: str) -> None:
        if step == "before-commit" and len(table.refresh().specs()) == 1:
            evolve(table, add("days(ts)"))

    result = evolve_spec(table, [add("id")], options=_options(interfere))
    assert result.attempts == 2
    assert look(result.table) == [("ts_day", "day", 1000), ("id", "identity", 1001)]


def test_a_change_that_no_longer_fits_is_refused(make: MakeTable) -> None:
    table = make(2)

    def interfere(step: str) -> None:
        if step == "before-commit" and len(table.refresh().specs()) == 1:
            evolve(table, add("id"), add("days(ts)"))

    with pytest.raises(BadInputError, match="partitioned by identity"):
        evolve_spec(table, [add("id")], options=_options(interfere))


def test_a_writer_that_is_always_faster_is_a_conflict(make: MakeTable) -> None:
    table = make(2)

    def interfere(step: str) -> None:
        if step == "before-commit":
            evolve(table, add(f"bucket({2 + len(table.refresh().specs())}, id)"))

    with pytest.raises(CommitConflictError) as lost:
        evolve_spec(table, [add("name")], options=_options(interfere))
    assert lost.value.exit_code == 3
    assert "name" not in [field.name for field in table.refresh().spec().fields]


def test_a_lost_response_is_looked_up(make: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(2)
    commit = SqlCatalog.commit_table

    def lose(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]
        raise ConnectionError("gone")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    result = evolve_spec(table, [add("id")], options=_options())
    assert look(result.table) == [("id", "identity", 1000)]


def test_the_catalog_refusing_for_ever_is_a_conflict(make: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise CommitFailedException("no")

    table = make(2)
    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(FloeplanError) as lost:
        evolve_spec(table, [add("id")], options=_options())
    assert (lost.value.exit_code, lost.value.retryable) == (3, True)


def test_the_document(make: MakeTable) -> None:
    document = evolve_spec(make(2), [add("id")]).to_dict()
    assert document["operation"] == "alter"
    assert document["spec"] == [{"name": "id", "transform": "identity", "source_id": 1, "field_id": 1000}]
    assert (document["spec_id"], document["previous_spec_id"], document["attempts"]) == (1, 0, 1)


def test_evolving_is_pure(make: MakeTable) -> None:
    table = make(2)
    assert evolved_spec(table.metadata, [add("id")]).spec_id == 1
    assert table.refresh().spec().fields == ()


def _options(on_step: Callable[[str], None] | None = None) -> CommitOptions:
    return CommitOptions(on_step=on_step, retry=RetryPolicy(retries=2), timing=Timing(sleep=lambda _: None))
