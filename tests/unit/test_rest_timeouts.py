"""Timeouts of a REST catalog that accepts connections and never answers."""

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
"""Long enough for a server that answers on a busy machine."""
LASTING: tuple[dict[str, object], ...] = ({"expires_in": 3600}, {"expires_in": "3600"}, {})


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("first_request", ["the configuration", "a token"])
def test_opening_times_out(silent: str, first_request: str) -> None:
    token = {"credential": "me:secret-of-mine", "oauth2-server-uri": f"{silent}/tokens"}
    with pytest.raises(FloeplanError, match=r"'quiet' cannot be opened: .*timed out") as raised:
        connect("quiet", {"uri": silent, **SHORT, **(token if first_request == "a token" else {})})
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


def test_the_token_manager_times_out(silent: str) -> None:
    """It sends requests without the session of the catalog."""
    with pytest.raises(FloeplanError, match=r"'quiet' cannot be opened: .*read timeout=0\.2") as raised:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(silent), **SHORT})
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


def test_the_token_manager_of_a_pyiceberg_catalog_times_out(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = pyiceberg_catalog("http://127.0.0.1:1", monkeypatch, auth=oauth2(silent))
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout):
        catalog._session.get(silent)


@pytest.mark.parametrize("value", [{"access_token": "tok-1234567", **value} for value in LASTING])
def test_a_token_is_requested_once_and_never_shown(value: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    with answering(json.dumps(value).encode(), requests) as server:
        catalog = pyiceberg_catalog("http://127.0.0.1:1", monkeypatch, auth=oauth2(server, expires_in=3600), **LONG)
        set_timeouts(catalog)
        manager = pickle.loads(pickle.dumps(catalog._auth_manager))
        assert [manager.auth_header() for _ in range(3)] == ["Bearer tok-1234567"] * 3
    assert requests == ["grant_type=client_credentials&scope=lake"]
    assert without_secrets("got tok-1234567") == "got ***"


@pytest.mark.parametrize("answer", [b"<html>down</html>", b"[]", b'{"error": "no"}', b'{"access_token": 7}'])
def test_a_response_without_a_token_is_not_reported_as_table_corruption(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(answer, []) as server:
        catalog = pyiceberg_catalog("http://127.0.0.1:1", monkeypatch, auth=oauth2(server), **LONG)
        refused = r"cannot load db\.t: .*OAuth2 endpoint.*returned no access_token"
        with pytest.raises(FloeplanError, match=refused) as raised:
            load_table("db.t", catalog)
    assert (raised.value.kind, raised.value.retryable) == ("unreachable", True)


@pytest.mark.parametrize("lasts", ["soon", None, [1]])
def test_a_token_with_an_invalid_lifetime_is_refused(lasts: object) -> None:
    refused = pytest.raises(FloeplanError, match="returned no valid expires_in: set it in the auth configuration")
    value = {"access_token": "tok-1234567", "expires_in": lasts}
    with answering(json.dumps(value).encode(), []) as server, refused:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(server), **LONG})


def test_a_token_without_a_lifetime_is_refused() -> None:
    refused = pytest.raises(FloeplanError, match="returned no valid expires_in: set it in the auth configuration")
    with answering(b'{"access_token": "tok-1234567"}', []) as server, refused:
        connect("quiet", {"uri": "http://127.0.0.1:1", "auth": oauth2(server), **LONG})


def test_timeouts_come_from_the_configuration(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__QUIET__URI", silent)
    for name in SHORT:
        monkeypatch.setenv(f"PYICEBERG_CATALOG__QUIET__{name.upper().replace('.', '__').replace('-', '_')}", "200")
    with pytest.raises(FloeplanError, match="timed out"):
        open_catalog("quiet")


def test_requests_of_a_pyiceberg_catalog_time_out(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = pyiceberg_catalog(silent, monkeypatch)
    set_timeouts(catalog)
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout):
        catalog._session.get(silent)


def test_an_explicit_request_timeout_is_kept(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = pyiceberg_catalog(silent, monkeypatch)
    catalog.properties[SOCKET_TIMEOUT] = "3600000"
    set_timeouts(catalog)
    with pytest.raises(ReadTimeout, match=r"read timeout=0\.1"):
        catalog._session.get(silent, timeout=0.1)


def test_the_default_timeout_is_a_minute(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, waited = pyiceberg_catalog(silent, monkeypatch), []
    catalog.properties.clear()
    monkeypatch.setattr(Session, "request", lambda *_, timeout, **more: waited.append(timeout))
    set_timeouts(catalog)
    catalog._session.get(silent)
    assert waited == [(10.0, 60.0)]


@pytest.mark.parametrize("value", ["soon", "0", "-5", ""])
def test_an_invalid_timeout_is_refused(value: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{SOCKET_TIMEOUT} is '{value}'; write milliseconds, such as 60000"):
        connect("quiet", {"uri": "http://127.0.0.1:1", SOCKET_TIMEOUT: value})


def pyiceberg_catalog(uri: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> RestCatalog:
    """A catalog opened by PyIceberg, without requests on opening."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    monkeypatch.setattr(RestCatalog, "_supported_endpoints", set(DEFAULT_ENDPOINTS), raising=False)
    monkeypatch.setattr(RestCatalog, "_namespace_separator", ".", raising=False)
    return RestCatalog("quiet", **{"uri": uri, **SHORT, **more})


def oauth2(server: str, **more: Any) -> dict[str, Any]:
    """The configuration of PyIceberg's token manager."""
    access = {"client_id": "me", "client_secret": "secret-of-mine", "token_url": f"{server}/tokens", "scope": "lake"}
    return {"type": "oauth2", "oauth2": access | more}


@contextmanager
def answering(answer: bytes, requests: list[str]) -> Iterator[str]:
    """A server that always returns the same response."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
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
