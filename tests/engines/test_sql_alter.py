"""ALTER TABLE by ``fp.sql`` gives the same specs as Spark's own on a second table, in every format version."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException

from floeplan.errors import FloeplanError
from floeplan.partition.evolution import AddField, RenameField
from floeplan.sql_text.parse import parse_term
from floeplan.sql_text.run import sql
from floeplan.transaction.evolve_spec import add_spec, evolve_spec
from tests.support.spark.iceberg_java import load_table, spec_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

COLUMNS = "id BIGINT, name STRING, ts TIMESTAMP, d DATE, v DOUBLE, s STRUCT<city: STRING, zip: INT>"
TERMS = ("id", "name", "s.city", "bucket(4, id)", "bucket(8, id)", "truncate(3, name)", "days(ts)", "hours(ts)")
NAMES = ("", "", " AS a", " AS b", " AS id", " AS ts_day")
_numbers = count()


class Twins:
    """Two equal tables: Spark changes one, Floeplan the other."""

    def __init__(self, spark: SparkSession, catalog: SqlCatalog, version: int) -> None:
        self.spark, self.catalog = spark, catalog
        number = next(_numbers)
        spark.sql("CREATE NAMESPACE IF NOT EXISTS local.alter")
        self.theirs, self.ours = f"alter.spark_{number}", f"alter.floeplan_{number}"
        for name in (self.theirs, self.ours):
            spark.sql(
                f"CREATE TABLE local.{name} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version'='{version}')"
            )

    def alter(self, change: str) -> None:
        """Apply a change to both; either both succeed or both refuse."""
        spark_refused = floeplan_refused = ""
        try:
            self.spark.sql(f"ALTER TABLE local.{self.theirs} {change}")
        except (PySparkException, Py4JJavaError) as error:
            spark_refused = str(error)
        try:
            sql(None, f"ALTER TABLE local.{self.ours} {change}", catalog=self.catalog)
        except FloeplanError as error:
            floeplan_refused = error.message
        assert bool(spark_refused) == bool(floeplan_refused), (change, spark_refused, floeplan_refused)
        assert self.partitioning(self.ours) == self.partitioning(self.theirs), change

    def partitioning(self, name: str) -> dict[str, Any]:
        metadata = self.catalog.load_table(name).metadata
        return {
            "specs": [(spec.spec_id, [str(field) for field in spec.fields]) for spec in metadata.partition_specs],
            "default": metadata.default_spec_id,
            "last": metadata.last_partition_id,
        }

    def fields(self) -> list[Any]:
        return list(self.catalog.load_table(self.ours).spec().fields)

    def is_ambiguous(self, term: str) -> bool:
        """Whether the table has had several fields of a term, of which Iceberg chooses any without a name."""
        metadata = self.catalog.load_table(self.ours).metadata
        parsed = parse_term(term)
        source = metadata.schema().find_field(".".join(parsed.column)).field_id
        fields = {f for spec in metadata.partition_specs for f in spec.fields if f.source_id == source}
        return len({(f.name, f.field_id) for f in fields if str(f.transform) == str(parsed.transform)}) > 1


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_chains_of_changes(spark: SparkSession, local_catalog: SqlCatalog, version: int, seed: int) -> None:
    twins = Twins(spark, local_catalog, version)
    chance = random.Random(10 * seed + version)
    for _ in range(14):
        twins.alter(random_change(twins, chance))
    java = spec_texts(load_table(spark, f"local.{twins.ours}"))
    assert java == spec_texts(load_table(spark, f"local.{twins.theirs}"))


def random_change(twins: Twins, chance: random.Random) -> str:
    term, name = chance.choice(TERMS), chance.choice(NAMES)
    if not name and twins.is_ambiguous(term):
        name = " AS a"
    live = [field.name for field in twins.fields() if str(field.transform) != "void"]
    which = f"`{chance.choice(live)}`" if live and chance.random() < 0.7 else chance.choice(TERMS)
    kind = chance.random()
    if kind < 0.5 or not live:
        return f"ADD PARTITION FIELD {term}{name}"
    return f"DROP PARTITION FIELD {which}" if kind < 0.75 else f"REPLACE PARTITION FIELD {which} WITH {term}{name}"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_single_changes(spark: SparkSession, local_catalog: SqlCatalog, version: int) -> None:
    twins = Twins(spark, local_catalog, version)
    for change in (
        "ADD PARTITION FIELD days(ts)",
        "ADD PARTITION FIELD hours(ts)",
        "ADD PARTITION FIELD days(ts)",
        "ADD PARTITION FIELD years(d) AS y",
        "ADD PARTITION FIELD truncate(name, 4)",
        "ADD PARTITION FIELD bucket(16, s.zip) AS shard",
        "ADD PARTITION FIELD bucket(3, id) AS id",
        "ADD PARTITION FIELD bucket(3, id) AS name",
        "ADD PARTITION FIELD bucket(16, v)",
        "ADD PARTITION FIELD days(name)",
        "ADD PARTITION FIELD nope",
        "ADD PARTITION FIELD s",
        "DROP PARTITION FIELD ts_day",
        "DROP PARTITION FIELD ts_day",
        "ADD PARTITION FIELD days(ts)",
        "DROP PARTITION FIELD days(ts)",
        "REPLACE PARTITION FIELD y WITH months(d) AS y",
        "REPLACE PARTITION FIELD shard WITH bucket(16, s.zip) AS shards",
        "REPLACE PARTITION FIELD nope WITH id",
        "ADD PARTITION FIELD days(ts) AS id",
    ):
        twins.alter(change)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_renaming(spark: SparkSession, local_catalog: SqlCatalog, version: int) -> None:
    """Compared with Java's API, since there is no statement for it."""
    twins = Twins(spark, local_catalog, version)
    for change in ("ADD PARTITION FIELD days(ts)", "ADD PARTITION FIELD id", "DROP PARTITION FIELD days(ts)"):
        twins.alter(change)
    for name, new_name in (("id", "key"), ("key", "ts_day"), ("ts_day", "id")):
        load_table(spark, f"local.{twins.theirs}").updateSpec().renameField(name, new_name).commit()
        evolve_spec(local_catalog.load_table(twins.ours), [RenameField(name, new_name)])
        assert twins.partitioning(twins.ours) == twins.partitioning(twins.theirs), (name, new_name)


@pytest.mark.parametrize("version", [2, 3])
def test_a_spec_beside_the_default_is_known_to_java(
    spark: SparkSession, local_catalog: SqlCatalog, version: int
) -> None:
    twins = Twins(spark, local_catalog, version)
    twins.alter("ADD PARTITION FIELD id")
    tier = [AddField(parse_term("days(ts)")), AddField(parse_term("bucket(4, name)"))]
    added = add_spec(local_catalog.load_table(twins.ours), tier)
    java = load_table(spark, f"local.{twins.ours}")
    assert java.spec().specId() == 1
    assert spec_texts(java)[added.spec.spec_id] == "[ 1001: ts_day: day(3) 1002: name_bucket_4: bucket[4](2) ]"
    spark.sql(f"ALTER TABLE local.{twins.ours} ADD PARTITION FIELD days(ts)")
    assert [field.field_id for field in twins.fields()] == [1000, 1001]
