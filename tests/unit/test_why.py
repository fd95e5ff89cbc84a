"""Why one file is read or not: every pass that can drop it, the statistic that decides, and ambiguous paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.errors import BadInputError, UnknownFileError
from floeplan.explorer.file_document import file_document
from floeplan.explorer.view import TableView
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.layouts import Files, Layout
from tests.support.tables.two_specs import events, two_spec_table

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "v", DoubleType(), required=False), schema_id=0
)
ROWS = [{"id": n, "v": float(n)} for n in range(64)]
PREDICATES = (
    "region = 'eu'",
    "region = 'eu' AND v > 120",
    "id BETWEEN 90 AND 110",
    "id < 100 OR region = 'us'",
    "v IS NULL",
    "upper(region) = 'EU'",
    "id = 1 AND v > 90",
    "id > 1000",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("why"))


def paths(table: Table) -> dict[str, str]:
    """The paths of files by their first id and spec."""
    files = table.inspect.files()
    keys = [(partition or {}).get("region") or "plain" for partition in files["partition"].to_pylist()]
    return dict(zip(keys, files["file_path"].to_pylist(), strict=True))


@pytest.mark.parametrize("where", PREDICATES)
def test_a_file_is_kept_exactly_when_a_plan_keeps_it(table: Table, where: str) -> None:
    options = ScanOptions(page_index=True, bloom_filter=True, report=False)
    kept = {file.path for file in plan_scan(table, where, options=options).files}
    for path in table.inspect.files()["file_path"].to_pylist():
        found = fp.why(table, path, where)
        assert found.kept == (path in kept), found
        assert (found.dropped_in is None) == found.kept
        assert found.reason


def test_the_partition_of_a_file_is_named(table: Table) -> None:
    found = fp.why(table, paths(table)["us"], "v > 1 AND region = 'eu'")
    assert found.to_dict() == {
        "file": paths(table)["us"],
        "kept": False,
        "pass": "manifest-entries",
        "conjunct": "region = 'eu'",
        "statistic": "partition region=us",
        "spec_id": 1,
        "reason": "region = 'eu' matches no row: partition region=us",
    }


def test_the_summary_of_a_manifest_is_named(table: Table) -> None:
    found = fp.why(table, paths(table)["us"], "region = 'zz'")
    assert (found.dropped_in, found.spec_id) == ("manifest-list", 1)
    assert found.statistic == "partition summary of its manifest: region ap to us"


def test_bounds_and_counts_are_named(table: Table) -> None:
    beyond = fp.why(table, paths(table)["eu"], "id < 5")
    assert (beyond.dropped_in, beyond.conjunct) == ("manifest-entries", "id < 5")
    assert beyond.statistic == "bounds of id: 201 to 297"
    nulls = fp.why(table, paths(table)["eu"], "region IS NOT NULL AND id IS NULL")
    assert nulls.statistic == "null count of id: 0"


def test_what_keeps_a_file_is_named(table: Table) -> None:
    proven = fp.why(table, paths(table)["eu"], "region = 'eu' AND id > 5")
    assert (proven.kept, proven.conjunct) == (True, None)
    assert proven.statistic == "partition region=eu; bounds of id: 201 to 297"
    assert proven.reason == "every row matches"
    open_ = fp.why(table, paths(table)["eu"], "region = 'eu' AND id > 250")
    assert (open_.kept, open_.dropped_in, open_.conjunct) == (True, None, "id > 250")
    assert open_.reason == "id > 250 is not decided by bounds of id: 201 to 297; 1 of 1 row group may match"
    assert fp.why(table, paths(table)["eu"]).reason == "no filter"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def of(files: Files, path: str, where: str) -> dict[str, Any]:
    return fp.why(files.table(Layout(SCHEMA, (PartitionSpec(spec_id=0),))), path, where).to_dict()


def test_row_groups_that_drop_a_file_are_named(files: Files) -> None:
    path = files.data(ROWS, SCHEMA, group=32)
    found = of(files, path, "v IS NOT NULL AND id > 500")
    assert (found["kept"], found["pass"], found["conjunct"]) == (False, "row-groups", "id > 500")
    assert found["statistic"] == "statistics of 2 row groups: id 0 to 31, 32 to 63"
    several = of(files, path, "id < 20 AND v > 40.5")
    assert (several["kept"], several["pass"]) == (True, None)  # NaN may be anywhere
    either = of(files, path, "id < 20 AND (id > 40 OR id IS NULL)")
    assert (either["pass"], either["conjunct"]) == ("row-groups", "id < 20 AND (id > 40 OR id IS NULL)")


def test_pages_that_drop_a_file_are_named(files: Files) -> None:
    path = files.data([{"id": n + 900 * (n > 31), "v": None} for n in range(64)], SCHEMA)
    pq.write_table(pq.read_table(path), path, write_page_index=True, max_rows_per_page=32, write_batch_size=32)
    files.entries[-1]["file_size_in_bytes"] = Path(path).stat().st_size
    found = of(files, path, "id BETWEEN 100 AND 800")
    assert (found["kept"], found["pass"], found["statistic"]) == (False, "pages", "page index of 1 row group")


def test_a_footer_that_cannot_be_read_keeps_the_file(files: Files) -> None:
    path = files.data(ROWS, SCHEMA, group=32)
    Path(path).write_bytes(b"nothing")
    found = of(files, path, "id > 500")
    assert found["kept"]
    assert found["reason"].startswith("its footer cannot be used: ")


def test_the_end_of_a_path_is_enough_and_ambiguous_or_unknown_ones_are_bad_input(table: Table) -> None:
    path = paths(table)["eu"]
    assert fp.why(table, Path(path).name, "id < 5").file == path
    assert fp.why(table, Path(path).name[2:], "id < 5").file == path
    with pytest.raises(BadInputError, match=r"5 data files end with \.parquet"):
        fp.why(table, ".parquet", "id < 5")
    for unknown in ("nothing.parquet", ""):
        with pytest.raises(UnknownFileError, match="no data file"):
            fp.why(table, unknown, "id < 5")


def test_the_command_prints_it_and_exits_with_2_for_bad_input(
    floeplan_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    opened = open_catalog(None)
    opened.create_namespace_if_not_exists("db")
    made = opened.create_table("db.t", events(0, 1).schema)
    made.append(events(0, 10))
    name = Path(made.inspect.files()["file_path"][0].as_py()).name
    assert main(["why", "db.t", name, "--where", "id > 100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= {"file", "kept", "pass", "conjunct", "statistic", "spec_id", "reason"}
    assert (found["kept"], found["pass"]) == (False, "manifest-entries")
    assert main(["why", "db.t", name, "--where", "id > 100"]) == 0
    text = capsys.readouterr().out
    assert "dropped in manifest-entries" in text
    assert "bounds of id: 0 to 9" in text
    assert main(["why", "db.t", "nothing", "--where", "id > 100"]) == 2
    assert "no data file 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("where", PREDICATES)
def test_the_explorer_shows_the_same(table: Table, where: str) -> None:
    view = TableView.of(table)
    for path in view.files.path.to_pylist():
        assert file_document(view, path, where)["why"] == fp.why(table, path, where).to_dict()
