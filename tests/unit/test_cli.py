"""The command line: exit codes, one-line errors, one JSON document, tracebacks only with -v."""

from __future__ import annotations

import inspect
import json
import logging
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from rich.console import RenderableType
from typer.testing import CliRunner

from floeplan import errors
from floeplan.catalog import load_table, open_catalog
from floeplan.cli import main as cli
from floeplan.cli.common import CatalogOption, JsonOption, TableArgument, show
from floeplan.dml.append import append
from floeplan.transaction.refs import create_tag

pytestmark = pytest.mark.unit

PROGRAM = [sys.executable, "-m", "floeplan.cli"]


@dataclass(frozen=True, slots=True)
class Counted:
    rows: float

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "name": "é [bold]"}


def render(result: Counted) -> RenderableType:
    return f"{result.rows} rows [bold]"


def count_rows(
    table: TableArgument, fail: str = "", rows: float = 3, catalog: CatalogOption = None, json: JsonOption = False
) -> None:
    """Count the rows of a table."""
    logging.getLogger("floeplan").info("counting")
    if fail == "load":
        load_table(table, catalog)
    if fail == "exit":
        raise typer.Exit(1)
    if fail == "bug":
        raise RuntimeError("first line\nsecond line")
    if fail:
        raise getattr(errors, fail)("no luck\nwith 'x'", context={"table": table})
    show(Counted(rows), render, as_json=json)


@pytest.fixture(autouse=True)
def with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `count-rows`, registered like every command."""
    module = ModuleType("floeplan.cli.count_rows")
    module.count_rows = count_rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = ("count_rows", "Count the rows of a table.")
    monkeypatch.setattr(cli, "COMMANDS", cli.COMMANDS | {"count-rows": entry})


def test_version_shows_dependencies_without_importing_spark() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    for label, package in [("floeplan", "floeplan"), ("PyIceberg", "pyiceberg"), ("Spark", "pyspark")]:
        assert f"{label} {metadata.version(package)}" in result.stdout
    code = "import sys; from floeplan.cli.main import main; main(['--version']); sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version_says_when_spark_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "pyspark":
            raise metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    assert cli.versions().endswith("Spark not installed")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0
    assert "count-rows" in result.stdout
    assert "Count the rows of a table." in result.stdout


def test_text_goes_to_stdout_literally(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count-rows", "db.events"]) == 0
    assert capsys.readouterr() == ("3.0 rows [bold]\n", "")


def test_json_is_one_document_and_logs_go_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    assert cli.main(["-v", "count-rows", "db.events", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == '{"rows": 3.0, "name": "é [bold]"}\n'
    assert err == "INFO floeplan: counting\n"


def test_a_number_json_cannot_represent_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count-rows", "db.events", "--rows", "nan", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unexpected"


@pytest.mark.parametrize(
    ("error", "code", "kind", "retryable"),
    [
        ("FloeplanError", 1, "failed", False),
        ("CorruptFileError", 1, "corrupt-file", False),
        ("UnknownColumnError", 2, "unknown-column", False),
        ("CommitConflictError", 3, "commit-conflict", True),
        ("StrictModeError", 4, "strict-mode", False),
    ],
)
def test_errors_have_an_exit_code_one_line_and_a_json_document(
    capsys: pytest.CaptureFixture[str], error: str, code: int, kind: str, retryable: bool
) -> None:
    assert cli.main(["count-rows", "db.events", "--fail", error]) == code
    assert capsys.readouterr() == ("", "floeplan: no luck with 'x'\n")
    assert cli.main(["count-rows", "db.events", "--fail", error, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["error"] == {
        "kind": kind,
        "message": "no luck\nwith 'x'",
        "context": {"table": "db.events"},
        "retryable": retryable,
        "committed": False,
    }


def test_an_unexpected_error_is_one_line_and_a_traceback_only_with_v(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count-rows", "db.events", "--fail", "bug"]) == 1
    line = "floeplan: RuntimeError: first line second line (-v shows the traceback)\n"
    assert capsys.readouterr() == ("", line)
    assert cli.main(["-v", "count-rows", "db.events", "--fail", "bug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith(line)


def test_a_result_can_have_a_nonzero_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count-rows", "db.events", "--fail", "exit"]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["count-row"], "unknown-option", "unknown command 'count-row'; did you mean count-rows?"),
        (["qqq"], "unknown-option", "unknown command 'qqq'; see 'floeplan --help'"),
        (["--wat"], "unknown-option", "no such option: --wat; see 'floeplan --help'"),
        (["count-rows", "t", "--wat"], "unknown-option", "no such option: --wat; see 'floeplan count-rows --help'"),
        (["count-rows"], "invalid-option", "missing argument 'TABLE'; see 'floeplan count-rows --help'"),
        (["count-rows", "t", "--catalog"], "invalid-option", "option '--catalog' requires an argument"),
        (["count-rows", "t", "--rows", "many"], "invalid-option", "--rows is 'many' but must be a number"),
    ],
)
def test_bad_usage_is_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: list[str], kind: str, message: str
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"floeplan: {message}")
    assert err.count("\n") == 1
    assert cli.main([arguments[0], "--json", *arguments[1:]]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_an_unknown_table_is_bad_input(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count-rows", "db.events", "--fail", "load", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unknown-table"
    assert cli.main(["count-rows", "db.events", "--fail", "load", "--catalog", "prod"]) == 2
    assert "no catalog 'prod'" in capsys.readouterr().err


def test_the_program_itself_exits_with_the_code() -> None:
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    failed = subprocess.run([*PROGRAM, "qqq", "--json"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr) == (2, "")
    assert json.loads(failed.stdout)["error"]["kind"] == "unknown-option"
    script = Path(sys.executable).parent / "floeplan"
    assert subprocess.run([script, "qqq"], capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("line", "offered"),
    [("floeplan pl", {"plan"}), ("floeplan rewrite t --str", {"--strategy", "--strict"}), ("floeplan nope --j", set())],
)
def test_shell_completion_offers_commands_and_options(
    line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_FLOEPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit):
        cli.main([])
    assert set(capsys.readouterr().out.split()) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["plan", "db.e"], {"db.events", "db.extra"}),
        (["plan", "db.events", "--columns", "id,r"], {"id,region"}),
        (["plan", "db.events", "--where", "id > 3 AND re"], {"id > 3 AND region"}),
        (["plan", "db.events", "--where", "region = 're"], set()),
        (["update", "db.events", "--set", "i"], {"id="}),
        (["plan", "db.events", "--ref", ""], {"main", "v1"}),
        (["delete", "db.events", "--branch", ""], {"main"}),
        (["delete", "db.events", "--mode", "m"], {"merge-on-read"}),
        (["rewrite", "db.events", "--strategy", "s"], {"sort", "stitch"}),
        (["scan", "db.events", "--format", "j"], {"jsonl"}),
        (["plan", "--catalog", ""], {"local"}),
        (["maintain", "db.ex"], {"db.extra"}),
        (["maintain", "db.extra", "db.ev"], {"db.events"}),
        (["serve", "db.ex"], {"db.extra"}),
        (["list", "d"], {"db"}),
        (["branch", "db.events", "m"], {"main"}),
        (["branch", "db.events", "main", "--fast-forward", ""], {"main", "v1"}),
        (["tag", "db.events", ""], {"v1"}),
        (["rollback", "db.events", "--to", "v"], {"v1"}),
        (["advise", "db.events", "--kind", "s"], {"spec", "sort"}),
        (["report", "db.events", "--where", "i"], {"id"}),
        (["plan", "db.nope", "--columns", ""], set()),
    ],
)
def test_shell_completion_offers_tables_columns_and_values(
    words: list[str],
    offered: set[str],
    floeplan_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog = open_catalog()
    catalog.create_namespace("db")
    schema = pa.schema({"id": pa.int64(), "region": pa.string()})
    catalog.create_table("db.extra", schema)
    table = catalog.create_table("db.events", schema)
    append(table, pa.table({"id": [1], "region": ["eu"]}, schema))
    create_tag(table, "v1")
    catalog.close()
    monkeypatch.setenv("_FLOEPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", shlex.join(["floeplan", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        cli.main([])
    found = set(capsys.readouterr().out.split("\n")) - {""}
    assert found == offered


def test_completion_without_a_catalog_makes_none(floeplan_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FLOEPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "floeplan plan db")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli.main([])
    assert not floeplan_home.exists()


def test_help_has_groups_and_no_types() -> None:
    for arguments in (["-h"], *([name, "--help"] for name in cli.COMMANDS if name != "count-rows")):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0
        shown = result.stdout
        assert not {"<bool>", "<int>", "<float>", "<str>", "<list[str]>", "[["} & set(shown.split())
    titles = ("Query", "Tables", "Change rows", "Layout", "Maintenance", "Explorer and servers", "Other")
    shown = CliRunner().invoke(cli.app, ["--help"]).stdout
    places = [shown.index(f"╭─ {title} ─") for title in titles]
    assert places == sorted(places)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_whole_names_in_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(cli.app, [command, "--help"]).stdout
    words = {word for line in shown.splitlines() for word in line.split()}
    names = {name for option in cli.load_command(command).params for name in option.opts if name.startswith("--")}
    assert names <= {part for word in words for part in word.split(",")}
    assert not {word for word in words if word.endswith("…")} - {"target.…", "source.…", "c=expr,…", "…"}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_an_example_and_a_json_option(command: str) -> None:
    found = cli.load_command(command)
    assert f"\n\nfloeplan {command}" in inspect.cleandoc(found.help)
    assert "--json" in {name for option in found.params for name in option.opts}


def test_what_is_piped_has_no_colours(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "file.parquet")
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    prune = [*PROGRAM, "prune", str(tmp_path / "file.parquet"), "--where", "id = 1"]
    done = subprocess.run(prune, capture_output=True, check=True, env=environment | {"TERM": "xterm-256color"})
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""
