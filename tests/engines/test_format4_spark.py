"""Tables of format 4 that Spark with Iceberg's jar and Floeplan change in turns: each reads what the other wrote."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader
from tests.support.spark.matrix import Matrix

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

NAME = "local.turns.events"
COLUMNS = "id bigint, region string, ts timestamp, price decimal(9, 2), key binary"
ROW = "({0}, '{1}', TIMESTAMP '2024-03-0{2} 10:00:00', {0}.25, X'0{2}')"


def rows(first: int, last: int) -> str:
    return ", ".join(ROW.format(number, ("eu", "us")[number % 2], number % 3 + 1) for number in range(first, last))


def manifests(table: Table) -> list[Path]:
    found = SnapshotReader.open(table, table.current_snapshot()).manifests.path.to_pylist()
    return [Path(path.removeprefix("file:").replace("//", "/")) for path in found]


def described(fields: Any) -> list[Any]:
    """Names, ids, types and nullability, however Arrow represents them."""
    found = []
    for field in fields:
        type_: Any = str(field.type).removeprefix("large_")
        if pa.types.is_struct(field.type):
            type_ = described(field.type)
        elif pa.types.is_map(field.type):
            type_ = described([field.type.key_field, field.type.item_field])
        elif pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            type_ = described([field.type.value_field])
        found.append((field.name, field.metadata.get(b"PARQUET:field_id"), type_, field.nullable))
    return found


def test_spark_and_floeplan_change_a_table_in_turns(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    def change(statement: str) -> None:
        spark.sql(statement.replace("{t}", NAME))

    def agreed(count: int) -> Table:
        """The table, whose rows Spark and Floeplan read alike."""
        table = fp.load_table("turns.events", local_catalog)
        assert table.metadata.format_version == 4
        ours = plan_scan(table, "id >= 0").to_arrow().sort_by("id")
        theirs = spark.sql(f"SELECT * FROM {NAME} ORDER BY id").toArrow()
        assert len(ours) == count
        assert [ours[name].to_pylist() for name in ("id", "region", "price", "key")] == [
            theirs[name].to_pylist() for name in ("id", "region", "price", "key")
        ]
        where = "region = 'eu' AND ts >= TIMESTAMP '2024-03-02'"
        on_spark = fp.read(spark, table, where=where).select("id").orderBy("id").toArrow()
        assert on_spark == spark.sql(f"SELECT id FROM {NAME} WHERE {where} ORDER BY id").toArrow()
        return table

    change("CREATE NAMESPACE IF NOT EXISTS local.turns")
    change(f"CREATE TABLE {{t}} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '4')")
    change(f"INSERT INTO {{t}} VALUES {rows(0, 10)}")
    change("ALTER TABLE {t} ADD PARTITION FIELD region")
    change("ALTER TABLE {t} ADD PARTITION FIELD truncate(100, price)")
    change(f"INSERT INTO {{t}} VALUES {rows(10, 20)}")
    table = agreed(20)
    theirs = {str(described(pq.ParquetFile(path).schema_arrow)) for path in manifests(table)}

    fp.append(table, plan_scan(table, "id < 5").to_arrow())
    agreed(25)
    fp.delete(table, where="id = 12", mode="merge-on-read")
    change("DELETE FROM {t} WHERE id = 13")
    table = agreed(23)
    fp.update(table, set={"region": "'ap'"}, where="id IN (1, 15)")
    change("UPDATE {t} SET region = 'xx' WHERE id = 16")
    table = agreed(23)
    source = plan_scan(table, "id IN (17, 18)").to_arrow().set_column(0, "id", pa.array([17, 50], pa.int64()))
    fp.merge(table, source, "id").when_matched_update({"region": "'mg'"}).when_not_matched_insert().execute()
    change("DELETE FROM {t} WHERE id = 50")
    table = agreed(23)
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    fp.upgrade_spec(table)
    rewrite_manifests(table)
    table = agreed(23)
    ours = {str(described(pq.ParquetFile(path).schema_arrow)) for path in manifests(table)}
    assert theirs & ours, "no manifest has the schema of one that Iceberg wrote"
    change(f"INSERT INTO {{t}} VALUES {rows(30, 32)}")
    change(f"CALL local.system.rewrite_manifests('{NAME}')")
    change(f"CALL local.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))")
    table = agreed(25)
    assert expire_snapshots(table, older_than_ms=2**60, retain_last=1, dry_run=False).snapshots_after == 1
    table = agreed(25)
    assert not [finding for finding in fp.doctor(table).findings if finding.severity == "error"]
    ids = spark.sql(f"SELECT count(DISTINCT _row_id), count(*) FROM {NAME}").collect()[0]
    assert ids[0] == ids[1] == 25


def relative_copy(table: Table) -> str:
    """Metadata of the same snapshot with relative paths, which Iceberg 1.12.0 does not write, beside the table's own.

    Manifests of format 3 keep their absolute paths.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None
    location = snapshot.manifest_list.rpartition("/metadata/")[0]  # as Spark spells it in all paths
    folder = Path(f"/{location.removeprefix('file:').lstrip('/')}")

    def relative(path: str | None) -> str | None:
        return None if path is None else path.removeprefix(f"{location}/")

    def edit(row: dict[str, Any]) -> dict[str, Any]:
        names = ("file_path", "referenced_data_file")
        return row | {"data_file": row["data_file"] | {name: relative(row["data_file"][name]) for name in names}}

    def copied(row: dict[str, Any]) -> dict[str, Any]:
        """A row of the manifest list, with a copy of the manifest if it is a Parquet file."""
        name = str(relative(row["manifest_path"]))
        if name.endswith(".parquet"):
            found = pq.read_table(folder / name)
            name = f"metadata/{uuid4()}.parquet"
            pq.write_table(pa.Table.from_pylist(list(map(edit, found.to_pylist())), found.schema), folder / name)
        return row | {"manifest_path": name, "manifest_length": (folder / name).stat().st_size}

    avro = fastavro.reader(io.BytesIO((folder / str(relative(snapshot.manifest_list))).read_bytes()))
    header = {key: value for key, value in avro.metadata.items() if not key.startswith("avro.")}
    listed = f"metadata/{uuid4()}.avro"
    with (folder / listed).open("wb") as out:
        fastavro.writer(out, avro.writer_schema, [copied(row) for row in avro], metadata=header)
    current = table.metadata_location.removeprefix("file:").lstrip("/")
    document = json.loads(Path(f"/{current}").read_text()) | {"location": location}
    for one in document["snapshots"]:
        is_current = one["snapshot-id"] == snapshot.snapshot_id
        one["manifest-list"] = listed if is_current else relative(one["manifest-list"])
    name = f"metadata/{uuid4()}.metadata.json"
    (folder / name).write_text(json.dumps(document))
    return f"{location}/{name}"


@pytest.mark.parametrize("paths", ["absolute", "relative"])
def test_commands_agree_with_spark_on_a_table_that_spark_upgraded(
    paths: str, matrix: Matrix, local_catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = matrix.table("evolving_v3_to_v4_vectors")
    table = fp.load_table(made.identifier, local_catalog)
    assert {path.suffix for path in manifests(table)} == {".avro", ".parquet"}
    metadata = table.metadata_location
    if paths != "absolute":
        metadata = relative_copy(table)

    def run(command: str, *options: str) -> dict[str, Any]:
        assert main([command, metadata, *options, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def names(files: Iterable[str]) -> set[str]:
        return {path.rpartition("/")[2] for path in files}

    by_spec = {
        row["spec_id"]: row["count"]
        for row in made.spark.table(f"{made.name}.data_files").groupBy("spec_id").count().collect()
    }
    inspected = run("inspect")
    assert (inspected["format_version"], {one["spec_id"]: one["files"] for one in inspected["files_by_spec"]}) == (
        4,
        by_spec,
    )
    assert inspected["delete_files"]["vectors"] == made.spark.table(f"{made.name}.delete_files").count() > 0
    where = "region = 'eu' AND pk < 4000"
    matching = made.matches([where])[where]
    rows = plan_scan(metadata, where).to_arrow()
    assert sorted(rows["pk"].to_pylist()) == matching
    assert run("scan", "--where", where, "--count")["rows"] == len(matching) > 0
    assert fp.read(made.spark, metadata, where=where).count() == len(matching)
    planned = run("plan", "--where", where, "--no-footers")
    kept = names(file["path"] for file in planned["files"])
    of_rows = made.file_of_rows()
    assert names(path for pk in matching for path in of_rows[pk]) <= kept <= names(made.kept_files(where))
    dropped = sorted(names(path for found in of_rows.values() for path in found) - kept)
    for name, is_kept in ((min(kept), True), (dropped[0], False)):
        assert run("why", name, "--where", where)["kept"] is is_kept
    assert not [finding for finding in run("doctor")["findings"] if finding["severity"] == "error"]
    tree = run("entries", "-o", str(tmp_path / "tree"), "--leaf-entries", "3")
    assert (tree["entries"], tree["vectors"] > 0) == (sum(by_spec.values()), True)
    from_tree = run("plan", "--where", where, "--no-footers", "--root", tree["root"])
    assert names(file["path"] for file in from_tree["files"]) == kept
    report = run("report", "-o", str(tmp_path / "site"), "--where", where)
    assert report["files"] == sum(by_spec.values())
    assert run("upgrade-format", "--to", "4", "--dry-run")["changes"] == []


def test_a_table_that_floeplan_upgraded_goes_on_in_spark(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    name = "local.turns.upgraded"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.turns")
    spark.sql(f"CREATE TABLE {name} (id bigint) USING iceberg TBLPROPERTIES ('format-version' = '1')")
    for to in (2, 3, 4):
        spark.sql(f"INSERT INTO {name} VALUES ({to})")
        table = fp.load_table("turns.upgraded", local_catalog)
        assert fp.upgrade_format(table, to).from_version == to - 1
        fp.append(table, pa.table({"id": [10 * to]}))
        spark.sql(f"DELETE FROM {name} WHERE id = {to}")
        found = spark.sql(f"SELECT id FROM {name} ORDER BY id").toArrow()["id"].to_pylist()
        assert found == [10 * number for number in range(2, to + 1)]
    table = fp.load_table("turns.upgraded", local_catalog)
    assert {path.suffix for path in manifests(table)} == {".avro", ".parquet"}
    assert sorted(plan_scan(table).to_arrow()["id"].to_pylist()) == [20, 30, 40]
