"""Shipping to executors without the package: its zip, and its kernels if their interpreter can load them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import floeplan
from floeplan.kernels import KERNEL_SUFFIX
from floeplan.tasks import shipping

pytestmark = pytest.mark.unit


class Session(SimpleNamespace):
    """Records what is sent."""

    def __init__(self) -> None:
        super().__init__(sent=[])

    def addArtifacts(self, path: str, *, pyfile: bool = False, file: bool = False) -> None:  # noqa: N802
        self.sent.append((Path(path).name, pyfile, file))


def shipped(monkeypatch: pytest.MonkeyPatch, interpreter: str | None) -> list[tuple[str, bool, bool]]:
    monkeypatch.setattr(shipping, "_probe", lambda _: shipping._Probe("floeplan", interpreter))
    session: Any = Session()
    shipping.ship(session)
    assert session.sent[0] == ("floeplan.zip", True, False)
    return list(session.sent[1:])


def test_the_same_interpreter_gets_the_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = shipped(monkeypatch, shipping.INTERPRETER)
    assert (f"floeplan.metadata.avro._avro_decode{KERNEL_SUFFIX}", False, True) in sent
    assert len(sent) == len(list(Path(floeplan.__file__).parent.rglob("_*.pyx")))
    assert not caplog.records


@pytest.mark.parametrize("other", [".cpython-310-x86_64-linux-gnu.so on x86_64", None])
def test_another_interpreter_gets_none_which_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: str | None
) -> None:
    caplog.set_level(logging.WARNING)
    assert shipped(monkeypatch, other) == []
    (record,) = caplog.records
    assert "without compiled kernels, so slower Python code runs" in record.message
    assert (other or "an unknown Python") in record.message
    assert shipping.INTERPRETER in record.message


def test_an_installation_without_kernels_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archive = shipping._artifacts()[0]
    monkeypatch.setattr(shipping, "_artifacts", lambda: [archive])
    assert shipped(monkeypatch, shipping.INTERPRETER) == []
    assert "this installation has none" in caplog.text


def test_kernels_beside_the_zip_are_loaded() -> None:
    archive = shipping._artifacts()[0]
    program = (
        "import sys; sys.path = [p for p in sys.path if not p.endswith('/src')]; "
        f"sys.path.insert(0, {str(archive)!r}); import floeplan.parquet.footer.thrift as thrift; "
        "print(thrift.__file__); print(sys.modules['floeplan.parquet.footer._thrift'].__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=archive.parent, check=True
    )
    module, kernel = run.stdout.split()
    assert module.startswith(str(archive))
    assert kernel == str(archive.with_name(f"floeplan.parquet.footer._thrift{KERNEL_SUFFIX}"))
