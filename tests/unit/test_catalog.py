"""Loading tables from configured catalogs, metadata files and the embedded catalog, and its errors."""

from __future__ import annotations

import gzip
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import StringType

import floeplan as fp
from floeplan.catalog import DeferredFileIO, load_table, open_catalog, require_writable
from floeplan.errors import (
    BadInputError,
    CorruptMetadataError,
    UnknownCatalogError,
    UnknownTableError,
    UnsupportedError,
)
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def events(floeplan_home: Path) -> Iterator[Table]:
    """A table of three rows in the embedded catalog."""
    catalog = open_catalog()
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", schema=ROWS.schema)
    table.append(ROWS)
    yield table
    catalog.close()


def test_a_name_is_looked_up_in_the_embedded_catalog(events: Table, floeplan_home: Path) -> None:
    loaded = load_table("db.events")
    assert loaded.scan().to_arrow() == ROWS
    assert loaded.catalog.name == "local"
    assert (floeplan_home / "catalog.db").exists()
    assert loaded.location().startswith((floeplan_home / "warehouse").as_uri())


def test_the_embedded_catalog_is_in_the_working_directory_by_default(
    floeplan_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOEPLAN_HOME")
    open_catalog()
    assert (tmp_path / ".floeplan/catalog.db").exists()


def test_a_table_is_its_own_name(events: Table) -> None:
    assert load_table(events) is events


def test_a_metadata_file_is_a_table_by_path_and_by_uri(events: Table) -> None:
    uri = events.metadata_location
    path = Path(uri.removeprefix("file://"))
    for location in (uri, str(path), path):
        loaded = load_table(location)
        assert isinstance(loaded, StaticTable)
        assert loaded.scan().to_arrow() == ROWS


def test_looking_for_a_table_creates_nothing(floeplan_home: Path) -> None:
    with pytest.raises(
        UnknownTableError, match=r"no table 'db\.events': there is no embedded catalog in .*FLOEPLAN_HOME"
    ):
        load_table("db.events")
    assert not floeplan_home.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("db.event", r"no table 'db\.event' in catalog 'local'; did you mean db\.events\?"),
        ("db.zzz", r"no table 'db\.zzz' in catalog 'local'; 'db' has 1 table$"),
        ("nowhere.events", r"there is no namespace 'nowhere' either"),
        ("events", r"'events' does not name a table; write namespace\.name"),
        ("db.", r"'db\.' does not name a table"),
        ("no/such/v1.metadata.json", r"no metadata file no/such/v1\.metadata\.json"),
    ],
)
def test_an_unknown_table_is_named_with_the_fix(events: Table, name: str, message: str) -> None:
    with pytest.raises(UnknownTableError, match=message) as caught:
        load_table(name)
    assert caught.value.context["table"] == name


@pytest.mark.parametrize("name", ["v1.metadata.json", "v1.gz.metadata.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format-version": 9}', b"\x00", b"\xff", b"\x1f\x8b\x08junk"])
def test_a_file_that_is_not_metadata_is_corrupt(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorruptMetadataError, match=r"\.metadata\.json is not table metadata") as caught:
        load_table(path)
    assert "\n" not in caught.value.message


def configure(monkeypatch: pytest.MonkeyPatch, name: str, home: Path) -> None:
    home.mkdir()
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__TYPE", "sql")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__URI", f"sqlite:///{home / 'catalog.db'}")


def test_a_configured_catalog_is_used_by_name_and_when_it_is_the_only_one(
    floeplan_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, "prod", tmp_path / "prod")
    assert open_catalog("prod").name == "prod"
    assert open_catalog().name == "prod"
    assert open_catalog("local").name == "local"


def test_the_default_is_chosen_among_several(
    floeplan_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, "prod", tmp_path / "prod")
    configure(monkeypatch, "test", tmp_path / "test")
    with pytest.raises(
        UnknownCatalogError, match="no catalog 'default' is configured; choose one of local, prod, test"
    ):
        open_catalog()
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "test")
    assert open_catalog().name == "test"


def test_an_unknown_catalog_is_named_with_the_choices(floeplan_home: Path) -> None:
    with pytest.raises(UnknownCatalogError, match="no catalog 'prod' is configured; choose one of local"):
        load_table("db.events", "prod")


def test_a_catalog_that_cannot_be_opened_is_an_error_with_the_reason(
    floeplan_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TYPE", "carrier-pigeon")
    with pytest.raises(UnknownCatalogError, match="cannot open catalog 'prod': 'carrier-pigeon'"):
        open_catalog("prod")


def test_file_io_of_a_local_metadata_file_is_chosen_when_it_is_used(tmp_path: Path) -> None:
    made = two_spec_table(tmp_path)
    table = load_table(made.metadata_location)
    assert isinstance(table.io, DeferredFileIO)
    assert table.metadata == made.metadata
    assert pickle.loads(pickle.dumps(table.io)).properties == table.io.properties
    assert table.scan().to_arrow().num_rows == 300  # PyIceberg reads with it
    assert isinstance(table.io.chosen, PyArrowFileIO)
    written = f"{tmp_path.as_uri()}/new"
    with table.io.new_output(written).create() as stream:
        stream.write(b"x")
    assert table.io.new_input(written).exists()
    table.io.delete(written)
    assert not table.io.new_input(written).exists()


def test_compressed_metadata_and_a_plain_path_are_the_same_table(tmp_path: Path) -> None:
    made = two_spec_table(tmp_path)
    path = made.metadata_location.removeprefix("file://")
    compressed = tmp_path / "v1.gz.metadata.json"
    compressed.write_bytes(gzip.compress(Path(path).read_bytes()))
    for location in (path, str(compressed), compressed.as_uri()):
        assert load_table(location).metadata == made.metadata


def test_tables_of_one_metadata_file_share_its_parsed_content_only(tmp_path: Path) -> None:
    """A caller who modifies a table does not modify the next one; content that is replaced is parsed again."""
    made = two_spec_table(tmp_path)
    path = Path(made.metadata_location.removeprefix("file://"))
    first = load_table(str(path))
    first.metadata.properties["owner"] = "me"
    first.metadata.snapshots.clear()
    first.metadata.refs.clear()
    second = load_table(path.as_uri())
    assert second.metadata == made.metadata
    assert second.metadata.model_dump_json() == made.metadata.model_dump_json()
    assert second.schema() is first.schema()
    with made.update_schema() as update:
        update.add_column("later", StringType())
    path.write_bytes(Path(made.metadata_location.removeprefix("file://")).read_bytes())
    assert load_table(str(path)).metadata == made.metadata


@pytest.mark.parametrize("ending", [".metadata.json", ".gz.metadata.json", ".metadata.json.gz"])
def test_the_folder_of_a_hadoop_table_is_a_table(events: Table, tmp_path: Path, ending: str) -> None:
    """The hint may be behind: a later version that exists is the newest. Iceberg once wrote the last of these names."""
    content = Path(events.metadata_location.removeprefix("file://")).read_bytes()
    metadata = tmp_path / "hadoop" / "metadata"
    metadata.mkdir(parents=True)
    for version in (6, 7, 8):
        written = content.replace(events.metadata.location.encode(), f"{tmp_path}/v{version}".encode())
        (metadata / f"v{version}{ending}").write_bytes(gzip.compress(written) if "gz" in ending else written)
    (metadata / "version-hint.text").write_text("7\n")
    for name in (metadata.parent, f"{metadata.parent}/", metadata.parent.as_uri()):
        table = load_table(name)
        assert not isinstance(table, StaticTable)
        assert table.location() == f"{tmp_path}/v8"
    with load_table(metadata.parent).transaction() as change:
        change.set_properties({"a": "b"})
    (metadata / "version-hint.text").unlink()
    assert load_table(metadata.parent).metadata_location.endswith("v9.metadata.json")


def test_a_folder_without_metadata_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownTableError, match=r"has no table metadata"):
        load_table(tmp_path)


def test_a_folder_without_a_hint_is_read_with_a_warning(
    events: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the newest metadata file; those of other catalogs cannot be committed to."""
    content = Path(events.metadata_location.removeprefix("file://")).read_bytes()
    metadata = tmp_path / "folder" / "metadata"
    metadata.mkdir(parents=True)
    for name in ("00009-a.metadata.json", "00010-b.metadata.json"):
        (metadata / name).write_bytes(content.replace(events.metadata.location.encode(), name[:5].encode()))
    table = load_table(metadata.parent)
    assert table.location() == "00010"
    assert "has no metadata/version-hint.text: reading 00010-b.metadata.json" in caplog.text
    with pytest.raises(BadInputError, match="read-only"):
        require_writable(table)
    (metadata / "v3.metadata.json").write_bytes(content)
    require_writable(load_table(metadata.parent))


@pytest.mark.parametrize("hint", ["1", "banana", "", "\udcff"])
def test_a_wrong_hint_is_reported_and_the_newest_metadata_file_read(
    events: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, hint: str
) -> None:
    """A version that was removed, or no version at all; Iceberg lists the folder too when a hint is not a number."""
    content = Path(events.metadata_location.removeprefix("file://")).read_bytes()
    metadata = tmp_path / "hadoop" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "v5.metadata.json").write_bytes(content)
    (metadata / "version-hint.text").write_bytes(hint.encode(errors="surrogateescape"))
    fp.append(str(metadata.parent), ROWS)
    (warning,) = caplog.messages
    assert re.search(
        r"has no metadata file of version '.*', which metadata/version-hint.text names: reading v5", warning
    )
    assert (metadata / "version-hint.text").read_text() == "6"


def test_commits_to_a_table_folder(events: Table, tmp_path: Path) -> None:
    """A version that another writer has taken is a conflict, which is retried on the newer table."""
    folder = tmp_path / "hadoop"
    metadata = folder / "metadata"
    metadata.mkdir(parents=True)
    content = Path(events.metadata_location.removeprefix("file://")).read_bytes()
    (metadata / "v1.metadata.json").write_bytes(content)
    first = load_table(folder)
    stale = load_table(folder)
    fp.append(first, ROWS)
    fp.append(stale, ROWS)
    assert (metadata / "version-hint.text").read_text() == "3"
    assert sorted(path.name for path in metadata.glob("*.metadata.json")) == [f"v{n}.metadata.json" for n in (1, 2, 3)]
    assert fp.plan_scan(load_table(folder)).count() == 3 * len(ROWS)
    # The newest version is loaded as 2, as by a writer that reads just before another commits.
    with (
        patch("floeplan.hadoop_tables.newest_metadata", return_value=f"{metadata}/v2.metadata.json"),
        pytest.raises(CommitFailedException, match="another writer committed version 3"),
    ):
        first.catalog.commit_table(first, (), ())
    (metadata / "version-hint.text").write_text("1")
    fp.delete(str(folder), "id = 1")
    assert (metadata / "v4.metadata.json").exists()
    with pytest.raises(UnsupportedError, match=r"no write\.metadata\.path"), load_table(folder).transaction() as change:
        change.set_properties({"write.metadata.path": "elsewhere"})
