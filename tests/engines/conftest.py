"""Fixtures shared by tests with other engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.oracles.duckdb_reader import DuckDb
from tests.support.tree_judge import TreeJudge


@pytest.fixture(scope="session")
def duckdb() -> Iterator[DuckDb]:
    """DuckDB as an oracle for tables."""
    reader = DuckDb()
    yield reader
    reader.close()


@pytest.fixture(scope="session")
def tree_judge() -> Iterator[TreeJudge]:
    """Iceberg Java's reader of v4 manifests."""
    judge = TreeJudge()
    yield judge
    judge.close()
