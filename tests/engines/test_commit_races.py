"""Two writers at every step of the commit protocol: the result is a serial order, or a conflict.

The second writer plans and commits while the first waits at a step of its commit. Then the rows of the table are those
of some serial order of the two, or the first gets a conflict and the table is as the second left it. The first leaves
no unreferenced files in either case.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floeplan.errors import CommitConflictError
from floeplan.transaction.catalog_commit import CommitOptions, RetryPolicy
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import (
    Rows,
    Write,
    append,
    appending,
    copy_on_write_delete,
    create_table,
    files_under,
    fork,
    leftovers,
    merge_on_read_delete,
    open_catalog,
    patient,
    reachable,
    read_rows,
    replacing,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

SERIALIZABLE, SNAPSHOT = IsolationLevel.SERIALIZABLE, IsolationLevel.SNAPSHOT
STEPS = ("planned", "refreshed", "validated", "manifests-written", "list-written", "before-commit")
START = rows_of(0, 10, "a") + rows_of(10, 20, "b") + rows_of(20, 30, "a")

FIRST = {
    "append": appending(rows_of(100, 105, "a")),
    "copy-on-write": copy_on_write_delete("id < 5 OR id >= 100", lambda row: row[0] < 5 or row[0] >= 100),
    "merge-on-read": merge_on_read_delete("id IN (3, 22, 201)", lambda row: row[0] in (3, 22, 201)),
    "replace": replacing("part = 'a'"),
}
SECOND = {
    "append": appending(rows_of(200, 205, "a")),
    "copy-on-write": copy_on_write_delete("id IN (4, 25)", lambda row: row[0] in (4, 25)),
    "merge-on-read": merge_on_read_delete("id IN (4, 26)", lambda row: row[0] in (4, 26)),
    "replace": replacing("part = 'a'"),
}
"""Both change the files with ids 0–9 and 20–29; the deletes of the first would match rows that the second appends."""


def must_conflict(first: str, second: str, isolation: IsolationLevel, version: int) -> bool:
    """Whether Iceberg's rules make the first conflict with the second."""
    if first == "append":
        return False
    if second == "append":
        return first != "replace" and isolation is SERIALIZABLE
    both_add_deletes = first == second == "merge-on-read"
    return version > 2 or not both_add_deletes


CASES = [
    pytest.param(
        first,
        second,
        isolation,
        version,
        id=f"{first} after {second}, {isolation}, v{version}",
        # Formats 1 and 3 differ from 2 only in merge-on-read: one pair represents each.
        marks=()
        if version == 2 or first == second == ("copy-on-write" if version == 1 else "merge-on-read")
        else pytest.mark.matrix,
    )
    for version in (1, 2, 3)
    for first in FIRST
    for second in SECOND
    for isolation in IsolationLevel
    if not (version == 1 and "merge-on-read" in (first, second))
    if isolation is SERIALIZABLE or first in ("copy-on-write", "merge-on-read")
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    for version in (1, 2, 3):
        create_table(opened, version, START, f"db.v{version}")
    yield opened
    opened.close()


def fresh(catalog: SqlCatalog, version: int) -> Table:
    return fork(catalog.load_table(f"db.v{version}"), f"db.t{uuid.uuid4().hex}")


def race(
    table: Table, first: Write, second: Callable[[Table], object], isolation: IsolationLevel, step: str
) -> tuple[bool, list[str]]:
    """The first writer commits its plan; at one step, once, the second commits. Returns whether both succeeded."""
    seen: list[str] = []

    def interfere(at: str) -> None:
        seen.append(at)
        if at == step and seen.count(at) == 1:
            second(table.catalog.load_table(table.name()))

    planned = first.plan(table, isolation)
    interfere("planned")
    try:
        planned.commit(patient(on_step=interfere))
    except CommitConflictError:
        return False, seen
    return True, seen


def serial_outcomes(first: Write, second: Write, start: Rows) -> list[Rows]:
    return [sorted(first.of_rows(second.of_rows(start))), sorted(second.of_rows(first.of_rows(start)))]


@pytest.mark.parametrize(("first", "second", "isolation", "version"), CASES)
def test_two_writers_are_serial_or_one_gets_a_conflict(
    catalog: SqlCatalog, first: str, second: str, isolation: IsolationLevel, version: int
) -> None:
    one, two = FIRST[first], SECOND[second]
    before = files_under(catalog.load_table(f"db.v{version}"))
    needed: set[str] = set()
    for step in STEPS:
        table = fresh(catalog, version)
        both, seen = race(table, one, lambda now: two.plan(now, isolation).commit(), isolation, step)
        assert both is not must_conflict(first, second, isolation, version), step
        rows = read_rows(table)
        if both:
            assert rows in serial_outcomes(one, two, START), step
            assert seen.count("refreshed") == (1 if step == "planned" else 2), step
        else:
            assert rows == sorted(two.of_rows(START)), step
        needed |= reachable(table)
    assert files_under(catalog.load_table(f"db.v{version}")) - before <= needed, "nothing is left over"


def test_a_repeatedly_overtaken_writer_commits(catalog: SqlCatalog) -> None:
    table = fresh(catalog, 3)
    rounds = iter(range(300, 320, 5))

    def overtake(at: str) -> None:
        if at == "before-commit" and (first := next(rounds, None)) is not None:
            appending(rows_of(first, first + 5)).plan(table.catalog.load_table(table.name()), SERIALIZABLE).commit()

    planned = FIRST["replace"].plan(table, SERIALIZABLE)
    result = planned.commit(patient(on_step=overtake))
    assert result.attempts == 5
    assert read_rows(table) == START + rows_of(300, 320)
    row_ids = [snapshot.first_row_id for snapshot in result.table.metadata.snapshots]
    assert row_ids == sorted(row_ids), "row ids are unique"  # type: ignore[type-var]


def test_many_concurrent_writers_all_commit(tmp_path: Path) -> None:
    """Threads without synchronization."""
    catalog = open_catalog(tmp_path)
    table = create_table(catalog, 3, [])
    retry = RetryPolicy(retries=200, min_wait_ms=1, max_wait_ms=4)

    def write(writer: int) -> None:
        own = open_catalog(tmp_path)
        for turn in range(3):
            change = append(own.load_table("db.t"), [(10 * writer + turn, "a")])
            commit_change(own.load_table("db.t"), change, options=CommitOptions(retry=retry, owns_files=True))
        own.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [row[0] for row in read_rows(table)] == [10 * writer + turn for writer in range(4) for turn in range(3)]
    snapshots = catalog.load_table("db.t").metadata.snapshots
    assert [snapshot.sequence_number for snapshot in snapshots] == list(range(1, 13))
    assert {path.rpartition(".")[2] for path in leftovers(table)} <= {"json"}, "files that the catalog itself leaves"
    catalog.close()


def spark_rows(spark: SparkSession, tables: list[Table]) -> dict[str, Rows]:
    """The rows of many tables as Spark reads them, in one query."""
    names = [table.name()[-1] for table in tables]
    query = " UNION ALL ".join(f"SELECT '{name}' AS name, id, part FROM local.db.{name}" for name in names)
    found: dict[str, Rows] = {name: [] for name in names}
    for row in spark.sql(query).collect():
        found[row.name].append((row.id, row.part))
    return {name: sorted(rows) for name, rows in found.items()}


def test_spark_reads_the_results_of_the_races(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    local_catalog.create_namespace_if_not_exists("db")
    expected: dict[str, list[Rows]] = {}
    tables = []
    for version in (1, 2, 3):
        base = create_table(local_catalog, version, START, f"db.races_v{version}")
        for first, second in [("append", "append"), ("append", "replace"), ("replace", "append"), ("append", "delete")]:
            mode = "copy-on-write" if version == 1 else "merge-on-read"
            one, two = FIRST[first], SECOND.get(second, SECOND[mode])
            table = fork(base, f"db.race_v{version}_{first}_{second}")
            race(table, one, lambda now, two=two: two.plan(now, SNAPSHOT).commit(), SNAPSHOT, "before-commit")  # type: ignore[misc]
            tables.append(table)
            expected[table.name()[-1]] = serial_outcomes(one, two, START)
    for name, rows in spark_rows(spark, tables).items():
        assert rows in expected[name], name


@pytest.mark.parametrize(
    ("version", "step"),
    [
        (2, "before-commit"),
        pytest.param(2, "planned", marks=pytest.mark.matrix),
        pytest.param(3, "before-commit", marks=pytest.mark.matrix),
        (3, "planned"),
    ],
)
def test_spark_is_the_other_writer(spark: SparkSession, local_catalog: SqlCatalog, version: int, step: str) -> None:
    """Spark commits an append, a whole-file delete and a row-level delete while a writer waits at a step."""
    local_catalog.create_namespace_if_not_exists("db")
    token = uuid.uuid4().hex[:6]
    base = create_table(local_catalog, version, START, f"db.base_{token}")
    statements = {
        "append": "INSERT INTO {} VALUES (200, 'a'), (201, 'a')",
        "drop": "DELETE FROM {} WHERE part = 'b'",
        "rows": "DELETE FROM {} WHERE id = 4",
    }
    after = {
        "append": [*START, (200, "a"), (201, "a")],
        "drop": [row for row in START if row[1] != "b"],
        "rows": [row for row in START if row[0] != 4],
    }
    for first in ("append", "copy-on-write", "merge-on-read"):
        for name, statement in statements.items():
            table = fork(base, f"db.s{token}_{first.replace('-', '_')}_{name}")
            sql = statement.format(f"local.db.{table.name()[-1]}")
            both, _ = race(table, FIRST[first], lambda _, sql=sql: spark.sql(sql), SERIALIZABLE, step)  # type: ignore[misc]
            assert both is (first == "append" or name == "drop"), (first, name)
            expected = sorted(FIRST[first].of_rows(after[name])) if both else sorted(after[name])
            assert read_rows(table) == expected
            assert spark_rows(spark, [table])[table.name()[-1]] == expected
