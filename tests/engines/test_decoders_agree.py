"""Both decoders, and the cache, on metadata written by Iceberg's own writers."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from floeplan.metadata.avro.decoder import load_decoder
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, EntryColumns
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.schemas import fields_by_id
from tests.support.spark.matrix import Matrix, parametrized

pytestmark = pytest.mark.engines

IN_CI = bool(os.environ.get("CI"))
COMPILED, PYTHON = load_decoder(False), load_decoder(True)


def everything(table: Table) -> EntryColumns:
    fields = {field_id for schema in table.schemas().values() for field_id in fields_by_id(schema)}
    return EntryColumns(stats=frozenset(fields | {POSITION_DELETE_PATH}), sizes=frozenset(fields))


def assert_same(left: pa.Table, right: pa.Table) -> None:
    assert left.schema.equals(right.schema)
    assert repr(left.to_pylist()) == repr(right.to_pylist())


@pytest.mark.parametrize("name", parametrized(few={"voids_v1_to_v2_equality", "evolving_v3_to_v4_vectors"}))
def test_every_snapshot_reads_the_same(name: str, matrix: Matrix, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = local_catalog.load_table(matrix.table(name).identifier)
    union, columns = UnionPartitionType.of_table(table.metadata), everything(table)
    cache = EntriesCache(tmp_path)
    # The last snapshot lists manifests of most others; CI reads every one of them.
    for snapshot in table.snapshots() if IN_CI else [table.snapshots()[0], table.snapshots()[-1]]:
        compiled, python = (read_manifest_list(snapshot.manifest_list, decoder=d) for d in (COMPILED, PYTHON))
        assert compiled.path.equals(python.path)
        entries = read_entries(compiled, union, columns, decoder=COMPILED)
        entries.table.validate(full=True)
        assert_same(entries.table, read_entries(python, union, columns, decoder=PYTHON).table)
        cached = cache.read_entries(compiled, union, columns).table
        live = read_entries(compiled, union, columns, live=True).table
        assert_same(cached.select(live.column_names), live)


@pytest.mark.parametrize("name", parametrized(["evolving_v1", "evolving_v2_position_file", "voids_v1_to_v2_equality"]))
def test_entries_are_those_pyiceberg_reads(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    table = local_catalog.load_table(matrix.table(name).identifier)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    io = PyArrowFileIO()
    expected = [
        (manifest.partition_spec_id, entry.status.value, entry.sequence_number, entry.data_file)
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    ]
    union, columns = UnionPartitionType.of_table(table.metadata), everything(table)
    rows = read_entries(read_manifest_list(snapshot.manifest_list), union, columns).table.to_pylist()
    assert len(rows) == len(expected) > 0
    for row, (spec_id, status, sequence_number, file) in zip(rows, expected, strict=True):
        assert (row["spec_id"], row["status"], row["sequence_number"]) == (spec_id, status, sequence_number)
        assert (row["file_path"], row["record_count"]) == (file.file_path, file.record_count)
        assert row["content"] == int(file.content)
        assert row["split_offsets"] == file.split_offsets
        assert row["equality_ids"] == file.equality_ids
        for prefix, values in [("lower", file.lower_bounds), ("null_count", file.null_value_counts)]:
            found = {field_id: row[f"{prefix}.{field_id}"] for field_id in columns.stats}
            assert {k: v for k, v in found.items() if v is not None} == {
                k: v for k, v in (values or {}).items() if k in columns.stats
            }
