"""The public API changes only on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

import floeplan
from scripts.api_snapshot import snapshot

pytestmark = pytest.mark.unit

EXPECTED = Path(__file__).with_name("public_api.txt")


def test_the_public_api_is_the_one_checked_in() -> None:
    assert snapshot() == EXPECTED.read_text(), "if intended, run `make api-snapshot` and commit the result"


def test_everything_exported_is_there_once() -> None:
    assert len(set(floeplan.__all__)) == len(floeplan.__all__)
    assert all(hasattr(floeplan, name) for name in floeplan.__all__)
    assert set(floeplan.__all__) <= set(dir(floeplan))
