"""`floeplan plan` and `floeplan scan` as scripts see them: JSON keys, exit codes, atomic output files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from contextlib import closing
from datetime import date
from decimal import Decimal
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from rich.console import Console

from floeplan.catalog import load_table
from floeplan.cli.commands.plan import FORMATS
from floeplan.cli.common import RowsTable, json_rows, json_value
from floeplan.cli.main import main
from floeplan.cli.row_formats import open_writer
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit

SUMMARY = {
    "manifests_total",
    "manifests_kept",
    "files_total",
    "files_kept",
    "row_groups_total",
    "row_groups_kept",
    "rows_total",
    "rows_kept",
    "bytes_total",
    "bytes_kept",
    "deletes_kept",
    "planning_ms",
}
FILE = {"path", "spec_id", "partition", "record_count", "row_groups", "row_selection", "deletes", "tri_state"}
READERS = {
    "csv": pyarrow.csv.read_csv,
    "jsonl": pyarrow.json.read_json,
    "arrow": lambda path: pa.ipc.open_stream(path.read_bytes()).read_all(),
    "parquet": pq.read_table,
}
STREAMS = {
    "csv": lambda data: pyarrow.csv.read_csv(pa.py_buffer(data))["id"].to_pylist(),
    "jsonl": lambda data: [json.loads(line)["id"] for line in data.splitlines()],
    "arrow": lambda data: pa.ipc.open_stream(data).read_all()["id"].to_pylist(),
    "parquet": lambda data: pq.read_table(pa.py_buffer(data))["id"].to_pylist(),
}
SPEC = {"spec_id", "spec", "files_total", "files_kept", "recovered"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("events"))


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command on the table; returns the exit code, stdout and stderr."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        code = main([command, table.metadata_location, *arguments])
        return code, *capsys.readouterr()

    return run


def document(outcome: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = outcome
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_plan_has_the_promised_keys(run: Any) -> None:
    plan = document(run("plan", "--where", "region = 'eu' AND id >= 150", "--json"))
    assert plan.keys() >= {"summary", "specs", "passes", "files", "warnings"}
    assert plan["summary"].keys() >= SUMMARY
    assert all(spec.keys() >= SPEC for spec in plan["specs"])
    assert all(file.keys() >= FILE for file in plan["files"])
    assert [step["name"] for step in plan["passes"]] == ["manifest list", "manifest entries", "footers"]
    assert [(file["spec_id"], file["partition"], file["tri_state"]) for file in plan["files"]] == [
        (1, {"region": "eu"}, "true"),
        (0, {}, "unknown"),
    ]
    assert (plan["summary"]["files_kept"], plan["summary"]["files_total"]) == (2, 5)
    assert plan["warnings"] == []


def test_warnings_of_the_parser_are_hidden(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    odd = "get_json_object(region, 'no[[path') = 'x'"
    assert len(document(run("plan", "--where", odd, "--json"))["files"]) == 5
    assert not caplog.records


def test_plan_without_footers_opens_no_file(run: Any) -> None:
    plan = document(run("plan", "--where", "id = 150", "--no-footers", "--json"))
    assert plan["summary"]["row_groups_total"] is None
    assert [file["row_groups"] for file in plan["files"]] == [None]


def test_plan_from_a_root_manifest_is_the_same_plan(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "root.parquet"
    assert run("entries", "-o", str(root))[0] == 0
    where = ("--where", "region = 'eu' AND id >= 150", "--json")
    by_manifests, by_root = document(run("plan", *where)), document(run("plan", *where, "--root", str(root)))
    assert {file["path"] for file in by_root["files"]} == {file["path"] for file in by_manifests["files"]} != set()


def test_plan_draws_the_pyramid_and_explains_on_request(run: Any) -> None:
    code, out, _ = run("plan", "--where", "region = 'eu'")
    assert code == 0
    assert "manifests" in out
    assert "partitioned by" not in out
    code, out, _ = run("plan", "--where", "region <> 'eu'", "--explain")
    assert code == 0
    assert "partitioned by" in out
    assert "dropped by each conjunct alone" in out


def test_plan_applies_snapshot_column_and_case_options(run: Any, table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    assert document(run("plan", "--snapshot-id", str(first), "--json"))["summary"]["files_total"] == 1
    assert document(run("plan", "--ref", "main", "--json"))["summary"]["files_total"] == 5
    whole = document(run("plan", "--json"))["summary"]["bytes_kept"]
    assert 0 < document(run("plan", "--columns", "id, v", "--json"))["summary"]["bytes_kept"] < whole
    assert (
        document(run("plan", "--where", "REGION = 'eu'", "--case-insensitive", "--json"))["summary"]["files_kept"] == 3
    )


def test_scan_returns_the_rows(run: Any) -> None:
    found = document(run("scan", "--where", "id IN (7, 250)", "--columns", "id,region", "--json"))
    assert found["rows"] == 2
    assert sorted(row["id"] for row in found["data"]) == [7, 250]
    assert all(row.keys() == {"id", "region"} for row in found["data"])
    code, out, _ = run("scan", "--where", "id = 7")
    assert code == 0
    assert "region" in out
    assert "us" in out


def test_scan_counts_and_limits(run: Any) -> None:
    assert document(run("scan", "--where", "region = 'eu'", "--count", "--json")) == {"rows": 100}
    assert run("scan", "--count")[1].strip() == "300"
    assert document(run("scan", "--limit", "3", "--json"))["rows"] == 3
    assert document(run("scan", "--limit", "0", "--json"))["rows"] == 0


def test_text_shows_the_first_rows_and_says_that_there_are_more(run: Any) -> None:
    _, out, _ = run("scan", "--columns", "id")
    lines = out.splitlines()
    assert len(lines) == 22
    assert lines[-1].startswith("only the first 20 rows are shown; ")
    _, out, _ = run("scan", "--columns", "id", "--limit", "30")
    assert len(out.splitlines()) == 31
    _, out, _ = run("scan", "--columns", "id", "--where", "id < 5")
    assert len(out.splitlines()) == 6


def test_rows_that_are_too_wide_are_shown_with_a_line_for_each_column(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No column is cut or left out."""
    monkeypatch.setenv("COLUMNS", "30")
    _, out, _ = run("scan", "--where", "id = 7 OR id = 8", "--columns", "id,region,ts")
    rows = [[line.split(maxsplit=1) for line in block.splitlines()] for block in out.split("\n\n")]
    assert [[name for name, _ in row] for row in rows] == [["id", "region", "ts"]] * 2
    assert sorted(row[0][1].strip() for row in rows) == ["7", "8"]
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("scan", "--where", "id = 7 OR id = 8", "--columns", "id,region,ts")
    assert [line.split()[0] for line in out.splitlines()] == ["id", "7", "8"]


def test_tabs_in_values_take_their_width() -> None:
    console = Console(file=(out := StringIO()), width=40)
    console.print(RowsTable(pa.table({"c": ["p\tq"]}), 1))
    assert out.getvalue().split() == ["c", "p", "q"]


def test_scan_as_of_a_time(run: Any, table: Table) -> None:
    assert run("scan", "--as-of", "2999-01-01", "--count")[1].strip() == "300"
    code, _, err = run("scan", "--as-of", "1999-01-01", "--count")
    assert (code, "no snapshot as old as" in err) == (2, True)


def test_scan_writes_a_file_in_one_piece(run: Any, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    answer = document(run("scan", "--where", "id < 120", "--limit", "110", "-o", str(target), "--json"))
    assert answer == {"rows": 110, "output": str(target)}
    assert pq.read_table(target).num_rows == 110
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("named", [True, False], ids=["option", "suffix"])
def test_scan_writes_every_format(run: Any, tmp_path: Path, format_: str, named: bool) -> None:
    target = tmp_path / (f"rows.{format_}" if not named else "rows")
    options = ("--where", "id < 120", "--columns", "id,region,ts", "--limit", "7", "-o", str(target))
    answer = document(run("scan", *options, *(("--format", format_) if named else ()), "--json"))
    assert answer == {"rows": 7, "output": str(target)}
    assert READERS[format_](target)["id"].to_pylist() == [
        row["id"] for row in document(run("scan", *options[:-2], "--json"))["data"]
    ]
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_scan_streams_to_stdout(capfdbinary: pytest.CaptureFixture[bytes], table: Table) -> None:
    for format_, read in STREAMS.items():
        assert main(["scan", table.metadata_location, "--where", "id < 7", "--format", format_]) == 0
        out, err = capfdbinary.readouterr()
        assert (sorted(read(out)), err) == ([0, 1, 2, 3, 4, 5, 6], b"")


def test_jsonl_and_csv_write_every_type(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "text": pa.array(['a"b\\\n\u00e9', "", None], pa.large_string()),
            "bytes": pa.array([b"\xff\x00", None, b""], pa.large_binary()),
            "float": pa.array([float("nan"), -0.0, 1e300]),
            "flag": [True, None, False],
            "decimal": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
            "day": pa.array([date(2024, 3, 1), None, date(1969, 12, 31)]),
            "nanos": pa.array([1, None, -1], pa.timestamp("ns", "UTC")),
            "uuid": pa.array([bytes(16), None, bytes(range(16))], pa.uuid()),
            "list": pa.array([[{"x": 1}], None, []], pa.list_(pa.struct([("x", pa.int64())]))),
        }
    )
    written = {}
    for format_ in ("jsonl", "csv"):
        with (tmp_path / format_).open("wb") as sink, closing(open_writer(format_, sink, rows.schema)) as writer:
            for part in (rows.slice(0, 2), rows.slice(2, 0), rows.slice(2)):
                writer.write(part)
        written[format_] = (tmp_path / format_).read_text()
    assert [json.loads(line) for line in written["jsonl"].splitlines()] == json_rows(rows, 3)
    first = next(csv.DictReader(StringIO(written["csv"])))
    assert first["text"] == 'a"b\\\n\u00e9'
    assert (first["bytes"], first["float"], first["list"]) == ("/wA=", "nan", '[{"x": 1}]')
    assert (first["nanos"], first["uuid"]) == ("1970-01-01 00:00:00.000000001Z", str(UUID(int=0)))


def test_reader_of_a_pipe_may_stop(table: Table) -> None:
    program = [sys.executable, "-m", "floeplan.cli", "scan", table.metadata_location, "--format", "jsonl"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--format", "xml"], "csv, jsonl, arrow, parquet"),
        (["--format", "csv", "--count"], "--count returns a number"),
        (["--format", "csv", "--json"], "-o FILE"),
    ],
)
def test_formats_that_make_no_sense_are_refused(run: Any, arguments: list[str], named: str) -> None:
    code, out, err = run("scan", *arguments)
    assert (code, named in (err or json.loads(out)["error"]["message"])) == (2, True)


def test_scan_that_fails_leaves_the_old_file(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = two_spec_table(tmp_path_factory.mktemp("broken"))
    gone = sorted(Path(broken.location().removeprefix("file://")).rglob("*.parquet"))[0]
    gone.unlink()
    target = tmp_path / "rows.parquet"
    target.write_bytes(b"as it was")
    assert main(["scan", broken.metadata_location, "-o", str(target)]) != 0
    assert gone.name in capsys.readouterr().err
    assert target.read_bytes() == b"as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize("command", ["plan", "scan"])
@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        (["--where", "regoin = 'eu'"], "unknown-column", "regoin"),
        (["--columns", "id,nix"], "unknown-column", "nix"),
        (["--where", "region = "], "predicate-syntax", "position 8"),
        (["--where", "id = 'x'"], "type-mismatch", "column id"),
        (["--snapshot-id", "7"], "unknown-snapshot", "7"),
        (["--ref", "dev"], "unknown-snapshot", "dev"),
        (["--as-of", "yesterday"], "invalid-option", "yesterday"),
        (["--colums", "id"], "unknown-option", "--colums"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Any, command: str, arguments: list[str], kind: str, named: str
) -> None:
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("floeplan: ")
    assert err.count("\n") == 1
    assert named in err
    code, out, err = run(command, *arguments, "--json")
    assert (code, err) == (2, "")
    error = json.loads(out)["error"]
    assert error.keys() >= {"kind", "message", "context", "retryable", "committed"}
    assert (error["kind"], error["committed"]) == (kind, False)


def test_an_invalid_value_in_a_row_is_not_bad_input(run: Any) -> None:
    """The expression is valid but fails on a row: exit code 1."""
    assert run("plan", "--where", "CAST(region AS INT) = 1")[0] == 0
    code, out, _ = run("scan", "--where", "CAST(region AS INT) = 1", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "evaluation-failed")
    assert run("scan", "--where", "id = CAST('x' AS INT)")[0] == 2


@pytest.mark.parametrize("command", ["plan", "scan"])
def test_unknown_table_is_bad_input(command: str, floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "db.nothing", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unknown-table"
    assert main([command, "gone.metadata.json"]) == 2
    assert "gone.metadata.json" in capsys.readouterr().err


def test_count_excludes_incompatible_options(run: Any, tmp_path: Path) -> None:
    code, _, err = run("scan", "--count", "--limit", "3")
    assert (code, "--count returns a number" in err) == (2, True)
    code, _, err = run("scan", "--limit", "-1")
    assert (code, "--limit" in err) == (2, True)


def test_output_folder_that_is_not_there_is_named(run: Any, tmp_path: Path) -> None:
    code, _, err = run("scan", "-o", str(tmp_path / "nowhere" / "rows.parquet"))
    assert code == 2
    assert "nowhere" in err


def test_reports_can_be_turned_off(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(tmp_path / "reports"))
    document(run("plan", "--no-report", "--json"))
    assert not (tmp_path / "reports").exists()
    document(run("plan", "--json"))
    assert len(list((tmp_path / "reports").iterdir())) == 1


def test_table_by_its_name_in_the_embedded_catalog(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    floeplan_home.mkdir()
    two_spec_table(floeplan_home, "db.events")
    assert load_table("db.events").name() == ("db", "events")
    assert main(["scan", "db.events", "--where", "id = 250", "--count"]) == 0
    assert capsys.readouterr().out.strip() == "1"


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_texts_of_jsonl_are_escaped_as_json_escapes_them(type_: pa.DataType) -> None:
    """Texts that need no escape are written by Arrow, a batch at a time."""
    for text in [*map(chr, range(0x100)), "\u2028", "\U0001f600", "plain", ""]:
        sink, rows = BytesIO(), pa.table({"a": pa.array([text, None, "x"], type_)})
        open_writer("jsonl", sink, rows.schema).write(rows)
        lines = sink.getvalue().decode().removesuffix("\n").split("\n")
        assert lines == [json.dumps(row, ensure_ascii=False) for row in rows.to_pylist()]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 220_300, -1, 10**6, None, -62_135_596_800_000_000, 253_402_300_799_999_999]).cast(
            pa.timestamp("us")
        ),
        pa.array([0, -(10**6), None, 1]).cast(pa.timestamp("us", "UTC")),
        pa.array([1, 2, None]).cast(pa.timestamp("us")),
        pa.array([None, None], pa.timestamp("us", "UTC")),
        pa.array([], pa.timestamp("us")),
        pa.array([10**9, 1_500, None]).cast(pa.timestamp("ns")).cast(pa.timestamp("ms"), safe=False),
        pa.array([Decimal("0.000001"), Decimal("-0.1"), Decimal(0), None, Decimal(10**31)], pa.decimal128(38, 6)),
        pa.array([Decimal("1E-9"), Decimal(0), Decimal(-5)], pa.decimal128(12, 9)),
        pa.array([Decimal(-7), Decimal(10**17)], pa.decimal128(18, 0)),
        pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    ],
    ids=lambda values: f"{values.type}, {len(values)} rows",
)
def test_lines_of_json_have_the_values_of_json(values: pa.Array) -> None:
    """Timestamps and decimals that Arrow converts, and those that it would show otherwise."""
    sink = BytesIO()
    table = pa.table({"value": values})
    writer = open_writer("jsonl", sink, table.schema)
    writer.write(table)
    writer.close()
    found = [json.loads(line)["value"] for line in sink.getvalue().splitlines()]
    assert found == [json_value(value) for value in values.to_pylist()]


def test_a_timestamp_beyond_the_calendar_is_no_other_date() -> None:
    table = pa.table({"value": pa.array([253_402_300_800_000_000]).cast(pa.timestamp("us"))})
    with pytest.raises((ValueError, OverflowError)):
        open_writer("jsonl", BytesIO(), table.schema).write(table)
