"""`floeplan prune`: JSON, text output and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.cli.commands.prune import CELLS, LINES, draw
from floeplan.cli.common import json_rows
from floeplan.cli.main import main
from floeplan.parquet.prune.request import PruneRequest

pytestmark = pytest.mark.unit

GLYPHS = {meaning: glyph for meaning, (glyph, _) in CELLS.items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prune") / "numbers.parquet"
    rows = np.arange(1000)
    table = pa.table({"id": rows, "name": [f"n{i % 10}" for i in rows], "f": np.where(rows == 5, np.nan, rows / 2)})
    layout = {"row_group_size": 250, "max_rows_per_page": 50, "write_batch_size": 50, "write_page_index": True}
    pq.write_table(table, path, **layout)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run(capsys, *arguments, "--json")))


def test_the_document_of_a_pruning(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "prune", file, "--where", "id = 610")
    assert got["row_groups_kept"] == [2]
    assert got["row_selection"] == [[600, 50]]
    assert (got["rows_total"], got["rows_selected"], got["row_groups_total"]) == (1000, 50, 4)
    assert (got["pages_total"], got["pages_kept"]) == (5, 1)
    assert got["compile"] == {"prunable": "id = 610", "residual": "id = 610", "errors": []}
    assert got["bytes_read"] > 0
    assert "rows_matched" not in got


def test_the_document_of_a_read(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "prune", file, "--where", "f > 499 AND name = 'n9'", "--read")
    assert got["rows_matched"] == 1
    assert "rows" not in got
    shown = document(capsys, "prune", file, "--where", "f > 499", "--read", "--columns", "id, f", "--limit", "2")
    assert shown["rows_matched"] == 2
    assert shown["rows"] == [{"id": 5, "f": "nan"}, {"id": 999, "f": 499.5}]


def test_parts_can_be_switched_off(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "prune", file, "--where", "id = 610", "--no-page-index")["rows_selected"] == 250
    notes = document(capsys, "prune", file, "--where", "id = 610")["notes"]
    assert notes == ["column id: no bloom filter"]
    assert document(capsys, "prune", file, "--where", "id = 610", "--no-bloom")["notes"] == []


def test_text_shows_what_was_kept_and_the_residual(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "prune", file, "--where", "id >= 260 AND upper(name) = 'N3'", "--read", "--limit", "1")
    lines = text.splitlines()
    assert "\x1b" not in text, "colours without a terminal"
    assert lines[1] == "where id >= 260 AND upper(name) = 'N3'"
    counts = {" ".join(line.split()) for line in lines}
    assert {"row groups 3 of 4 75 %", "rows 750 of 1,000 75 %", "matched 74 of 1,000 7.4 %"} <= counts
    mark = next(number for number, line in enumerate(lines) if "^" in line)
    assert lines[mark - 1][lines[mark].index("^") :][: lines[mark].count("^")] == "upper(name) = 'N3'"
    assert lines[-1].split() == ["263", "n3", "131.5"]


def test_the_picture_shows_row_groups_as_blocks_and_pages_as_cells(file: str) -> None:
    drawn = draw(PruneRequest(file).with_predicate("id >= 310").prune(), 40)
    dropped, kept, proven = GLYPHS["dropped"], GLYPHS["read"], GLYPHS["read, every row proven to match"]
    blocks = " ".join(line.plain for line in drawn).split(" ")
    assert blocks == [dropped * 5, dropped + kept + proven * 3, proven * 5, proven * 5]


@pytest.mark.parametrize("groups", [0, 1, 2, 7, 39, 40, 160, 161, 3000, 10_000])
@pytest.mark.parametrize("width", [20, 40, 98])
def test_the_picture_fits_and_hides_no_kept_row(groups: int, width: int, tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    schema = pa.schema([("id", pa.int32())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, groups * 2, 2):
            writer.write_table(pa.table({"id": [first, first + 1]}, schema=schema))
    lines = [line.plain for line in draw(PruneRequest(str(path)).with_predicate(f"id = {groups}").prune(), width)]
    assert len(lines) <= LINES
    assert max(map(len, lines), default=0) <= width
    shown = sum(line.count(glyph) for line in lines for name, glyph in GLYPHS.items() if name != "dropped")
    assert shown == min(groups, 1)


def test_bad_input_is_one_line_and_exit_2(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (("prune", file, "--where", "idd = 1"), "did you mean id?"),
        (("prune", file, "--where", "id ="), "floeplan: "),
        (("prune", file + "x", "--where", "id = 1"), "no such file"),
        (("prune", file, "--where", "id = 1", "--limit", "3"), "need --read"),
        (("prune", file, "--where", "id = 1", "--read", "--columns", "nam"), "did you mean name?"),
        (("prune", file), "--where"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_file_that_is_no_parquet_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.parquet"
    path.write_text("not parquet at all")
    assert main(["prune", str(path), "--where", "id = 1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "corrupt-file"


def test_rows_of_every_type_become_json() -> None:
    table = pa.table(
        {
            "b": [b"\x00\xff"],
            "d": pa.array([1], pa.date32()),
            "t": pa.array([1], pa.timestamp("us", "UTC")),
            "x": pa.array([{"a": [1.5, float("inf")]}]),
            "n": pa.nulls(1),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
            "c": pa.array(["1.20"]).cast(pa.decimal128(5, 2)),
        }
    )
    assert json.loads(json.dumps(json_rows(table, 5), allow_nan=False)) == [
        {
            "b": "AP8=",
            "d": "1970-01-02",
            "t": "1970-01-01T00:00:00.000001+00:00",
            "x": {"a": [1.5, "inf"]},
            "n": None,
            "m": [["k", 1]],
            "c": "1.20",
        }
    ]


@pytest.mark.parametrize(
    ("location", "exit_code", "message"),
    [
        ("foo://bucket/x.parquet", 2, "cannot be opened"),
        ("missing.parquet", 2, "missing.parquet: no such file"),
        (".", 2, "is a folder, and a file is expected"),
    ],
)
def test_what_cannot_be_opened_is_one_line(
    location: str, exit_code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", location, "--where", "id = 1", "--json"]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["context"] == {"file": location}


def test_names_match_case_insensitively_on_request(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("prune", file, "--where", "ID = 610 AND Name = 'n0'", "--read", "--columns", "NAME", "--limit", "1")
    assert document(capsys, *question, "--case-insensitive")["rows"] == [{"name": "n0"}]
    assert main(question) == 2
