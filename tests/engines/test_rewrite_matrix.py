"""Evolved tables rewritten with every variant: Spark reads the same rows as before, from the expected files.

Every variant runs on its own fork of each matrix table. Spark reads all forks in one query, with row lineage in format
3. A second run has nothing to do, and the old snapshot is unchanged.
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
from tests.support.spark.matrix import FEW, TABLES, Matrix, MatrixTable, interpreted, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ALL = {"rewrite-all": "true"}
SMALL = {"min-input-files": "2", "delete-file-threshold": "1"}
QUIET = ScanOptions(footers=False, cache=False, report=False)
ALL_VARIANTS = ("evolving_v1", "evolving_v2_position_partition", "evolving_v2_equality", "evolving_v3_vectors")
HALF_OF_THE_VARIANTS = ("voids_v1_to_v2_equality", "defaults_v3_vectors")
LINEAGE = ("_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True)
class Variant:
    """Arguments and options of a rewrite."""

    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=lambda: ALL)
    on_spark: bool = False


SMALL_ONES = Variant(options=SMALL)
VARIANTS = (
    Variant({"strategy": "stitch"}),
    Variant({"spec": "current"}, on_spark=True),
    Variant({"strategy": "sort", "by": ("id desc nulls first", "pk")}, {**ALL, "task-memory-bytes": "20000"}),
    Variant({"strategy": "hilbert", "by": ("id", "v", "pk"), "spec": "current"}),
    Variant({"where": "pk < 3000", "strategy": "zorder", "by": ("v", "id")}),
    Variant({"spec": "current"}, {**SMALL, "partial-progress.enabled": "true", "partial-progress.max-commits": "3"}),
)


def variants(name: str) -> list[Variant]:
    """All variants for the representative tables, some for each of the others."""
    if name in ALL_VARIANTS or fuzzing.SECONDS:
        return [SMALL_ONES, *VARIANTS]
    if name in HALF_OF_THE_VARIANTS:  # the tables of ``make test`` with equality deletes and with vectors
        return [SMALL_ONES, *VARIANTS[HALF_OF_THE_VARIANTS.index(name) :: 2]]
    return [SMALL_ONES, VARIANTS[TABLES.index(name) % len(VARIANTS)]]


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text: NaN equals itself, -0.0 differs from 0.0."""
    return sorted(repr(sorted(row.items())) for row in rows)


class Forks:
    """Copies of one table, one for each variant."""

    def __init__(self, made: MatrixTable, catalog: SqlCatalog) -> None:
        self.made, self.catalog = made, catalog
        self.names = [made.identifier]

    def fork(self) -> Table:
        location = self.catalog.load_table(self.made.identifier).metadata_location
        self.names.append(f"{self.made.identifier}_rewritten_{len(self.names)}")
        return self.catalog.register_table(self.names[-1], location)

    def read(self, columns: tuple[str, ...]) -> list[list[str]]:
        """The rows of the table and of every fork as Spark reads them."""
        chosen = ", ".join(["*", *columns])
        queries = [f"SELECT {n} AS fork, {chosen} FROM local.{name}" for n, name in enumerate(self.names)]
        with interpreted(self.made.spark):
            answered = self.made.spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist()
        found: list[list[dict[str, Any]]] = [[] for _ in self.names]
        for row in answered:
            found[row.pop("fork")].append(row)
        return [texts(rows) for rows in found]


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_rows_files_and_sequence_numbers_after_every_rewrite(
    name: str, matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, duckdb: DuckDb
) -> None:
    made = matrix.table(name)
    forks = Forks(made, local_catalog)
    original = local_catalog.load_table(made.identifier)
    rows = fp.plan_scan(original, options=QUIET).to_arrow().to_pylist()
    before, keys = texts(rows), key_columns(rows)
    read_by_duckdb = duckdb.reads(original, keys)
    for variant in variants(name):
        table = forks.fork()
        start = table.current_snapshot()
        assert start is not None
        # Spark's equality deletes are minutes old, so that a rewrite to another spec takes them for a live writer's.
        done = fp.rewrite_data_files(
            table,
            **variant.arguments,
            options=variant.options,
            spark=spark if variant.on_spark else None,
            allow_late_equality_deletes=True,
        )
        assert done.groups_failed == 0
        assert done.files_rewritten == done.planning.plan.to_dict()["files"]
        check_files(table, start.sequence_number, variant, done)
        assert texts(fp.plan_scan(table, options=QUIET).to_arrow().to_pylist()) == before, variant
        if read_by_duckdb and not left_out(table):
            assert duckdb.keys(table) == keys, variant
        old = fp.plan_scan(table, snapshot_id=start.snapshot_id, options=QUIET)
        assert texts(old.to_arrow().to_pylist()) == before or start.schema_id != table.metadata.current_schema_id
        check_nothing_left(table, variant)
    has_lineage = local_catalog.load_table(made.identifier).metadata.format_version > 2
    first, *others = forks.read(LINEAGE if has_lineage and "_to_v3" not in name else ())
    assert all(rows == first for rows in others)


def check_files(table: Table, sequence_number: int | None, variant: Variant, done: fp.RewriteResult) -> None:
    """New files have the requested spec and at most the planned sequence number; applied deletes are removed."""
    files = list(fp.plan_scan(table.refresh(), options=QUIET).files)
    replaced = {path for group in done.planning.plan.groups for path in map(str, paths_of(done, group.rows))}
    assert replaced.isdisjoint(file.path for file in files)
    if table.metadata.format_version > 1:
        assert sequence_number is not None
        assert all(file.sequence_number <= sequence_number for file in files)
    if variant.arguments.get("spec") == "current" and "where" not in variant.arguments and variant.options == ALL:
        assert {file.spec_id for file in files} == {table.metadata.default_spec_id}
    if variant.options == ALL and "where" not in variant.arguments:
        assert not any(file.deletes for file in files)


def check_nothing_left(table: Table, variant: Variant) -> None:
    """Another run does nothing; after files moved between specs, one more run may pack them."""

    def again() -> tuple[int, ...]:
        done = fp.rewrite_data_files(
            table, **variant.arguments, options=variant.options, allow_late_equality_deletes=True
        )
        return done.snapshot_ids

    if "rewrite-all" not in variant.options and again():
        assert "spec" in variant.arguments, variant
        assert again() == (), variant


def paths_of(done: fp.RewriteResult, rows: Any) -> list[str]:
    return [done.planning.plan.files[int(row)].path for row in rows]
