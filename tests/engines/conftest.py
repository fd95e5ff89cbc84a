"""Fixtures shared by tests with other engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.oracles.duckdb_reader import DuckDb


@pytest.fixture(scope="session")
def duckdb() -> Iterator[DuckDb]:
    """DuckDB as an oracle for tables."""
    reader = DuckDb()
    yield reader
    reader.close()
