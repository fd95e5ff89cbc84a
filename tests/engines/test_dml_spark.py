"""Changes with a Spark session: descriptor jobs, DataFrames, and expressions and joins that need Spark.

The table is evolved, in format 2 or 3; results are verified by reading with Spark and Iceberg.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.dml.sources import frame_rows
from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.spark.jvm import is_small
from tests.support.spark.matrix import Matrix, MatrixTable

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

POSITIONS, VECTORS = "evolving_v2_position_file", "evolving_v3_vectors"
COPY, MERGE = "copy-on-write", "merge-on-read"
FORMATS = pytest.mark.parametrize("made", [POSITIONS, VECTORS], indirect=True)
ONE_FORMAT = pytest.mark.parametrize(
    "made", [pytest.param(POSITIONS, marks=pytest.mark.matrix), VECTORS], indirect=True
)
"""For tests that do not depend on the format version."""


def modes(*left_to_ci: tuple[str, str]) -> pytest.MarkDecorator:
    """Both tables with both modes; ``make test`` skips some of them."""
    every = [(name, mode) for name in (POSITIONS, VECTORS) for mode in (COPY, MERGE)]
    marked = [pytest.param(*case, marks=pytest.mark.matrix if case in left_to_ci else ()) for case in every]
    return pytest.mark.parametrize(("made", "mode"), marked, indirect=["made"])


@pytest.fixture(autouse=True)
def _every_task_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all work on Spark, whatever its size."""
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)


@pytest.fixture
def made(request: pytest.FixtureRequest, matrix: Matrix) -> MatrixTable:
    return matrix.fork(request.param)


@pytest.fixture
def table(made: MatrixTable, local_catalog: SqlCatalog) -> Table:
    return local_catalog.load_table(made.identifier)


def by_key(made: MatrixTable) -> dict[int, dict[str, Any]]:
    found = made.rows().to_pylist()
    assert len({row["pk"] for row in found}) == len(found)
    return {row["pk"]: row for row in found}


def same(left: dict[int, dict[str, Any]], right: dict[int, dict[str, Any]]) -> None:
    assert {key: repr(row) for key, row in left.items()} == {key: repr(row) for key, row in right.items()}


@modes((VECTORS, COPY), (POSITIONS, MERGE))
def test_descriptor_jobs_equal_local_changes(mode: str, made: MatrixTable, table: Table, spark: SparkSession) -> None:
    before = by_key(made)
    deleted = fp.delete(table, "pk % 4 = 0", spark=spark, mode=mode)
    updated = fp.update(table, {"n": "pk"}, "pk % 4 = 1", spark=spark, mode=mode)
    source = pa.table({"pk": pa.array([2, 3, 80_000], pa.int32()), "n": pa.array([-1, -2, -3], pa.int32())})
    merged = (
        fp.merge(table, source, "pk", spark=spark, mode=mode)
        .when_matched_update({"n": "s.n"})
        .when_not_matched_insert({"pk": "pk", "n": "n"})
        .execute()
    )
    expected = {pk: row | {"n": pk} if pk % 4 == 1 else row for pk, row in before.items() if pk % 4}
    assert deleted.rows_deleted == len(before) - len(expected)
    assert updated.rows_updated == sum(pk % 4 == 1 for pk in before)
    matched = [pk for pk in (2, 3) if pk in expected]
    assert (merged.rows_updated, merged.rows_inserted) == (len(matched), 1)
    expected |= {pk: expected[pk] | {"n": 1 - pk} for pk in matched}
    expected[80_000] = dict.fromkeys(before[next(iter(before))]) | {"pk": 80_000, "n": -3}
    same(by_key(made), expected)


@modes((POSITIONS, MERGE), (VECTORS, COPY))
def test_expressions_only_spark_evaluates(mode: str, made: MatrixTable, table: Table, spark: SparkSession) -> None:
    before = by_key(made)
    where = "crc32(CAST(pk AS STRING)) % 2 = 0 AND pk < 4000"
    chosen = {row[0] for row in spark.table(made.name).where(where).select("pk").collect()}
    updated = fp.update(
        table, {"s": "soundex(region)", "n": "pk + 1", "nested.b": "md5(s)"}, where, spark=spark, mode=mode
    )
    assert updated.rows_updated == len(chosen) > 0
    after = by_key(made)
    assert after.keys() == before.keys()
    for pk, row in after.items():
        if pk not in chosen:
            assert repr(row) == repr(before[pk])
            continue
        was = before[pk]
        assert row["n"] == pk + 1
        assert {k: repr(v) for k, v in row.items() if k not in ("s", "n", "nested")} == {
            k: repr(v) for k, v in was.items() if k not in ("s", "n", "nested")
        }
        assert row["nested"]["a"] == (was["nested"] or {}).get("a")
        assert (row["nested"]["b"] is None) == (was["s"] is None)
    deleted = fp.delete(table, where, spark=spark, mode=mode)
    assert deleted.rows_deleted == len(chosen)
    same(by_key(made), {pk: row for pk, row in after.items() if pk not in chosen})


@modes((POSITIONS, MERGE), (VECTORS, COPY))
def test_joins_only_spark_makes(mode: str, made: MatrixTable, table: Table, spark: SparkSession) -> None:
    before = by_key(made)
    source = spark.sql("SELECT id AS k, CAST(id * 10 AS INT) AS w FROM range(1, 30, 3)")
    result = (
        fp.merge(table, source, "soundex(t.s) IS NOT NULL AND t.pk = s.k * 100 + 1", mode=mode)
        .when_matched_delete("s.k = 10")
        .when_matched_update({"n": "s.w", "s": "concat('m', source.k)"})
        .when_not_matched_insert({"pk": "CAST(90000 + k AS INT)", "n": "w"}, condition="k > 20")
        .when_not_matched_by_source_delete("t.pk = 3")
        .execute()
    )
    matches = {k * 100 + 1: k for k in range(1, 30, 3) if before.get(k * 100 + 1, {}).get("s") is not None}
    expected = {}
    for pk, row in before.items():
        if pk in matches:
            if matches[pk] != 10:
                expected[pk] = row | {"n": matches[pk] * 10, "s": f"m{matches[pk]}"}
        elif pk != 3:
            expected[pk] = row
    inserted = [k for k in (22, 25, 28) if k * 100 + 1 not in matches]
    for k in inserted:
        expected[90_000 + k] = dict.fromkeys(before[next(iter(before))]) | {"pk": 90_000 + k, "n": k * 10}
    assert result.rows_inserted == len(inserted)
    same(by_key(made), expected)


@pytest.mark.parametrize(
    ("made", "framed"),
    [
        (POSITIONS, True),
        pytest.param(POSITIONS, False, marks=pytest.mark.matrix),
        pytest.param(VECTORS, True, marks=pytest.mark.matrix),
        (VECTORS, False),
    ],
    indirect=["made"],
)
def test_large_sources_are_joined_by_spark(
    framed: bool, made: MatrixTable, table: Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floeplan.dml.merge.run.SHIPPED_ROWS", 3)
    before = by_key(made)
    keys = [*sorted(before)[::5], 80_000]
    given = pa.table({"pk": pa.array([*keys, None], pa.int32()), "n": pa.array([*range(len(keys)), 1], pa.int32())})
    merge = fp.merge(table, spark.createDataFrame(given) if framed else given, "pk", spark=spark, mode="merge-on-read")
    result = (
        merge.when_matched_update({"n": "s.n"})
        .when_not_matched_insert({"pk": "pk", "n": "n"}, condition="pk IS NOT NULL")
        .execute()
    )
    assert (result.rows_updated, result.rows_inserted) == (len(keys) - 1, 1)
    expected = {pk: row | {"n": keys.index(pk)} if pk in keys else row for pk, row in before.items()}
    expected[80_000] = dict.fromkeys(before[keys[0]]) | {"pk": 80_000, "n": len(keys) - 1}
    same(by_key(made), expected)


def test_a_source_is_collected_up_to_its_limits(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "repeat('x', 100) AS text")
    assert not is_small(frame, 10**9), "Spark does not know how long the texts are"
    found = frame_rows(frame, 1000, 10**6)
    assert found is not None
    assert sorted(found.column("id").to_pylist()) == list(range(1000))
    assert frame_rows(frame, 999, 10**6) is None
    assert frame_rows(frame, 1000, 50_000) is None


@FORMATS
def test_two_source_rows_for_one_are_refused_by_spark_too(table: Table, spark: SparkSession) -> None:
    source = pa.table({"k": [1002, 1002], "at": pa.nulls(2, pa.timestamp("us"))})
    before = len(table.metadata.snapshots)
    merge = fp.merge(table, source, "soundex(t.s) <=> soundex(t.s) AND t.pk = s.k", spark=spark)
    merge = merge.when_matched_update({"ts_ntz": "s.at"})
    with pytest.raises(BadInputError, match="several source rows"):
        merge.execute()
    with pytest.raises(TypeMismatchError, match="cannot be stored in column n"):
        fp.update(table, {"n": "soundex(s)"}, spark=spark)
    assert len(table.refresh().metadata.snapshots) == before


@ONE_FORMAT
def test_data_frames_are_appended_and_overwrite(made: MatrixTable, table: Table, spark: SparkSession) -> None:
    before = by_key(made)
    new = spark.table(made.name).where("pk < 1000").selectExpr("* EXCEPT (pk)", "pk + 50000 AS pk")
    count = new.count()
    result = fp.append(table, new)
    assert (result.rows_inserted, result.data_files_removed) == (count, 0)
    added = {pk + 50_000: row | {"pk": pk + 50_000} for pk, row in before.items() if pk < 1000}
    same(by_key(made), before | added)
    frame = spark.table(made.name).where("pk IN (1002, 1003, 1004)")
    replaced = fp.overwrite(table, frame, "pk >= 0")
    assert (replaced.rows_inserted, replaced.rows_deleted) == (3, len(before) + count)
    assert len(by_key(made)) == 3


@ONE_FORMAT
def test_parquet_files_are_read_in_tasks(made: MatrixTable, table: Table, spark: SparkSession, tmp_path: Path) -> None:
    before = by_key(made)
    folder = str(tmp_path / "given")
    spark.sql("SELECT CAST(60000 + id AS INT) AS pk, 'x' AS region FROM range(20)").write.parquet(folder)
    assert fp.append(table, folder, spark=spark).rows_inserted == 20
    assert by_key(made).keys() == before.keys() | set(range(60_000, 60_020))


def test_rows_keep_their_identity_in_format_3(matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession) -> None:
    for mode in (COPY, MERGE):
        made = matrix.fork("evolving_v3_vectors")
        table = local_catalog.load_table(made.identifier)
        query = f"SELECT pk, _row_id, _last_updated_sequence_number FROM {made.name}"
        before = {pk: (row, seq) for pk, row, seq in spark.sql(query).collect()}
        fp.update(table, {"n": "1"}, "pk % 3 = 0", mode=mode)
        newest = table.refresh().metadata.last_sequence_number
        after = {pk: (row, seq) for pk, row, seq in spark.sql(query).collect()}
        assert after == {pk: (row, newest if pk % 3 == 0 else seq) for pk, (row, seq) in before.items()}


@modes((VECTORS, COPY), (POSITIONS, MERGE))
def test_spark_and_floeplan_continue_on_tables_of_each_other(
    mode: str, made: MatrixTable, table: Table, spark: SparkSession
) -> None:
    """Deletes of one engine are merged into those of the other; no row is lost or restored."""
    before = by_key(made)
    fp.delete(table, "pk % 6 = 0", mode=mode)
    spark.sql(f"DELETE FROM {made.name} WHERE pk % 6 = 2")
    fp.update(table, {"n": "7"}, "pk % 6 = 3", mode=mode)
    spark.sql(f"UPDATE {made.name} SET n = 8 WHERE pk % 6 = 4")
    expected = {
        pk: row | {3: {"n": 7}, 4: {"n": 8}}.get(pk % 6, {}) for pk, row in before.items() if pk % 6 not in (0, 2)
    }
    same(by_key(made), expected)
    mine = fp.plan_scan(table.refresh()).to_arrow().to_pylist()
    same({row["pk"]: row for row in mine}, expected)
    spark.sql(f"CALL local.system.rewrite_manifests('{made.name}')")
    spark.sql(f"CALL local.system.rewrite_data_files(table => '{made.name}', options => map('rewrite-all', 'true'))")
    fp.delete(table, "pk % 6 = 1", mode=mode)
    same(by_key(made), {pk: row for pk, row in expected.items() if pk % 6 != 1})
