"""How long a REST catalog is waited for: PyIceberg's client waits for ever when nothing else is said.

Rule: a request that does not say how long it waits itself waits as the catalog's properties say, under the names that
Iceberg's Java client has for them: ``rest.client.connection-timeout-ms`` until somebody accepts the connection, and
``rest.client.socket-timeout-ms`` for each further piece of the answer.

Fail-safe: a commit that is not answered in time is no refusal. Its outcome is unknown until the table was asked
(``transaction.exchange``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from floeplan.errors import InvalidOptionError

CONNECTION_TIMEOUT, SOCKET_TIMEOUT = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
DEFAULTS = {CONNECTION_TIMEOUT: 10_000, SOCKET_TIMEOUT: 60_000}
"""A catalog that takes longer than this for a commit has most likely lost it."""


class WaitingRestCatalog(RestCatalog):
    """PyIceberg's, whose every request has an end, those by which it is opened included."""

    def _config_headers(self, session: Session) -> None:
        """Called for each session before anything is sent."""
        _limit(session, self.properties)
        super()._config_headers(session)


def limit_waiting(catalog: Catalog) -> None:
    """Let a catalog that was opened elsewhere wait no longer than its properties say."""
    session = getattr(catalog, "_session", None)
    if isinstance(session, Session):
        _limit(session, catalog.properties)


def _limit(session: Session, properties: Mapping[str, Any]) -> None:
    if not isinstance(session.request, partial):
        waits = _seconds(properties, CONNECTION_TIMEOUT), _seconds(properties, SOCKET_TIMEOUT)
        session.request = partial(session.request, timeout=waits)  # type: ignore[method-assign]


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    told = properties.get(name, DEFAULTS[name])
    try:
        milliseconds = int(told)
    except (TypeError, ValueError):
        milliseconds = 0
    if milliseconds <= 0:
        raise InvalidOptionError(f"{name} is {told!r}; write milliseconds, such as {DEFAULTS[name]}")
    return milliseconds / 1000
