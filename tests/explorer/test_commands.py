"""`floeplan report` and `floeplan serve` as scripts see them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from floeplan.cli.main import main
from tests.support.explorer import NAME

pytestmark = pytest.mark.services


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def report_in(folder: Path) -> dict[str, Any]:
    text = (folder / "data.js").read_text()
    found: dict[str, Any] = json.loads(text.removeprefix("window.FLOEPLAN_REPORT = ").rstrip(";\n"))
    return found


def test_a_report_is_a_folder_with_all_it_needs(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    code, document = run(capsys, "report", NAME, "-o", str(site), "--where", "voltage > 29", "--where", "payload = 1")
    assert code == 0
    assert document["path"] == str(site / "index.html")
    assert (document["table"], document["files"], document["plans"]) == (NAME, 70, 2)
    found = report_in(site)
    assert [plan["where"] for plan in found["plans"]] == ["voltage > 29", "payload = 1"]
    assert found["plans"][1]["details"].keys() == {file["path"] for file in found["plans"][1]["files"]}
    page = (site / "index.html").read_text()
    assert "http" not in page
    for script in [line.split('"')[1] for line in page.splitlines() if line.startswith("<script src")]:
        assert (site / script).is_file()


def test_a_report_is_written_over_an_older_one_but_over_nothing_else(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(capsys, "report", NAME, "-o", str(tmp_path / "site"))[0] == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("mine")
    code, document = run(capsys, "report", NAME, "-o", str(other))
    assert (code, document["error"]["kind"]) == (2, "invalid-option")
    assert [path.name for path in other.iterdir()] == ["index.html"]
    assert run(capsys, "report", NAME, "-o", str(other / "index.html"))[0] == 2


@pytest.mark.parametrize("arguments", [("report", "db.nothing", "-o", "site"), ("serve", "db.nothing")])
def test_an_unknown_table_is_bad_input(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, document = run(capsys, *arguments)
    assert (code, document["error"]["kind"]) == (2, "unknown-table")


def test_a_port_that_is_taken_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, document = run(capsys, "serve", NAME, "--port", str(taken.getsockname()[1]))
    assert (code, document["error"]["kind"]) == (2, "invalid-option")
    assert "--port" in document["error"]["message"]
    assert run(capsys, "serve", NAME, "--port", "70000")[0] == 2


def test_missing_reports_are_noticed_before_anything_is_served(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run(capsys, "serve", NAME, "--reports", "/nowhere/reports")
    assert (code, document["error"]["kind"]) == (2, "bad-input")


def test_serve_prints_its_url_and_ends_on_an_interrupt(home: Path) -> None:
    command = [sys.executable, "-m", "floeplan.cli", "serve", NAME, "--port", "0", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        with urlopen(f"{document['url']}api/session") as response:
            assert json.loads(response.read())["tables"] == document["tables"] == [NAME]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_serve_opens_the_browser_and_warns_of_other_machines(home: Path, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "floeplan.cli", "serve", NAME, "--port", "0", "--json", "--open"]
    arguments = [*command, "--host", "0.0.0.0"]
    environment = os.environ | {"BROWSER": str(browser)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = json.loads(process.stdout.readline())["url"]
        assert "?token=" in url
        assert opened.read_text().strip() == url
        assert "warning: other machines can reach" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
