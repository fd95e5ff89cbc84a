"""Compiled kernels are optional: a missing one is logged once, a disabled one not at all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from floeplan import kernels
from floeplan.kernels import load_kernel

pytestmark = pytest.mark.unit

KERNELS = (
    "floeplan.metadata.avro._avro_decode",
    "floeplan.metadata.avro._avro_encode",
    "floeplan.parquet.footer._thrift",
    "floeplan.parquet.pages._flat_columns",
    "floeplan.parquet.pages._page_values",
    "floeplan.parquet.pages._neighbours",
)
WITHOUT_KERNELS = f"""
import sys
for name in {KERNELS}:
    sys.modules[name] = None  # importing it raises ImportError
import floeplan.metadata.avro.decoder, floeplan.metadata.avro.encoder
import floeplan.parquet.footer.thrift, floeplan.parquet.pages.data_pages, floeplan.parquet.pages.zstd
print(floeplan.metadata.avro.decoder.DECODER.__module__, floeplan.parquet.pages.data_pages.kernel)
"""


@pytest.fixture(autouse=True)
def _nothing_logged_yet() -> Iterator[None]:
    kernels._log_missing.cache_clear()
    yield
    kernels._log_missing.cache_clear()


def test_every_kernel_is_built() -> None:
    assert all(load_kernel(name, pure_python=False).__name__ == name for name in KERNELS)


def test_a_missing_kernel_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("floeplan._absent", "floeplan._absent_too", "floeplan._absent"):
        assert load_kernel(name, pure_python=False) is None
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("floeplan", logging.WARNING)
    assert "slower pure-Python code runs instead" in record.message


def test_a_disabled_kernel_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert load_kernel("floeplan._absent", pure_python=True) is None
    assert load_kernel(KERNELS[0], pure_python=True) is None
    assert caplog.records == []


@pytest.mark.parametrize(("disabled", "warnings"), [("0", 1), ("1", 0)])
def test_an_installation_without_kernels_warns_once_per_process(disabled: str, warnings: int) -> None:
    environment = os.environ | {"FLOEPLAN_PURE_PYTHON": disabled}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERNELS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["floeplan.metadata.avro._avro_fallback", "None"]
    assert done.stderr.count("compiled kernels are not available") == warnings
