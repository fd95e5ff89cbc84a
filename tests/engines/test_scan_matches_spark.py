"""Scans of evolved tables return Spark's rows, and read no file that Iceberg Java would skip.

Spark projects the predicates over an unfiltered read (``MatrixTable.matches``), so its pruning bugs have no effect.
Where Iceberg Java's planning loses rows, a test names the case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.spark.iceberg_java import planned_tasks
from tests.support.spark.matrix import BRANCH, RECIPES, TABLES, TAG, Matrix, MatrixTable, parametrized
from tests.support.spark.matrix_predicates import (
    PLANNED_WITH_EVERY_PREDICATE,
    MatrixPredicate,
    canonical,
    load,
    predicates,
    true_matches,
    true_rows,
)

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

pytestmark = pytest.mark.engines

WITH_DELETES = tuple(name for name in TABLES if name.endswith(("equality", "file", "partition", "vectors")))
OPTIONS = ScanOptions(report=False)
HALVES = (("evolving_v2", 0),)
"""Tables, and the half of the predicates that Iceberg Java plans in ``make test``."""


def keys(table: Table, where: str, options: ScanOptions = OPTIONS) -> list[int]:
    found: list[int] = plan_scan(table, where, options=options).to_arrow(columns=["pk"])["pk"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("name", parametrized())
def test_all_rows_and_columns_equal_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    plan = plan_scan(load(made, local_catalog), options=OPTIONS)
    assert canonical(plan.to_arrow()) == true_rows(made)
    assert plan.count() == len(true_rows(made))


@pytest.mark.parametrize("name", parametrized())
def test_every_predicate_selects_the_rows_of_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    assert {where: keys(table, where) for where in true_matches(made)} == true_matches(made)


@pytest.mark.parametrize("name", parametrized(["evolving_v3_vectors", "truncations_v2_position_partition"]))
def test_counts_equal_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    expected = {where: len(found) for where, found in true_matches(made).items()}
    assert {where: plan_scan(table, where, options=OPTIONS).count() for where in expected} == expected


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(ScanOptions(report=False, footers=False, cache=False), id="metadata alone"),
        pytest.param(ScanOptions(report=False, page_index=True, bloom_filter=True), id="pages and blooms"),
    ],
)
@pytest.mark.parametrize("name", parametrized(["evolving_v3_vectors", "truncations_v3_vectors"]))
def test_planning_options_do_not_change_the_rows(
    name: str, options: ScanOptions, matrix: Matrix, local_catalog: SqlCatalog
) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    assert {where: keys(table, where, options) for where in true_matches(made)} == true_matches(made)


@pytest.mark.parametrize("name", parametrized([name for name in TABLES if RECIPES[name].branches]))
def test_past_snapshots_branches_and_tags_equal_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    for snapshot_id in made.snapshots():
        ours = plan_scan(table, snapshot_id=snapshot_id, options=OPTIONS).to_arrow()
        assert canonical(ours) == canonical(made.rows(snapshot_id=snapshot_id))
    for ref in (BRANCH, TAG):
        assert canonical(plan_scan(table, ref=ref, options=OPTIONS).to_arrow()) == canonical(made.rows(ref=ref))


@pytest.mark.parametrize(
    ("name", "half"),
    [
        pytest.param(name, half, marks=() if (name, half) in HALVES else pytest.mark.matrix)
        for name in PLANNED_WITH_EVERY_PREDICATE
        for half in (0, 1)
    ],
)
def test_no_file_is_kept_that_java_drops_rightly(
    name: str, half: int, matrix: Matrix, local_catalog: SqlCatalog
) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    chosen = [predicate for predicate in predicates(made.columns) if not predicate.computed][half::2]
    needed = files_with_matches(made, chosen)
    superfluous = {}
    for predicate in chosen:
        kept = {file.path for file in plan_scan(table, predicate.text, options=OPTIONS).files}
        assert kept >= needed[predicate.text], predicate.text
        superfluous[predicate.text] = kept - needed[predicate.text] - made.kept_files(predicate.text)
    assert {where: files for where, files in superfluous.items() if files} == {}


def files_with_matches(made: MatrixTable, chosen: Iterable[MatrixPredicate]) -> dict[str, set[str]]:
    """The data files with a live row for which a predicate is TRUE."""
    files = made.file_of_rows()
    matches = made.matches([predicate.text for predicate in chosen])
    return {where: set().union(*(files[pk] for pk in found)) for where, found in matches.items()}


@pytest.mark.parametrize("name", [case for case in parametrized() if case.values[0] in WITH_DELETES])
def test_each_file_has_the_deletes_java_gives_it(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    ours = {file.path: deletes_of(file) for file in plan_scan(load(made, local_catalog), options=OPTIONS).files}
    theirs = {task.file().location(): java_deletes(task) for task in planned_tasks(made.spark, made.java())}
    assert ours == theirs


def deletes_of(file: Any) -> list[tuple[str, int | None]]:
    return sorted((delete.path, delete.content_offset) for delete in file.deletes)


def java_deletes(task: Any) -> list[tuple[str, int | None]]:
    return sorted((delete.location(), delete.contentOffset()) for delete in task.deletes())


JAVA_FAULTS = [
    pytest.param(
        "evolving_v2", "ts >= timestamp'1969-12-31 00:00:00'", id="day of x.999999 s after midnight before 1970"
    ),
    pytest.param("truncations_v2", "ts >= timestamp'1969-12-31 00:00:00'", id="hour of x.999999 s before 1970"),
    pytest.param("truncations_v2", "s LIKE '😀%'", id="prefix with an astral character, counted as two"),
    pytest.param("truncations_v2", "n < 0", id="truncate of the smallest integer wraps"),
    pytest.param("truncations_v2", "v = 0.0D", id="zero does not equal minus zero"),
    pytest.param("truncations_v2", "v > 10.0D", id="NaN is not greater than all numbers"),
    pytest.param("evolving_v2", "f <= -0.0D", id="zero is not less than or equal to minus zero"),
]


@pytest.mark.parametrize(("name", "where"), JAVA_FAULTS)
def test_rows_that_java_loses_are_found(name: str, where: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    expected = made.matches([where])[where]
    lost = files_with_matches(made, [MatrixPredicate(where)])[where] - made.kept_files(where)
    assert lost, "fixed in Iceberg: remove the widening when no supported writer has this bug"
    assert keys(load(made, local_catalog), where) == expected
    assert made.filtered(where) != expected
