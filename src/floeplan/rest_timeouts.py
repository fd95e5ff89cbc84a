"""Timeouts for REST catalogs: PyIceberg's client has none by default.

Rule: a request without a timeout gets the timeouts of the catalog's properties, under the names of Iceberg's Java
client: ``rest.client.connection-timeout-ms`` to connect, and ``rest.client.socket-timeout-ms`` for each read. The token
requests of PyIceberg's OAuth2 manager, which bypass the catalog's session, get them too. Google's and Microsoft's
clients have their own timeouts.

Fail-safe: a commit that times out is not a rejected one. Its state is unknown until the table has been loaded again
(``transaction.catalog_commit``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AuthManagerAdapter, OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.exceptions import OAuthError
from requests import Session

from floeplan.errors import InvalidOptionError
from floeplan.format4 import accept_format_4
from floeplan.text import remember

CONNECTION_TIMEOUT, SOCKET_TIMEOUT = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
DEFAULTS = {CONNECTION_TIMEOUT: 10_000, SOCKET_TIMEOUT: 60_000}
"""Milliseconds. A catalog that needs longer than this for a commit has most likely lost it."""

accept_format_4(TableResponse, "metadata")  # here, because importing the REST client costs start-up time


class TimeoutRestCatalog(RestCatalog):
    """PyIceberg's REST catalog with timeouts on every request, including those that open it."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        _set_token_timeouts(session, self.properties)
        return session

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this for every session before it sends the first request.
        _set_session_timeouts(session, self.properties)
        super()._config_headers(session)


def set_timeouts(catalog: Catalog) -> None:
    """Apply the timeouts of its properties to a REST catalog that the caller opened."""
    session = getattr(catalog, "_session", None)
    if isinstance(session, Session):
        _set_session_timeouts(session, catalog.properties)
        _set_token_timeouts(session, catalog.properties)


def _set_session_timeouts(session: Session, properties: Mapping[str, Any]) -> None:
    if not isinstance(session.request, partial):  # already set
        session.request = partial(session.request, timeout=_timeouts(properties))  # type: ignore[method-assign]


def _set_token_timeouts(session: Session, properties: Mapping[str, Any]) -> None:
    manager = session.auth.auth_manager if isinstance(session.auth, AuthManagerAdapter) else None
    if isinstance(manager, OAuth2AuthManager) and not isinstance(manager.token_provider, TimeoutTokenProvider):
        arguments = _constructor_arguments(manager.token_provider)
        manager.token_provider = TimeoutTokenProvider(_timeouts(properties), *arguments)


class TimeoutTokenProvider(OAuth2TokenProvider):
    """PyIceberg's token provider with timeouts; pickled into tasks, it requests its own tokens there."""

    def __init__(self, timeouts: tuple[float, float], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._timeouts = timeouts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._timeouts, *_constructor_arguments(self))

    def _refresh_token(self) -> None:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        headers = {"Authorization": self._client_secret_header}
        response = requests.post(self.token_url, data=form, headers=headers, timeout=self._timeouts)
        response.raise_for_status()
        try:
            body = response.json()
        except ValueError:
            body = None
        # An OAuthError means that nothing is wrong with the table, and that a commit was never sent.
        if not isinstance(body, dict) or not isinstance(body.get("access_token"), str):
            raise OAuthError("the OAuth2 endpoint (token_url) returned no access_token")
        # Some servers send expires_in as text, some leave it out.
        expires_in: Any = self.expires_in if body.get("expires_in") is None else body["expires_in"]
        try:
            seconds = int(expires_in)
        except (TypeError, ValueError, OverflowError):
            raise OAuthError(
                "the OAuth2 endpoint (token_url) returned no valid expires_in: set it in the auth configuration"
            ) from None
        remember({"token": body["access_token"]})
        self._token = body["access_token"]
        self._expires_at = int(time.monotonic()) + seconds - self.refresh_margin


def _constructor_arguments(provider: OAuth2TokenProvider) -> tuple[Any, ...]:
    credentials = provider.client_id, provider.client_secret, provider.token_url, provider.scope
    return *credentials, provider.refresh_margin, provider.expires_in


def _timeouts(properties: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds to connect and to read, as ``requests`` takes them."""
    return _seconds(properties, CONNECTION_TIMEOUT), _seconds(properties, SOCKET_TIMEOUT)


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    value = properties.get(name, DEFAULTS[name])
    try:
        milliseconds = int(value)
    except (TypeError, ValueError):
        milliseconds = 0
    if milliseconds <= 0:
        raise InvalidOptionError(f"{name} is {value!r}; write milliseconds, such as {DEFAULTS[name]}")
    return milliseconds / 1000
