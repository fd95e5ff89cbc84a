"""Supported Spark session URLs."""

from __future__ import annotations

import sys

import pytest

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.spark.session import open_session

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("url", ["", "http://host", "localhost:7077"])
def test_url_of_no_kind_names_the_kinds(url: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"use local\[\*\], spark://host:port or sc://host:port"):
        open_session(url)


def test_without_pyspark_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UnsupportedError, match=r"install floeplan\[spark\]"):
        open_session("local[1]")
