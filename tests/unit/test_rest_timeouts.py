"""A REST catalog that takes the connection and never says a word."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, RestCatalog
from requests import Session
from requests.exceptions import ReadTimeout

from floeplan.catalog import connect, load_table, open_catalog
from floeplan.errors import FloeplanError, InvalidOptionError
from floeplan.rest_timeouts import CONNECTION_TIMEOUT, SOCKET_TIMEOUT, set_timeouts
from floeplan.text import without_secrets

pytestmark = pytest.mark.unit

SHORT = {CONNECTION_TIMEOUT: "200", SOCKET_TIMEOUT: "200"}
LONG = {CONNECTION_TIMEOUT: "60000", SOCKET_TIMEOUT: "60000"}
"""For servers that answer, however busy the machine is."""
LASTING: tuple[dict[str, object], ...] = ({"expires_in": 3600}, {"expires_in": "3600"}, {})


@pytest.fixture
def silent() -> Iterator[str]:
    """Connections wait to be accepted, which the kernel does, and to be answered, which nobody does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("asked_first", ["the configuration", "a token"])
def test_opening_it_ends(silent: str, asked_first: str) -> None:
    token = {"credential": "me:secret-of-mine", "oauth2-server-uri": f"{silent}/tokens"}
    with pytest.raises(FloeplanError, match=r"'quiet' cannot be opened: .*timed out") as raised:
        connect("quiet", {"uri": silent, **SHORT, **(token if asked_first == "a token" else {})})
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


def test_the_manager_of_tokens_ends_too(silent: str) -> None:
    """It makes requests of its own, past the session of the catalog."""
    with pytest.raises(FloeplanError, match=r"'quiet' cannot be opened: .*read timeout=0\.2") as raised:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(silent), **SHORT})
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


def test_the_manager_of_a_catalog_that_was_opened_elsewhere_ends_too(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opened_elsewhere("http://127.0.0.1:1", monkeypatch, auth=oauth2(silent))
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout):
        catalog._session.get(silent)


@pytest.mark.parametrize("told", [{"access_token": "tok-1234567", **told} for told in LASTING])
def test_a_token_is_asked_for_once_and_never_shown(told: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    with answering(json.dumps(told).encode(), asked) as server:
        catalog = opened_elsewhere("http://127.0.0.1:1", monkeypatch, auth=oauth2(server, expires_in=3600), **LONG)
        set_timeouts(catalog)
        manager = pickle.loads(pickle.dumps(catalog._auth_manager))
        assert [manager.auth_header() for _ in range(3)] == ["Bearer tok-1234567"] * 3
    assert asked == ["grant_type=client_credentials&scope=lake"]
    assert without_secrets("got tok-1234567") == "got ***"


@pytest.mark.parametrize("answer", [b"<html>down</html>", b"[]", b'{"error": "no"}', b'{"access_token": 7}'])
def test_an_answer_without_a_token_is_no_damage_of_the_table(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(answer, []) as server:
        catalog = opened_elsewhere("http://127.0.0.1:1", monkeypatch, auth=oauth2(server), **LONG)
        refused = r"cannot load db\.t: .*OAuth2 endpoint.*returned no access_token"
        with pytest.raises(FloeplanError, match=refused) as raised:
            load_table("db.t", catalog)
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


@pytest.mark.parametrize("lasts", ["soon", None, [1]])
def test_a_token_that_lasts_nobody_knows_how_long_is_refused(lasts: object) -> None:
    refused = pytest.raises(FloeplanError, match="returned no valid expires_in: set it in the auth configuration")
    told = {"access_token": "tok-1234567", "expires_in": lasts}
    with answering(json.dumps(told).encode(), []) as server, refused:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(server), **LONG})


def test_a_token_without_an_end_is_refused() -> None:
    refused = pytest.raises(FloeplanError, match="returned no valid expires_in: set it in the auth configuration")
    with answering(b'{"access_token": "tok-1234567"}', []) as server, refused:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(server), **LONG})


def test_the_configuration_says_how_long(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__QUIET__URI", silent)
    for name in SHORT:
        monkeypatch.setenv(f"PYICEBERG_CATALOG__QUIET__{name.upper().replace('.', '__').replace('-', '_')}", "200")
    with pytest.raises(FloeplanError, match="timed out"):
        open_catalog("quiet")


def test_asking_one_that_was_opened_elsewhere_ends(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened_elsewhere(silent, monkeypatch)
    set_timeouts(catalog)
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout):
        catalog._session.get(silent)


def test_a_request_that_says_how_long_it_waits_is_left_alone(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened_elsewhere(silent, monkeypatch)
    catalog.properties[SOCKET_TIMEOUT] = "3600000"
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout, match=r"read timeout=0\.1"):
        catalog._session.get(silent, timeout=0.1)


def test_without_properties_it_is_waited_for_a_minute(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, waited = opened_elsewhere(silent, monkeypatch), []
    catalog.properties.clear()
    monkeypatch.setattr(Session, "request", lambda *_, timeout, **more: waited.append(timeout))
    set_timeouts(catalog)
    catalog._session.get(silent)
    assert waited == [(10.0, 60.0)]


@pytest.mark.parametrize("told", ["soon", "0", "-5", ""])
def test_no_time_at_all_is_refused(told: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{SOCKET_TIMEOUT} is '{told}'; write milliseconds, such as 60000"):
        connect("quiet", {"uri": "http://127.0.0.1:1", SOCKET_TIMEOUT: told})


def opened_elsewhere(uri: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> RestCatalog:
    """PyIceberg's own catalog, which asks nothing when it is opened."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    monkeypatch.setattr(RestCatalog, "_supported_endpoints", set(DEFAULT_ENDPOINTS), raising=False)
    monkeypatch.setattr(RestCatalog, "_namespace_separator", ".", raising=False)
    return RestCatalog("quiet", **{"uri": uri, **SHORT, **more})


def oauth2(server: str, **more: Any) -> dict[str, Any]:
    """How PyIceberg's manager of tokens is configured."""
    access = {"client_id": "me", "client_secret": "secret-of-mine", "token_url": f"{server}/tokens", "scope": "lake"}
    return {"type": "oauth2", "oauth2": access | more}


@contextmanager
def answering(answer: bytes, asked: list[str]) -> Iterator[str]:
    """A server that always says the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
