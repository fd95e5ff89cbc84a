"""The server: hostile requests, and requests of a page."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from floeplan.catalog import load_table, open_catalog
from floeplan.explorer.server import MOST_BODY_BYTES, TOKEN_HEADER, ExplorerServer, ExplorerService
from floeplan.explorer.view import TableView
from tests.support.explorer import NAME, TOKEN, serving
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.services


class Caller:
    """Requests to one server."""

    def __init__(self, server: ExplorerServer) -> None:
        self.server = server
        self.origin = server.url.rstrip("/")

    def __call__(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: str = ""
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request(method, path, body or None, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        self.headers = dict(response.headers)
        connection.close()
        return response.status, json.loads(text) if "json" in self.headers["Content-Type"] else text

    def get(self, name: str, **parameters: str) -> tuple[int, Any]:
        return self("GET", f"/api/{name}?{urlencode(parameters)}")

    def post(self, name: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        usual = {"Origin": self.origin, "Content-Type": "application/json", TOKEN_HEADER: TOKEN}
        return self("POST", f"/api/{name}", usual | headers, json.dumps(body))


@pytest.fixture
def call(server: ExplorerServer) -> Caller:
    return Caller(server)


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caller]:
    """An explorer with writes enabled and its own table."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    (tmp_path / "warehouse").mkdir()
    two_spec_table(tmp_path)
    with serving(ExplorerService("db.events", None, True, None, TOKEN)) as running:
        yield Caller(running)


def test_it_listens_on_loopback_only(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/"


def test_pages_may_load_nothing_from_elsewhere_and_are_not_framed(call: Caller) -> None:
    status, text = call("GET", "/")
    assert status == 200
    assert "<title>Floeplan</title>" in text
    policy = call.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert call.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost", "127.0.0.1:1", ""])
def test_a_foreign_host_header_is_refused(call: Caller, host: str) -> None:
    status, document = call("GET", "/api/session", {"Host": host})
    assert (status, document["error"]["kind"]) == (403, "wrong-host")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_is_refused(call: Caller, site: str) -> None:
    status, document = call("GET", f"/api/doctor?table={NAME}", {"Sec-Fetch-Site": site})
    assert (status, document["error"]["kind"]) == (403, "cross-origin")


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/js/../../model.py", "/%2e%2e/server.py", "/vendor", "/js/", "/etc/passwd", "//"]
)
def test_only_the_files_of_the_front_end_are_served(call: Caller, path: str) -> None:
    status, document = call("GET", path)
    if path == "//":
        assert status == 200
    else:
        assert (status, document["error"]["kind"]) == (404, "not-found")


def test_a_request_cannot_name_a_file_to_be_read(call: Caller, home: Path) -> None:
    metadata = load_table(NAME).metadata_location
    for table in (metadata, "/etc/passwd", "db.nothing", "../x"):
        status, document = call.get("overview", table=table)
        assert (status, document["error"]["kind"]) == (400, "unknown-table")
    status, document = call.get("file", table=NAME, path="/etc/passwd")
    assert (status, document["error"]["kind"]) == (400, "unknown-file")


@pytest.mark.parametrize(
    ("name", "parameters", "kind"),
    [
        ("nothing", {}, "bad-input"),
        ("plan", {}, "invalid-option"),
        ("plan", {"table": NAME, "where": "volt > 1"}, "unknown-column"),
        ("plan", {"table": NAME, "where": "voltage >"}, "predicate-syntax"),
        ("plan", {"table": NAME, "footers": "perhaps"}, "invalid-option"),
        ("cell", {"table": NAME, "lane": "x", "bin": "1"}, "invalid-option"),
        ("cell", {"table": NAME, "lane": "1"}, "invalid-option"),
        ("rewrite", {"table": NAME, "strategy": "shuffle"}, "invalid-option"),
        ("upgrade", {"table": NAME, "to": "99"}, "unknown-spec"),
        ("audit", {}, "bad-input"),
    ],
)
def test_bad_input_is_reported_as_on_the_command_line(
    call: Caller, name: str, parameters: dict[str, str], kind: str
) -> None:
    status, document = call.get(name, **parameters)
    assert (status, document["error"]["kind"]) == (400, kind)
    assert document["error"].keys() == {"kind", "message", "context", "retryable", "committed"}


def test_very_many_parameters_are_refused(call: Caller) -> None:
    status, document = call("GET", "/api/session?" + "&".join(f"a{at}=1" for at in range(50)))
    assert (status, document["error"]["kind"]) == (400, "bad-input")


def test_every_document_of_a_table_is_served(call: Caller) -> None:
    assert call.get("session")[1]["tables"] == [NAME]
    for name in ("overview", "map", "plan", "doctor", "rewrite", "upgrade"):
        status, document = call.get(name, table=NAME)
        assert status == 200, document
    drawn = call.get("map", table=NAME)[1]["cells"]
    cell = call.get("cell", table=NAME, lane=str(drawn["lane"][0]), bin=str(drawn["bin"][0]))[1]
    assert cell["total"] == drawn["files"][0]
    path = cell["files"][0]["file_path"]
    assert call.get("file", table=NAME, path=path, where="voltage > 1")[1]["answer"] == "every row"


def test_the_text_of_an_unexpected_error_is_not_sent(
    call: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> TableView:
        raise RuntimeError("postgresql://user:secret@db/catalog")

    monkeypatch.setattr(TableView, "of", fail)
    with caplog.at_level(logging.CRITICAL, "floeplan.explorer.server"):
        status, document = call.get("overview", table=NAME)
    assert status == 500
    assert "RuntimeError" in document["error"]["message"]
    assert "secret" not in json.dumps(document)


def test_a_read_only_explorer_writes_nothing(call: Caller) -> None:
    before = load_table(NAME).metadata_location
    status, document = call.post("rewrite", {"table": NAME, "confirm": NAME})
    assert (status, document["error"]["kind"]) == (400, "read-only")
    assert load_table(NAME).metadata_location == before


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"Origin": "http://evil.example"}, "cross-origin"),
        ({"Origin": "null"}, "cross-origin"),
        ({"Origin": ""}, "cross-origin"),
        ({"Host": "evil.example"}, "wrong-host"),
        ({"Sec-Fetch-Site": "cross-site"}, "cross-origin"),
        ({TOKEN_HEADER: "guess"}, "wrong-token"),
        ({TOKEN_HEADER: ""}, "wrong-token"),
        ({"Content-Type": "text/plain"}, "not-json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "not-json"),
    ],
)
def test_unauthorized_writes_are_refused(writing: Caller, headers: dict[str, str], kind: str) -> None:
    before = load_table("db.events").metadata_location
    _, document = writing.post("rewrite", {"confirm": "db.events", "spec": "current"}, **headers)
    assert document["error"]["kind"] == kind
    assert load_table("db.events").metadata_location == before


def test_no_document_reveals_the_token(writing: Caller) -> None:
    for path in ("/", "/data.js", "/api/session", "/api/overview", f"/?token={TOKEN}"):
        status, document = writing("GET", path)
        assert status == 200
        assert TOKEN not in json.dumps([document, writing.headers])


def test_the_url_to_open_carries_the_token_where_writes_are_allowed(writing: Caller, server: ExplorerServer) -> None:
    assert writing.server.page_url == f"{writing.server.url}?token={TOKEN}"
    assert server.page_url == server.url


def test_a_write_needs_the_name_of_the_table(writing: Caller) -> None:
    before = load_table("db.events").metadata_location
    for body in ({}, {"confirm": "db.other"}, {"confirm": ""}):
        assert writing.post("upgrade", body)[1]["error"]["kind"] == "not-confirmed"
    assert writing.post("drop", {"confirm": "db.events"})[1]["error"]["kind"] == "bad-input"
    assert load_table("db.events").metadata_location == before


@pytest.mark.parametrize("body", ["[]", "{", '{"confirm": 1}', '"text"'])
def test_a_body_that_is_not_an_object_of_strings_is_refused(writing: Caller, body: str) -> None:
    headers = {"Origin": writing.origin, "Content-Type": "application/json", TOKEN_HEADER: TOKEN}
    assert writing("POST", "/api/rewrite", headers, body)[1]["error"]["kind"] == "not-json"


@pytest.mark.parametrize("content_length", ["9" * 5000, "²", "-1", "many"])
def test_an_invalid_content_length_is_refused(writing: Caller, content_length: str) -> None:
    status, document = writing.post("rewrite", {}, **{"Content-Length": content_length})
    assert (status, document["error"]["kind"]) == (413, "too-large")


def test_an_invalid_address_is_refused(call: Caller, capfd: pytest.CaptureFixture[str]) -> None:
    host = call.origin.removeprefix("http://")
    with socket.create_connection(("127.0.0.1", call.server.port), timeout=30) as connection:
        connection.sendall(f"GET http://[/api/table HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = connection.makefile("rb").readline()
    assert b" 400 " in answer
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_that_is_too_large_is_not_read(writing: Caller) -> None:
    status, document = writing.post("rewrite", {"where": "x" * MOST_BODY_BYTES})
    assert (status, document["error"]["kind"]) == (413, "too-large")


def test_a_confirmed_upgrade_is_committed_and_shown(writing: Caller) -> None:
    assert [spec["files"] for spec in writing.get("overview")[1]["specs"]] == [2, 3]
    status, result = writing.post("upgrade", {"confirm": "db.events"})
    assert status == 200
    assert result["files_by_rewrite"] == 2
    assert [spec["files"] for spec in writing.get("overview")[1]["specs"]] == [0, 6]


def test_tables_of_all_namespaces_are_listed(home: Path) -> None:
    catalog = open_catalog()
    service = ExplorerService(None, None, False, None, TOKEN)
    assert service.tables() == [NAME]
    catalog.close()


def test_on_another_address_every_document_needs_the_token(home: Path) -> None:
    service = ExplorerService(None, None, False, None, TOKEN)
    with serving(service, host="0.0.0.0") as running:
        call = Caller(running)
        assert running.page_url.endswith(f"?token={TOKEN}")
        assert call("GET", "/")[0] == 200
        assert call.get("session")[0] == 403
        status, document = call("GET", "/api/session", {TOKEN_HEADER: TOKEN, "Host": "example.org"})
        assert (status, document["tables"]) == (200, [NAME])
