"""The matrix: evolved tables written by Spark with Iceberg's own jar, and their rows as Spark reads them.

Each table is built once per test run, by the first process that needs it; other processes register it in their
catalogs. ``fork`` gives a test its own table to change. Names read chain, format version, deletes: ``voids_v1``,
``evolving_v2_position_file``. ``make test`` uses the representative tables alone (``parametrized``).
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark import iceberg_java
from tests.support.spark import matrix_chains as chains
from tests.support.spark.lake import INTERPRETED
from tests.support.spark.matrix_chains import COLUMNS, batch

if TYPE_CHECKING:
    import pyarrow as pa
    from _pytest.mark.structures import ParameterSet
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "matrix"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build a table of the matrix: format version, history, and row-level changes."""

    version: int
    chain: Callable[[Builder], None]
    change: Callable[[Builder], None] | None = None
    upgrade: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    branches: bool = False
    filled: Mapping[str, str] = field(default_factory=dict)


def _recipes() -> dict[str, Recipe]:
    recipes = {}
    for version in (1, 2, 3, 4):
        recipes[f"evolving_v{version}"] = Recipe(version, chains.evolving, chains.rewritten, branches=True)
        recipes[f"voids_v{version}"] = Recipe(version, chains.voids, chains.rewritten)
        recipes[f"dropped_sources_v{version}"] = Recipe(version, chains.dropped_sources)
        recipes[f"truncations_v{version}"] = Recipe(version, chains.truncations)
    for version in (2, 3, 4):
        recipes[f"gaps_v{version}"] = Recipe(version, chains.gaps)
        recipes[f"evolving_v{version}_equality"] = Recipe(version, chains.evolving, chains.by_equality)
        recipes[f"voids_v1_to_v{version}_equality"] = Recipe(1, chains.voids, chains.by_equality, upgrade=version)
    for name in ("evolving", "dropped_sources", "truncations"):
        chain = getattr(chains, name)
        recipes[f"{name}_v2_position_file"] = Recipe(2, chain, chains.by_position_in_file)
        recipes[f"{name}_v2_position_partition"] = Recipe(2, chain, chains.by_position_in_partition)
        recipes[f"{name}_v3_vectors"] = Recipe(3, chain, chains.by_position_in_file)
        recipes[f"{name}_v4_vectors"] = Recipe(4, chain, chains.by_position_in_file)
    for version in (1, 2, 3, 4):
        recipes[f"imported_v{version}"] = Recipe(version, chains.imported)
    recipes["imported_v2_position_file"] = Recipe(2, chains.imported, chains.by_position_in_file)
    recipes["defaults_v3"] = Recipe(3, chains.defaults)
    recipes["defaults_v3_vectors"] = Recipe(3, chains.defaults, chains.by_position_in_file)
    recipes["defaults_v4_vectors"] = Recipe(4, chains.defaults, chains.by_position_in_file)
    recipes["voids_v1_to_v2_position_partition"] = Recipe(1, chains.voids, chains.by_position_in_partition, upgrade=2)
    recipes["voids_v1_to_v3_vectors"] = Recipe(1, chains.voids, chains.by_position_in_file, upgrade=3)
    recipes["evolving_v2_to_v3_vectors"] = Recipe(2, chains.evolving, chains.upgraded_to_vectors)
    recipes["evolving_v3_to_v4_vectors"] = Recipe(3, chains.evolving, chains.upgraded_to_parquet_manifests)
    recipes["voids_v1_to_v4_vectors"] = Recipe(1, chains.voids, chains.by_position_in_file, upgrade=4)
    recipes["evolving_v2_no_statistics"] = Recipe(
        2, chains.evolving, properties={"write.metadata.metrics.default": "none"}
    )
    recipes["truncations_v2_full_statistics"] = Recipe(
        2, chains.truncations, properties={"write.metadata.metrics.default": "full"}
    )
    # Java's ORC writer shifts times within the second before 1970 by one second, out of their partitions and bounds.
    representable = {
        name: f"IF({name} > '1969-12-31 23:59:59' AND {name} < '1970-01-01', NULL, {name})" for name in ("ts", "ts_ntz")
    }
    # Java's ORC reader takes a batch of 0.0 and -0.0, which are equal, for a repeated value: Spark loses the sign.
    representable |= {
        name: f"IF({name} = 0, CAST(0 AS {kind}), {name})" for name, kind in (("v", "DOUBLE"), ("f", "FLOAT"))
    }
    orc, avro = {"write.format.default": "orc"}, {"write.format.default": "avro"}
    recipes["evolving_v2_position_partition_orc"] = Recipe(
        2, chains.evolving, chains.by_position_in_partition, properties=orc, filled=representable
    )
    recipes["evolving_v3_vectors_orc"] = Recipe(
        3, chains.evolving, chains.by_position_in_file, properties=orc, filled=representable
    )
    recipes["dropped_sources_v2_position_file_avro"] = Recipe(
        2, chains.dropped_sources, chains.by_position_in_file, properties=avro
    )
    # Iceberg 1.12 reads defaults from Avro files but not from ORC files.
    recipes["defaults_v3_vectors_avro"] = Recipe(3, chains.defaults, chains.by_position_in_file, properties=avro)
    return recipes


RECIPES = _recipes()
TABLES = tuple(RECIPES)
REPRESENTATIVES = frozenset(
    {
        "evolving_v3_to_v4_vectors",
        "voids_v1_to_v2_equality",
        "dropped_sources_v1",
        "truncations_v2_position_partition",
        "gaps_v3",
        "imported_v2_position_file",
        "defaults_v3_vectors",
    }
)
"""Every chain, every format version and every kind of delete at least once."""
NAMED = REPRESENTATIVES | {
    "evolving_v2",
    "evolving_v2_equality",
    "evolving_v2_position_file",
    "evolving_v3_vectors",
    "voids_v1",
}
"""More tables that ``make test`` builds, for tests that name their tables."""
FEW = frozenset(
    {
        "dropped_sources_v1",
        "voids_v1_to_v2_equality",
        "truncations_v2_position_partition",
        "evolving_v3_to_v4_vectors",
    }
)
"""For tests that take many seconds per table: every format version and every kind of delete, by few chains."""
BRANCH, TAG = "side", "start"


def parametrized(
    names: Sequence[str] = TABLES, few: Collection[str] | None = None, rest: pytest.MarkDecorator = pytest.mark.matrix
) -> list[ParameterSet]:
    """Parameters for tests of these tables.

    ``make test`` runs the few that are given, else the representatives if all tables are named, else those in
    ``NAMED``; ``make test-all`` runs all but those of format 4, which ``make engines`` runs. The tables that ``make
    test`` leaves out get the mark ``rest``.
    """
    wanted = few if few is not None else REPRESENTATIVES if names is TABLES else NAMED
    marks = {name: pytest.mark.foreign if "_v4" in name else rest for name in names if name not in wanted}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


class Builder:
    """Builds one table from its recipe."""

    def __init__(self, spark: SparkSession, name: str, recipe: Recipe) -> None:
        self.spark = spark
        self.name = name
        self.version = recipe.version
        self._recipe = recipe
        self._filled: dict[str, str] = dict(recipe.filled)

    def build(self) -> None:
        self._recipe.chain(self)
        if self._recipe.branches:
            self._branch()

    def change_rows(self) -> None:
        """Upgrade the format and delete rows, if the recipe says so."""
        if self._recipe.upgrade is not None:
            self.set({"format-version": str(self._recipe.upgrade)})
        if self._recipe.change is not None:
            self._recipe.change(self)

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("{t}", self.name))

    def create(self, columns: Mapping[str, str] = COLUMNS) -> None:
        fields = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        self.sql(f"CREATE TABLE {{t}} ({fields}) USING iceberg TBLPROPERTIES ('format-version' = '{self.version}')")
        one_task_many_files = {
            "write.distribution-mode": "none",
            "write.spark.fanout.enabled": "true",
            "read.split.adaptive-size.enabled": "false",
        }
        self.set(one_task_many_files | dict(self._recipe.properties))

    def set(self, properties: Mapping[str, str]) -> None:
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({pairs})")

    def alter(self, *changes: str) -> None:
        for change in changes:
            self.sql(f"ALTER TABLE {{t}} {change}")

    def fill(self, **expressions: str) -> None:
        """Fill these columns with expressions over a batch instead of the column of the same name."""
        self._filled |= expressions

    def write(self, number: int, spec_id: int | None = None, branch: str | None = None) -> None:
        """Append a batch under the current spec, or under another one."""
        source = _view(self.spark, number)
        columns = self.spark.table(self.name).columns
        selected = ", ".join(f"{self._filled.get(column, column)} AS {column}" for column in columns)
        target = self.name if branch is None else f"{self.name}.branch_{branch}"
        writer = self.spark.sql(f"SELECT {selected} FROM {source}").writeTo(target)
        if spec_id is not None:
            writer = writer.option("output-spec-id", str(spec_id))
        writer.append()

    def add_files(self, number: int, partitioned_by: str) -> None:
        """Add the files of a folder that Spark wrote as plain Parquet."""
        folder = f"{self._java().location()}/imported-{number}"
        self.spark.table(_view(self.spark, number)).write.partitionBy(partitioned_by).parquet(folder)
        self.sql(f"CALL local.system.add_files(table => '{{t}}', source_table => '`parquet`.`{folder}`')")

    def add_columns(self, **defaults: int | str) -> None:
        """Add columns with an initial default, which Spark SQL does not support."""
        iceberg_java.add_columns(self.spark, self._java(), defaults)

    def expire_and_clean(self) -> None:
        self.sql(
            f"CALL {self.name.split('.')[0]}.system.expire_snapshots(table => '{{t}}', older_than => now(), "
            "retain_last => 1, clean_expired_metadata => true)"
        )

    def delete_equal(self, rows: Sequence[Mapping[str, object]], beside: str | None = None) -> None:
        iceberg_java.delete_equal(self.spark, self._java(), rows, beside=beside)

    def keys_of_one_file_per_spec(self) -> dict[str, list[int]]:
        """For the first data file of each spec every third ``pk`` in it."""
        rows = self.spark.sql(f"SELECT _spec_id, _file, pk FROM {self.name} ORDER BY ALL").collect()
        first = {spec_id: file for spec_id, file, _ in reversed(rows)}
        return {file: [pk for _, path, pk in rows if path == file][::3] for file in first.values()}

    def _java(self) -> iceberg_java.JavaTable:
        return iceberg_java.load_table(self.spark, self.name)

    def _branch(self) -> None:
        query = f"SELECT snapshot_id FROM {self.name}.snapshots ORDER BY committed_at"
        snapshots = [row[0] for row in self.spark.sql(query).collect()]
        self.alter(
            f"CREATE TAG {TAG} AS OF VERSION {snapshots[1]}", f"CREATE BRANCH {BRANCH} AS OF VERSION {snapshots[3]}"
        )
        self.write(8, branch=BRANCH)


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Disable code generation."""
    before = {key: spark.conf.get(key) for key in INTERPRETED}
    try:
        for key, value in INTERPRETED.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


@cache
def _view(spark: SparkSession, number: int) -> str:
    name = f"matrix_batch_{number}"
    spark.createDataFrame(batch(number)).createOrReplaceTempView(name)
    return name


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """A built table and its content according to Spark."""

    spark: SparkSession
    name: str
    recipe: Recipe

    @property
    def identifier(self) -> str:
        """The table's name for PyIceberg: without the catalog."""
        return self.name.split(".", 1)[1]

    @property
    def columns(self) -> list[str]:
        return self.spark.table(self.name).columns

    def java(self) -> iceberg_java.JavaTable:
        return iceberg_java.load_table(self.spark, self.name)

    def snapshots(self) -> list[int]:
        """All snapshot ids, oldest first."""
        query = f"SELECT snapshot_id FROM {self.name}.snapshots ORDER BY committed_at"
        return [row[0] for row in self.spark.sql(query).collect()]

    def metadata(self, table: str, snapshot_id: int | None = None) -> pa.Table:
        """One of Iceberg's metadata tables: ``entries``, ``files``, ``manifests``, …"""
        version = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return self.spark.sql(f"SELECT * FROM {self.name}.{table}{version}").toArrow()

    def rows(self, *, snapshot_id: int | None = None, ref: str | None = None) -> pa.Table:
        """Every live row, ordered by ``pk``."""
        return self._read(snapshot_id, ref).orderBy("pk").toArrow()

    def matches(
        self, predicates: Sequence[str], *, snapshot_id: int | None = None, ref: str | None = None
    ) -> dict[str, list[int]]:
        """The ``pk`` of the rows for which each predicate is TRUE.

        The predicates are projected instead of filtered by: nothing is pushed down, so no pruning bug of Spark, Iceberg
        or the Parquet reader can hide a row.
        """
        answers = [f"({text}) IS TRUE AS p{i}" for i, text in enumerate(predicates)]
        with interpreted(self.spark):
            answered = self._read(snapshot_id, ref).selectExpr("pk", *answers).toArrow()
        keys = answered["pk"]
        return {text: sorted(keys.filter(answered[f"p{i}"]).to_pylist()) for i, text in enumerate(predicates)}

    def filtered(self, where: str) -> list[int]:
        """The ``pk`` of the rows Spark returns when it filters, including Spark's pruning bugs."""
        return sorted(self.spark.table(self.name).where(where).toArrow()["pk"].to_pylist())

    def kept_files(self, where: str) -> set[str]:
        """The data files that Iceberg Java's planning keeps."""
        return iceberg_java.planned_files(self.spark, self.java(), iceberg_java.convert(self.spark, self.name, where))

    def file_of_rows(self) -> dict[int, set[str]]:
        """The data files of the live rows of each ``pk``."""
        found: dict[int, set[str]] = {}
        for pk, path in self.spark.table(self.name).selectExpr("pk", "_file").collect():
            found.setdefault(pk, set()).add(path)
        return found

    def _read(self, snapshot_id: int | None, ref: str | None) -> DataFrame:
        version = snapshot_id if ref is None else ref
        return (self.spark.read if version is None else self.spark.read.option("versionAsOf", version)).table(self.name)


class Matrix:
    """The tables of one Spark session, built on first use unless another process of the run has built them."""

    def __init__(self, spark: SparkSession, run: Path) -> None:
        self.spark = spark
        self._run = run
        self._built: dict[str, MatrixTable] = {}
        self._forks = 0

    def table(self, name: str) -> MatrixTable:
        """The shared table of this name; tests must not change it."""
        if name not in self._built:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS local.{NAMESPACE}")
            self._built[name] = self._made(MatrixTable(self.spark, f"local.{NAMESPACE}.{name}", RECIPES[name]), name)
        return self._built[name]

    def _made(self, table: MatrixTable, note: str) -> MatrixTable:
        """Build the table and record its metadata location, or register what another process built; under a lock."""
        with (self._run / note).open("a+") as noted:
            fcntl.flock(noted, fcntl.LOCK_EX)
            noted.seek(0)
            if metadata := noted.read():
                self._register(table.name, metadata)
            else:
                with interpreted(self.spark):
                    Builder(self.spark, table.name, table.recipe).build()
                noted.write(self._metadata_of(table))
        return table

    def _metadata_of(self, table: MatrixTable) -> str:
        return str(table.java().operations().current().metadataFileLocation())

    def _register(self, name: str, metadata: str) -> None:
        self.spark.sql(f"CALL local.system.register_table(table => '{name}', metadata_file => '{metadata}')")

    def fork(self, name: str) -> MatrixTable:
        """A table with the same history that a test may change: registered from the same metadata file.

        The fork shares location and files with the original: a test may commit to it, but not remove files.
        """
        shared = self.table(name)
        self._forks += 1
        forked = f"local.{NAMESPACE}.{name}_fork_{self._forks}"
        self._register(forked, self._metadata_of(shared))
        return MatrixTable(self.spark, forked, shared.recipe)
