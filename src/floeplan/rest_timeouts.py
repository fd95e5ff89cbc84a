"""How long a REST catalog is waited for: PyIceberg's client waits for ever when nothing else is said.

Rule: a request that does not say how long it waits itself waits as the catalog's properties say, under the names that
Iceberg's Java client has for them: ``rest.client.connection-timeout-ms`` until somebody accepts the connection, and
``rest.client.socket-timeout-ms`` for each further piece of the answer. So do the requests for tokens of PyIceberg's
OAuth2 manager, which go past the catalog's session. Google's and Microsoft's clients have limits of their own.

Fail-safe: a commit that is not answered in time is no refusal. Its outcome is unknown until the table was asked
(``transaction.exchange``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManagerAdapter, OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.exceptions import OAuthError
from requests import Session

from floeplan.errors import InvalidOptionError
from floeplan.redact import remember

CONNECTION_TIMEOUT, SOCKET_TIMEOUT = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
DEFAULTS = {CONNECTION_TIMEOUT: 10_000, SOCKET_TIMEOUT: 60_000}
"""A catalog that takes longer than this for a commit has most likely lost it."""


class WaitingRestCatalog(RestCatalog):
    """PyIceberg's, whose every request has an end, those by which it is opened included."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        _limit_tokens(session, self.properties)
        return session

    def _config_headers(self, session: Session) -> None:
        """Called for each session before anything is sent."""
        _limit(session, self.properties)
        super()._config_headers(session)


def limit_waiting(catalog: Catalog) -> None:
    """Let a catalog that was opened elsewhere wait no longer than its properties say."""
    session = getattr(catalog, "_session", None)
    if isinstance(session, Session):
        _limit(session, catalog.properties)
        _limit_tokens(session, catalog.properties)


def _limit(session: Session, properties: Mapping[str, Any]) -> None:
    if not isinstance(session.request, partial):
        session.request = partial(session.request, timeout=_waits(properties))  # type: ignore[method-assign]


def _limit_tokens(session: Session, properties: Mapping[str, Any]) -> None:
    manager = session.auth.auth_manager if isinstance(session.auth, AuthManagerAdapter) else None
    if isinstance(manager, OAuth2AuthManager) and not isinstance(manager.token_provider, WaitingTokenProvider):
        manager.token_provider = WaitingTokenProvider(_waits(properties), *_told(manager.token_provider))


class WaitingTokenProvider(OAuth2TokenProvider):
    """PyIceberg's, whose requests have an end; it can be sent to tasks, which then ask for tokens of their own."""

    def __init__(self, waits: tuple[float, float], *told: Any) -> None:
        super().__init__(*told)
        self._waits = waits

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._waits, *_told(self))

    def _refresh_token(self) -> None:
        asked = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        header = {"Authorization": self._client_secret_header}
        answer = requests.post(self.token_url, data=asked, headers=header, timeout=self._waits)
        answer.raise_for_status()
        token, lasts = _token_of(answer, self.expires_in)
        remember({"token": token})
        self._token, self._expires_at = token, int(time.monotonic()) + lasts - self.refresh_margin


def _token_of(answer: requests.Response, lasts: int | None) -> tuple[str, int]:
    """The token in an answer, and the seconds that it lasts: as the answer says, in digits or as a number, or these.

    Raises:
        OAuthError: There is none. Nothing is wrong with the table, and nobody knows of a commit that asked for it.
    """
    try:
        told = answer.json()
    except ValueError:
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("access_token"), str):
        raise OAuthError("the OAuth2 endpoint (token_url) returned no access_token")
    said: Any = lasts if told.get("expires_in") is None else told["expires_in"]
    try:
        return told["access_token"], int(said)
    except (TypeError, ValueError, OverflowError):
        raise OAuthError("the OAuth2 endpoint (token_url) returned no expires_in; set expires_in") from None


def _told(provider: OAuth2TokenProvider) -> tuple[Any, ...]:
    """What a provider was made with."""
    access = provider.client_id, provider.client_secret, provider.token_url, provider.scope
    return *access, provider.refresh_margin, provider.expires_in


def _waits(properties: Mapping[str, Any]) -> tuple[float, float]:
    return _seconds(properties, CONNECTION_TIMEOUT), _seconds(properties, SOCKET_TIMEOUT)


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    told = properties.get(name, DEFAULTS[name])
    try:
        milliseconds = int(told)
    except (TypeError, ValueError):
        milliseconds = 0
    if milliseconds <= 0:
        raise InvalidOptionError(f"{name} is {told!r}; write milliseconds, such as {DEFAULTS[name]}")
    return milliseconds / 1000
