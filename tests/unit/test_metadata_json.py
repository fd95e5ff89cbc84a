"""Metadata of every format version through PyIceberg's catalogs: nothing is lost, or nothing is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import check_lossless, losses, writable_metadata
from tests.support.tables.commits import append, create_table, open_catalog, read_rows, rows_of
from tests.support.tables.producing import V1, V2, V3, data
from tests.support.tables.two_specs import catalog as new_catalog

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def io() -> FileIO:
    return load_file_io({})


def document(folder: Path, version: int = 3) -> dict[str, Any]:
    layout = {1: V1, 2: V2, 3: V3}[version]
    layout.write_table(folder, layout.entries([data("a.parquet", 1), data("b.parquet", 2)]))
    found: dict[str, Any] = json.loads((folder / "v1.metadata.json").read_text())
    if version == 1:
        del found["last-sequence-number"]
    return found


def registered(catalog: SqlCatalog, folder: Path, content: dict[str, Any]) -> Table:
    path = folder / "00000-00000000-0000-4000-8000-000000000000.metadata.json"
    path.write_text(json.dumps(content))
    return catalog.register_table("db.t", str(path))


def set_property(table: Table) -> None:
    with writable_metadata(table.io):
        table.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"k": "v"}),))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_commit_keeps_everything_in_the_metadata(version: int, catalog: SqlCatalog, tmp_path: Path) -> None:
    before = document(tmp_path / "t", version)
    table = registered(catalog, tmp_path / "t", before)
    set_property(table)
    location = catalog.load_table("db.t").metadata_location
    after = json.loads(Path(location.removeprefix("file://")).read_text())
    assert after.pop("properties") == {"k": "v"}
    for name in ("last-updated-ms", "schema", "partition-spec"):
        del before[name]
    assert list(losses(before, after)) == []
    assert after["format-version"] == version


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ((), "encryption-keys"),
        (("snapshots", 0), "key-id"),
        (("schemas", 0, "fields", 0), "of-a-later-format"),
    ],
)
def test_unknown_fields_stop_the_commit(where: tuple[Any, ...], key: str, catalog: SqlCatalog, tmp_path: Path) -> None:
    content = document(tmp_path / "t")
    part: Any = content
    for step in where:
        part = part[step]
    part[key] = [{"key-id": "k1"}] if key == "encryption-keys" else "k1"
    table = registered(catalog, tmp_path / "t", content)
    with pytest.raises(UnsupportedError, match=f"losing .*{key}"):
        set_property(table)
    assert catalog.load_table("db.t").metadata_location == table.metadata_location


def test_a_new_table_of_format_3_has_a_next_row_id(catalog: SqlCatalog, io: FileIO) -> None:
    with writable_metadata(io):
        catalog.create_table("db.new", V3.schema, properties={"format-version": "3"})
    assert catalog.load_table("db.new").metadata.next_row_id == 0


def test_outside_the_context_pyiceberg_refuses_format_3(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = registered(catalog, tmp_path / "t", document(tmp_path / "t"))
    set_property(table)
    with pytest.raises(NotImplementedError):
        catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"k": "w"}),))


def test_compressed_metadata_are_read(tmp_path: Path, io: FileIO) -> None:
    path = tmp_path / "00000-x.gz.metadata.json"
    content = document(tmp_path / "t")
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    check_lossless(str(path), io)
    path.write_bytes(gzip.compress(json.dumps(content | {"novel": 1}).encode()))
    with pytest.raises(UnsupportedError, match="novel"):
        check_lossless(str(path), io)


def test_a_table_without_a_snapshot_loses_nothing(catalog: SqlCatalog, tmp_path: Path) -> None:
    empty = {"snapshots": [], "refs": {}, "current-snapshot-id": -1}
    set_property(registered(catalog, tmp_path / "t", document(tmp_path / "t", 2) | empty))
    assert catalog.load_table("db.t").properties == {"k": "v"}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ({"a": None, "b": [], "c": {}}, {}, []),
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": {"b": 1}}, {"a": {}}, ["a.b"]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["a[1].b"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"write-default": "08:00:01.5"}, {"write-default": "08:00:01.500000"}, []),
        ({"write-default": "08:00:01.5"}, {"write-default": "08:00:01.05"}, ["write-default"]),
        ({"write-default": "1.5"}, {"write-default": "1.50"}, ["write-default"]),
    ],
)
def test_losses_are_named_by_their_path(before: Any, after: Any, lost: list[str]) -> None:
    assert list(losses(before, after)) == lost


def metadata_files(table: Table) -> list[str]:
    return sorted(path.name for path in Path(table.location().removeprefix("file://"), "metadata").glob("*.json"))


def test_old_metadata_files_are_deleted_as_the_table_says(tmp_path: Path) -> None:
    """As many as PyIceberg leaves: the current one and ``previous-versions-max``; without the property all stay."""
    table = create_table(open_catalog(tmp_path), rows=[])
    limit = {"write.metadata.previous-versions-max": "2"}
    for at, properties in enumerate((limit, {"write.metadata.delete-after-commit.enabled": "true"})):
        table = table.catalog.load_table(table.name())
        table.catalog.commit_table(table, (), (SetPropertiesUpdate(updates=properties),))
        before = len(metadata_files(table))
        for first in range(at * 50, at * 50 + 50, 10):
            table = commit_change(table, append(table, rows_of(first, first + 10))).table
        assert len(metadata_files(table)) == (before + 5 if at == 0 else before)
    assert len(table.metadata.metadata_log) == 2
    names = {Path(entry.metadata_file).name for entry in table.metadata.metadata_log}
    assert names < set(metadata_files(table)), "the log names files that exist"
    assert len(read_rows(table)) == 100


def test_metadata_is_compressed_as_the_table_says(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path), rows=[])
    table.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"write.metadata.compression-codec": "GZIP"}),))
    for first in (0, 10):
        table = commit_change(table, append(table, rows_of(first, first + 10))).table
        assert table.metadata_location.endswith(".gz.metadata.json")
        written = Path(table.metadata_location.removeprefix("file://"))
        assert json.loads(gzip.decompress(written.read_bytes()))["table-uuid"] == str(table.metadata.table_uuid)
    assert written.name.startswith("00003-")
    assert len(read_rows(table)) == 20


def test_an_unknown_codec_of_metadata_is_named(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path), rows=[])
    table.catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"write.metadata.compression-codec": "lzo"}),))
    with pytest.raises(InvalidOptionError, match=r"write.metadata.compression-codec is 'lzo'"):
        commit_change(table, append(table, rows_of(0, 10)))
