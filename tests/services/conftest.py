"""Catalogs and stores that the tests of services share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.servers import Places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Every combination of a catalog with a store; servers start on first use."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with ExitStack() as started:
        yield Places(tmp_path_factory.mktemp("places"), started)
