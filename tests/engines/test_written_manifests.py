"""Iceberg Java and PyIceberg read tables whose metadata Floeplan rewrote, with the same content.

Manifests are decoded to columns and written again (one by one in every snapshot, or all of the current one through a
root manifest or a metadata tree), with new manifest lists and a metadata file that is registered as another table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from floeplan.metadata.manifests.entries import WHOLE, EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import ManifestListTable, concat_manifest_lists, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.metadata.root_writer import write_root
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.schemas import scalar_columns
from floeplan.metadata.v4.to_manifests import write_manifests_from_tree
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.schemas import fields_by_id
from tests.support.spark import iceberg_java
from tests.support.spark.matrix import Matrix, MatrixTable, parametrized
from tests.support.spark.matrix_predicates import predicates
from tests.support.tables.every_type import TYPES, VALUES, typed_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

TABLES = (
    "truncations_v1",
    "dropped_sources_v1",
    "evolving_v2_equality",
    "dropped_sources_v2_position_file",
    "evolving_v2_no_statistics",
    "voids_v1_to_v3_vectors",
    "evolving_v3_vectors",
)
Rewrite = Callable[[Table, Snapshot, Path], ManifestListTable]


def one_by_one(table: Table, snapshot: Snapshot, folder: Path) -> ManifestListTable:
    """Every manifest separately, including deleted entries; the list keeps its values."""
    metadata = table.metadata
    union = UnionPartitionType.of_table(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    listed = read_manifest_list(snapshot.manifest_list)
    entries = read_entries(listed, union, EntryColumns(WHOLE))
    written = []
    for number in range(len(listed)):
        row = write_manifest(
            (folder / f"{snapshot.snapshot_id}-m{number}.avro").as_uri(),
            entries.filter(entries.ints("manifest") == number),
            specs[int(listed.spec_id[number])],
            metadata.schema(),
            union=union,
            format_version=format_of(snapshot, metadata.format_version),
            content=int(listed.content[number]),
            snapshot_id=int(listed.added_snapshot_id[number]),
        )
        kept = listed.take(np.array([number]))
        written.append(replace(row, sequence_number=kept.sequence_number, first_row_id=kept.first_row_id))
    return concat_manifest_lists(written) if written else ManifestListTable.empty()


def format_of(snapshot: Snapshot, version: int) -> int:
    """Lists of snapshots from before an upgrade have no row ids and stay in the older format."""
    return version if version < 3 or snapshot.first_row_id is not None else 2


def through_the_tree(table: Table, snapshot: Snapshot, folder: Path) -> ManifestListTable:
    """Write all live entries to a metadata tree, and manifests from it."""
    tree = write_tree(table, str(folder / "tree"), snapshot, leaf_entries=20)
    version = min(format_of(snapshot, table.metadata.format_version), 3)
    return write_manifests_from_tree(
        MetadataTree(tree.root, table.metadata),
        table.metadata,
        folder.as_uri(),
        snapshot_id=snapshot.snapshot_id,
        format_version=version,
    )


def registered(matrix: Matrix, table: Table, source: MatrixTable, rewrite: Rewrite, folder: Path) -> MatrixTable:
    """The same table, registered from a metadata file whose manifest lists Floeplan wrote."""
    metadata = json.loads(Path(unquote(urlparse(table.metadata_location).path)).read_text())
    version = metadata["format-version"]
    row_id = metadata.get("next-row-id", 0)
    current = metadata["current-snapshot-id"]
    for entry in metadata["snapshots"]:
        if rewrite is not one_by_one and entry["snapshot-id"] != current:
            continue
        snapshot = next(s for s in table.metadata.snapshots if s.snapshot_id == entry["snapshot-id"])
        location = (folder / f"snap-{snapshot.snapshot_id}.avro").as_uri()
        number, of_version = snapshot.sequence_number or 0, format_of(snapshot, version)
        listed = ListedSnapshot(of_version, snapshot.snapshot_id, snapshot.parent_snapshot_id, number, row_id)
        encoded = write_manifest_list(location, rewrite(table, snapshot, folder), listed)
        row_id = encoded.next_row_id or row_id
        entry["manifest-list"] = location
    if version > 2:
        metadata["next-row-id"] = row_id
    path = folder / "00000-written.metadata.json"
    path.write_text(json.dumps(metadata))
    name = f"{source.name}_written_{rewrite.__name__}"
    matrix.spark.sql(f"CALL local.system.register_table(table => '{name}', metadata_file => '{path.as_uri()}')")
    return MatrixTable(matrix.spark, name, source.recipe)


@pytest.fixture(scope="module")
def pair(
    matrix: Matrix, local_catalog: SqlCatalog, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Rewrite], tuple[MatrixTable, MatrixTable, Table]]:
    made: dict[tuple[str, str], tuple[MatrixTable, MatrixTable, Table]] = {}

    def make(name: str, rewrite: Rewrite) -> tuple[MatrixTable, MatrixTable, Table]:
        key = name, rewrite.__name__
        if key not in made:
            source = matrix.table(name)
            table = local_catalog.load_table(source.identifier)
            folder = tmp_path_factory.mktemp(f"{name}-{rewrite.__name__}")
            made[key] = source, registered(matrix, table, source, rewrite, folder), table
        return made[key]

    return make


def sorted_rows(table: pa.Table, drop: tuple[str, ...] = ()) -> list[str]:
    """Rows to compare, independent of the order of rows and map keys."""
    kept = table.drop_columns([name for name in drop if name in table.schema.names])
    return sorted(repr(ordered(row)) for row in kept.to_pylist())


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: ordered(part) for name, part in value.items()}
    is_map = isinstance(value, list) and all(isinstance(pair, tuple) for pair in value)
    return sorted(value) if is_map else value


@pytest.mark.parametrize("rewrite", [one_by_one, through_the_tree])
@pytest.mark.parametrize("name", parametrized(TABLES))
def test_spark_reads_the_same_rows(name: str, rewrite: Rewrite, pair: Any) -> None:
    source, written, _ = pair(name, rewrite)
    assert repr(written.rows().to_pylist()) == repr(source.rows().to_pylist())


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_spark_sees_the_same_metadata(name: str, pair: Any) -> None:
    source, written, _ = pair(name, one_by_one)
    for metadata, drop in (
        ("entries", ()),
        ("files", ()),
        ("manifests", ("path", "length")),
        ("partitions", ("spec_id",)),  # for tuples that several specs share, Java reports any spec
    ):
        assert sorted_rows(written.metadata(metadata), drop) == sorted_rows(source.metadata(metadata), drop), metadata
    assert entries_ever(written) == entries_ever(source)


def entries_ever(table: MatrixTable) -> set[str]:
    """The entries of all snapshots; Java lists a manifest once, with the row ids of the first list that names it."""
    rows = table.metadata("all_entries").to_pylist()
    return {repr(ordered(row | {"data_file": row["data_file"] | {"first_row_id": None}})) for row in rows}


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_spark_sees_the_same_files_after_the_tree(name: str, pair: Any) -> None:
    source, written, table = pair(name, through_the_tree)
    before, after = (held_by_a_tree(one.metadata("files"), table.schema()) for one in (source, written))
    assert after == before


def held_by_a_tree(files: pa.Table, schema: Schema) -> list[str]:
    """Files as rows without column sizes, statistics in lists and maps, and the file sizes of deletion vectors.

    Bounds are compared as values: a tree has them in the type that their column was promoted to.
    """
    names = sorted(str(schema.find_column_name(field.field_id)) for field, _ in scalar_columns(schema))
    maps = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    rows = []
    for row in files.drop_columns(["column_sizes", *maps]).to_pylist():
        found = row["readable_metrics"]
        row["readable_metrics"] = [
            (name, {key: value for key, value in found[name].items() if key != "column_size"}) for name in names
        ]
        if row["file_format"] == "PUFFIN":
            del row["file_size_in_bytes"]
        rows.append(repr(row))
    return sorted(rows)


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_manifests_have_javas_schema_and_are_no_larger(name: str, pair: Any) -> None:
    source, written, table = pair(name, one_by_one)
    theirs, ours = (sizes_and_schemas(t.metadata("manifests")) for t in (source, written))
    assert sum(size for size, _, _ in ours) <= 1.05 * sum(size for size, _, _ in theirs)
    known = {(spec_id, text) for _, spec_id, text in theirs}
    for _, spec_id, text in ours:
        assert (spec_id, text) in known or promoted(table, spec_id)


def sizes_and_schemas(manifests: pa.Table) -> list[tuple[int, int, str]]:
    found = []
    for row in manifests.to_pylist():
        with open(unquote(urlparse(row["path"]).path), "rb") as file:
            schema = json.loads(fastavro.reader(file).metadata["avro.schema"])
        found.append((row["length"], row["partition_spec_id"], json.dumps(without_docs(schema), sort_keys=True)))
    return found


def without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_docs(part) for key, part in schema.items() if key != "doc"}
    return [without_docs(part) for part in schema] if isinstance(schema, list) else schema


def promoted(table: Table, spec_id: int) -> bool:
    """Manifests from before a type promotion have the narrower type, new ones the wider type."""
    fields = next(spec for spec in table.metadata.partition_specs if spec.spec_id == spec_id).fields
    sources = {field.source_id for field in fields}
    types = {(s, f.field_type) for schema in table.metadata.schemas for s, f in fields_by_id(schema).items()}
    return len([key for key, _ in types if key in sources]) != len(sources)


@pytest.mark.parametrize("name", parametrized(["evolving_v2_equality", "evolving_v2_no_statistics"]))
def test_pyiceberg_reads_the_same_files(name: str, pair: Any, local_catalog: SqlCatalog) -> None:
    source, written, _ = pair(name, one_by_one)
    before, after = (local_catalog.load_table(t.identifier).inspect.files() for t in (source, written))
    assert sorted_rows(after) == sorted_rows(before)


def planned(plan: ScanPlan) -> dict[str, dict[str, Any]]:
    """Files by path, independent of the order of files and of their deletes."""
    files = {file.path: file.to_dict() for file in plan.files}
    return {path: file | {"deletes": sorted(map(repr, file["deletes"]))} for path, file in files.items()}


def held(plan: ScanPlan) -> dict[str, Any]:
    """What a metadata tree has of files: it does not know the file sizes of deletion vectors."""
    return {
        file.path: (
            file.spec_id,
            repr(file.partition),
            file.tri_state,
            sorted((d.path, d.record_count) for d in file.deletes),
        )
        for file in plan.files
    }


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_plans_from_the_root_equal_plans_from_the_manifests(name: str, pair: Any, tmp_path: Path) -> None:
    source, _, table = pair(name, one_by_one)
    path = str(tmp_path / "root.parquet")
    write_root(table, path, table.current_snapshot(), row_group_entries=7)
    tree = write_tree(table, str(tmp_path / "tree"), table.current_snapshot(), leaf_entries=7).root
    plain = ScanOptions(footers=False, cache=False, report=False)
    for where in [None, *(predicate.text for predicate in predicates(source.columns)[::5])]:
        plan = plan_scan(table, where, options=plain)
        from_root = plan_scan(table, where, options=replace(plain, root=path))
        assert planned(from_root) == planned(plan), where
        assert held(plan_scan(table, where, options=replace(plain, root=tree))) == held(plan), where


def test_java_reads_partition_values_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    row = typed_row(status=0, sequence_number=3, first_row_id=44)
    TYPES.write_table(tmp_path / "t", TYPES.entries([row]))
    iceberg = spark._jvm.org.apache.iceberg
    io = iceberg.hadoop.HadoopFileIO(spark._jsparkSession.sessionState().newHadoopConf())
    operations = iceberg.StaticTableOperations(str(tmp_path / "t" / "v1.metadata.json"), io)
    (task,) = iceberg_java.planned_tasks(spark, iceberg.BaseTable(operations, "t"))
    assert (task.file().dataSequenceNumber(), task.file().firstRowId()) == (3, 44)
    text = task.file().partition().toString().removeprefix("PartitionData{").removesuffix("}")
    found = dict(part.split("=") for part in text.split(", "))
    expected = {name: str(value) for name, (_, _, value) in VALUES.items()} | {"a flag": "true", "gone": "null"}
    assert {k: v for k, v in found.items() if not v.startswith("[B@")} == {
        k: v for k, v in expected.items() if k not in ("bytes", "code")
    }
    assert found.keys() == expected.keys()
