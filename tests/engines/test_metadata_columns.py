"""Metadata columns in scans, Spark reads and predicates: the values that Spark with Iceberg returns."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

import floeplan as fp
from floeplan.errors import BadInputError
from floeplan.scan.model import ScanOptions
from tests.support.spark.matrix import Matrix, interpreted, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

QUIET = ScanOptions(report=False)
COLUMNS = ["pk", "_file", "_pos", "_spec_id", "_partition"]
LINEAGE = ["_row_id", "_last_updated_sequence_number"]
TABLES = (
    "evolving_v1",
    "evolving_v2_position_partition",
    "evolving_v2_to_v3_vectors",
    "defaults_v3_vectors",
    "voids_v1_to_v2_equality",
    "truncations_v2",
    "dropped_sources_v1",
    "dropped_sources_v2_position_partition",
    "dropped_sources_v3_vectors",
    "evolving_v2_position_partition_orc",
    "defaults_v3_vectors_avro",
)


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Paths as Spark writes them, without the scheme."""
    shown = [row | {"_file": row["_file"].removeprefix("file:").replace("///", "/")} for row in rows]
    return sorted(repr(sorted(row.items())) for row in shown)


@pytest.mark.parametrize("name", parametrized(TABLES, few=("evolving_v2_to_v3_vectors", "dropped_sources_v1")))
def test_values_equal_spark(name: str, matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession) -> None:
    made = matrix.table(name)
    table = local_catalog.load_table(made.identifier)
    columns = COLUMNS + (LINEAGE if table.metadata.format_version > 2 else [])
    with interpreted(spark):
        expected = spark.table(made.name).select(*columns).toArrow().to_pylist()
        with_deleted = spark.table(made.name).select("pk", "_file", "_pos", "_deleted").toArrow().to_pylist()
    assert texts(fp.plan_scan(table, columns=columns, options=QUIET).to_arrow().to_pylist()) == texts(expected)
    assert texts(fp.read(spark, table, columns=columns).toArrow().to_pylist()) == texts(expected)
    found = fp.plan_scan(table, options=QUIET).to_arrow(["pk", "_file", "_pos", "_deleted"]).to_pylist()
    assert texts(found) == texts(with_deleted)
    with interpreted(spark):
        for query in (
            f"SELECT {', '.join(columns)} FROM {{t}} WHERE _pos < 3 AND _spec_id >= 0",
            "SELECT a.pk, a._file, b._pos FROM {t} a JOIN {t} b ON a.pk = b.pk AND a._pos = b._pos WHERE a.pk > 3",
            "SELECT pk, _file, _deleted FROM {t} WHERE _deleted OR pk < 5",
            *(f"SELECT pk, _file FROM {{t}} WHERE {condition}" for condition in of_partitions(expected)[::3]),
        ):
            ours = fp.sql(query.format(t=made.identifier), spark=spark, catalog=local_catalog).toArrow().to_pylist()
            theirs = spark.sql(query.format(t=made.name)).toArrow().to_pylist()
            assert texts(ours) == texts(theirs), query
        aliased = fp.sql(f"SELECT *, pk AS _pos FROM {made.identifier}", spark=spark, catalog=local_catalog)
        assert aliased.columns == [*spark.table(made.name).columns, "_pos"]
        with pytest.raises(BadInputError, match=r"names _pos must list its columns; \* would include it too"):
            fp.sql(f"SELECT *, _pos FROM {made.identifier}", spark=spark, catalog=local_catalog)
    conditions = [
        "_pos = 1",
        "_spec_id IN (1, 2) AND pk % 2 = 0",
        f"_file = '{expected[0]['_file']}'",
        "_pos > 2 OR pk = 1",
    ]
    if table.metadata.format_version > 2:
        conditions += ["_row_id < 20", "_last_updated_sequence_number IS NULL OR _last_updated_sequence_number > 4"]
    with_deleted_rows = ["_deleted", "_deleted AND pk > 3", "pk >= 0 OR _deleted", "NOT _deleted AND pk < 5"]
    matches = made.matches([*conditions, *of_partitions(expected)]) | made.matches(with_deleted_rows)
    for condition in matches:
        for options in (QUIET, ScanOptions(report=False, page_index=True)):
            plan = fp.plan_scan(table, condition, columns=["pk"], options=options)
            assert sorted(plan.to_arrow()["pk"].to_pylist()) == matches[condition], condition
            assert plan.count() == len(matches[condition])
        with interpreted(spark):
            read = fp.read(spark, table, condition, columns=["pk"]).toArrow()["pk"].to_pylist()
        assert sorted(read) == matches[condition], condition


def of_partitions(rows: list[dict[str, Any]]) -> list[str]:
    """A condition on each field of the partition tuple, with a value that some row has."""
    found = {}
    for row in rows:
        for name, value in (row["_partition"] or {}).items():
            if value is not None:
                text = value.hex() if isinstance(value, bytes) else value
                literal = {str: f"'{text}'", date: f"DATE '{text}'", bytes: f"X'{text}'"}.get(type(value), str(text))
                found[name] = f"_partition.{name} = {literal}"
            found.setdefault(name, f"_partition.{name} IS NULL")
    return [*found.values(), "_partition IS NULL"]
