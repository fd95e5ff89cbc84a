"""Evolved tables rewritten in every way: Spark reads the same rows as before, in files as asked for.

For each table of the matrix every way is gone on a fork of its own. All forks are read by Spark in one query, with the
identity of rows where the format has one. A second run finds nothing left to do, and the old snapshot reads as it did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.scan.model import ScanOptions
from tests.support.fuzz import fuzzing
from tests.support.oracles.duckdb_reader import DuckDb, key_columns, left_out
from tests.support.spark.matrix import TABLES, Matrix, MatrixTable, interpreted, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ALL = {"rewrite-all": "true"}
SMALL = {"min-input-files": "2", "delete-file-threshold": "1"}
QUIET = ScanOptions(footers=False, cache=False, report=False)
EVERY_WAY = ("evolving_v1", "evolving_v2_position_partition", "evolving_v2_equality", "evolving_v3_vectors")
EVERY_OTHER_WAY = ("voids_v1_to_v2_equality", "defaults_v3_vectors")
LINEAGE = ("_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True)
class Way:
    """One way of rewriting."""

    asked: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=lambda: ALL)
    on_spark: bool = False


SMALL_ONES = Way(options=SMALL)
WAYS = (
    Way({"strategy": "stitch"}),
    Way({"spec": "current"}, on_spark=True),
    Way({"strategy": "sort", "by": ("id desc nulls first", "pk")}, {**ALL, "task-memory-bytes": "20000"}),
    Way({"strategy": "hilbert", "by": ("id", "v", "pk"), "spec": "current"}),
    Way({"where": "pk < 3000", "strategy": "zorder", "by": ("v", "id")}),
    Way({"spec": "current"}, {**SMALL, "partial-progress.enabled": "true", "partial-progress.max-commits": "3"}),
)


def ways(name: str) -> list[Way]:
    """All for the tables that stand for a format and a kind of delete; for the others some, in turn."""
    if name in EVERY_WAY or fuzzing.SECONDS:
        return [SMALL_ONES, *WAYS]
    if name in EVERY_OTHER_WAY:  # what ``make test`` does with equality deletes and with vectors
        return [SMALL_ONES, *WAYS[EVERY_OTHER_WAY.index(name) :: 2]]
    return [SMALL_ONES, WAYS[TABLES.index(name) % len(WAYS)]]


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Rows to compare: NaN equals itself, -0.0 is not 0.0."""
    return sorted(repr(sorted(row.items())) for row in rows)


class Forks:
    """Copies of one table, one for each way."""

    def __init__(self, made: MatrixTable, catalog: SqlCatalog) -> None:
        self.made, self.catalog = made, catalog
        self.names = [made.identifier]

    def fork(self) -> Table:
        location = self.catalog.load_table(self.made.identifier).metadata_location
        self.names.append(f"{self.made.identifier}_rewritten_{len(self.names)}")
        return self.catalog.register_table(self.names[-1], location)

    def read(self, columns: tuple[str, ...]) -> list[list[str]]:
        """What Spark reads of the table itself and of every fork."""
        chosen = ", ".join(["*", *columns])
        queries = [f"SELECT {n} AS fork, {chosen} FROM local.{name}" for n, name in enumerate(self.names)]
        with interpreted(self.made.spark):
            answered = self.made.spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist()
        found: list[list[dict[str, Any]]] = [[] for _ in self.names]
        for row in answered:
            found[row.pop("fork")].append(row)
        return [texts(rows) for rows in found]


@pytest.mark.parametrize("name", parametrized())
def test_rows_files_and_ages_after_every_way(
    name: str, matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, duckdb: DuckDb
) -> None:
    made = matrix.table(name)
    forks = Forks(made, local_catalog)
    original = local_catalog.load_table(made.identifier)
    rows = fp.plan_scan(original, options=QUIET).to_arrow().to_pylist()
    before, keys = texts(rows), key_columns(rows)
    read_by_duckdb = duckdb.reads(original, keys)
    for way in ways(name):
        table = forks.fork()
        start = table.current_snapshot()
        assert start is not None
        done = fp.rewrite_data_files(table, **way.asked, options=way.options, spark=spark if way.on_spark else None)
        assert done.groups_failed == 0
        assert done.files_rewritten == done.planning.plan.to_dict()["files"]
        check_files(table, start.sequence_number, way, done)
        assert texts(fp.plan_scan(table, options=QUIET).to_arrow().to_pylist()) == before, way
        if read_by_duckdb and not left_out(table):
            assert duckdb.keys(table) == keys, way
        old = fp.plan_scan(table, snapshot_id=start.snapshot_id, options=QUIET)
        assert texts(old.to_arrow().to_pylist()) == before or start.schema_id != table.metadata.current_schema_id
        check_nothing_left(table, way)
    has_lineage = local_catalog.load_table(made.identifier).metadata.format_version > 2
    first, *others = forks.read(LINEAGE if has_lineage and "_to_v3" not in name else ())
    assert all(rows == first for rows in others)


def check_files(table: Table, age: int | None, way: Way, done: fp.RewriteResult) -> None:
    """New files are of the spec asked for and no younger than the plan; deletes that were applied are gone."""
    files = list(fp.plan_scan(table.refresh(), options=QUIET).files)
    replaced = {path for group in done.planning.plan.groups for path in map(str, paths_of(done, group.rows))}
    assert replaced.isdisjoint(file.path for file in files)
    if table.metadata.format_version > 1:
        assert age is not None
        assert all(file.sequence_number <= age for file in files)
    if way.asked.get("spec") == "current" and "where" not in way.asked and way.options == ALL:
        assert {file.spec_id for file in files} == {table.metadata.default_spec_id}
    if way.options == ALL and "where" not in way.asked:
        assert not any(file.deletes for file in files)


def check_nothing_left(table: Table, way: Way) -> None:
    """Another run does nothing; after one that moved files, which packs what came into one partition from several."""

    def again() -> tuple[int, ...]:
        return fp.rewrite_data_files(table, **way.asked, options=way.options).snapshot_ids

    if "rewrite-all" not in way.options and again():
        assert "spec" in way.asked, way
        assert again() == (), way


def paths_of(done: fp.RewriteResult, rows: Any) -> list[str]:
    return [done.planning.plan.files[int(row)].path for row in rows]
