"""Tables of format 4: metadata that PyIceberg refuses, relative paths, Parquet manifests, and changes to them."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
import floeplan.rest_timeouts
from floeplan.catalog import load_table, open_catalog
from floeplan.cli.main import main
from floeplan.errors import CorruptMetadataError, FloeplanError, UnsupportedError
from floeplan.format4 import TableMetadataV4, first_relative, is_relative, resolve, resolve_all
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.inspect import inspect_table
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import concat_manifest_lists, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from tests.support.tables import commits
from tests.support.tables.layouts import Layout, rows_of
from tests.support.tables.producing import SCHEMA, SPECS, V3, data, positions, vector

pytestmark = pytest.mark.unit

V4 = Layout(SCHEMA, SPECS, 4)
FILES = [
    data("file:/a.parquet", 0, record_count=5, lower_bounds={1: b"12345678"}, split_offsets=[4, 90]),
    data("file:/b.parquet", 1, value_counts={1: 3, 2: 4}, key_metadata=b"k", sequence_number=3),
    data("file:/c.parquet", 2, status=0, snapshot_id=3, sequence_number=2, file_sequence_number=2),
    data("file:/d.parquet", 1, status=2, sequence_number=2),
    data("file:/e.parquet", 1, value_counts={}),
    positions("file:/p.parquet", "file:/b.parquet", 1),
    vector("file:/v.puffin", 4, "file:/a.parquet"),
]


def reader(table: Table) -> SnapshotReader:
    return SnapshotReader.open(table, table.current_snapshot())


def entries(table: Table, columns: EntryColumns | None = None, **options: Any) -> EntriesTable:
    found = reader(table)
    return read_entries(found.manifests, found.union, columns or EntryColumns(WHOLE), **options)


def edited(table: Table, **changes: Any) -> Path:
    """The metadata file of a table with other values; ``None`` removes a key."""
    path = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


# --- paths


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("data/a.parquet", True),
        ("/data/a.parquet", True),
        ("s3://b/a", False),
        ("file:/a", False),
        ("1s:/a", True),
        ("a b:/c", True),
        (":a", True),
        ("", True),
    ],
)
def test_a_path_without_a_scheme_is_relative(path: str, relative: bool) -> None:
    assert is_relative(path) is relative
    expected = f"s3://b/t/{path}" if relative else path
    assert resolve("s3://b/t", path) == expected
    paths = pa.array(["s3://b/t/x", path, None], pa.large_string())
    assert resolve_all("s3://b/t", paths).to_pylist() == ["s3://b/t/x", expected, None]
    assert first_relative(paths) == (path if relative else None)


def test_relative_paths_need_a_location() -> None:
    with pytest.raises(CorruptMetadataError, match="'x' is relative to a table location that is unknown"):
        resolve_all("", pa.array(["x"], pa.large_string()))
    assert resolve_all("", pa.array(["file:/x"], pa.large_string())).to_pylist() == ["file:/x"]


# --- loading


def test_metadata_of_format_4_load_and_report_their_format(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path / "t", V4.entries(FILES))
    loaded = load_table(table.metadata_location)
    assert isinstance(loaded.metadata, TableMetadataV4)
    assert inspect_table(loaded).to_dict()["format_version"] == 4
    assert loaded.metadata.next_row_id == 35


def document(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    return found


def with_relative_paths(folder: Path, table: Table) -> dict[str, Any]:
    """Make every path in the files of a table relative to a folder; returns the metadata."""
    prefix = f"file://{folder}/"
    for path in (folder / "metadata").glob("*.parquet"):
        found = pq.read_table(path)
        rows = found.to_pylist()
        for row in rows:
            for name in ("file_path", "referenced_data_file"):
                row["data_file"][name] = (row["data_file"][name] or "").removeprefix(prefix) or None
        pq.write_table(pa.Table.from_pylist(rows, found.schema), path)
    listed = folder / "metadata" / "list.avro"
    avro = fastavro.reader(io.BytesIO(listed.read_bytes()))
    header = {key: value for key, value in avro.metadata.items() if not key.startswith("avro.")}
    records = [row | {"manifest_path": row["manifest_path"].removeprefix(prefix)} for row in avro]
    with listed.open("wb") as out:
        fastavro.writer(out, avro.writer_schema, records, metadata=header)
    known = document(table)
    snapshots = [{**one, "manifest-list": one["manifest-list"].removeprefix(prefix)} for one in known["snapshots"]]
    return known | {"snapshots": snapshots, "location": prefix.rstrip("/")}


@pytest.mark.parametrize("has_location", [True, False])
def test_relative_paths_are_resolved_against_the_location(tmp_path: Path, has_location: bool) -> None:
    base = f"file://{tmp_path}/t"
    paths = [f"{base}/data/a.parquet", f"{base}/data/b.parquet", "s3://b/c.parquet"]
    files = [data(paths[0]), data(paths[1], 1), data(paths[2], 2), positions(f"{base}/p.parquet", paths[0])]
    table = V4.write_table(tmp_path / "t" / "metadata", V4.entries(files))
    absolute = rows_of(entries(table))
    relative = with_relative_paths(tmp_path / "t", table)
    assert relative["snapshots"][0]["manifest-list"] == "metadata/list.avro"
    path = edited(table, **relative | ({} if has_location else {"location": None}))
    loaded = load_table(path.as_uri())
    assert loaded.metadata.location == base
    assert rows_of(entries(loaded)) == absolute
    manifests = reader(loaded).manifests
    assert rows_of(EntriesCache(tmp_path / "cache").read_entries(manifests, V4.union, EntryColumns(WHOLE))) == absolute
    if not has_location:
        with pytest.raises(CorruptMetadataError, match="relative to a table location that is unknown"):
            read_manifest_list(loaded.metadata.snapshots[0].manifest_list)


def test_metadata_without_a_location_that_nothing_implies_are_refused(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path / "elsewhere", V4.entries(FILES))
    with pytest.raises(CorruptMetadataError, match=r"has no location.*the catalog must supply the location"):
        load_table(edited(table, location=None))


def test_rest_responses_hold_format_4(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path / "t" / "metadata", V4.entries(FILES))
    content = document(table)
    del content["location"]
    answer = {"metadata-location": f"file://{table.metadata_location}", "metadata": content}
    response = TableResponse.model_validate_json(json.dumps(answer))
    assert isinstance(response.metadata, TableMetadataV4)
    loaded = Table(("db", "t"), response.metadata, answer["metadata-location"], table.io, table.catalog)
    assert loaded.metadata.location == f"file://{tmp_path}/t"


def test_formats_to_come_are_refused(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path / "t", V4.entries(FILES))
    with pytest.raises(CorruptMetadataError, match="is not table metadata"):
        load_table(edited(table, **{"format-version": 5}))


# --- Parquet manifests


COLUMNS = [EntryColumns(WHOLE), EntryColumns(stats=frozenset({1, 2}), sizes=frozenset({1})), EntryColumns(frozenset())]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("columns", COLUMNS, ids=["whole", "stats", "few"])
def test_parquet_and_avro_manifests_have_the_same_columns(tmp_path: Path, columns: EntryColumns, live: bool) -> None:
    found = []
    for layout in (V3, V4):
        table = layout.write_table(tmp_path / str(layout.version), layout.entries(FILES))
        assert {Path(path).suffix for path in reader(table).manifests.path.to_pylist()} == {
            ".avro" if layout is V3 else ".parquet"
        }
        found.append(entries(table, columns, live=live))
        found[-1].table.validate(full=True)
    assert found[0].table.schema == found[1].table.schema
    assert found[0].table.to_pylist() == found[1].table.to_pylist()
    assert found[0].partition_types == found[1].partition_types


def test_avro_and_parquet_manifests_are_read_in_the_order_of_the_list(tmp_path: Path) -> None:
    lists = []
    for name, layout in (("old", V3), ("new", V4)):
        files = [file | {"file_path": f"file:/{name}/{file['file_path'][6:]}"} for file in FILES]
        table = layout.write_table(tmp_path / name, layout.entries(files))
        lists.append(reader(table).manifests)
    both = concat_manifest_lists(lists)
    order = np.argsort(np.arange(len(both)) % 5, kind="stable")
    mixed = both.take(order)
    found = read_entries(mixed, V4.union, EntryColumns(WHOLE))
    assert (np.diff(found.ints("manifest")) >= 0).all()
    expected = {}
    for manifests in lists:
        expected |= rows_of(read_entries(manifests, V4.union, EntryColumns(WHOLE)))
    assert rows_of(found) == expected
    some = read_entries(mixed, V4.union, EntryColumns(WHOLE), rows=np.array([4, 0, 3]))
    assert list(dict.fromkeys(some.ints("manifest").tolist())) == [4, 0, 3]
    cache, live = EntriesCache(tmp_path / "cache"), rows_of(found.live())
    assert 0 < len(live) < len(expected), "some entries are DELETED"
    for _ in range(2):
        assert rows_of(cache.read_entries(mixed, V4.union, EntryColumns(WHOLE))) == live


def test_a_parquet_manifest_has_the_fields_and_properties_of_iceberg(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path, V4.entries(FILES))
    by_spec = {}
    for path in sorted(tmp_path.glob("*.parquet")):
        file = pq.ParquetFile(path)
        properties = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
        assert properties["format-version"] == "4"
        assert properties["content"] in ("data", "deletes")
        assert json.loads(properties["iceberg.schema"])["type"] == "struct"
        chunks = [file.metadata.row_group(0).column(at) for at in range(file.metadata.num_columns)]
        assert {chunk.compression for chunk in chunks} == {"GZIP"}
        by_spec[properties["partition-spec-id"]] = [chunk.path_in_schema for chunk in chunks]
    assert table.metadata.format_version == 4
    assert not [name for name in by_spec["0"] if "partition" in name]
    assert "data_file.partition.region" in by_spec["1"]
    assert "data_file.lower_bounds.key_value.key" in by_spec["1"]
    assert "data_file.split_offsets.list.element" in by_spec["1"]


def test_paths_without_a_scheme_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"format 4 would take '/a\.parquet' for a relative path"):
        V4.write(tmp_path, V4.entries([data("/a.parquet")]))


def test_truncated_and_damaged_parquet_manifests_are_reported(tmp_path: Path) -> None:
    table = V4.write_table(tmp_path / "t", V4.entries(FILES))
    intact = rows_of(entries(table))
    random = np.random.default_rng(4)
    for path in sorted((tmp_path / "t").glob("*.parquet")):
        whole = path.read_bytes()
        places = random.integers(4, len(whole), 6).tolist()
        damaged = [whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :] for at in places]
        for content in (*damaged, *(whole[:cut] for cut in (4, 5, len(whole) // 2, len(whole) - 1))):
            path.write_bytes(content)
            with suppress(FloeplanError):
                assert len(entries(table)) <= len(intact)
        path.write_bytes(whole[:-9] + whole[-8:])
        with pytest.raises(CorruptMetadataError, match=f"{path.name} is a damaged Parquet manifest"):
            entries(table)
        path.write_bytes(whole)
    assert rows_of(entries(table)) == intact


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"status": pa.array([1], pa.int32())}, "its schema lacks file_path"),
        ({"status": pa.array(["x"])}, "lacks"),
        ({}, "lacks"),
    ],
)
def test_a_parquet_file_that_is_no_manifest_is_refused(
    tmp_path: Path, columns: dict[str, pa.Array], message: str
) -> None:
    table = V4.write_table(tmp_path / "t", V4.entries(FILES[:1]))
    (path,) = (tmp_path / "t").glob("*.parquet")
    fields = [pa.field(name, array.type, metadata={"PARQUET:field_id": "0"}) for name, array in columns.items()]
    pq.write_table(pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields)), path)
    with pytest.raises(CorruptMetadataError, match=message):
        entries(table)


# --- changes


def test_changes_are_written_as_parquet_manifests(tmp_path: Path) -> None:
    table = commits.create_table(commits.open_catalog(tmp_path), 4)
    fp.delete(table, where="id = 3")
    fp.update(table, set={"part": "'c'"}, where="id = 12")
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    rewrite_manifests(table)
    loaded = table.catalog.load_table("db.t")
    assert loaded.metadata.format_version == 4
    expected = [(n, "c" if n == 12 else "b" if 10 <= n < 20 else "a") for n in range(30) if n != 3]
    assert commits.read_rows(loaded) == expected
    for snapshot in loaded.metadata.snapshots:
        paths = SnapshotReader.open(loaded, snapshot).manifests.path.to_pylist()
        assert {path.rpartition(".")[2] for path in paths} == {"parquet"}
    ids = entries(loaded).live().array("first_row_id")
    assert ids.null_count == 0
    expired = expire_snapshots(loaded, older_than_ms=2**60, retain_last=1, dry_run=False)
    assert expired.snapshots_after == 1
    assert commits.read_rows(loaded) == expected
    assert plan_scan(table.catalog.load_table("db.t"), "part = 'c'").summary.files_kept == 1


def test_a_commit_keeps_relative_metadata_readable_and_makes_it_absolute(tmp_path: Path) -> None:
    catalog = commits.open_catalog(tmp_path)
    table = commits.create_table(catalog, 4)
    known = document(table)
    for snapshot in known["snapshots"]:
        snapshot["manifest-list"] = snapshot["manifest-list"].removeprefix(f"{known['location']}/")
    edited(table, **known)
    loaded = catalog.load_table("db.t")
    fp.append(loaded, commits.arrow([(77, "z")]))
    after = document(catalog.load_table("db.t"))
    assert all(snapshot["manifest-list"].startswith("file://") for snapshot in after["snapshots"])
    assert (77, "z") in commits.read_rows(loaded)


def test_metadata_without_a_location_are_not_committed_to_by_file(tmp_path: Path) -> None:
    catalog = commits.open_catalog(tmp_path)
    table = commits.create_table(catalog, 4)
    edited(table, location=None)
    loaded = catalog.load_table("db.t")
    assert loaded.metadata.location == table.metadata.location
    assert len(commits.read_rows(loaded)) == 30
    with pytest.raises(UnsupportedError, match=r"has no table location.*commit through a REST catalog"):
        fp.append(loaded, commits.arrow([(77, "z")]))
    assert catalog.load_table("db.t").metadata_location == table.metadata_location


def test_relative_path_properties_direct_new_files_into_the_table(tmp_path: Path) -> None:
    table = commits.create_table(commits.open_catalog(tmp_path), 4)
    known = document(table)
    edited(table, properties=known["properties"] | {"write.data.path": "elsewhere"})
    loaded = table.catalog.load_table("db.t")
    fp.append(loaded, commits.arrow([(77, "z")]))
    location = loaded.metadata.location
    assert entries(loaded).live().path.to_pylist()[0].startswith(f"{location}/elsewhere/")


def test_a_relative_metadata_path_is_not_committed_to_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = commits.create_table(commits.open_catalog(tmp_path), 4)
    edited(table, properties=document(table)["properties"] | {"write.metadata.path": "meta"})
    loaded = table.catalog.load_table("db.t")
    with pytest.raises(UnsupportedError, match=r"write.metadata.path of the table is the relative path 'meta'"):
        fp.append(loaded, commits.arrow([(77, "z")]))
    assert table.catalog.load_table("db.t").metadata_location == table.metadata_location
    assert not (tmp_path / "meta").exists()


def test_a_local_file_is_appended_under_its_uri(tmp_path: Path) -> None:
    table = commits.create_table(commits.open_catalog(tmp_path), 4)
    ids = [
        pa.field(name, type_, metadata={"PARQUET:field_id": str(at)})
        for at, name, type_ in ((1, "id", pa.int64()), (2, "part", pa.string()))
    ]
    path = tmp_path / "given.parquet"
    pq.write_table(pa.table({"id": [88], "part": ["q"]}, schema=pa.schema(ids)), path)
    fp.append(table, [str(path)], add_files=True)
    assert path.as_uri() in entries(table).live().path.to_pylist()
    assert (88, "q") in commits.read_rows(table)


# --- upgrades


@pytest.mark.parametrize(("before", "to"), [(1, 2), (1, 4), (2, 3), (2, 4), (3, 4)])
def test_an_upgraded_table_keeps_its_rows_and_takes_new_ones(tmp_path: Path, before: int, to: int) -> None:
    table = commits.create_table(commits.open_catalog(tmp_path), before)
    dry = fp.upgrade_format(table, to, dry_run=True)
    assert table.refresh().metadata.format_version == before
    result = fp.upgrade_format(table, to)
    assert table.metadata.format_version == to
    assert result.to_dict() == dry.to_dict() | {"dry_run": False}
    assert (result.from_version, result.to_version) == (before, to)
    assert result.snapshot_id == table.metadata.current_snapshot_id
    fp.append(table, commits.arrow([(77, "z")]))
    fp.delete(table, where="id = 5")
    assert commits.read_rows(table) == [row for row in commits.read_rows(table) if row[0] != 5]
    assert len(commits.read_rows(table)) == 30
    assert fp.upgrade_format(table, to).changes == ()


def test_an_upgrade_that_cannot_be_expressed_is_refused(tmp_path: Path) -> None:
    table = V3.write_table(tmp_path / "t", V3.entries([data("/a.parquet")]))
    with pytest.raises(UnsupportedError, match="has no URI scheme; such a table cannot be upgraded"):
        fp.upgrade_format(table, 4, dry_run=True)
    with pytest.raises(FloeplanError, match="the table has format 3, and no table can be downgraded"):
        fp.upgrade_format(table, 2, dry_run=True)
    with pytest.raises(FloeplanError, match="the format version is 5 but must be one of 2, 3, 4"):
        fp.upgrade_format(table, 5)
    with pytest.raises(FloeplanError, match="is read-only"):
        fp.upgrade_format(table, 3)


def test_an_upgrade_is_refused_for_a_data_file_without_a_scheme(tmp_path: Path) -> None:
    """No manifest of format 4 could hold it, so that its manifest could never be rewritten."""
    table = commits.create_table(commits.open_catalog(tmp_path), 3)
    added = commits.append(table, [(77, "z")]).added_data
    assert added is not None
    at, path = added.table.schema.get_field_index("file_path"), added.path[0].as_py()
    bare = pa.array([path.removeprefix("file://")], pa.large_string())
    moved = EntriesTable(added.table.set_column(at, "file_path", bare), added.partition_types)
    table = commit_change(table, SnapshotChange(Operation.APPEND, added_data=moved)).table
    assert (77, "z") in commits.read_rows(table)
    with pytest.raises(UnsupportedError, match=r"would take '/.*\.parquet' for a relative path"):
        fp.upgrade_format(table, 4)
    assert table.refresh().metadata.format_version == 3


def test_the_command_upgrades(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = open_catalog()
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("db")
    commits.create_table(catalog, 3)
    assert main(["upgrade-format", "db.t", "--to", "4", "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert (dry["from"], dry["to"], dry["dry_run"], len(dry["changes"])) == (3, 4, True, 3)
    assert main(["upgrade-format", "db.t", "--to", "4"]) == 0
    assert "format 3 was upgraded to 4" in capsys.readouterr().out
    assert main(["upgrade-format", "db.t", "--to", "4"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert main(["upgrade-format", "db.t", "--to", "3"]) == 2
    assert "no table can be downgraded" in capsys.readouterr().err
    assert main(["upgrade-format", "db.t", "--to", "7"]) == 2
    catalog.close()
