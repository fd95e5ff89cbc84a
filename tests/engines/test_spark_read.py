"""``fp.read`` on Spark returns the same rows as Iceberg's own Spark reader, in every read mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812

from floeplan.scan.model import ScanOptions
from floeplan.spark.read import deletes
from floeplan.spark.read.reader import ReadOptions, read
from tests.support.fuzz import fuzzing
from tests.support.spark.matrix import BRANCH, FEW, TABLES, TAG, Matrix, MatrixTable, interpreted, parametrized
from tests.support.spark.matrix_predicates import canonical, chosen_predicates, load, true_matches, true_rows

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

pytestmark = pytest.mark.engines

IN_TASKS = (
    "voids_v1",
    "truncations_v2",
    "gaps_v3",
    "evolving_v2_position_partition",
    "imported_v3",
    "defaults_v3_vectors",
)
"""Tables for the Arrow path: tasks read like plans, which other tests cover, so few tables suffice."""


def few_tables() -> tuple[str, ...]:
    """With ``FLOEPLAN_FUZZ_SECONDS`` all tables are read in tasks."""
    return TABLES if fuzzing.SECONDS else IN_TASKS


def options(path: str) -> ReadOptions:
    return ReadOptions(path=path, scan=ScanOptions(footers=path == "arrow", report=False))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", parametrized())
def test_all_rows_and_columns_equal_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    assert_all_rows_equal_iceberg(name, "auto", matrix, local_catalog)


@pytest.mark.parametrize("name", parametrized(few_tables()))
def test_all_rows_read_in_tasks_equal_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    assert_all_rows_equal_iceberg(name, "arrow", matrix, local_catalog)


def assert_all_rows_equal_iceberg(name: str, path: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    with interpreted(matrix.spark):
        shown = read(matrix.spark, load(made, local_catalog), options=options(path)).toArrow()
    assert canonical(shown) == true_rows(made)


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_every_predicate_selects_the_rows_of_iceberg(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    table = load(made, local_catalog)
    expected = {where: true_matches(made)[where] for where in few_predicates(made)}
    assert keys(matrix, table, list(expected)) == expected


def few_predicates(made: MatrixTable) -> list[str]:
    """A sixth of the predicates of the planning tests; all with ``FLOEPLAN_FUZZ_SECONDS``."""
    chosen = chosen_predicates(made)
    return chosen if fuzzing.SECONDS else chosen[::6]


def keys(matrix: Matrix, table: Table, predicates: Sequence[str], path: str = "auto") -> dict[str, list[int]]:
    """The ``pk`` of the rows each predicate selects, all predicates in one query."""
    frames = [
        read(matrix.spark, table, where, columns=["pk"], options=options(path)).select(F.lit(i).alias("i"), "pk")
        for i, where in enumerate(predicates)
    ]
    with interpreted(matrix.spark):
        rows = reduce(lambda left, right: left.unionAll(right), frames).toArrow()
    found: dict[str, list[int]] = {where: [] for where in predicates}
    for number, pk in zip(rows["i"].to_pylist(), rows["pk"].to_pylist(), strict=True):
        found[predicates[number]].append(pk)
    return {where: sorted(pks) for where, pks in found.items()}


def test_many_deletes_are_read_by_tasks(
    matrix: Matrix, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = matrix.table("evolving_v3_vectors")
    monkeypatch.setattr(deletes, "SMALL_DELETES", -1)
    monkeypatch.setattr(deletes, "BYTES_PER_TASK", 300)
    with interpreted(matrix.spark):
        shown = read(matrix.spark, load(made, local_catalog), options=options("native")).toArrow()
    assert canonical(shown) == true_rows(made)


def test_past_snapshots_branches_and_tags_equal_iceberg(matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table("evolving_v2")
    table = load(made, local_catalog)
    for at in ({"snapshot_id": made.snapshots()[2]}, {"ref": BRANCH}, {"ref": TAG}):
        with interpreted(matrix.spark):
            shown = read(matrix.spark, table, options=options("auto"), **at).toArrow()  # type: ignore[arg-type]
        assert canonical(shown) == canonical(made.rows(**at))  # type: ignore[arg-type]
