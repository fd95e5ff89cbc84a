"""A REST catalog that takes the connection and never says a word."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog
from requests import Session
from requests.exceptions import ReadTimeout

from floeplan.catalog import connect, open_catalog
from floeplan.errors import FloeplanError, InvalidOptionError
from floeplan.rest_waiting import CONNECTION_TIMEOUT, SOCKET_TIMEOUT, limit_waiting

pytestmark = pytest.mark.unit

SHORT = {CONNECTION_TIMEOUT: "200", SOCKET_TIMEOUT: "200"}


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


def test_the_configuration_says_how_long(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__QUIET__URI", silent)
    for name in SHORT:
        monkeypatch.setenv(f"PYICEBERG_CATALOG__QUIET__{name.upper().replace('.', '__').replace('-', '_')}", "200")
    with pytest.raises(FloeplanError, match="timed out"):
        open_catalog("quiet")


def test_asking_one_that_was_opened_elsewhere_ends(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened_elsewhere(silent, monkeypatch)
    limit_waiting(catalog)
    limit_waiting(catalog)
    with pytest.raises(ReadTimeout):
        catalog._session.get(silent)


def test_a_request_that_says_how_long_it_waits_is_left_alone(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened_elsewhere(silent, monkeypatch)
    catalog.properties[SOCKET_TIMEOUT] = "3600000"
    limit_waiting(catalog)
    with pytest.raises(ReadTimeout, match=r"read timeout=0\.1"):
        catalog._session.get(silent, timeout=0.1)


def test_without_properties_it_is_waited_for_a_minute(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, waited = opened_elsewhere(silent, monkeypatch), []
    catalog.properties.clear()
    monkeypatch.setattr(Session, "request", lambda *_, timeout, **more: waited.append(timeout))
    limit_waiting(catalog)
    catalog._session.get(silent)
    assert waited == [(10.0, 60.0)]


@pytest.mark.parametrize("told", ["soon", "0", "-5", ""])
def test_no_time_at_all_is_refused(told: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{SOCKET_TIMEOUT} is '{told}'; write milliseconds, such as 60000"):
        connect("quiet", {"uri": "http://127.0.0.1:1", SOCKET_TIMEOUT: told})


def opened_elsewhere(uri: str, monkeypatch: pytest.MonkeyPatch) -> RestCatalog:
    """PyIceberg's own catalog, which asks nothing when it is opened."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    return RestCatalog("quiet", uri=uri, **SHORT)
