"""Environments of their own, for packages that the tests run but that Floeplan's environment does not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.documents import ROOT

BIN = Path(sys.executable).parent


def uv() -> str:
    """The path of uv."""
    found = shutil.which("uv", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    assert found is not None
    return found


def environment(*packages: str) -> Path:
    """The ``bin`` folder of an environment with packages; kept in the cache, under the name of the first one."""
    folder = ROOT / ".cache" / "environments" / packages[0]
    if not (folder / "installed").exists():
        subprocess.run([uv(), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        install = [uv(), "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *packages]
        subprocess.run(install, check=True)
        (folder / "installed").touch()
    return folder / "bin"
