"""Errors: one position in message and context, values of invalid options, folders, and files that are gone."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.errors import (
    RESTORE,
    CorruptMetadataError,
    FloeplanError,
    InvalidOptionError,
    UnknownFileError,
    UnknownTableError,
)
from floeplan.metadata.files import read_file
from floeplan.sql_text.parse import parse_statement
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit


def test_a_statement_has_one_position() -> None:
    with pytest.raises(FloeplanError) as caught:
        parse_statement("DELETE FROM db.t WHERE (id = 1")
    named = re.search(r"position (\d+)", caught.value.message)
    assert named is not None
    assert caught.value.context["position"] == int(named[1]) == 24


def test_a_folder_where_a_file_is_expected_is_not_retryable(tmp_path: Path) -> None:
    folder = tmp_path / "x.metadata.json"
    folder.mkdir()
    with pytest.raises(UnknownFileError, match="is a folder") as caught:
        fp.prune.PruneRequest(str(folder)).with_predicate("a = 1").prune()
    assert not caught.value.retryable
    with pytest.raises(UnknownTableError, match="is a folder"):
        fp.load_table(str(folder))
    with pytest.raises(CorruptMetadataError, match="is a folder") as corrupt:
        read_file(str(folder))
    assert not corrupt.value.retryable


def test_an_invalid_option_is_in_its_message(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    with pytest.raises(InvalidOptionError, match="retain_last is 0"):
        fp.expire_snapshots(table, retain_last=0)
    with pytest.raises(InvalidOptionError, match="least_entries is -3"):
        fp.rewrite_manifests(table, least_entries=-3)
    with pytest.raises(InvalidOptionError, match="files_per_commit is 0"):
        fp.UpgradeOptions(files_per_commit=0)
    with pytest.raises(InvalidOptionError, match="older_than is 2h"):
        fp.remove_orphans(table, older_than=timedelta(hours=2))


def test_a_data_file_that_is_gone_is_no_bad_input(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = open_catalog()
    opened.create_namespace("db")
    rows = pa.table({"id": [1, 2, 3]})
    table = opened.create_table("db.t", rows.schema)
    fp.append(table, rows)
    path = Path(table.refresh().inspect.files()["file_path"][0].as_py().removeprefix("file://"))
    path.unlink()
    for command in (["scan", "db.t"], ["rewrite", "db.t", "--option", "rewrite-all=true"]):
        assert main(command) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"{path} does not exist although the table refers to it: {RESTORE}")
    assert main(["scan", "db.t", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["retryable"], error["committed"]) == ("missing-file", False, False)
    assert main(["doctor", "db.t"]) == 1


def test_a_metadata_file_that_is_gone_is_not_retryable(floeplan_home: Path) -> None:
    opened = open_catalog()
    opened.create_namespace("db")
    table = opened.create_table("db.t", pa.schema([("id", pa.int64())]))
    Path(table.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(CorruptMetadataError, match=r"refers to a metadata file of db\.t that does") as caught:
        fp.load_table("db.t")
    assert not caught.value.retryable
