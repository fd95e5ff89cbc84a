"""Spark with Iceberg's own client reads and changes evolved tables through the planning server.

The server serves the catalog that Spark opens directly, so each query runs twice: planned by Iceberg's Java client, and
planned by the server. Rows must be equal, and the server's log must show that it planned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.table import Table
from pyparsing import ParseBaseException

from tests.support.rest_server import Program, program
from tests.support.servers import rest_catalog
from tests.support.spark.matrix import TABLES, Matrix, MatrixTable, interpreted, parametrized
from tests.support.spark.matrix_predicates import canonical, chosen_predicates, true_matches, true_rows

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet
    from pyspark.sql import SparkSession

    from tests.support.spark.lake import Lake

pytestmark = pytest.mark.engines

FEW = ("voids_v1_to_v2_equality",)
CHANGED = ("evolving_v1", "evolving_v2_position_file", "gaps_v2")
LOADED = tuple(name for name in TABLES if "_v4" not in name)
"""The tables that PyIceberg's REST client can load."""
BY_CLIENTS = ("truncations", "_v4")
"""The chain with identity partitions of doubles, of which Java cannot parse NaN, and format 4: Java plans these."""
IN_CI = frozenset(
    {
        "evolving_v2_position_partition",
        "dropped_sources_v2",
        "truncations_v2_position_partition",
        "gaps_v3",
        "imported_v2_position_file",
        "defaults_v3_vectors",
        "evolving_v2_to_v3_vectors",
    }
)
"""Every chain and every kind of delete; ``make engines`` reads the other tables."""
SCANS = 30
"""Scans in one query."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server for the catalog ``local``, and Spark's catalog that goes through it."""

    program: Program
    catalog: str

    def name(self, made: MatrixTable) -> str:
        return f"{self.catalog}.{made.identifier}"

    def plans(self, made: MatrixTable) -> int:
        return sum(event["table"] == made.identifier for event in self.program.events("plan"))


@pytest.fixture(scope="module")
def served(spark: SparkSession, lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    lake.open_catalog().close()
    options = ("--catalog", "local", "--plan", "*", "--plan-format-3", "*")
    with program(tmp_path_factory.mktemp("served"), *options, environment=lake.environment()) as started:
        yield Served(started, connected(spark, started))


def connected(spark: SparkSession, started: Program) -> str:
    """A catalog of Spark that goes through a server; a session keeps a catalog by its name, so each has its own."""
    catalog = f"served_{started.uri.rpartition(':')[2]}"
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": started.uri}
    for key, value in (settings | {".cache-enabled": "false"}).items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    return catalog


def parameters(names: Sequence[str], few: Collection[str]) -> list[ParameterSet]:
    """The tables of ``IN_CI`` in the matrix that CI runs, and the others, but few, in that of ``make engines``."""
    others = [name for name in names if name not in IN_CI]
    chosen = [pytest.param(name, marks=pytest.mark.matrix) for name in names if name in IN_CI]
    return [*chosen, *parametrized(others, few=few, rest=pytest.mark.foreign)]


@pytest.mark.parametrize("name", parameters(TABLES, FEW))
def test_spark_reads_the_same_rows_whoever_plans(
    name: str, served: Served, matrix: Matrix, spark: SparkSession
) -> None:
    made = matrix.table(name)
    before, by_client = served.plans(made), any(part in name for part in BY_CLIENTS)
    wheres = chosen_predicates(made)
    if by_client:
        # Iceberg's Java planning fails to test the prefix of a null partition value.
        prefixes = [where for where in wheres if "LIKE" in where]
        for where in prefixes:
            assert outcome(spark, served.name(made), where) == outcome(spark, made.name, where), where
        wheres = [where for where in wheres if where not in prefixes]
    with interpreted(spark):
        assert canonical(spark.table(served.name(made)).toArrow()) == true_rows(made)
        found = filtered(spark, served.name(made), wheres)
        assert spark.table(served.name(made)).count() == len(true_rows(made))
    expected = true_matches(made)
    # Where Iceberg's Java planning and Spark's readers lose rows, the readers may lose them here too, but no others.
    for where in (where for where in wheres if found[where] != expected[where]):
        assert set(made.filtered(where)) <= set(found[where]) <= set(expected[where]), where
    planned = served.plans(made) - before
    assert planned == 0 if by_client else planned >= len(wheres)


def outcome(spark: SparkSession, table: str, where: str) -> list[int] | str:
    """The ``pk`` of the rows Spark returns, or the error that it raises."""
    try:
        return filtered(spark, table, [where])[where]
    except Exception as error:
        return type(error).__name__


def filtered(spark: SparkSession, table: str, wheres: Sequence[str]) -> dict[str, list[int]]:
    """The ``pk`` of the rows Spark returns for each predicate; many scans in a query cost little more than one."""
    found: dict[str, list[int]] = {where: [] for where in wheres}
    for first in range(0, len(wheres), SCANS):
        chunk = wheres[first : first + SCANS]
        scans = [f"SELECT {i} AS i, pk FROM {table} WHERE {where}" for i, where in enumerate(chunk)]
        for i, pk in spark.sql(" UNION ALL ".join(scans)).collect():
            found[chunk[i]].append(pk)
    return {where: sorted(keys) for where, keys in found.items()}


@pytest.mark.parametrize("name", parameters(LOADED, ("dropped_sources_v1",)))
def test_pyiceberg_reads_the_same_rows_whoever_plans(
    name: str, served: Served, matrix: Matrix, local_catalog: SqlCatalog
) -> None:
    made = matrix.table(name)
    expected, before = true_matches(made), served.plans(made)
    filters = {where: text for where in expected if (text := in_pyiceberg(where)) is not None}
    assert filters
    with RestCatalog("served", uri=served.program.uri) as catalog:
        through, direct = (each.load_table(made.identifier) for each in (catalog, local_catalog))
        for where, text in {"true": "true", **filters}.items():
            found = keys_of(through, text)
            # Where PyIceberg's own planning gives other rows than Spark, or fails, so may this, but not otherwise.
            if found != expected.get(where):
                alone = keys_of(direct, text)
                failed = isinstance(found, str) and isinstance(alone, str)
                # Its planning drops partitions of -0.0 for NOT IN (0.0), of which its row filter keeps the rows.
                assert found == alone or failed or found == keys_of_rows(direct, text), where
    assert served.plans(made) > before


def in_pyiceberg(where: str) -> str | None:
    """A predicate in the notation of PyIceberg; ``None`` for one that it cannot parse."""
    text = re.sub(r"timestamp'(\S+) ([^']+)'", r"'\1T\2+00:00'", where)
    text = re.sub(r"timestamp_ntz'(\S+) ([^']+)'", r"'\1T\2'", text)
    text = re.sub(r"\bdate'", "'", re.sub(r"(\d)D\b", r"\1", text))
    try:
        parse(text)
    except ParseBaseException:
        return None
    return text


def keys_of(table: Table, text: str) -> list[int] | str:
    """The ``pk`` of the rows that PyIceberg reads, or the error that it raises."""
    try:
        return sorted(table.scan(row_filter=text, selected_fields=("pk",)).to_arrow()["pk"].to_pylist())
    except Exception as error:
        return type(error).__name__


def keys_of_rows(table: Table, text: str) -> list[int]:
    """The ``pk`` of the rows that PyIceberg's filter of rows keeps, of all rows."""
    rows = table.scan().to_arrow()
    filter_ = expression_to_pyarrow(bind(table.schema(), parse(text), case_sensitive=True))
    return sorted(rows.filter(filter_)["pk"].to_pylist())


@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.matrix), "merge-on-read"])
@pytest.mark.parametrize("name", parametrized(CHANGED, few=("evolving_v2_position_file",), rest=pytest.mark.foreign))
def test_changes_through_the_server_leave_the_same_rows(
    name: str, mode: str, served: Served, matrix: Matrix, spark: SparkSession
) -> None:
    if mode == "merge-on-read" and name.endswith("v1"):
        mode = "copy-on-write"
    direct, through = matrix.fork(name), matrix.fork(name)
    statements = (
        "DELETE FROM {t} WHERE id IN (1, 7, 25)",
        "UPDATE {t} SET v = v + 1 WHERE pk % 3 = 1",
        "MERGE INTO {t} t USING (SELECT 30 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 0",
    )
    with interpreted(spark):
        for target in (direct.name, served.name(through)):
            modes = ", ".join(f"'write.{kind}.mode'='{mode}'" for kind in ("delete", "update", "merge"))
            spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({modes})")
            for statement in statements:
                spark.sql(statement.format(t=target))
            catalog, _, table = target.partition(".")
            spark.sql(
                f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
            )
        assert canonical(spark.table(through.name).toArrow()) == canonical(spark.table(direct.name).toArrow())
    assert served.plans(through) >= len(statements)
    assert served.plans(direct) == 0


def test_time_travel_metadata_columns_and_branches(served: Served, matrix: Matrix, spark: SparkSession) -> None:
    made = matrix.table("evolving_v1")
    queries = [
        "SELECT _spec_id, _file, _pos, pk FROM {t} WHERE id > 20 ORDER BY ALL",
        f"SELECT pk FROM {{t}} VERSION AS OF {made.snapshots()[1]} ORDER BY ALL",
        "SELECT pk FROM {t} VERSION AS OF 'start' ORDER BY ALL",
        "SELECT pk FROM {t}.branch_side WHERE id < 30 ORDER BY ALL",
        "SELECT min(pk), max(pk), count(*) FROM {t}",
    ]
    for query in queries:
        through, direct = (spark.sql(query.format(t=t)).collect() for t in (served.name(made), made.name))
        assert through == direct, query


def test_min_and_max_are_answered_from_statistics(served: Served, matrix: Matrix, spark: SparkSession) -> None:
    """Iceberg 1.12 asks the server for no statistics, which it then gets for small plans of all columns."""
    for table in (served.name(matrix.table("evolving_v1")), matrix.table("evolving_v1").name):
        frame: Any = spark.sql(f"SELECT min(pk), max(pk), count(*) FROM {table}")
        assert "LocalTableScan" in frame._jdf.queryExecution().executedPlan().toString()


def test_filters_with_infinity(served: Served, spark: SparkSession) -> None:
    """Iceberg 1.12 writes infinity as text into the filter, and cannot read that text back from a residual."""
    values = "(1, 'NaN'), (2, 'Infinity'), (3, '-Infinity'), (4, '1.5'), (5, NULL), (6, '-1e308')"
    rows = spark.sql(f"SELECT pk, double(v) AS d, float(v) AS f FROM VALUES {values} AS t(pk, v)")
    rows.createOrReplaceTempView("infinite_rows")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.db")
    spark.sql("CREATE TABLE local.db.infinite USING iceberg AS SELECT * FROM infinite_rows")
    operators = ("<", "<=", "=", ">=", ">", "!=")
    wheres = [f"d {operator} double('{sign}Infinity')" for operator in operators for sign in ("", "-")]
    wheres += [f"f {operator} float('Infinity')" for operator in ("<", "=", ">")]
    wheres += ["d IN (double('Infinity'), 1.5)", "NOT (d <= double('Infinity'))", "d < double('Infinity') OR pk = 5"]
    with interpreted(spark):
        # Not against client-side planning, which loses the NaN of d > double('Infinity').
        expected = filtered(spark, "infinite_rows", wheres)
        assert filtered(spark, f"{served.catalog}.db.infinite", wheres) == expected
    assert sum(event["table"] == "db.infinite" for event in served.program.events("plan")) >= len(wheres)


def test_plans_are_recorded_for_the_audit(served: Served, matrix: Matrix, spark: SparkSession) -> None:
    made = matrix.table("evolving_v1")
    spark.sql(f"SELECT pk FROM {served.name(made)} WHERE id = 7").collect()
    event = [each for each in served.program.events("plan") if each["table"] == made.identifier][-1]
    assert event["engine"] == "Iceberg Java"
    assert event["engine_version"].startswith("1.12")
    assert event["plan_id"]


@pytest.mark.matrix
def test_spark_through_the_proxy_before_icebergs_own_server(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "server", "--upstream", behind, "--plan", "*", "--replace-upstream-planning") as started,
    ):
        catalog = connected(spark, started)
        table = f"{catalog}.a.b.t"
        for statement in (
            f"CREATE NAMESPACE {catalog}.a",
            f"CREATE NAMESPACE {catalog}.a.b",
            f"CREATE TABLE {table} USING iceberg PARTITIONED BY (region) AS "
            "SELECT id, if(id % 2 = 0, 'eu', 'us') AS region FROM range(100)",
            f"ALTER TABLE {table} ADD PARTITION FIELD bucket(4, id)",
            f"INSERT INTO {table} SELECT id, 'eu' FROM range(100, 120)",
            f"DELETE FROM {table} WHERE id % 10 = 3",
            f"CREATE VIEW {catalog}.a.b.v AS SELECT id FROM {table} WHERE region = 'eu'",
        ):
            spark.sql(statement)
        assert spark.sql(f"SELECT * FROM {catalog}.a.b.v").count() == 68
        assert spark.sql(f"SELECT id FROM {table} WHERE region = 'us' AND id < 20").count() == 8
        assert {event["table"] for event in started.events("plan")} == {"a.b.t"}
